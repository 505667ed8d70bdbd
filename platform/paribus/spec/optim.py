"""How parameters move: optimizer, schedule, budget. One clock: tokens."""

from typing import Literal

from pydantic import Field, model_validator

from paribus.spec.base import Slot, Spec


class Optimizer(Slot):
    """An optimizer with its peak learning rate."""

    lr: float = Field(gt=0)


class AdamW(Optimizer):
    """Adam with decoupled weight decay. Loshchilov and Hutter 2019, arXiv:1711.05101."""

    kind: Literal["adamw"] = "adamw"
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: float = Field(1e-6, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    bias_correction: bool = True
    """Of both moments (Kingma and Ba 2015, arXiv:1412.6980); BERT's, ELECTRA's and DeBERTa's code leave it out."""
    decay_norm_and_bias: bool = False
    """Decay biases and norms too, as fairseq does; BERT's code leaves them out."""
    clip: float = Field(1.0, ge=0)
    """Largest gradient norm; 0 does not clip."""


class Schedule(Slot):
    """The learning rate over the budget."""


class Linear(Schedule):
    """Up from 0 over `warmup`, then straight down to 0, reached when the budget ends."""

    kind: Literal["linear"] = "linear"
    warmup: float = Field(0.01, ge=0, lt=1)
    """Share of the budget."""
    join: Literal["continuous", "jump"] = "continuous"
    """`jump`, BERT's and DeBERTa's code: the decay is that from step 0, so the rate falls by the share of the warm-up
    where that ends."""


class Constant(Schedule):
    """Up from 0 over `warmup`, then level."""

    kind: Literal["constant"] = "constant"
    warmup: float = Field(0.01, ge=0, lt=1)
    """Share of the budget."""


class Cosine(Schedule):
    """Up from 0 over `warmup`, then down to 0 by half a cosine. Loshchilov and Hutter 2017, arXiv:1608.03983."""

    kind: Literal["cosine"] = "cosine"
    warmup: float = Field(0.01, ge=0, lt=1)
    """Share of the budget."""


class Budget(Spec):
    """How much is trained, in real tokens: padding does not count."""

    train_tokens: int = Field(ge=1)
    batch_tokens: int = Field(ge=1)
    """Real tokens an optimizer step."""

    @model_validator(mode="after")
    def _at_least_one_step(self) -> "Budget":
        if self.train_tokens < self.batch_tokens:
            raise ValueError(
                f"train_tokens must be at least batch_tokens, found {self.train_tokens} and {self.batch_tokens}"
            )
        return self

    @property
    def steps(self) -> int:
        """Optimizer steps in the budget."""
        return self.train_tokens // self.batch_tokens
