"""Tasks: labelled data in a standard format, a kind of head, metrics."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from paribus.spec.base import Slot, Spec, location


class TaskData(Slot):
    """Where labelled items come from. A source gives `train` and `dev`; `select` is held out of train by item hash."""


class Built(TaskData):
    """Made from the run's own corpus by a builder: train items of its train documents, dev items of its test ones."""

    kind: Literal["built"] = "built"
    builder: Literal["acceptability", "order", "cloze", "truecasing"]
    train: int = Field(ge=8)
    """Items to draw for training (and `select`)."""
    dev: int = Field(ge=8)
    """Items to draw for reporting."""


class Folder(TaskData):
    """Files in the task's format, in a folder of the user's. Its identity is the content (`sha256`, filled in)."""

    kind: Literal["folder"] = "folder"
    path: str = location()
    """Relative to the project's `data` folder (see paribus.toml)."""
    train: str = location()
    """File name of the train items, in the task's format; `.gz` is read as it is."""
    dev: str = location()
    """File name of the items to report on."""
    sha256: str | None = None


Metric = Literal["accuracy", "f1", "macro-f1", "mcc", "pearson", "spearman", "em", "span-f1", "entity-f1"]


class Task(Slot):
    """A downstream task."""

    accepts: ClassVar[tuple[Metric, ...]]
    """The metrics of the kind; paribus.evaluate.metrics computes them."""

    name: str = location()
    """What tables call it. A label: two names for the same data and recipe are the same work."""
    source: str
    """The paper or distribution that defines it."""
    data: TaskData
    metrics: tuple[Metric, ...] = Field(min_length=1)
    """The first chooses among learning rates on `select`."""
    select: float = Field(0.1, gt=0, lt=0.5)
    """Share of the train items held out for choosing."""

    @model_validator(mode="after")
    def _metrics_of_the_kind(self) -> "Task":
        for metric in self.metrics:
            if metric not in self.accepts:
                accepted = ", ".join(self.accepts)
                raise ValueError(f"metrics: {metric!r} is not for kind {self.kind!r}; accepted: {accepted}")
        return self


class Sentence(Task):
    """One sentence, one label. Files: CoLA's TSV (source, label, star, sentence)."""

    accepts = ("accuracy", "f1", "macro-f1", "mcc")
    kind: Literal["sentence"] = "sentence"
    labels: tuple[str, ...] = ("0", "1")


class Pair(Task):
    """Two sentences, one label. Files: TSV with a header (index, sentence1, sentence2, label)."""

    accepts = ("accuracy", "f1", "macro-f1", "mcc")
    kind: Literal["pair"] = "pair"
    labels: tuple[str, ...]


class Regression(Task):
    """Two sentences, one number. Files: TSV with a header (index, sentence1, sentence2, score)."""

    accepts = ("pearson", "spearman")
    kind: Literal["regression"] = "regression"


class SpanQa(Task):
    """A question and a passage, the answer a span of it. Files: SQuAD 1.1's JSON."""

    accepts = ("em", "span-f1")
    kind: Literal["span-qa"] = "span-qa"


class Tagging(Task):
    """A label for each word. Files: CoNLL columns, the word first and the label last."""

    accepts = ("accuracy", "f1", "entity-f1")
    kind: Literal["tagging"] = "tagging"
    labels: tuple[str, ...]


class FineTuning(Spec):
    """The recipe of every fine-tuning: a grid of learning rates, each from several seeds; `select` chooses the rate.

    One recipe for all tasks and arms, after Geiping and Goldstein 2022, arXiv:2212.14034, section 4.2.
    """

    learning_rates: tuple[float, ...] = Field((5e-5,), min_length=1)
    seeds: int = Field(1, ge=1)
    """Restarts from the same pretrained encoder: order, head and dropout differ."""
    train_items: int | None = Field(None, ge=1)
    """Train on the first of a task's train items only; null takes all."""
    epochs: int = Field(3, ge=1)
    batch_items: int = Field(32, ge=1)
    warmup: float = Field(0.1, ge=0, lt=1)
    weight_decay: float = Field(0.01, ge=0)
    layer_decay: float = Field(1.0, gt=0, le=1)
    """What a layer's learning rate is of that of the layer above. The head has the whole rate, the last layer this
    squared (ELECTRA's code, where a layer's place between the two is empty), the embeddings come below the first. 0.8
    in ELECTRA-base, 0.9 in large (Clark et al. 2020, arXiv:2003.10555, reference code); BERT has none: 1."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the pooled state, before the last layer. The encoder keeps its own dropout."""
    length: int = Field(128, ge=16)
    """Longest input in tokens; longer ones are cut (pairs: the longer side first)."""
