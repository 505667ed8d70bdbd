"""Items to ids: [CLS] a [SEP] (b [SEP]), cut to length, with what a head needs to learn and what a prediction needs.

A span question becomes a feature a window of its passage, a multiple choice one an option; every other item is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paribus.data.formats import (
    ChoiceItem,
    Item,
    PairItem,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
)
from paribus.data.vocabulary import CLS, SEP, UNK, Encoded, Vocabulary
from paribus.spec.finetuning import Windows
from paribus.spec.task import Task

IGNORED = -100
LONGEST_OPTION = 128  # tokens of question and option; Liu et al. 2019, reference code for RACE


@dataclass(frozen=True, slots=True)
class Feature:
    """One input. `item` is the item's number; `second` is where the second segment begins, 0 without one.

    target: a label's number, a score, a label's number for each id (IGNORED where a word continues), the number of the
    right option, or (start, end) of the answer among `ids`, which is (0, 0), [CLS], where this window lacks it.
    option: which of the item's options this is.
    spans: for span questions, the characters of the passage behind each id from `second` on.
    widest: for span questions, whether no other window has more context around each of these.
    """

    ids: list[int]
    item: int
    second: int
    target: int | float | list[int] | tuple[int, int] | None
    option: int = 0
    spans: list[tuple[int, int]] | None = None
    widest: list[bool] | None = None


def features(
    task: Task, items: Sequence[Item], vocabulary: Vocabulary, length: int, windows: Windows | None = None
) -> list[Feature]:
    """The features of `items`, in order."""
    found: list[Feature] = []
    labels = {label: number for number, label in enumerate(getattr(task, "labels", ()))}
    for number, item in enumerate(items):
        match item:
            case SentenceItem():
                ids = vocabulary.encode(item.sentence).ids[: length - 2]
                found.append(Feature([CLS, *ids, SEP], number, 0, labels.get(item.label or "")))
            case PairItem():
                found.append(_pair(item, number, labels.get(item.label or ""), vocabulary, length))
            case RegressionItem():
                found.append(_pair(item, number, item.score, vocabulary, length))
            case TaggingItem():
                found.append(_tagged(item, number, labels, vocabulary, length))
            case ChoiceItem():
                found += _options(item, number, vocabulary, length)
            case SpanItem():
                found += _windows(item, number, vocabulary, length, windows or Windows())
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


def _options(item: ChoiceItem, number: int, vocabulary: Vocabulary, length: int) -> list[Feature]:
    """[CLS] context [SEP] question option [SEP] for each option; only the context is cut to the room that is left."""
    texts = [" ".join(filter(None, (item.question, option))) for option in item.options]
    context, *options = (encoded.ids for encoded in vocabulary.encode_all([item.context, *texts]))
    found = []
    for place, ids in enumerate(options):
        ids = ids[: min(LONGEST_OPTION, (length - 3) // 2)] if context else ids[: length - 2]
        first = [*context[: length - 3 - len(ids)], SEP] if context else []
        second = len(first) + 1 if first else 0
        found.append(Feature([CLS, *first, *ids, SEP], number, second, item.label, place))
    return found


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


def _windows(item: SpanItem, number: int, vocabulary: Vocabulary, length: int, asked: Windows) -> list[Feature]:
    """[CLS] question [SEP] window [SEP] for each window of the passage. Devlin et al. 2019, reference code."""
    question = vocabulary.encode(item.question).ids[: min(asked.question, (length - 3) // 2)]
    passage = vocabulary.encode(item.context)
    room = length - 3 - len(question)
    second = len(question) + 2
    answer = _answer_tokens(item, passage)
    step = min(asked.stride, max(1, room // 2))
    starts = [0]
    while starts[-1] + room < len(passage.ids):
        starts.append(starts[-1] + step)
    widest = _widest_contexts(starts, room, len(passage.ids))
    found = []
    for window, first in enumerate(starts):
        ids, spans = passage.ids[first : first + room], passage.spans[first : first + room]
        target = (0, 0)
        if answer and first <= answer[0] and answer[1] < first + room:
            target = (second + answer[0] - first, second + answer[1] - first)
        most = [widest[first + place] == window for place in range(len(ids))]
        found.append(Feature([CLS, *question, SEP, *ids, SEP], number, second, target, 0, spans, most))
    return found


def _answer_tokens(item: SpanItem, passage: Encoded) -> tuple[int, int] | None:
    """The first and last piece of the first answer; None without one."""
    if not item.answers:
        return None
    answer = item.answers[0]
    inside = [
        place
        for place, (start, end) in enumerate(passage.spans)
        if start < answer.start + len(answer.text) and end > answer.start
    ]
    return (inside[0], inside[-1]) if inside else None


def _widest_contexts(starts: Sequence[int], room: int, tokens: int) -> list[int]:
    """For each token of a passage the window with most context around it: the smaller side counts, then the length."""
    best = [(-1.0, 0)] * tokens
    for window, first in enumerate(starts):
        end = min(first + room, tokens)
        for place in range(first, end):
            context = min(place - first, end - 1 - place) + 0.01 * (end - first)
            if context > best[place][0]:
                best[place] = (context, window)
    return [window for _, window in best]
