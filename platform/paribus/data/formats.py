"""Labelled items and the files they come in: CoLA's TSV, pair and regression TSV, SQuAD 1.1's JSON, CoNLL columns.

Stages pass items on as JSON lines (`write_items`, `read_items`).  Items are made from a corpus in builders.py and
scored in evaluate/metrics.py.
"""

import gzip
import json
import logging
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from paribus.errors import DataError
from paribus.seeds import hold_out
from paribus.spec.task import Pair, Regression, Sentence, SpanQa, Tagging, Task

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SentenceItem:
    """One sentence, one label. `id` is the row's number, from 0."""

    id: str
    sentence: str
    label: str
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
    def gold(self) -> str:
        """What a prediction is compared with."""
        return self.label


@dataclass(frozen=True, slots=True)
class PairItem:
    """Two sentences, one label. `id` is the index column."""

    id: str
    sentence1: str
    sentence2: str
    label: str
    kind: Literal["pair"] = "pair"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.sentence1}\t{self.sentence2}"

    @property
    def gold(self) -> str:
        """What a prediction is compared with."""
        return self.label


@dataclass(frozen=True, slots=True)
class RegressionItem:
    """Two sentences, one finite number. `id` is the index column."""

    id: str
    sentence1: str
    sentence2: str
    score: float
    kind: Literal["regression"] = "regression"

    @property
    def content(self) -> str:
        """What the model reads. Items of equal content are duplicates."""
        return f"{self.sentence1}\t{self.sentence2}"

    @property
    def gold(self) -> float:
        """What a prediction is compared with."""
        return self.score


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: `context[start : start + len(text)] == text`, in characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class SpanItem:
    """A question whose answer is a span of the context; several answers are alternatives. `id` is SQuAD's."""

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
        """What a prediction is compared with: any one of the answers."""
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


Item = SentenceItem | PairItem | RegressionItem | SpanItem | TaggingItem
ItemT = TypeVar("ItemT", bound=Item)

_JSON: TypeAdapter[Item] = TypeAdapter(Annotated[Item, Field(discriminator="kind")])

_HEADERS = {"pair": "index\tsentence1\tsentence2\tlabel\n", "regression": "index\tsentence1\tsentence2\tscore\n"}


def read(task: Task, path: Path) -> list[Item]:
    """The items of a file in the format of the task's kind; `.gz` is read as it is.

    Quotes are plain characters, and no string stands for a missing value. Raises DataError, with file and line, for a
    file that is not UTF-8, empty, cut short, or does not have the format's columns or the task's labels.
    """
    items: Iterable[Item]
    match task:
        case Sentence():
            items = _read_sentences(path, task.labels)
        case Pair():
            items = _read_pairs(path, task.labels)
        case Regression():
            items = _read_regression(path)
        case SpanQa():
            items = _read_squad(path)
        case Tagging():
            items = _read_conll(path, task.labels)
        case _:
            raise DataError(f"task {task.name}: kind {task.kind!r} has no file format")
    found: list[Item] = list(items)
    if not found:
        raise DataError(f"{path}: holds no items")
    return found


def write(path: Path, items: Sequence[Item]) -> None:
    """Write items of one kind in its standard format; `read` gives the same items back.

    In CoLA's TSV and CoNLL columns an item's id is its place in the file. Raises DataError for text that the format
    cannot hold (a tab or a line break in a TSV, any blank inside a CoNLL word).
    """
    if isinstance(items[0], SpanItem):
        _save(path, _squad(items))
    else:
        _save(path, _HEADERS.get(items[0].kind, "") + "".join(_rows(path, item) for item in items))


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write items as JSON lines, complete with ids and kinds."""
    _save(path, "".join(_JSON.dump_json(item).decode() + "\n" for item in items))


def read_items(path: Path) -> list[Item]:
    """The items that `write_items` wrote."""
    items: list[Item] = []
    for number, line in _lines(path):
        try:
            items.append(_JSON.validate_json(line))
        except ValidationError as error:
            raise DataError(f"{path}, line {number}: not an item ({error.errors()[0]['msg']})") from None
    return items


def split_select(items: Sequence[ItemT], share: float) -> tuple[list[ItemT], list[ItemT]]:
    """Split train items into (train, select), the latter about `share` of them.

    An item's side is a function of its content alone: it never moves, and duplicates stay together. Raises DataError
    when a side would be empty.
    """
    train: list[ItemT] = []
    select: list[ItemT] = []
    for item in items:
        (select if hold_out(item.content, share) else train).append(item)
    if not train or not select:
        raise DataError(f"{len(items)} items are too few to hold out a share of {share} to choose on")
    return train, select


# --- files ----------------------------------------------------------------------------------------------------------


def _save(path: Path, text: str) -> None:
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _text(path: Path) -> str:
    """The whole file, without a byte order mark."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is cut short or damaged ({error})") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}, line {line}: not UTF-8 (0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise DataError(f"{path}: the file is empty")
    return text


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1. Only a line feed ends one: text may hold Unicode's other breaks."""
    lines = _text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _checked(path: Path, number: int, label: str, labels: tuple[str, ...]) -> str:
    if label not in labels:
        raise DataError(f"{path}, line {number}: label {label!r} is not one of the task's: {', '.join(labels)}")
    return label


def _rows(path: Path, item: Item) -> str:
    """An item as the lines of a TSV or CoNLL file."""
    match item:
        case SentenceItem():
            return _row(path, (item.source, item.label, item.note, item.sentence), "\t")
        case PairItem():
            return _row(path, (item.id, item.sentence1, item.sentence2, item.label), "\t")
        case RegressionItem():
            return _row(path, (item.id, item.sentence1, item.sentence2, repr(item.score)), "\t")
        case TaggingItem():
            return "".join(_row(path, cells, " ") for cells in zip(item.words, item.labels, strict=True)) + "\n"
        case SpanItem():
            raise TypeError("span items are written together, by _squad")


def _row(path: Path, cells: tuple[str, ...], separator: str) -> str:
    for cell in cells:
        if re.search("[\t\n\r]", cell) or separator == " " and (not cell or " " in cell):
            raise DataError(f"{path}: {cell!r} cannot be written, a blank in it would look like the format's own")
    return separator.join(cells) + "\n"


# --- CoLA, pairs, regression ----------------------------------------------------------------------------------------


def _read_sentences(path: Path, labels: tuple[str, ...]) -> Iterator[SentenceItem]:
    """CoLA: source, label, the author's mark, sentence; no header. Warstadt et al. 2019, arXiv:1805.12471."""
    for number, line in _lines(path):
        cells = line.split("\t")
        if len(cells) != 4:
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns, expected 4 (source, label, mark, sentence), "
                "separated by tabs"
            )
        source, label, note, sentence = cells
        yield SentenceItem(str(number - 1), sentence, _checked(path, number, label, labels), source, note)


def _read_pairs(path: Path, labels: tuple[str, ...]) -> Iterator[PairItem]:
    for number, (index, sentence1, sentence2, label) in _table(path, "label"):
        yield PairItem(index, sentence1, sentence2, _checked(path, number, label, labels))


def _read_regression(path: Path) -> Iterator[RegressionItem]:
    for number, (index, sentence1, sentence2, score) in _table(path, "score"):
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{path}, line {number}: score {score!r} is not a finite number")
        yield RegressionItem(index, sentence1, sentence2, value)


def _table(path: Path, target: str) -> Iterator[tuple[int, list[str]]]:
    """Line number and (index, sentence1, sentence2, `target`) of each row, found by the header; others are skipped."""
    lines = _lines(path)
    header = next(lines)[1].split("\t")
    wanted = ("index", "sentence1", "sentence2", target)
    if missing := [name for name in wanted if name not in header]:
        raise DataError(f"{path}, line 1: no column {missing[0]!r}; needed {', '.join(wanted)}; found {header}")
    for number, line in lines:
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(f"{path}, line {number}: {len(cells)} columns, expected the header's {len(header)}")
        yield number, [cells[header.index(name)] for name in wanted]


# --- SQuAD ----------------------------------------------------------------------------------------------------------


def _read_squad(path: Path) -> Iterator[SpanItem]:
    """SQuAD 1.1: every question has an answer in its paragraph. Rajpurkar et al. 2016, arXiv:1606.05250."""
    repaired = 0
    try:
        paragraphs = [paragraph for article in json.loads(_text(path))["data"] for paragraph in article["paragraphs"]]
        for paragraph in paragraphs:
            context = paragraph["context"]
            for qa in paragraph["qas"]:
                if not qa["answers"]:
                    raise DataError(f"{path}: question {qa['id']} has no answer; SQuAD 1.1 answers every question")
                answers = []
                for given in (Answer(answer["text"], answer["answer_start"]) for answer in qa["answers"]):
                    found = _located(context, given)
                    if found is None:
                        there = context[max(given.start, 0) :][: len(given.text)]
                        raise DataError(
                            f"{path}: question {qa['id']}: answer {given.text!r} is not at {given.start}; "
                            f"there is {there!r}"
                        )
                    repaired += found != given
                    answers.append(found)
                yield SpanItem(qa["id"], qa["question"], context, tuple(answers))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}: not in SQuAD 1.1's format ({type(error).__name__}: {error})") from None
    if repaired:
        log.warning("%s: %d answers were off by white space and have been moved", path, repaired)


def _located(context: str, answer: Answer) -> Answer | None:
    """`answer` where it says it is, or moved over white space to where it is; None if it is not there."""
    if not answer.text.strip() or answer.start < 0:
        return None
    if context.startswith(answer.text, answer.start):
        return answer
    words = r"\s+".join(map(re.escape, answer.text.split()))
    found = re.compile(rf"\s*({words})").match(context, answer.start)
    return Answer(found[1], found.start(1)) if found else None


def _squad(items: Sequence[Item]) -> str:
    paragraphs = []
    spans = [item for item in items if isinstance(item, SpanItem)]
    for context, group in groupby(spans, key=lambda item: item.context):
        qas = [
            {
                "id": item.id,
                "question": item.question,
                "answers": [{"answer_start": answer.start, "text": answer.text} for answer in item.answers],
            }
            for item in group
        ]
        paragraphs.append({"context": context, "qas": qas})
    article = {"title": "", "paragraphs": paragraphs}
    return json.dumps({"version": "1.1", "data": [article]}, ensure_ascii=False) + "\n"


# --- CoNLL ----------------------------------------------------------------------------------------------------------


def _read_conll(path: Path, labels: tuple[str, ...]) -> Iterator[TaggingItem]:
    """A word a line, the label in the last column, a blank line after a sentence; -DOCSTART- lines are dropped.

    Tjong Kim Sang and De Meulder 2003, W03-0419. Labels stay in the file's scheme (IOB1 or BIO).
    """
    sentences = 0
    width = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in (*_lines(path), (0, "")):
        # Only tabs and spaces part columns; words of tab-separated files may hold spaces, and any word other blanks.
        bare = line.strip(" \t")
        cells = re.split("\t" if "\t" in bare else " +", bare)
        if bare and cells[0] != "-DOCSTART-":
            if len(cells) < 2 or width not in (0, len(cells)):
                expected = width or "at least 2 (word, label)"
                raise DataError(f"{path}, line {number}: {len(cells)} columns, expected {expected}")
            width = len(cells)
            words.append(cells[0])
            tags.append(_checked(path, number, cells[-1], labels))
        elif words:
            yield TaggingItem(str(sentences), tuple(words), tuple(tags))
            sentences += 1
            words, tags = [], []
