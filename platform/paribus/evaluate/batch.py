"""Features as tensors: what is fine-tuned on, and what answers are computed of."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from paribus.data.vocabulary import PAD
from paribus.evaluate.features import IGNORED, Feature
from paribus.nn.unpadded import Padding, Unpadded, without
from paribus.spec.task import MultipleChoice, Regression, Tagging, Task
from paribus.train.tensors import Moved, Tensors


@dataclass(frozen=True)
class Batch(Tensors):
    """Features through the network at once. B features, T tokens, Q questions of at most O options.

    tokens_BT: ids.  segments_BT: 0 or 1.  padding_BT: True at [PAD].
    kept_N, starts_S: how rows are without their padding, see paribus.nn.unpadded; None where they are not to be.
    targets: (B,) labels or scores; (B, T) the label of each word at its first id, IGNORED elsewhere; (B, 2) the first
    and the last token of the answer; (Q,) the right option.  None where only answers are wanted.
    options_QO: of choices alone, the feature of each option, and -1 where a question has fewer.
    """

    tokens_BT: Tensor
    segments_BT: Tensor
    padding_BT: Tensor
    kept_N: Tensor | None = None
    starts_S: Tensor | None = None
    targets: Tensor | None = None
    options_QO: Tensor | None = None

    @classmethod
    def of(cls, features: Sequence[Feature], length: int, task: Task | None = None, unpadded: bool = True) -> Self:
        """Padded to the longest in eights, but not beyond `length`; with the targets of a task, if it is told."""
        longest = min(length, -(-max(len(feature.ids) for feature in features) // 8) * 8)
        tokens = np.full((len(features), longest), PAD, dtype=np.int64)
        segments = np.zeros((len(features), longest), dtype=np.int64)
        for row, feature in enumerate(features):
            tokens[row, : len(feature.ids)] = feature.ids
            if feature.second:
                segments[row, feature.second : len(feature.ids)] = 1
        padding_BT = torch.from_numpy(tokens == PAD)
        made = cls(torch.from_numpy(tokens), torch.from_numpy(segments), padding_BT)
        if unpadded:
            rows = Unpadded.of(padding_BT)
            made = replace(made, kept_N=rows.kept_N, starts_S=rows.starts_S)
        return made if task is None else replace(made, **_targets(task, features, longest))

    def __len__(self) -> int:
        return len(self.tokens_BT)

    @property
    def unseen(self) -> Padding:
        """What attention leaves out, as the encoder's `padding`."""
        return without(self.padding_BT, self.kept_N, self.starts_S)


@dataclass(frozen=True)
class Step(Moved):
    """One optimizer step: its features, these in batches that fit, and how many terms their loss is the mean of."""

    features: list[Feature]
    batches: tuple[Batch, ...]
    terms: Tensor


def _targets(task: Task, features: Sequence[Feature], longest: int) -> dict[str, Tensor]:
    found = [feature.target for feature in features]
    if isinstance(task, Tagging):
        padded = [[*t, *([IGNORED] * (longest - len(t)))] for t in found if isinstance(t, list)]
        return {"targets": torch.tensor(padded)}
    if not isinstance(task, MultipleChoice):
        return {"targets": torch.tensor(found, dtype=torch.float32 if isinstance(task, Regression) else torch.int64)}
    firsts = [row for row, feature in enumerate(features) if feature.option == 0]
    ends = [*firsts[1:], len(features)]
    options = np.full((len(firsts), max(feature.option for feature in features) + 1), -1)
    for question, (first, end) in enumerate(zip(firsts, ends, strict=True)):
        options[question, : end - first] = range(first, end)
    return {"targets": torch.tensor([found[row] for row in firsts]), "options_QO": torch.from_numpy(options)}
