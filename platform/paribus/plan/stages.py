"""A run to its stages: steps with a content key, each handed only the slice it reads.

    corpus -> vocabulary -> pack -> pretrain -> evaluate
      \\-> task -> features -----------\\-> finetune (one a task, point of its grid and restart)
                                      \\-> minimal-pairs (one a task of that kind)

In place of `pretrain` may stand `import`: a checkpoint on disk, the same for every seed.

Apart from any run, `suggest`: the next value that a tuning tries, from the evaluations of the trials before it.

Equal keys are equal work, so arms, seeds, experiments and users share stages without asking.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from paribus.spec.base import Spec, canonical, digest
from paribus.spec.data import Pretrained
from paribus.spec.experiment import Pruner
from paribus.spec.finetuning import FineTuning, Frozen, Point, Windows
from paribus.spec.model import Encoder
from paribus.spec.objective import Objective
from paribus.spec.optim import AdamW, Budget, Optimizer, Schedule
from paribus.spec.run import HeldOut, PairScoring, Run
from paribus.spec.task import Built, MinimalPairs, SpanQa, Task

# Every kind of stage, in the order of a run. Raise a number when the same spec gives other results; old stages then
# stay behind, unused.
VERSIONS = {
    "corpus": 1,
    "vocabulary": 2,
    "pack": 4,
    "task": 1,
    "features": 2,
    "pretrain": 2,
    "import": 1,
    "evaluate": 4,
    "minimal-pairs": 2,
    "finetune": 3,
    "suggest": 1,
}


class Pretraining(Spec):
    """What a pretraining reads, but for its seed."""

    objective: Objective
    encoder: Encoder
    optimizer: Optimizer
    schedule: Schedule
    budget: Budget
    precision: Literal["fp32", "bf16"]


class JudgedPretraining(Pretraining):
    """What the pretraining of a trial reads, which a pruner may end before its budget does."""

    pruner: Pruner


class Import(Spec):
    """What stands in place of a pretraining where a run takes its encoder from a checkpoint on disk."""

    checkpoint: Pretrained
    encoder: Encoder


class Tokenised(Spec):
    """What cutting the items of a task into ids reads, besides the vocabulary."""

    task: Task
    train_items: int | None
    length: int
    windows: Windows | None
    """Of span questions only."""


class TaskTuning(Spec):
    """What one fine-tuning reads, but for the run's seed."""

    task: Task
    restart: int
    """Which of the restarts from the same pretrained encoder."""
    train_items: int | None
    choose_on: Literal["select", "dev"]
    keep: Literal["last", "best"]
    patience: int | None
    optimizer: AdamW
    schedule: Literal["linear", "cosine"]
    warmup: float
    epochs: int
    batch_items: int
    layer_decay: float
    dropout: float
    length: int
    pooling: Literal["cls", "mean", "max"]
    frozen: Frozen | None
    windows: Windows | None
    """Of span questions only."""
    leaves_encoder: bool
    """Whether the encoder is kept, for another task that starts from it."""
    precision: Literal["fp32", "bf16"]

    @property
    def point(self) -> Point:
        """Its point of the task's grid."""
        return Point(self.optimizer.lr, self.batch_items, self.epochs, self.warmup, self.dropout)


class PairTest(Spec):
    """What scoring the minimal pairs of a task reads."""

    task: Task
    scoring: PairScoring
    length: int
    """Of the rows of pretraining: a pair with a longer sentence is left out, for every kind of encoder."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A step of a run. `inputs` maps what a stage calls its input (a kind) to that stage's key."""

    kind: str
    key: str
    spec: Spec
    seed: int | None
    inputs: Mapping[str, str]


def make(kind: str, spec: Spec, inputs: Mapping[str, str], seed: int | None = None) -> Stage:
    """A stage and its key: what it is, what it was told, what it was fed. Never a name."""
    fed = ",".join(f"{role}={key}" for role, key in inputs.items())
    return Stage(kind, f"{kind}-{digest(f'{VERSIONS[kind]}|{canonical(spec)}|{seed}|{fed}')}", spec, seed, inputs)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What may end the pretraining of a trial early: a pruner, and the earlier trials it compares with."""

    pruner: Pruner
    earlier: tuple[str, ...]
    """Keys of their pretrainings, in the order they were tried."""


class Stages:
    """The stages of one arm. What does not depend on the seed is made once."""

    def __init__(self, run: Run, pruning: Pruning | None = None) -> None:
        self.run, self.pruning = run, pruning

    @cached_property
    def data(self) -> list[Stage]:
        """corpus, vocabulary, pack."""
        corpus = make("corpus", self.run.corpus, {})
        vocabulary = make("vocabulary", self.run.tokenizer, {"corpus": corpus.key})
        pack = make("pack", self.run.packing, {"corpus": corpus.key, "vocabulary": vocabulary.key})
        return [corpus, vocabulary, pack]

    @cached_property
    def tasks(self) -> list[Stage]:
        """One a task; a built task is fed the corpus, a task in a folder carries its own checksum."""
        corpus = self.data[0].key
        return [
            make("task", task, {"corpus": corpus} if isinstance(task.data, Built) else {})
            for task in self.run.evaluation.tasks
        ]

    @cached_property
    def _pretraining(self) -> Pretraining:
        names = ("objective", "encoder", "optimizer", "schedule", "budget", "precision")
        read = {name: getattr(self.run, name) for name in names}
        return JudgedPretraining(**read, pruner=self.pruning.pruner) if self.pruning else Pretraining(**read)

    @cached_property
    def _tunings(self) -> list[tuple[Stage, TaskTuning]]:
        """Each task's stage and a fine-tuning, those that others start from first."""
        starts = self.run.finetuning.start_from
        used = {starts[task.name] for task in self.run.evaluation.tasks if task.name in starts}
        tuned = [
            (stage, self._tuning(task, recipe, point, restart, task.name in used))
            for stage, task in zip(self.tasks, self.run.evaluation.tasks, strict=True)
            if not isinstance(task, MinimalPairs)
            for recipe in [self.run.finetuning.of(task)]
            for point in recipe.points
            for restart in range(recipe.seeds)
        ]
        return sorted(tuned, key=lambda pair: not pair[1].leaves_encoder)

    def _tuning(self, task: Task, recipe: FineTuning, point: Point, restart: int, leaves_encoder: bool) -> TaskTuning:
        names = (
            "train_items",
            "choose_on",
            "keep",
            "patience",
            "schedule",
            "layer_decay",
            "length",
            "pooling",
            "frozen",
        )
        return TaskTuning(
            task=task,
            restart=restart,
            optimizer=AdamW(lr=point.lr, weight_decay=recipe.weight_decay),
            warmup=point.warmup,
            epochs=point.epochs,
            batch_items=point.batch_items,
            dropout=point.dropout,
            windows=recipe.windows if isinstance(task, SpanQa) else None,
            leaves_encoder=leaves_encoder,
            precision=self.run.precision,
            **{name: getattr(recipe, name) for name in names},
        )

    @cached_property
    def _features(self) -> dict[str, Stage]:
        """The tokenised items of each task that is trained on: for every seed, point and restart."""
        vocabulary = self.data[1].key
        found = {}
        for stage, task in zip(self.tasks, self.run.evaluation.tasks, strict=True):
            if not isinstance(task, MinimalPairs):
                recipe = self.run.finetuning.of(task)
                windows = recipe.windows if isinstance(task, SpanQa) else None
                asked = Tokenised(task=task, train_items=recipe.train_items, length=recipe.length, windows=windows)
                found[task.name] = make("features", asked, {"vocabulary": vocabulary, "task": stage.key})
        return found

    @cached_property
    def _pair_tests(self) -> list[tuple[Stage, PairTest]]:
        scoring, length = self.run.evaluation.minimal_pairs, self.run.packing.length
        return [
            (stage, PairTest(task=task, scoring=scoring, length=length))
            for stage, task in zip(self.tasks, self.run.evaluation.tasks, strict=True)
            if isinstance(task, MinimalPairs)
        ]

    @cached_property
    def _held_out(self) -> HeldOut:
        return self.run.evaluation.held_out

    def at(self, seed: int) -> list[Stage]:
        """Every stage of the run at `seed`, each after its inputs."""
        seed += self.run.seed_offset
        _, vocabulary, pack = self.data
        fed = {"pack": pack.key, "vocabulary": vocabulary.key}
        if self.run.pretrained:
            asked = Import(checkpoint=self.run.pretrained, encoder=self.run.encoder)
            pretrain = make("import", asked, {"vocabulary": vocabulary.key})
        else:
            earlier = self.pruning.earlier if self.pruning else ()
            judged_by = {f"trial{number}": key for number, key in enumerate(earlier)}
            pretrain = make("pretrain", self._pretraining, {**fed, **judged_by}, seed)
        evaluate = make("evaluate", self._held_out, {"pretrain": pretrain.key, **fed})
        fed = {"pretrain": pretrain.key, "vocabulary": vocabulary.key}
        pairs = [make("minimal-pairs", test, {**fed, "task": task.key}) for task, test in self._pair_tests]
        left: dict[tuple[str, int], str] = {}
        finetune = []
        for task, tuning in self._tunings:
            inputs = {"pretrain": pretrain.key, "task": task.key, "features": self._features[tuning.task.name].key}
            if first := self.run.finetuning.start_from.get(tuning.task.name):
                inputs["start"] = left[first, tuning.restart]
            finetune.append(make("finetune", tuning, inputs, seed))
            if tuning.leaves_encoder:
                left[tuning.task.name, tuning.restart] = finetune[-1].key
        return [*self.data, pretrain, evaluate, *self.tasks, *self._features.values(), *pairs, *finetune]
