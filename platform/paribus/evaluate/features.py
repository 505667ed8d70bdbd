"""Items to ids: [CLS] a [SEP] (b [SEP]), cut to length, with what a head needs to learn and what a prediction needs.

A span question with a long passage becomes several features, windows that overlap by half; every other item is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.data.formats import Item, PairItem, RegressionItem, SentenceItem, SpanItem, TaggingItem
from paribus.data.vocabulary import CLS, SEP, UNK, Vocabulary
from paribus.spec.task import Task

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Feature:
    """One input. `item` is the item's number; `second` is where the second segment begins, 0 without one.

    target: a label's number, a score, (start, end) of the answer among `ids` or None where this window lacks it, or a
    label's number for each id (IGNORED where a word continues).
    spans: for span questions, the characters of the passage behind each id from `second` on.
    """

    ids: list[int]
    item: int
    second: int
    target: int | float | list[int] | tuple[int, int] | None
    spans: list[tuple[int, int]] | None = None


def features(task: Task, items: Sequence[Item], vocabulary: Vocabulary, length: int) -> list[Feature]:
    """The features of `items`, in order."""
    found: list[Feature] = []
    labels = {label: number for number, label in enumerate(getattr(task, "labels", ()))}
    for number, item in enumerate(items):
        match item:
            case SentenceItem():
                ids = vocabulary.encode(item.sentence).ids[: length - 2]
                found.append(Feature([CLS, *ids, SEP], number, 0, labels[item.label]))
            case PairItem():
                found.append(_pair(item, number, labels[item.label], vocabulary, length))
            case RegressionItem():
                found.append(_pair(item, number, item.score, vocabulary, length))
            case TaggingItem():
                found.append(_tagged(item, number, labels, vocabulary, length))
            case SpanItem():
                found += _windows(item, number, vocabulary, length)
    return found


def _pair(
    item: PairItem | RegressionItem, number: int, target: int | float | None, vocabulary: Vocabulary, length: int
) -> Feature:
    """Both sides, the longer one cut first."""
    a, b = (encoded.ids for encoded in vocabulary.encode_all([item.sentence1, item.sentence2]))
    room = length - 3
    keep_a = max(room - len(b), min(len(a), room // 2))
    a = a[:keep_a]
    b = b[: room - len(a)]
    return Feature([CLS, *a, SEP, *b, SEP], number, len(a) + 2, target)


def _tagged(item: TaggingItem, number: int, labels: dict[str, int], vocabulary: Vocabulary, length: int) -> Feature:
    """Only the first piece of a word is labelled. Devlin et al. 2019, arXiv:1810.04805, section 5.3."""
    ids, target = [CLS], [IGNORED]
    for word, label in zip(vocabulary.encode_all(item.words), item.labels, strict=True):
        pieces = word.ids or [UNK]  # a word of nothing but what the tokenizer drops still has a label
        if len(ids) + len(pieces) + 1 > length:
            break
        ids += pieces
        target += [labels[label], *([IGNORED] * (len(pieces) - 1))]
    return Feature([*ids, SEP], number, 0, [*target, IGNORED])


def _windows(item: SpanItem, number: int, vocabulary: Vocabulary, length: int) -> list[Feature]:
    """[CLS] question [SEP] window [SEP], windows of the passage that overlap; the question is cut to half the room."""
    question = vocabulary.encode(item.question).ids[: (length - 3) // 2]
    passage = vocabulary.encode(item.context)
    room = length - 3 - len(question)
    second = len(question) + 2
    answer = item.answers[0]
    inside = [
        place
        for place, (start, end) in enumerate(passage.spans)
        if start < answer.start + len(answer.text) and end > answer.start
    ]
    found = []
    for first in range(0, max(1, len(passage.ids) - room // 2), max(1, room // 2)):
        ids, spans = passage.ids[first : first + room], passage.spans[first : first + room]
        has = bool(inside) and first <= inside[0] and inside[-1] < first + room
        target = (second + inside[0] - first, second + inside[-1] - first) if has else None
        found.append(Feature([CLS, *question, SEP, *ids, SEP], number, second, target, spans))
    return found
