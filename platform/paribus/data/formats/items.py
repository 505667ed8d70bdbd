"""Labelled items, one class a kind, and the JSON lines in which stages pass them on.

A file's reader is in the module of its family beside this one; builders.py makes items from a corpus, and
evaluate/metrics.py scores them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from paribus.data.formats.files import lines, save
from paribus.errors import DataError
from paribus.project import Source
from paribus.seeds import hold_out


@dataclass(frozen=True, slots=True)
class SentenceItem:
    """One sentence, one label. `id` is the index column, or else the row's number from 0."""

    id: str
    sentence: str
    label: str | None
    source: str = ""
    """CoLA's first column: the publication, or who built the item."""
    note: str = ""
    """CoLA's third column: the author's own mark ('*'), or the name of the change that a builder made."""
    kind: Literal["sentence"] = "sentence"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return self.sentence

    @property
    def gold(self) -> str | None:
        """What a prediction is compared with; None in a test set without labels."""
        return self.label


@dataclass(frozen=True, slots=True)
class PairItem:
    """Two sentences, one label. `id` is the index column."""

    id: str
    sentence1: str
    sentence2: str
    label: str | None
    group: str = ""
    """Items of one group are answers to one question: MultiRC's options, ReCoRD's entities. Else empty."""
    option: str = ""
    """The option by itself: MultiRC's answer, ReCoRD's entity. Else empty."""
    kind: Literal["pair"] = "pair"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.sentence1}\t{self.sentence2}"

    @property
    def gold(self) -> str | None:
        """What a prediction is compared with; None in a test set without labels."""
        return self.label


@dataclass(frozen=True, slots=True)
class RegressionItem:
    """Two sentences, one finite number. `id` is the index column."""

    id: str
    sentence1: str
    sentence2: str
    score: float | None
    kind: Literal["regression"] = "regression"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.sentence1}\t{self.sentence2}"

    @property
    def gold(self) -> float | None:
        """What a prediction is compared with."""
        return self.score


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SpanItem:
    """A question whose answer is a span of the context; several answers are alternatives. `id` is SQuAD's.

    SQuAD 2.0's unanswerable questions have none.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    kind: Literal["span-qa"] = "span-qa"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.question}\t{self.context}"

    @property
    def gold(self) -> tuple[str, ...]:
        """What a prediction is compared with: any one of the answers; without one, the empty answer is right."""
        return tuple(answer.text for answer in self.answers)


@dataclass(frozen=True, slots=True)
class TaggingItem:
    """A label for each word. `id` is the sentence's number, from 0."""

    id: str
    words: tuple[str, ...]
    labels: tuple[str, ...]
    kind: Literal["tagging"] = "tagging"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return " ".join(self.words)

    @property
    def gold(self) -> tuple[str, ...]:
        """What a prediction is compared with."""
        return self.labels


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """One of several options goes with context and question (either may be empty). `label` is its number, from 0."""

    id: str
    context: str
    question: str
    options: tuple[str, ...]
    label: int | None
    part: str = ""
    """A part of the set that is also reported by itself: RACE's middle and high."""
    kind: Literal["multiple-choice"] = "multiple-choice"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return "\t".join((self.context, self.question, *self.options))

    @property
    def gold(self) -> int | None:
        """What a prediction is compared with; None in a test set without labels."""
        return self.label


@dataclass(frozen=True, slots=True)
class MinimalPairItem:
    """Two sentences, of which the first is acceptable. Warstadt et al. 2020, arXiv:1912.00582."""

    id: str
    good: str
    bad: str
    paradigm: str
    phenomenon: str
    kind: Literal["minimal-pair"] = "minimal-pair"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.good}\t{self.bad}"

    @property
    def gold(self) -> str:
        """The sentence that should be preferred."""
        return self.good


Item = SentenceItem | PairItem | RegressionItem | SpanItem | TaggingItem | ChoiceItem | MinimalPairItem
ItemT = TypeVar("ItemT", bound=Item)


@dataclass(frozen=True, slots=True)
class Defect:
    """What is odd about a row, and where ("line 7", "question 56be4db0")."""

    place: str
    what: str
    left_out: bool = True
    """Whether the row cannot be read; else it is an item all the same."""

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


Row = Item | Defect
"""What readers give, in order; a defect of a row that is kept comes after it."""

_JSON: TypeAdapter[Item] = TypeAdapter(Annotated[Item, Field(discriminator="kind")])


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items as JSON lines, complete with ids and kinds."""
    save(path, "".join(_JSON.dump_json(item).decode() + "\n" for item in items))


def read_items(path: Path) -> list[Item]:
    """The items that `write_items` wrote."""
    items: list[Item] = []
    for number, line in lines(Source(path)):
        try:
            items.append(_JSON.validate_json(line))
        except ValidationError as error:
            raise DataError(f"{path}, line {number}: not an item ({error.errors()[0]['msg']})") from None
    return items


def split_select(items: Sequence[ItemT], share: float) -> tuple[list[ItemT], list[ItemT]]:
    """Split train items into (train, select), the latter about `share` of them.

    An item's side is a function of its content alone (of its group, where it has one: the answers to one question stay
    together): it never moves, and duplicates stay together. Raises DataError when a side would be empty.
    """
    train: list[ItemT] = []
    select: list[ItemT] = []
    for item in items:
        (select if hold_out(getattr(item, "group", "") or item.content, share) else train).append(item)
    if not train or not select:
        raise DataError(f"{len(items)} items are too few to hold out a share of {share} to choose on")
    return train, select
