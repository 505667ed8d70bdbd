"""Metrics: pure functions of gold and predicted values, as fractions, and the constant answer they are printed beside.

scikit-learn and scipy are loaded where they are asked for: that takes a second or two, and evaluating a masked language
model by its loss needs neither.

Gold values are an item's `gold` (data/formats.py); predictions are labels, numbers, strings or label sequences alike.
"""

import re
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.data.builders import content_words
from paribus.data.formats import Item, PairItem, SpanItem
from paribus.errors import SpecError
from paribus.spec.task import Metric, MultipleChoice, Pair, Regression, Sentence, SpanQa, Tagging, Task

Labels = Sequence[str]
LabelSequences = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Options:
    """What pairs are that are answer options: the group of each, its text, and how likely it is thought."""

    groups: Sequence[str]
    texts: Sequence[str]
    likely: Sequence[float]

    def by_group(self) -> Mapping[str, list[int]]:
        """The numbers of each group's options."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            found[group].append(number)
        return found


def options(items: Sequence[Item], likely: Sequence[float]) -> Options | None:
    """The options among pairs, where they are grouped."""
    pairs = [item for item in items if isinstance(item, PairItem) and item.group]
    return Options([p.group for p in pairs], [p.option for p in pairs], likely) if pairs else None


def score(
    task: Task, metric: Metric, gold: Sequence[Any], predicted: Sequence[Any], of: Options | None = None
) -> float:
    """`metric` of the predictions, in [0, 1] (correlations and mcc: [-1, 1]), given in the order of `gold`.

    Metrics of groups need the options (`of`). Raises SpecError for a metric that the task's kind does not have.
    """
    if len(gold) != len(predicted) or not gold:
        raise ValueError(f"{len(predicted)} predictions for {len(gold)} items")
    accepted = METRICS[task.kind]
    if metric not in accepted:
        choices = ", ".join(accepted)
        raise SpecError(f"task {task.name}: metric {metric!r} is not for kind {task.kind!r}; accepted: {choices}")
    if metric in GROUPED and (of is None or len(of.groups) != len(gold)):
        raise SpecError(f"task {task.name}: metric {metric!r} needs items with groups, found none")
    more = (of,) if metric in GROUPED else ()
    return float(accepted[metric](getattr(task, "labels", ()), gold, predicted, *more))


def majority(task: Task, train: Sequence[Item], dev: Sequence[Item]) -> dict[Metric, float]:
    """Each metric of the task for the best constant answer, to print beside results.

    Labels: the one label that is best on `train` by that metric, given to every item or word (for accuracy the
    majority class). Regression: the mean of `train`. Span QA: the first content word of each context.
    """
    return {metric: _constant(task, metric, train, dev) for metric in task.metrics}


def detection(probability: NDArray[np.float64], replaced: NDArray[np.bool_]) -> dict[str, float]:
    """How well replaced tokens are told from the others; `probability` of replaced, 1/2 the threshold.

    No accuracy: nine in ten tokens are not replaced, so saying that of all of them would score above 0.9.
    """
    from sklearn.metrics import f1_score, log_loss, precision_score, recall_score, roc_auc_score

    found = probability > 0.5
    return {
        "loss": float(log_loss(replaced, probability, labels=[False, True])),
        "precision": float(precision_score(replaced, found, zero_division=0.0)),
        "recall": float(recall_score(replaced, found, zero_division=0.0)),
        "f1": float(f1_score(replaced, found, zero_division=0.0)),
        # Undefined without one of each, as where a generator always guesses right: then nothing is told apart.
        "auc": float(roc_auc_score(replaced, probability)) if 0 < replaced.sum() < len(replaced) else 0.5,
    }


def _constant(task: Task, metric: Metric, train: Sequence[Item], dev: Sequence[Item]) -> float:
    known: list[Any] = [item.gold for item in train]
    gold: list[Any] = [item.gold for item in dev]
    match task:
        case SpanQa():
            contexts = [item.context for item in dev if isinstance(item, SpanItem)]
            return score(task, metric, gold, [next((w[0] for w in content_words(c)), "") for c in contexts])
        case Regression():
            return score(task, metric, gold, [sum(known) / len(known)] * len(gold))
        case MultipleChoice():
            best = Counter(known).most_common(1)[0][0]
            return score(task, metric, gold, [best] * len(gold))
        case Sentence() | Pair() | Tagging():
            # All options alike: of each group the first is taken.
            of, of_dev = options(train, [0.0] * len(train)), options(dev, [0.0] * len(dev))
            best = max(task.labels, key=lambda label: score(task, metric, known, _everywhere(label, known), of))
            return score(task, metric, gold, _everywhere(best, gold), of_dev)
    raise SpecError(f"task {task.name}: kind {task.kind!r} has no constant answer")


def _everywhere(label: str, gold: Sequence[str | Sequence[str]]) -> list[str | list[str]]:
    """`label` for each item, or for each word of each item."""
    return [label if isinstance(value, str) else [label] * len(value) for value in gold]


# --- labels ---------------------------------------------------------------------------------------------------------


def accuracy(labels: Labels, gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Share of equal labels."""
    return sum(a == b for a, b in zip(gold, predicted, strict=True)) / len(gold)


def f1(labels: Labels, gold: Labels, predicted: Labels) -> float:
    """F1 of the last label, the positive class; 0 where it is neither present nor predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, labels=[labels[-1]], average="macro", zero_division=0))


def macro_f1(labels: Labels, gold: Labels, predicted: Labels) -> float:
    """Mean F1 of the labels that are present or predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(gold, predicted, average="macro", zero_division=0))


def mcc(labels: Labels, gold: Labels, predicted: Labels) -> float:
    """Matthews correlation; 0 if either side is constant."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(gold, predicted)) if len(set(gold)) > 1 and len(set(predicted)) > 1 else 0.0


# --- answer options --------------------------------------------------------------------------------------------------


def f1a(labels: Labels, gold: Labels, predicted: Labels, of: Options) -> float:
    """F1 of the last label over the options of all questions. Khashabi et al. 2018, N18-1023, section 4.2."""
    return f1(labels, gold, predicted)


def group_em(labels: Labels, gold: Labels, predicted: Labels, of: Options) -> float:
    """Share of questions all of whose options are labelled right."""
    groups = of.by_group().values()
    return sum(all(gold[n] == predicted[n] for n in numbers) for numbers in groups) / len(groups)


def record_f1(labels: Labels, gold: Labels, predicted: Labels, of: Options) -> float:
    """Mean over queries of the F1 of the bag of words of the likeliest entity with the best of the right ones.

    Zhang et al. 2018, arXiv:1810.12885, section 5; SQuAD's normalisation. Of equally likely ones the first.
    """
    return _best(_overlap, *_likeliest(labels, gold, of))


def record_em(labels: Labels, gold: Labels, predicted: Labels, of: Options) -> float:
    """Share of queries whose likeliest entity equals a right one after normalisation."""
    return _best(lambda a, b: float(a == b), *_likeliest(labels, gold, of))


def _likeliest(labels: Labels, gold: Labels, of: Options) -> tuple[list[list[str]], list[str]]:
    """For each group the texts of its right options, and the text of the likeliest."""
    groups = of.by_group().values()
    right = [[of.texts[n] for n in numbers if gold[n] == labels[-1]] for numbers in groups]
    return right, [of.texts[max(numbers, key=lambda n: of.likely[n])] for numbers in groups]


# --- numbers --------------------------------------------------------------------------------------------------------


def pearson(labels: Labels, gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Linear correlation; 0 if either side is constant."""
    from scipy.stats import pearsonr

    return float(pearsonr(gold, predicted).statistic) if _vary(gold, predicted) else 0.0


def spearman(labels: Labels, gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Rank correlation; 0 if either side is constant."""
    from scipy.stats import spearmanr

    return float(spearmanr(gold, predicted).statistic) if _vary(gold, predicted) else 0.0


def _vary(*sides: Sequence[float]) -> bool:
    return all(min(side) < max(side) for side in sides)


# --- spans ----------------------------------------------------------------------------------------------------------


def em(labels: Labels, gold: Sequence[Iterable[str]], predicted: Sequence[str]) -> float:
    """Share of answers that equal a gold one after normalisation; without gold ones the empty one is right."""
    return _best(lambda a, b: float(a == b), gold, predicted)


def span_f1(labels: Labels, gold: Sequence[Iterable[str]], predicted: Sequence[str]) -> float:
    """Mean over items of the F1 of the bag of words, with the best of the gold answers."""
    return _best(_overlap, gold, predicted)


def best_null_threshold(gold: Sequence[Iterable[str]], answers: Sequence[str], margins: Sequence[float]) -> float:
    """The threshold with the best F1 where an answer is withheld if its margin, null score less answer score, is above.

    evaluate-v2.0.py, find_best_thresh; of equally good ones the lowest. Below all margins, everything is withheld.
    """
    kept = np.array([_best(_overlap, [of], [answer]) for of, answer in zip(gold, answers, strict=True)])
    withheld = np.array([_best(_overlap, [of], [""]) for of in gold])
    order = np.argsort(margins, kind="stable")
    margin = np.asarray(margins, dtype=float)[order]
    totals = withheld.sum() + np.concatenate([[0.0], np.cumsum((kept - withheld)[order])])
    # A threshold is a margin that occurs: answers of equal margin are kept or withheld together.
    ends = np.append(np.nonzero(np.diff(margin) > 0)[0] + 1, len(margin))
    places = np.concatenate([[0], ends])
    best = int(places[np.argmax(totals[places].round(9))])
    return float(margin[best - 1]) if best else float(margin[0]) - 1.0


def _normalised(answer: str) -> list[str]:
    """Words in lower case without punctuation and articles, as SQuAD's evaluate-v1.1.py and v2.0."""
    bare = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def _overlap(gold: list[str], predicted: list[str]) -> float:
    """F1 of two bags of words; two empty ones are equal, as evaluate-v2.0.py has it."""
    if not gold or not predicted:
        return float(gold == predicted)
    return 2 * (Counter(gold) & Counter(predicted)).total() / (len(gold) + len(predicted))


def _best(
    measure: Callable[[list[str], list[str]], float], gold: Sequence[Iterable[str]], predicted: Sequence[str]
) -> float:
    best = [
        max(measure(_normalised(answer), _normalised(given)) for answer in list(answers) or [""])
        for answers, given in zip(gold, predicted, strict=True)
    ]
    return sum(best) / len(best)


# --- label sequences ------------------------------------------------------------------------------------------------


def token_accuracy(labels: Labels, gold: LabelSequences, predicted: LabelSequences) -> float:
    """Share of words with the right label."""
    return accuracy(labels, *_flat(gold, predicted))


def token_f1(labels: Labels, gold: LabelSequences, predicted: LabelSequences) -> float:
    """Micro F1 over words whose label is not the first one ("O")."""
    from sklearn.metrics import f1_score

    return float(f1_score(*_flat(gold, predicted), labels=list(labels[1:]), average="micro", zero_division=0))


def entity_f1(labels: Labels, gold: LabelSequences, predicted: LabelSequences) -> float:
    """Micro F1 over entities, exact span and type, as conlleval counts; 0 where there are none."""
    wanted, found = (
        {(place, *entity) for place, tags in enumerate(side) for entity in entities(tags)} for side in (gold, predicted)
    )
    return 2 * len(wanted & found) / (len(wanted) + len(found)) if wanted or found else 0.0


def bio(tags: Sequence[str]) -> list[str]:
    """IOB1 or BIO labels as BIO, where each entity begins with B-."""
    begins = {start for start, _, _ in entities(tags)}
    return [f"B-{tag[2:]}" if place in begins else tag for place, tag in enumerate(tags)]


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """(first word, word after the last, type) of each entity, from IOB1 or BIO labels, by conlleval's rules.

    An entity starts at B-, or at I- after O or after another type.
    """
    found: list[tuple[int, int, str]] = []
    start: int | None = None
    kind = ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, type_ = tag.partition("-")
        if start is not None and (prefix in ("B", "O") or type_ != kind):
            found.append((start, place, kind))
            start = None
        if prefix != "O" and start is None:
            start, kind = place, type_
    return found


def _flat(gold: LabelSequences, predicted: LabelSequences) -> tuple[list[str], list[str]]:
    for wanted, given in zip(gold, predicted, strict=True):
        if len(wanted) != len(given):
            raise ValueError(f"{len(given)} labels for {len(wanted)} words")
    return list(chain.from_iterable(gold)), list(chain.from_iterable(predicted))


_CLASSES: dict[Metric, Callable[..., float]] = {"accuracy": accuracy, "f1": f1, "macro-f1": macro_f1, "mcc": mcc}
GROUPED: dict[Metric, Callable[..., float]] = {
    "f1a": f1a,
    "group-em": group_em,
    "record-f1": record_f1,
    "record-em": record_em,
}
"""Those of pairs that are answer options, which are told the options too."""
METRICS: dict[str, dict[Metric, Callable[..., float]]] = {
    "sentence": _CLASSES,
    "pair": {**_CLASSES, **GROUPED},
    "regression": {"pearson": pearson, "spearman": spearman},
    "span-qa": {"em": em, "span-f1": span_f1},
    "tagging": {"accuracy": token_accuracy, "f1": token_f1, "entity-f1": entity_f1},
    "multiple-choice": {"accuracy": accuracy},
}
"""The metrics of each kind of task that is fine-tuned."""
