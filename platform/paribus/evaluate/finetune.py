"""Fine-tuning: a fresh head on a pretrained encoder, trained on a task, scored on `select` and `dev`.

    stage folder: predictions.parquet, curve.jsonl; encoder.safetensors where another task starts from it

One stage is one (task, point of its grid, restart). Points, epochs and thresholds are chosen on one split, which
`choose_on` names; `dev` is predicted once, when all of that is over, unless it is that split.
"""

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paribus.data.formats import ChoiceItem, Item, SpanItem
from paribus.evaluate import predictions
from paribus.evaluate.batch import Batch, Step
from paribus.evaluate.features import IGNORED, Feature, items_of, load
from paribus.evaluate.metrics import best_null_threshold, options, score
from paribus.evaluate.predictions import Prediction
from paribus.nn.build import build_encoder
from paribus.nn.encoder import Encoder
from paribus.nn.heads import LayerReader, PooledHead, TokenHead
from paribus.nn.init import initialise
from paribus.plan.stages import TaskTuning
from paribus.seeds import seed_for
from paribus.spec import model as spec
from paribus.spec.finetuning import Windows
from paribus.spec.optim import Cosine, Linear
from paribus.spec.run import Runtime
from paribus.spec.task import Metric, MultipleChoice, Pair, Regression, Sentence, SpanQa, Tagging, Task
from paribus.store.store import Work
from paribus.train.checkpoint import Checkpoints, newest
from paribus.train.fit import device, fit
from paribus.train.lightning import pl
from paribus.train.memory import in_parts
from paribus.train.module import Losses, Trained
from paribus.train.passes import Parts
from paribus.train.tensors import ahead
from paribus.train.watch import Diverged, Watch

POOL = 16  # batches whose items are sorted by length among themselves
PREDICT_TOKENS = 16384  # through the network at once, padding counted
SCHEDULES = {"linear": Linear, "cosine": Cosine}


class Tuned(Trained):
    """An encoder and a task's head. `forward` gives the head's output for a batch."""

    def __init__(self, encoder: Encoder, width: int, asked: TaskTuning, steps: int, seed: int, std: float) -> None:
        restart = seed_for(seed, "restart", asked.restart)
        share = asked.warmup if asked.warmup < 1 else min(asked.warmup / steps, 0.5)
        super().__init__(
            asked.optimizer, SCHEDULES[asked.schedule](warmup=share), steps, restart, "finetune", compiles=False
        )
        self.task, self.length, self.windows = asked.task, asked.length, asked.windows or Windows()
        self.layer_decay = asked.layer_decay
        self.encoder = encoder
        self.reader = None
        if asked.frozen is not None:
            encoder.requires_grad_(False)
            self.reader = LayerReader(asked.frozen.layers, len(encoder.blocks), width, asked.frozen.lstm_width)
            initialise(self.reader, self._seed, std, "reader")
            width = self.reader.width
        self.head = make_head(asked.task, width, asked)
        initialise(self.head, self._seed, std, "head")
        self.unpadded = True
        """Whether batches say how rows are without their padding."""

    def replay(self) -> None:
        """Take steps as CUDA graphs. Rows keep their padding, for there would be many shapes; also where it comes to no
        graph, so that who resumes goes on as it was."""
        if self.reader is None or self.reader.lstm is None:  # which wants lengths on the CPU
            self.passes.how, self.unpadded = "graphs", False

    def train(self, mode: bool = True) -> "Tuned":
        """Training mode, but for a frozen encoder, which drops nothing."""
        super().train(mode)
        if self.reader is not None:
            self.encoder.eval()
        return self

    def forward(self, batch: Batch) -> Tensor:
        if self.reader is None:
            hidden_BTD = self.encoder(batch.tokens_BT, batch.segments_BT, batch.unseen)
        else:
            with torch.no_grad():
                layers = self.encoder.states(batch.tokens_BT, batch.segments_BT, batch.unseen).layers
            hidden_BTD = self.reader(layers, batch.padding_BT)
        out: Tensor = self.head(hidden_BTD, batch.padding_BT)
        return out

    def share_of_rate(self, name: str) -> float:
        part, _, rest = name.partition(".")
        return (
            1.0 if part != "encoder" else self.layer_decay ** (len(self.encoder.blocks) + 2 - self.encoder.depth(rest))
        )

    def training_step(self, batch: Step, _: int) -> None:
        self.update(batch, self._parts)

    def _parts(self, step: Step) -> Losses:
        if not step.batches:  # no word of it has a label: the loss is 0, and nothing moves
            if self.passes.keeps_gradients:
                self.passes.zero_gradients(1)  # puts them aside, and has none
            yield {"loss": step.terms}
        for batch in step.batches:
            yield self.passes(self.part, batch, step.terms)

    def part(self, batch: Batch, terms: Tensor) -> Parts:
        """What a batch adds to the loss of a step of so many terms."""
        loss = task_loss(self.task, self(batch).float(), batch) / terms
        return loss, {"loss": loss}

    def step(self, features: list[Feature], rows: int | None = None) -> Step:
        """In batches of at most `rows` features, but for those without a term; the options of a question stay together.
        """
        pieces: list[list[Feature]] = []
        for unit in units_of(features):
            if not pieces or rows and len(pieces[-1]) + len(unit) > rows:
                pieces.append([])
            pieces[-1] += unit
        asked = [piece for piece in pieces if terms(self.task, piece)]
        batches = [Batch.of(piece, self.length, self.task, self.unpadded) for piece in asked]
        return Step(features, tuple(batches), torch.tensor(float(terms(self.task, features))))

    def cut(self, batch: Step, rows: int) -> Step:
        return self.step(batch.features, rows).to(self.device)

    def most_rows(self, batch: Step) -> int:
        return max(map(len, batch.batches))


def make_head(task: Task, width: int, asked: TaskTuning) -> nn.Module:
    """The head of a kind of task."""
    match task:
        case Sentence() | Pair():
            return PooledHead(width, len(task.labels), asked.dropout, asked.pooling)
        case Regression() | MultipleChoice():
            return PooledHead(width, 1, asked.dropout, asked.pooling)
        case Tagging():
            return TokenHead(width, len(task.labels), asked.dropout)
        case SpanQa():
            return TokenHead(width, 2, asked.dropout)
    raise TypeError(f"no head for {task.kind}")


def units_of(features: Sequence[Feature]) -> list[list[Feature]]:
    """What a batch counts: the options of one question together, other features by themselves."""
    units: list[list[Feature]] = []
    for feature in features:
        if feature.option:
            units[-1].append(feature)
        else:
            units.append([feature])
    return units


def terms(task: Task, features: Sequence[Feature]) -> int:
    """How many terms the loss is the mean of: items, or labelled words."""
    if isinstance(task, Tagging):
        return sum(target != IGNORED for f in features if isinstance(f.target, list) for target in f.target)
    return sum(feature.option == 0 for feature in features)


def task_loss(task: Task, out: Tensor, batch: Batch) -> Tensor:
    """The loss of a batch, summed over its terms: items, or labelled words. Of an answer it is the mean of two ends."""
    assert batch.targets is not None
    match task:
        case Sentence() | Pair():
            return F.cross_entropy(out, batch.targets, reduction="sum")
        case Regression():
            return F.mse_loss(out[:, 0], batch.targets, reduction="sum")
        case Tagging():
            return F.cross_entropy(out.flatten(0, 1), batch.targets.flatten(), reduction="sum")
        case MultipleChoice():
            assert batch.options_QO is not None
            missing_QO = batch.options_QO < 0
            options = batch.options_QO.masked_fill(missing_QO, 0).flatten()
            scores_QO = out[:, 0].index_select(0, options).view_as(missing_QO).masked_fill(missing_QO, -math.inf)
            return F.cross_entropy(scores_QO, batch.targets, reduction="sum")
        case SpanQa():
            scores = out.masked_fill(batch.padding_BT[:, :, None], -math.inf)
            return F.cross_entropy(scores, batch.targets, reduction="sum") / 2
    raise TypeError(f"no loss for {task.kind}")


class Epochs:
    """Units (features that belong together) in a fresh order each epoch, in batches of like length.

    Of each POOL batches of the order, items are sorted by `lengths`, then the batches are put in random order. Both
    draws are of a stream of the seed, and lengths should not depend on the arm, so that arms see the same batches.
    The first `first` batches are left out.
    """

    def __init__(
        self, units: Sequence[Sequence[Feature]], lengths: Sequence[int], size: int, epochs: int, seed: int
    ) -> None:
        self._units, self._lengths = units, np.asarray(lengths)
        self._size, self._epochs, self._seed = size, epochs, seed
        self.a_pass = math.ceil(len(units) / size)
        self.steps = epochs * self.a_pass
        self.first = 0

    def __iter__(self) -> Iterator[list[Feature]]:
        return islice(self._all(), self.first, None)

    def _all(self) -> Iterator[list[Feature]]:
        for epoch in range(self._epochs):
            rng = np.random.default_rng(seed_for(self._seed, "finetune order", epoch))
            order = rng.permutation(len(self._units))
            batches: list[NDArray[np.int64]] = []
            for start in range(0, len(order), POOL * self._size):
                pool = order[start : start + POOL * self._size]
                pool = pool[np.argsort(self._lengths[pool], kind="stable")]
                batches += [pool[at : at + self._size] for at in range(0, len(pool), self._size)]
            for number in rng.permutation(len(batches)):
                yield [feature for unit in batches[number] for feature in self._units[unit]]


class Steps:
    """The steps of a fine-tuning, each made while a device works on the one before."""

    def __init__(self, batches: Epochs, module: Tuned, where: torch.device) -> None:
        self._batches, self._module, self._pinned = batches, module, where.type == "cuda"

    def __iter__(self) -> Iterator[Step]:
        return ahead(self._batches, self._module.step, self._pinned)


@dataclass(frozen=True)
class Split:
    """The items of a split, tokenised."""

    items: list[Item]
    features: list[Feature]

    def units(self) -> tuple[list[list[Feature]], list[int]]:
        """What a batch counts, features of one choice together and others by themselves, and how long each is.

        Length is that of the text, not in tokens, so that it is the same for all tokenizers.
        """
        units = units_of(self.features)
        return units, [len(self.items[unit[0].item].content) for unit in units]


# A task is read once for its restarts and points, and the encoder once for its tasks; finished stages, in whose folders
# these lie, never change.
@lru_cache(maxsize=6)
def _split(task_folder: Path, features: Path, name: str, first: int | None, task: Task) -> Split:
    return Split(items_of(task, task_folder, name, first), load(features, name, task))


@lru_cache(maxsize=2)
def _weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "encoder.safetensors")


def finetune(
    asked: TaskTuning,
    seed: int,
    encoder: spec.Encoder,
    start: Path,
    task_folder: Path,
    features: Path,
    work: Work,
    runtime: Runtime,
) -> dict[str, object]:
    """Rows each metric of the task on the split that chooses and on `dev`. Returns what the record says besides.

    `start` holds the encoder it starts from, `features` the items of `task_folder` in ids. With `keep: best` a row
    tells the best epoch, and for questions without an answer one tells the threshold (null score less answer score)
    above which none is given.
    """

    def split(name: str, first: int | None = None) -> Split:
        return _split(task_folder, features, name, first, asked.task)

    trained = [split("train", asked.train_items)]
    if asked.choose_on == "dev" and asked.train_items is None:
        trained.append(split("select"))
    units, lengths = [], []
    for part in trained:
        found = part.units()
        units += found[0]
        lengths += found[1]
    batches = Epochs(units, lengths, asked.batch_items, asked.epochs, seed_for(seed, "restart", asked.restart))
    weights = _weights(start)
    made = build_encoder(encoder, len(weights["tokens.weight"]))
    made.load_state_dict(weights)
    module = Tuned(made, encoder.width, asked, batches.steps, seed, encoder.init_std)
    choosing = split(asked.choose_on)
    metric = asked.task.metrics[0]

    def measure() -> float:
        predicted = predict(module, choosing)
        withheld = withhold(predicted, threshold_of(asked.task, choosing, predicted))
        return score_all(asked.task, choosing, withheld, (metric,))[metric]

    checkpoint, batches.first = newest(work) or (None, 0)
    where = device(runtime)
    if runtime.compile == "graphs" and where.type == "cuda":
        module.replay()
    watch = Watch(work.scratch, batches.steps, asked.batch_items, float("inf"), batches.first, unit="items")
    best = Best(batches.a_pass, asked.patience, measure) if asked.keep == "best" else None
    callbacks = [watch, *([best] if best else []), Checkpoints(work, runtime.checkpoint_seconds)]
    try:
        fit(module, Steps(batches, module, where), batches.steps, asked.precision, runtime, callbacks, checkpoint)
    except Diverged as error:
        return {"outcome": "diverged", "diverged_step": error.step}
    finally:
        module.passes.forget()
    if best is not None:
        module.load_state_dict(best.weights)
        work.row("best_epoch", best.epoch)
    module.to(where).eval()
    predicted = predict(module, choosing, work.may_stop)
    threshold = threshold_of(asked.task, choosing, predicted)
    if threshold is not None:
        work.row("null_threshold", threshold, split=asked.choose_on)
    results = {asked.choose_on: (choosing, withhold(predicted, threshold))}
    if asked.choose_on != "dev":
        dev = split("dev")
        results["dev"] = (dev, withhold(predict(module, dev, work.may_stop), threshold))
    for name, (part, answers) in results.items():
        for key, value in score_all(asked.task, part, answers, asked.task.metrics).items():
            work.row(key, value, split=name, n=len(part.items))
    predictions.write(
        work.out / predictions.FILE, {name: (part.items, answers) for name, (part, answers) in results.items()}
    )
    if asked.leaves_encoder:
        save_file(
            {name: tensor.cpu() for name, tensor in module.encoder.state_dict().items()},
            work.out / "encoder.safetensors",
        )
    shutil.copy(work.scratch / "curve.jsonl", work.out / "curve.jsonl")
    return {
        "outcome": "done",
        "seconds": watch.seconds,
        "resumed_at": batches.first,
        "out_of_memory": module.out_of_memory,
        "compile": module.passes.how,
        "sdpa": runtime.sdpa,
    }


class Best(pl.Callback):
    """Measures after each epoch, keeps the weights of the best one, stops after `patience` epochs without a better."""

    def __init__(self, steps: int, patience: int | None, measure: Any) -> None:
        self._steps, self._patience, self._measure = steps, patience, measure
        self._score = -math.inf
        self.epoch = 0
        self.weights: dict[str, Tensor] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        if trainer.global_step % self._steps:
            return
        module.eval()
        score, epoch = self._measure(), trainer.global_step // self._steps
        module.train()
        if score > self._score:
            self._score, self.epoch = score, epoch
            self.weights = {name: tensor.detach().cpu().clone() for name, tensor in module.state_dict().items()}
        elif self._patience is not None and epoch - self.epoch >= self._patience:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"score": self._score, "epoch": self.epoch, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._score, self.epoch, self.weights = state["score"], state["epoch"], state["weights"]


def score_all(
    task: Task, split: Split, predicted: Sequence[Prediction], metrics: Sequence[Metric]
) -> dict[Metric, float]:
    """Each metric of the predictions for a split."""
    gold = [item.gold for item in split.items]
    answers = [prediction.answer for prediction in predicted]
    likely = [p.scores[-1] - np.logaddexp.reduce(p.scores) if p.scores else 0.0 for p in predicted]
    of = options(split.items, likely)
    return {metric: score(task, metric, gold, answers, of) for metric in metrics}


def threshold_of(task: Task, split: Split, predicted: Sequence[Prediction]) -> float | None:
    """For questions that may lack an answer, the margin above which none is given with the best F1; else None."""
    if not (isinstance(task, SpanQa) and task.unanswerable):
        return None
    gold = [item.gold for item in split.items if isinstance(item, SpanItem)]
    return best_null_threshold(gold, [p.answer for p in predicted], [_margin(p) for p in predicted])


def withhold(predicted: Sequence[Prediction], threshold: float | None) -> Sequence[Prediction]:
    """The predictions, with the empty answer where the null score is above the answer's by more than `threshold`."""
    if threshold is None:
        return predicted
    return [replace(p, answer="") if _margin(p) > threshold else p for p in predicted]


def _margin(prediction: Prediction) -> float:
    answer, null = prediction.scores
    return null - answer


@torch.no_grad()
def predict(module: Tuned, split: Split, may_stop: Callable[[], None] = lambda: None) -> list[Prediction]:
    """The answer for each item: a label, a number, a text (never withheld), an option's number, or a label a word.

    `may_stop` is called between batches.
    """
    task, items, asked = module.task, split.items, split.features
    answers: list[Any] = [""] * len(items)
    scores: list[list[float]] = [[] for _ in items]
    spans = [(-math.inf, math.inf, 0, 0)] * len(items)  # answer score, null score, characters
    if isinstance(task, MultipleChoice):
        scores = [[0.0] * len(item.options) for item in items if isinstance(item, ChoiceItem)]
    for batch, out in _outputs(module, asked):
        may_stop()
        match task:
            case Sentence() | Pair():
                for feature, logits in zip(batch, out.tolist(), strict=True):
                    scores[feature.item] = logits
            case Regression():
                for feature, value in zip(batch, out[:, 0].tolist(), strict=True):
                    answers[feature.item], scores[feature.item] = value, [value]
            case MultipleChoice():
                for feature, value in zip(batch, out[:, 0].tolist(), strict=True):
                    scores[feature.item][feature.option] = value
            case Tagging():
                for feature, labels in zip(batch, out.argmax(-1).tolist(), strict=True):
                    answers[feature.item] = _tags(task, feature, labels, items[feature.item])
            case SpanQa():
                for row, feature in enumerate(batch):
                    found = best_span(out[row, : len(feature.ids)].numpy(), feature, module.windows)
                    best = spans[feature.item]
                    answer = found if found[0] > best[0] else best
                    spans[feature.item] = (answer[0], min(found[1], best[1]), answer[2], answer[3])
    match task:
        case Sentence() | Pair():
            answers = [task.labels[int(np.argmax(logits))] for logits in scores]
        case MultipleChoice():
            answers = [int(np.argmax(values)) for values in scores]
        case SpanQa():
            for number, (value, null, start, end) in enumerate(spans):
                item = items[number]
                assert isinstance(item, SpanItem)
                answers[number], scores[number] = item.context[start:end], [max(value, -1e9), null]
    return [Prediction(answer, values) for answer, values in zip(answers, scores, strict=True)]


def _outputs(module: Tuned, asked: Sequence[Feature]) -> Iterator[tuple[list[Feature], Tensor]]:
    for batch in by_length(asked):
        yield from in_parts(lambda part: (part, _output(module, part)), batch)


def _output(module: Tuned, features: Sequence[Feature]) -> Tensor:
    out: Tensor = module(Batch.of(features, module.length).to(module.device))
    return out.float().cpu()


def by_length(asked: Sequence[Feature]) -> Iterator[list[Feature]]:
    """Features of like length together, PREDICT_TOKENS at once, which spares padding and changes no answer."""
    batch: list[Feature] = []
    for feature in sorted(asked, key=lambda feature: len(feature.ids)):
        if batch and (len(batch) + 1) * len(feature.ids) > PREDICT_TOKENS:
            yield batch
            batch = []
        batch.append(feature)
    if batch:
        yield batch


def _tags(task: Tagging, feature: Feature, labels: Sequence[int], item: Item) -> list[str]:
    """A label a word; words that were cut off get the first label ('O')."""
    assert isinstance(feature.target, list)
    found = [task.labels[label] for label, target in zip(labels, feature.target, strict=False) if target != IGNORED]
    return found + [task.labels[0]] * (len(item.gold) - len(found))  # type: ignore[arg-type]


def best_span(scores: NDArray[np.float32], feature: Feature, asked: Windows) -> tuple[float, float, int, int]:
    """The best (start + end) score of a window, the score of no answer, and the characters of the answer.

    scores: (T, 2), of each token to be the first and the last of the answer; [CLS] as both is no answer. Of the best
    starts and ends among all tokens, those that make an answer in the passage; minus infinity where none does.
    """
    assert feature.spans is not None and feature.widest is not None
    starts, ends = (np.argsort(-scores[:, side], kind="stable")[: asked.candidates] for side in (0, 1))
    passage = np.zeros(len(scores), dtype=bool)
    passage[feature.second : feature.second + len(feature.spans)] = True
    may_start = passage.copy()
    if asked.maximum_context:
        may_start[passage] = feature.widest
    length = ends - starts[:, None] + 1
    fits = may_start[starts][:, None] & passage[ends] & (length >= 1) & (length <= asked.longest_answer)
    sums = np.where(fits, scores[starts, 0][:, None] + scores[ends, 1], -np.inf)
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    null = float(scores[0, 0] + scores[0, 1])
    if not fits[first, last]:
        return -math.inf, null, 0, 0
    start, end = (feature.spans[place - feature.second] for place in (starts[first], ends[last]))
    return float(sums[first, last]), null, start[0], end[1]
