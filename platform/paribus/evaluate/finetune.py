"""Fine-tuning: a fresh head on a pretrained encoder, trained on a task, scored on `select` and `dev`.

    stage folder: predictions.jsonl (split, id, gold, predicted), curve.jsonl

One stage is one (task, learning rate, restart). Which rate is reported is decided from the `select` rows when a table
is made; `dev` rows play no part in it.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paribus.data.formats import Item, SpanItem, read_items
from paribus.data.vocabulary import PAD, Vocabulary
from paribus.evaluate.features import IGNORED, Feature, features
from paribus.evaluate.held_out import BATCH_ROWS, load_encoder
from paribus.evaluate.metrics import score
from paribus.nn.encoder import Encoder
from paribus.nn.heads import PooledHead, TokenHead
from paribus.nn.init import initialise
from paribus.plan.stages import TaskTuning
from paribus.seeds import seed_for
from paribus.spec import model as spec
from paribus.spec.run import Runtime
from paribus.spec.task import Pair, Regression, Sentence, SpanQa, Tagging, Task
from paribus.store.store import Work
from paribus.train.fit import device, fit
from paribus.train.module import Trained
from paribus.train.watch import Diverged, Watch

LONGEST_ANSWER = 30  # tokens; Devlin et al. 2019, reference code
CONSIDERED = 20  # starts and ends that are combined


class Tuned(Trained):
    """An encoder and a task's head. `forward` gives the head's output for a batch of features."""

    def __init__(self, encoder: Encoder, width: int, asked: TaskTuning, steps: int, seed: int, std: float) -> None:
        restart = seed_for(seed, "restart", asked.restart)
        super().__init__(asked.optimizer, asked.schedule, steps, restart, "finetune")
        self.task, self.length = asked.task, asked.length
        self.layer_decay = asked.layer_decay
        self.encoder = encoder
        self.head = make_head(asked.task, width, asked.dropout)
        initialise(self.head, self._seed, std, "head")

    def forward(self, batch: Sequence[Feature]) -> Tensor:
        tokens_BT, segments_BT, padding_BT = (tensor.to(self.device) for tensor in tensors(batch, self.length))
        out: Tensor = self.head(self.encoder(tokens_BT, segments_BT, padding_BT))
        return out

    def share_of_rate(self, name: str) -> float:
        part, _, rest = name.partition(".")
        return 1.0 if part == "head" else self.layer_decay ** (len(self.encoder.blocks) + 2 - self.encoder.depth(rest))

    def training_step(self, batch: Sequence[Feature], _: int) -> None:
        self.update(self._parts(batch))

    def _parts(self, batch: Sequence[Feature]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        loss = task_loss(self.task, self(batch).float(), batch)
        yield loss, {"loss": loss}


def make_head(task: Task, width: int, dropout: float) -> nn.Module:
    """The head of a kind of task."""
    match task:
        case Sentence() | Pair():
            return PooledHead(width, len(task.labels), dropout)
        case Regression():
            return PooledHead(width, 1, dropout)
        case Tagging():
            return TokenHead(width, len(task.labels), dropout)
        case SpanQa():
            return TokenHead(width, 2, dropout)
    raise TypeError(f"no head for {task.kind}")


def tensors(batch: Sequence[Feature], length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments and padding of a batch, (B, T) each, padded to its longest in eights, but not beyond `length`."""
    longest = min(length, -(-max(len(feature.ids) for feature in batch) // 8) * 8)
    tokens = np.full((len(batch), longest), PAD, dtype=np.int64)
    segments = np.zeros((len(batch), longest), dtype=np.int64)
    for row, feature in enumerate(batch):
        tokens[row, : len(feature.ids)] = feature.ids
        if feature.second:
            segments[row, feature.second : len(feature.ids)] = 1
    return torch.from_numpy(tokens), torch.from_numpy(segments), torch.from_numpy(tokens == PAD)


def task_loss(task: Task, out: Tensor, batch: Sequence[Feature]) -> Tensor:
    """The mean loss of a batch: over items, over labelled words, or over the two ends of answers."""
    targets = [feature.target for feature in batch]
    match task:
        case Sentence() | Pair():
            return F.cross_entropy(out, torch.tensor(targets, device=out.device))
        case Regression():
            return F.mse_loss(out[:, 0], torch.tensor(targets, device=out.device, dtype=out.dtype))
        case Tagging():
            padded = [[*t, *([IGNORED] * (out.shape[1] - len(t)))] for t in targets if isinstance(t, list)]
            return F.cross_entropy(out.flatten(0, 1), torch.tensor(padded, device=out.device).flatten())
        case SpanQa():
            ends = torch.tensor(targets, device=out.device)
            outside = _outside(batch, out)
            return F.cross_entropy(out.masked_fill(outside, float("-inf")), ends)
    raise TypeError(f"no loss for {task.kind}")


def _outside(batch: Sequence[Feature], out: Tensor) -> Tensor:
    """(B, T, 1): True where an answer cannot begin or end, which is everywhere but in the passage."""
    mask = torch.ones(out.shape[:2], dtype=torch.bool)
    for row, feature in enumerate(batch):
        mask[row, feature.second : feature.second + len(feature.spans or ())] = False
    return mask.to(out.device)[:, :, None]


class Epochs:
    """Features in a fresh order each epoch (a stream of the seed), in batches; those without a target are left out."""

    def __init__(self, found: Sequence[Feature], size: int, epochs: int, seed: int) -> None:
        self._features = [feature for feature in found if feature.target is not None]
        self._size, self._epochs, self._seed = size, epochs, seed
        self.steps = epochs * math.ceil(len(self._features) / size)

    def __iter__(self) -> Iterator[list[Feature]]:
        for epoch in range(self._epochs):
            rng = np.random.default_rng(seed_for(self._seed, "finetune order", epoch))
            order = rng.permutation(len(self._features))
            for start in range(0, len(order), self._size):
                yield [self._features[number] for number in order[start : start + self._size]]


def finetune(
    asked: TaskTuning,
    seed: int,
    encoder: spec.Encoder,
    vocabulary: Vocabulary,
    pretrained: Path,
    task_folder: Path,
    work: Work,
    runtime: Runtime,
) -> dict[str, object]:
    """Rows each metric of the task on `select` and `dev`. Returns what the record says besides."""
    items = read_items(task_folder / "train.jsonl")[: asked.train_items]
    train = features(asked.task, items, vocabulary, asked.length)
    batches = Epochs(train, asked.batch_items, asked.epochs, seed_for(seed, "restart", asked.restart))
    module = Tuned(
        load_encoder(encoder, len(vocabulary), pretrained), encoder.width, asked, batches.steps, seed, encoder.init_std
    )
    watch = Watch(work.scratch, batches.steps, asked.batch_items, float("inf"), unit="items")
    try:
        fit(module, batches, batches.steps, asked.precision, runtime, [watch])
    except Diverged as error:
        return {"outcome": "diverged", "diverged_step": error.step}
    module.to(device(runtime)).eval()
    with (work.out / "predictions.jsonl").open("w") as stream:
        for split in ("select", "dev"):
            items = read_items(task_folder / f"{split}.jsonl")
            predicted = predict(module, items, vocabulary)
            for item, answer in zip(items, predicted, strict=True):
                line = {"split": split, "id": item.id, "gold": item.gold, "predicted": answer}
                stream.write(json.dumps(line) + "\n")
            gold = [item.gold for item in items]
            for metric in asked.task.metrics:
                work.row(metric, score(asked.task, metric, gold, predicted), split=split, n=len(items))
    shutil.copy(work.scratch / "curve.jsonl", work.out / "curve.jsonl")
    return {"outcome": "done", "seconds": watch.seconds}


@torch.no_grad()
def predict(module: Tuned, items: Sequence[Item], vocabulary: Vocabulary) -> list[Any]:
    """The answer for each item: a label, a number, a text, or a label a word."""
    task = module.task
    asked = features(task, items, vocabulary, module.length)
    answers: list[Any] = [""] * len(items)  # a span question whose every window is cut away
    best = [-math.inf] * len(items)
    # Inputs of like length go together, which spares padding and changes no answer.
    order = sorted(range(len(asked)), key=lambda number: len(asked[number].ids))
    for start in range(0, len(order), BATCH_ROWS):
        batch = [asked[number] for number in order[start : start + BATCH_ROWS]]
        out = module(batch).float()
        match task:
            case Sentence() | Pair():
                for feature, label in zip(batch, out.argmax(-1).tolist(), strict=True):
                    answers[feature.item] = task.labels[label]
            case Regression():
                for feature, value in zip(batch, out[:, 0].tolist(), strict=True):
                    answers[feature.item] = value
            case Tagging():
                for feature, labels in zip(batch, out.argmax(-1).tolist(), strict=True):
                    answers[feature.item] = _tags(task, feature, labels, items[feature.item])
            case SpanQa():
                scores = out.masked_fill(_outside(batch, out), float("-inf")).cpu().numpy()
                for row, feature in enumerate(batch):
                    value, start_char, end_char = _best_span(scores[row], feature)
                    if value > best[feature.item]:
                        best[feature.item] = value
                        item = items[feature.item]
                        assert isinstance(item, SpanItem)
                        answers[feature.item] = item.context[start_char:end_char]
    return answers


def _tags(task: Tagging, feature: Feature, labels: Sequence[int], item: Item) -> list[str]:
    """A label a word; words that were cut off get the first label ('O')."""
    assert isinstance(feature.target, list)
    found = [task.labels[label] for label, target in zip(labels, feature.target, strict=False) if target != IGNORED]
    return found + [task.labels[0]] * (len(item.gold) - len(found))  # type: ignore[arg-type]


def _best_span(scores: Any, feature: Feature) -> tuple[float, int, int]:
    """The best (start + end) score of a window and its characters; an answer has 1 to LONGEST_ANSWER tokens."""
    assert feature.spans is not None
    inside = scores[feature.second : feature.second + len(feature.spans)]
    starts = np.argsort(-inside[:, 0], kind="stable")[:CONSIDERED]
    ends = np.argsort(-inside[:, 1], kind="stable")[:CONSIDERED]
    pairs = [(s, e) for s in starts for e in ends if s <= e < s + LONGEST_ANSWER]
    if not pairs:
        return -math.inf, 0, 0
    start, end = max(pairs, key=lambda pair: float(inside[pair[0], 0] + inside[pair[1], 1]))
    return float(inside[start, 0] + inside[end, 1]), feature.spans[start][0], feature.spans[end][1]
