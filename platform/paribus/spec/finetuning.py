"""How tasks are fine-tuned: a grid, restarts, what chooses; one recipe, or a paper's protocol with its exceptions."""

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, model_validator

from paribus.spec.base import Spec
from paribus.spec.task import Task

T = TypeVar("T", int, float)
Grid = Annotated[
    tuple[T, ...],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,)),
    PlainSerializer(lambda values: values[0] if len(values) == 1 else values),
    Field(min_length=1),
]
"""One value, or several that are tried."""
Rate = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Warmup = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Point(NamedTuple):
    """One point of a grid. Of equally good ones the first in order of these numbers is chosen."""

    lr: float
    batch_items: int
    epochs: int
    warmup: float
    dropout: float


class Windows(Spec):
    """How a long passage is cut for span questions, and how the answer is searched.

    Devlin et al. 2019, arXiv:1810.04805, reference code, run_squad.py.
    """

    stride: int = Field(128, ge=1)
    """Tokens between the starts of two windows, at most half of a window (BERT's doc_stride). What `transformers` calls
    stride is what two windows share."""
    question: int = Field(64, ge=1)
    """Longest question in tokens, at most half of the input."""
    longest_answer: int = Field(30, ge=1)
    """In tokens."""
    candidates: int = Field(20, ge=1)
    """How many of the best starts are combined with how many of the best ends (n_best_size)."""
    maximum_context: bool = True
    """An answer may begin only in the window that has most context around that token (BERT's code). `transformers`'
    examples let it begin in any."""


class Frozen(Spec):
    """The encoder is not trained: a task's head reads its layers. Devlin et al. 2019, section 5.3 and table 7."""

    layers: Literal[
        "embeddings",
        "second-to-last",
        "last",
        "sum-last-four",
        "concat-last-four",
        "mix-last-four",
        "mix-all",
    ] = "last"
    """`embeddings` are what enters the first layer. `mix`: a sum with learned weights (softmax) and a learned factor,
    the scalar mix of Peters et al. 2018, arXiv:1802.05365, equation 1; `mix-all`: every layer, not the embeddings."""
    lstm_width: int = Field(0, ge=0)
    """Width, a direction, of a two-layer BiLSTM between the layers and the classifier; 0 has none. 768 in table 7."""


class FineTuning(Spec):
    """The recipe of fine-tunings: the grid learning_rates x batch_items x epochs x warmup x dropout, each point from
    several seeds. One for all tasks and arms, after Geiping and Goldstein 2022, arXiv:2212.14034, section 4.2, unless a
    protocol says more.
    """

    learning_rates: tuple[Rate, ...] = Field((5e-5,), min_length=1)
    batch_items: Grid[Count] = (32,)
    """Items an update; of a multiple choice with all of their options."""
    epochs: Grid[Count] = (3,)
    warmup: Grid[Warmup] = (0.1,)
    """Share of the updates; from 1 on their number, but at most half of them."""
    dropout: Grid[Share] = (0.1,)
    """On what enters the last layer. The encoder keeps its own dropout."""
    schedule: Literal["linear", "cosine"] = "linear"
    """How the learning rate falls after the warm-up, to 0 at the end."""
    weight_decay: float = Field(0.01, ge=0)
    layer_decay: float = Field(1.0, gt=0, le=1)
    """What a layer's learning rate is of that of the layer above. The head has the whole rate, the last layer this
    squared (ELECTRA's code, where a layer's place between the two is empty), the embeddings come below the first. 0.8
    in ELECTRA-base, 0.9 in large (Clark et al. 2020, arXiv:2003.10555, reference code); BERT has none: 1."""
    seeds: int = Field(1, ge=1)
    """Restarts from the same pretrained encoder: order, head and dropout differ."""
    aggregate: Literal["mean", "median"] = "mean"
    """How the restarts of a point are summed up, to choose it and to report it."""
    choose_on: Literal["select", "dev"] = "select"
    """What chooses points, epochs and thresholds. `select` is held out of train and never reported. `dev`: the items
    that are reported, as papers do; it trains on all train items, and tables mark the columns."""
    keep: Literal["last", "best"] = "last"
    """The weights that are kept: of the last epoch, or of the best on `choose_on` by the task's first metric."""
    patience: int | None = Field(None, ge=1)
    """Stop after so many epochs without a better one; null trains all. Needs `keep: best`."""
    train_items: int | None = Field(None, ge=1)
    """Train on the first of a task's train items only; null takes all."""
    length: int = Field(128, ge=16)
    """Longest input in tokens; longer ones are cut (pairs: the longer side first)."""
    pooling: Literal["cls", "mean", "max"] = "cls"
    """What stands for a sentence or pair: the state of [CLS], or the mean or maximum over all tokens but padding."""
    frozen: Frozen | None = None
    """null: the encoder is trained too."""
    windows: Windows = Windows()
    start_from: dict[str, str] = {}
    """For a task, another one: the encoder starts as the other's fine-tuning of the same restart left it. The other
    needs a grid of one point. Liu et al. 2019, arXiv:1907.11692, section 5.1: RTE, STS-B and MRPC from MNLI."""
    kinds: dict[str, dict[str, Any]] = {}
    """For a kind of task, fields that differ."""
    tasks: dict[str, dict[str, Any]] = {}
    """For a task, fields that differ, after those of its kind."""

    @model_validator(mode="after")
    def _consistent(self) -> "FineTuning":
        if self.patience is not None and self.keep == "last":
            raise ValueError("patience: needs keep: best, found last")
        known = Task.variants()
        if unknown := self.kinds.keys() - known:
            raise ValueError(f"kinds: no kind of task is called {min(unknown)!r}; there is {', '.join(sorted(known))}")
        for key, several in (("kinds", self.kinds), ("tasks", self.tasks)):
            for name, changes in several.items():
                self._changed(changes, f"{key}.{name}")
        return self

    def _changed(self, changes: Mapping[str, Any], where: str) -> "FineTuning":
        """This recipe without its exceptions, and with `changes`."""
        kept = self.model_dump(exclude={"start_from", "kinds", "tasks"})
        if refused := changes.keys() - kept.keys():
            raise ValueError(f"{where}.{min(refused)}: no such key; there is {', '.join(sorted(kept))}")
        try:
            return FineTuning.model_validate({**kept, **changes})
        except ValidationError as error:
            (first, *_) = error.errors()
            path, message = ".".join(map(str, (where, *first["loc"]))), first["msg"].removeprefix("Value error, ")
            raise ValueError(f"{path}: {message}" + (f", found {first['input']!r}" if first["loc"] else "")) from None

    def of(self, task: Task) -> "FineTuning":
        """The recipe of one task, without exceptions."""
        return self._changed({**self.kinds.get(task.kind, {}), **self.tasks.get(task.name, {})}, f"tasks.{task.name}")

    @property
    def points(self) -> list[Point]:
        """The grid."""
        grid = (self.learning_rates, self.batch_items, self.epochs, self.warmup, self.dropout)
        return [Point(*values) for values in product(*grid)]


class Protocol(Spec):
    """A paper's way to fine-tune, by name."""

    source: str
    """The paper and section, and what is from its code."""
    finetuning: dict[str, Any]
    """A whole recipe: what it does not say has its default, whatever base and scale say."""
