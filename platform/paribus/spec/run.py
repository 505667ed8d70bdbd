"""Run: one arm at one seed, complete. Runtime: the machine, never hashed."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paribus.spec.base import Spec
from paribus.spec.data import (
    Corpus,
    FullSentences,
    Imported,
    Packing,
    Pretrained,
    SegmentPairs,
    SentencePairs,
    Tokenizer,
)
from paribus.spec.finetuning import FineTuning
from paribus.spec.model import Absolute, Encoder, EnhancedMaskDecoder
from paribus.spec.objective import Mlm, Objective, Rtd
from paribus.spec.optim import Budget, Optimizer, Schedule
from paribus.spec.task import Folder, Task


class HeldOut(Spec):
    """Masked-LM loss on held-out documents: 15 % masked, all by [MASK], the same places for every arm and seed.

    With replaced-token detection that is the generator's, and the discriminator is asked about its samples there.
    """

    rate: float = Field(0.15, gt=0, lt=1)
    """Share of the tokens, and in the measures across tokenizers of the words, that is masked."""


PairScore = Literal["original", "within-word-l2r", "within-word-mlm"]


class PairScoring(Spec):
    """How the sentences of minimal pairs are scored, zero-shot, in fp32: by pseudo-log-likelihood, summed.

    Salazar et al. 2020, arXiv:1910.14659. After replaced-token detection it is the sum of log P(original), whatever
    `score` says.
    """

    score: PairScore = "within-word-l2r"
    """What is masked beside the piece that is asked about: nothing (`original`, as BLiMP's published scores have it),
    the later pieces of its word, or all of them: Kauf and Ivanova 2023, arXiv:2305.10588."""
    per_paradigm: int | None = Field(None, ge=1)
    """Pairs a paradigm, the same for every run; null takes all."""


class Evaluation(Spec):
    """What is measured after pretraining."""

    held_out: HeldOut = HeldOut()
    minimal_pairs: PairScoring = PairScoring()
    tasks: tuple[Task, ...] = ()

    @model_validator(mode="after")
    def _there_is_something_to_train_on(self) -> "Evaluation":
        for task in self.tasks:
            for split in ("train", "dev") if task.trains else ("dev",):
                if isinstance(task.data, Folder) and getattr(task.data, split) is None:
                    use = "be fine-tuned with" if task.trains else "be scored"
                    raise ValueError(f"tasks: {task.name} has no {split} items (data.{split}) to {use}")
        return self


class Run(Spec):
    """Everything that decides the numbers of one run."""

    corpus: Corpus
    tokenizer: Tokenizer
    packing: Packing
    objective: Objective
    encoder: Encoder
    pretrained: Pretrained | None = None
    """Take the encoder from there and train it no further before fine-tuning; its vocabulary head is evaluated if it
    has one that fits. Null: pretrain it by objective, optimizer, schedule and budget."""
    optimizer: Optimizer
    schedule: Schedule
    budget: Budget
    precision: Literal["fp32", "bf16"] = "fp32"
    """bf16: autocast; parameters and optimizer state stay in fp32."""
    finetuning: FineTuning = FineTuning()
    evaluation: Evaluation = Evaluation()
    seed: int = Field(0, ge=0)
    seed_offset: int = Field(0, ge=0)
    """Added to the seed in all that is drawn: an arm that repeats another at seeds of its own, as in an A/A test."""

    @model_validator(mode="after")
    def _fits_together(self) -> "Run":
        position = self.encoder.position
        if isinstance(position, Absolute):
            longest = max(
                [self.finetuning.length, *(self.finetuning.of(task).length for task in self.evaluation.tasks)]
            )
            for name, length in (("packing", self.packing.length), ("finetuning", longest)):
                if length > position.max_length:
                    raise ValueError(
                        f"{name}.length must be at most encoder.position.max_length, "
                        f"found {length} and {position.max_length}"
                    )
        if self.pretrained:
            tokenizer, objective = self.tokenizer, self.objective
            if not isinstance(tokenizer, Imported) or tokenizer.path != self.pretrained.path:
                found = {key: value for key, value in tokenizer if key in ("kind", "path")}
                raise ValueError(
                    "pretrained needs the checkpoint's own tokenizer, {kind: imported, path: "
                    f"{self.pretrained.path}}}, found {found}"
                )
            if not isinstance(objective, Mlm) or objective.sentence != "none":
                raise ValueError(
                    "pretrained needs objective {kind: mlm}, by which its vocabulary head is evaluated, "
                    f"and no sentence objective, found {objective.kind!r}"
                )
        self._starts()
        for task in self.evaluation.tasks:
            frozen = self.finetuning.of(task).frozen
            if frozen is not None and frozen.layers.endswith("four") and self.encoder.layers < 4:
                raise ValueError(
                    f"finetuning.frozen.layers: {frozen.layers!r} needs encoder.layers to be at least 4, "
                    f"found {self.encoder.layers}"
                )
        head = self.encoder.head
        if isinstance(head, EnhancedMaskDecoder) and self.packing.length > head.max_length:
            raise ValueError(
                "packing.length must be at most encoder.head.max_length, "
                f"found {self.packing.length} and {head.max_length}"
            )
        if self.budget.batch_tokens < self.packing.length:
            raise ValueError(
                "budget.batch_tokens must be at least packing.length, so that every step has a row, "
                f"found {self.budget.batch_tokens} and {self.packing.length}"
            )
        if isinstance(self.packing, FullSentences) and self.packing.isolation == "document":
            if self.encoder.convolution:
                raise ValueError(
                    "packing.isolation 'document' needs no encoder.convolution, which crosses documents, "
                    f"found {self.encoder.convolution}"
                )
        if isinstance(self.objective, Mlm) and self.objective.sentence != "none":
            sentence = self.objective.sentence
            wanted = {"nsp": "random-document", "sop": "swapped"}.get(sentence, sentence)
            if not isinstance(self.packing, SegmentPairs | SentencePairs) or self.packing.negatives != wanted:
                found = {key: value for key, value in self.packing if key in ("kind", "negatives")}
                raise ValueError(
                    f"objective.sentence {sentence!r} needs packing.kind segment-pairs or sentence-pairs "
                    f"with negatives {wanted}, found {found}"
                )
        if isinstance(self.objective, Rtd):
            self.objective.generator.encoder(self.encoder)  # refuses sizes that do not fit
        return self

    def _starts(self) -> None:
        """Refuse a task that starts from one that is not there, is a chain, or has several points to choose from."""
        tasks = {task.name: task for task in self.evaluation.tasks}
        starts = self.finetuning.start_from
        for name in starts.keys() & tasks:
            key, first = f"finetuning.start_from.{name}", starts[name]
            if first not in tasks or first == name:
                there = ", ".join(sorted(tasks.keys() - {name}))
                raise ValueError(f"{key}: {first!r} must be another task of the experiment, found {there or 'none'}")
            if first in starts:
                raise ValueError(f"{key}: {first!r} itself starts from {starts[first]!r}; one step at most")
            recipe = self.finetuning.of(tasks[first])
            if len(recipe.points) > 1:
                raise ValueError(
                    f"{key}: {first!r} needs a grid of one point to start from, found {len(recipe.points)}"
                )
            if recipe.frozen is not None:
                raise ValueError(
                    f"{key}: {first!r} does not train its encoder (frozen), so there is nothing to start from"
                )
            if recipe.seeds < self.finetuning.of(tasks[name]).seeds:
                raise ValueError(f"{key}: {first!r} needs as many seeds, found {recipe.seeds}")


class Runtime(BaseModel):
    """The machine. Never hashed: it may move a number by rounding, and where dropout falls, but by nothing else.

    Both are recorded with each pretraining. Runs that are compared should share them, as those of one worker pool do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: str = "auto"
    """auto takes a GPU where there is one; or cpu, cuda, cuda:1."""
    devices: int = Field(1, ge=1)
    """GPUs, or without them CPU processes, that share the rows of each step of a pretraining."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """ddp: each of several devices holds the whole model; fsdp: a share of parameters, gradients and optimizer."""
    threads: int = Field(1, ge=1)
    """CPU threads a worker. Fixed whatever the number of workers, so results are the same bit for bit."""
    micro_batch_rows: int | None = Field(None, ge=1)
    """Rows through the network at once; null takes 64k tokens of them. The gradients of a batch are added up."""
    loader_workers: int = Field(0, ge=0)
    """Processes that make the batches of a pretraining ahead; 0 makes them in a thread of its own."""
    compile: Literal["off", "on", "graphs"] = "off"
    """How the steps of a pretraining are computed. off: as written; on: by torch.compile; graphs: each shape of
    micro-batch also captured as a CUDA graph. Where that cannot be had the next best is done, and said. Fine-tuning is
    never compiled; with graphs it is captured as it is written, where there is a GPU."""
    sdpa: Literal["auto", "cudnn", "flash", "efficient", "math"] = "auto"
    """The kernel of scaled dot product attention that is taken first, where it can compute what is asked for; auto
    leaves it to torch."""
    checkpoint_seconds: float = Field(60.0, ge=0)
    """Time between checkpoints of a training."""
    allow_other_code: bool = False
    """Whether a worker joins a queue that workers with other code are at; the tables show it."""
