"""Items to ids: [CLS] a [SEP] (b [SEP]), cut to length, with what a head needs to learn and what a prediction needs.

    stage folder: train.npz, select.npz, dev.npz

A span question becomes a feature a window of its passage, a multiple choice one an option; every other item is one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paribus.data.formats import (
    ChoiceItem,
    Item,
    PairItem,
    RegressionItem,
    SentenceItem,
    SpanItem,
    TaggingItem,
    read_items,
)
from paribus.data.vocabulary import CLS, SEP, UNK, Encoded, Vocabulary
from paribus.evaluate.metrics import bio
from paribus.plan.stages import Tokenised
from paribus.spec.finetuning import Windows
from paribus.spec.task import SpanQa, Tagging, Task

IGNORED = -100
SPLITS = ("train", "select", "dev")
LISTS = ("ids", "target", "spans", "widest")
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
    spans: Sequence[tuple[int, int]] | None = None
    widest: list[bool] | None = None


def make(asked: Tokenised, vocabulary: Vocabulary, task_folder: Path, out: Path) -> dict[str, int]:
    """Write the features of every split of a task's folder; returns how many each has."""
    counts = {}
    for split in SPLITS:
        first = asked.train_items if split == "train" else None
        items = items_of(asked.task, task_folder, split, first)
        found = features(asked.task, items, vocabulary, asked.length, asked.windows)
        _save(found, out / f"{split}.npz")
        counts[split] = len(found)
    return counts


def items_of(task: Task, task_folder: Path, split: str, first: int | None) -> list[Item]:
    """The items of a split, or the `first` of them; entities as BIO, whatever the files' own scheme."""
    items = read_items(task_folder / f"{split}.jsonl")[:first]
    if isinstance(task, Tagging) and any(label.startswith("B-") for label in task.labels):
        items = [replace(item, labels=tuple(bio(item.labels))) for item in items if isinstance(item, TaggingItem)]
    return items


def _save(found: Sequence[Feature], path: Path) -> None:
    """Each field an array; of those that hold lists, the lists end to end and how long each is."""
    arrays: dict[str, Any] = {
        name: np.array([getattr(feature, name) for feature in found]) for name in ("item", "second", "option")
    }
    for name in LISTS:
        values = [getattr(feature, name) for feature in found]
        lists = [[] if value is None else value if isinstance(value, list | tuple) else [value] for value in values]
        flat = np.array([value for values in lists for value in values])
        arrays[name] = flat.astype(np.int32) if flat.dtype == np.int64 else flat
        arrays[f"{name}_lengths"] = np.array([len(values) for values in lists])
    np.savez(path, **arrays)


def load(folder: Path, split: str, task: Task) -> list[Feature]:
    """The features of a split in a finished stage."""
    with np.load(folder / f"{split}.npz") as arrays:
        ids, targets, spans, widest = (_lists(arrays[name], arrays[f"{name}_lengths"]) for name in LISTS)
        item, second, option = (arrays[name].tolist() for name in ("item", "second", "option"))
    if not isinstance(task, Tagging):
        targets = [tuple(t) if isinstance(task, SpanQa) else t[0] if t else None for t in targets]
    if not isinstance(task, SpanQa):
        return [Feature(*fields) for fields in zip(ids, item, second, targets, option, strict=True)]
    return [Feature(*fields) for fields in zip(ids, item, second, targets, option, spans, widest, strict=True)]


def _lists(values: Any, lengths: Any) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    flat = values if values.ndim == 2 else values.tolist()  # spans stay an array: millions of pairs take seconds
    return [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]


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
    """Both sides, the longer one cut first, of equal ones the second. Devlin et al. 2019, run_classifier.py."""
    a, b = (encoded.ids for encoded in vocabulary.encode_all([item.sentence1, item.sentence2]))
    room = length - 3
    keep_a = max(room - len(b), min(len(a), room - room // 2))
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
