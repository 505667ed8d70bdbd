"""Tasks made from any corpus, with gold labels by construction: acceptability, minimal pairs, order, cloze, truecasing.

Every draw is a function of the key and of the text it is about: an item is the same whatever other documents there
are, and asking for more items keeps the ones there were.  Lists of words are English.  The files' formats are in
formats.py; which documents are train and which dev is the caller's to say.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeVar

from paribus.data.document import Document
from paribus.data.formats import Answer, Item, MinimalPairItem, PairItem, SentenceItem, SpanItem, TaggingItem
from paribus.errors import DataError, SpecError
from paribus.seeds import seed_for
from paribus.spec.task import Built, MinimalPairs, Pair, Sentence, SpanQa, Tagging, Task

WORDS = range(8, 41)
"""Words (separated by blanks) of a sentence that items are made of: no headings, no lists."""
PASSAGE_SENTENCES = 12
"""A longer paragraph is cut, so that a corpus without paragraphs gives passages of readable length too."""
PAIR_WORDS = range(WORDS.start, 21)
"""Words of a sentence of a minimal pair: the cost of scoring grows with their square; BLiMP's are shorter still."""
BLANK = "_____"

T = TypeVar("T", bound=Hashable)
Edit = tuple[int, int, list[str]]
"""words[first:last] become these words."""

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_TOKEN = re.compile(rf"{_WORD.pattern}|[^\w\s]")

# Dropping "the", "that", "not" or a modal mostly leaves a good sentence, so they are not here.
_FUNCTION_WORDS = frozenset("a an and are as at be by for from in is of on to was were with".split())
_AGREEMENT = {"is": "are", "was": "were", "has": "have", "this": "these"}
_AGREEMENT |= {plural: singular for singular, plural in _AGREEMENT.items()}

# Frequent words of four letters and more that say little about what a sentence is about.
_STOP_WORDS = frozenset(
    """about above after again against all almost already also although always among and another any because been
    before being below between both cannot could does doing down during each either ever every from further had has
    have having here hers herself himself however into itself just less many might more most much must myself neither
    never nevertheless nor only other others ought ours ourselves over rather same shall should since some such than
    that their theirs them themselves then there thereby therefore these they this those though through throughout thus
    toward towards under until upon very well were what whatever when where whereas whether which while whom whose will
    with within without would your yours yourself yourselves""".split()
)


class Builder(NamedTuple):
    """What a builder makes: the kind of task, its labels, and its items in drawn order."""

    kind: type[Task]
    labels: tuple[str, ...]
    make: Callable[[Iterable[Document], int], Iterator[Item]]


def build(task: Task, documents: Iterable[Document], count: int, key: int) -> list[Item]:
    """`count` items of `task`, whose data is Built, from the documents of one split; labels in equal parts.

    Tagging keeps the labels as they fall. `key` is from `seeds.seed_for`. Raises SpecError if the task's kind or
    labels are not the builder's, DataError if the documents give fewer items.
    """
    assert isinstance(task.data, Built)
    name = task.data.builder
    builder = BUILDERS[name]
    labels = getattr(task, "labels", ())
    if not isinstance(task, builder.kind) or labels != builder.labels:
        raise SpecError(
            f"task {task.name}: builder {name} makes items of kind {builder.kind.model_fields['kind'].default!r} "
            f"with labels {list(builder.labels)}, found kind {task.kind!r} with labels {list(labels)}"
        )
    items: list[Item] = []
    taken: Counter[str] = Counter()
    # Sentence and pair items fill one part a label, minimal pairs one a paradigm; the others are one part.
    parts = builder.labels if builder.kind in (Sentence, Pair) else ("",)
    if builder.kind is MinimalPairs:
        parts = tuple(CHANGES)
    room = {part: (count + place) // len(parts) for place, part in enumerate(parts)}
    for item in builder.make(documents, seed_for(key, name)):
        match item:
            case SentenceItem() | PairItem():
                part = item.label or ""
            case MinimalPairItem():
                part = item.paradigm
            case _:
                part = ""
        if taken[part] < room[part]:
            taken[part] += 1
            items.append(replace(item, id=str(len(items))))
            if len(items) == count:
                return items
    possible = len(parts) * min(taken[part] for part in parts)
    raise DataError(
        f"task {task.name}: {count} items are asked for, builder {name} can make {possible} of these documents; "
        "ask for fewer (data.train, data.dev) or give a larger corpus"
    )


def content_words(text: str) -> list[re.Match[str]]:
    """The words of four letters and more that carry content, with their places."""
    return [
        word
        for word in _WORD.finditer(text)
        if len(word[0]) >= 4 and word[0].isalpha() and word[0].lower() not in _STOP_WORDS
    ]


def _drawn(candidates: Iterable[T], key: int) -> list[T]:
    """The different candidates, in an order that their content and the key alone decide."""
    return sorted(dict.fromkeys(candidates), key=lambda candidate: seed_for(key, candidate))


def _sentence(text: str) -> str:
    """`text` with single blanks between its words."""
    return " ".join(text.split())


def _sentences(documents: Iterable[Document]) -> Iterator[str]:
    """The sentences of a length in WORDS."""
    for document in documents:
        for sentence in document.sentences:
            if len(sentence.split()) in WORDS:
                yield _sentence(sentence)


# --- acceptability --------------------------------------------------------------------------------------------------


def _acceptability(documents: Iterable[Document], key: int) -> Iterator[SentenceItem]:
    """A sentence as it is ("1"), or with one change ("0") whose name is the item's note.

    A few of the changed sentences are acceptable all the same. Both labels draw from the same sentences: those that
    can be changed.
    """
    for sentence in _drawn(_sentences(documents), key):
        changed = _changed(sentence, key)
        if changed is None:
            continue
        if seed_for(key, "label", sentence) % 2:
            yield SentenceItem("", sentence, "1", "built")
        else:
            yield SentenceItem("", changed[1], "0", "built", changed[0])


def _changed(sentence: str, key: int) -> tuple[str, str] | None:
    """The name of a change and the sentence after it; None if nothing in it can be changed."""
    for name in sorted(CHANGES, key=lambda name: seed_for(key, "change", name, sentence)):
        if changed := _edited(sentence, name, key):
            return name, changed
    return None


def _edited(sentence: str, name: str, key: int) -> str | None:
    """`sentence` after a change; None if nothing in it can be changed so."""
    words = sentence.split()
    edits = CHANGES[name](words)
    if not edits:
        return None
    first, last, new = edits[seed_for(key, "place", name, sentence) % len(edits)]
    return " ".join(words[:first] + new + words[last:])


def _plain(words: list[str], first: int, last: int) -> bool:
    """Whether words[first:last] are letters only, so that moving one moves no punctuation, and not the first word."""
    return 0 < first and last <= len(words) and all(word.isalpha() for word in words[first:last])


def _swap(words: list[str]) -> list[Edit]:
    return [
        (i, i + 2, [words[i + 1], words[i]])
        for i in range(len(words))
        if _plain(words, i, i + 2) and words[i] != words[i + 1]
    ]


def _drop(words: list[str]) -> list[Edit]:
    # After a comma ("men, and women") the word may go; so only after a word.
    return [(i, i + 1, []) for i in range(1, len(words)) if words[i] in _FUNCTION_WORDS and words[i - 1].isalpha()]


def _double(words: list[str]) -> list[Edit]:
    return [(i, i, [words[i]]) for i in range(1, len(words)) if words[i] in _FUNCTION_WORDS | {"the"}]


def _agree(words: list[str]) -> list[Edit]:
    return [(i, i + 1, [_AGREEMENT[words[i]]]) for i in range(1, len(words)) if words[i] in _AGREEMENT]


def _shuffle(words: list[str]) -> list[Edit]:
    """Three neighbours in another order that is no swap of two neighbours."""
    return [
        (i, i + 3, [words[i + j] for j in order])
        for i in range(len(words))
        if _plain(words, i, i + 3) and len(set(words[i : i + 3])) == 3
        for order in ((1, 2, 0), (2, 0, 1), (2, 1, 0))
    ]


def _stray(words: list[str]) -> list[Edit]:
    # Before a noun "of" is often right; before one of these it hardly is.
    return [
        (i, i, ["of"])
        for i in range(1, len(words))
        if words[i] in _FUNCTION_WORDS - {"a", "an", "of"} and words[i - 1] != "of"
    ]


CHANGES: dict[str, Callable[[list[str]], list[Edit]]] = {
    "swap": _swap,
    "drop": _drop,
    "double": _double,
    "agreement": _agree,
    "shuffle": _shuffle,
    "stray-of": _stray,
}
"""Every edit of a kind that a sentence allows. None touches the first word, whose capital would give it away."""


PHENOMENA = {
    "swap": "word_order",
    "shuffle": "word_order",
    "drop": "function_words",
    "double": "function_words",
    "stray-of": "function_words",
    "agreement": "agreement",
}


def _minimal_pairs(documents: Iterable[Document], key: int) -> Iterator[MinimalPairItem]:
    """A sentence as it is, and with one change, whose name is the paradigm: each change that the sentence allows.

    A few of the changed sentences are acceptable all the same.
    """
    for sentence in _drawn(_sentences(documents), key):
        if len(sentence.split()) in PAIR_WORDS:
            for name, phenomenon in PHENOMENA.items():
                if bad := _edited(sentence, name, key):
                    yield MinimalPairItem("", sentence, bad, name, phenomenon)


# --- order ----------------------------------------------------------------------------------------------------------


def _order(documents: Iterable[Document], key: int) -> Iterator[PairItem]:
    """Two neighbouring sentences of a paragraph. Lan et al. 2020, arXiv:1909.11942, section 3.1, with sentences."""
    for first, second in _drawn(_neighbours(documents), key):
        if seed_for(key, "label", first, second) % 2:
            yield PairItem("", first, second, "in-order")
        else:
            yield PairItem("", second, first, "swapped")


def _neighbours(documents: Iterable[Document]) -> Iterator[tuple[str, str]]:
    for document in documents:
        for paragraph in document.paragraphs:
            for first, second in zip(paragraph, paragraph[1:], strict=False):
                if len(first.split()) in WORDS and len(second.split()) in WORDS and first != second:
                    yield _sentence(first), _sentence(second)


# --- cloze ----------------------------------------------------------------------------------------------------------


def _cloze(documents: Iterable[Document], key: int) -> Iterator[SpanItem]:
    """A sentence with a content word blanked; the other sentences of its paragraph hold the word exactly once."""
    for passage, place in _drawn(_places(documents), key):
        sentence, context = passage[place], " ".join((*passage[:place], *passage[place + 1 :]))
        if len(context.split()) < WORDS.start:
            continue
        inside = Counter(word[0].lower() for word in _WORD.finditer(sentence))
        outside = Counter(word[0].lower() for word in _WORD.finditer(context))
        # Once, in any case: the answers are compared in lower case.
        once = {
            word[0]: word.start()
            for word in _WORD.finditer(context)
            if outside[word[0].lower()] == inside[word[0].lower()] == 1
        }
        if words := [word for word in content_words(sentence) if word[0] in once]:
            word = words[seed_for(key, "answer", passage, place) % len(words)]
            question = sentence[: word.start()] + BLANK + sentence[word.end() :]
            yield SpanItem("", question, context, (Answer(word[0], once[word[0]]),))


def _places(documents: Iterable[Document]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each passage with the place of each sentence that may become its question."""
    for document in documents:
        for paragraph in document.paragraphs:
            for start in range(0, len(paragraph), PASSAGE_SENTENCES):
                passage = tuple(map(_sentence, paragraph[start : start + PASSAGE_SENTENCES]))
                for place, sentence in enumerate(passage):
                    if len(sentence.split()) in WORDS:
                        yield passage, place


# --- truecasing -----------------------------------------------------------------------------------------------------


def _truecasing(documents: Iterable[Document], key: int) -> Iterator[TaggingItem]:
    """Lower-cased tokens, CAP where a token had a capital. Lita et al. 2003, P03-1020, as token tagging.

    The first word is left out, whose capital says nothing, and so are sentences without a capital or all in capitals.
    """
    for sentence in _drawn(_sentences(documents), key):
        first = _WORD.search(sentence)
        tokens = _TOKEN.findall(sentence, first.end()) if first else []
        labels = tuple("O" if token == token.lower() else "CAP" for token in tokens)
        if "CAP" in labels and not sentence.isupper():
            yield TaggingItem("", tuple(token.lower() for token in tokens), labels)


BUILDERS = {
    "acceptability": Builder(Sentence, ("0", "1"), _acceptability),
    "minimal-pairs": Builder(MinimalPairs, (), _minimal_pairs),
    "order": Builder(Pair, ("swapped", "in-order"), _order),
    "cloze": Builder(SpanQa, (), _cloze),
    "truecasing": Builder(Tagging, ("O", "CAP"), _truecasing),
}
