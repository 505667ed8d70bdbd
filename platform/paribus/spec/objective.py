"""What the encoder is trained to do."""

from typing import Literal

from pydantic import Field

from paribus.spec.base import Slot
from paribus.spec.data import Masking, Replacement


class Objective(Slot):
    """A pretraining objective."""


class Mlm(Objective):
    """Masked language modelling. Devlin et al. 2019, arXiv:1810.04805, section 3.1."""

    kind: Literal["mlm"] = "mlm"
    masking: Masking
    rate: float = Field(0.15, gt=0, lt=1)
    """Share of a row's ordinary tokens that is chosen and predicted: floor(rate x tokens + 0.5), at least one."""
    replacement: Replacement = Replacement()
    sentence: Literal["none", "nsp", "sop"] = "none"
    """A second loss on the pair of segments: `nsp` next-sentence prediction, `sop` sentence order. Weight 1."""
