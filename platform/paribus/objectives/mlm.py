"""Masked language modelling, with a sentence objective where the spec asks for one."""

import math

import torch.nn.functional as F
from torch import Tensor

from paribus.nn.build import build_encoder, build_head
from paribus.nn.heads import PooledHead
from paribus.nn.init import initialise
from paribus.objectives.batch import Micro, Step
from paribus.objectives.draw import Draw
from paribus.objectives.module import Pretrained, named
from paribus.plan.stages import Pretraining
from paribus.spec.objective import Mlm as MlmSpec
from paribus.train.module import Losses


class Mlm(Pretrained):
    """Masked language modelling. Devlin et al. 2019, arXiv:1810.04805, section 3.1.

    The loss of an optimizer step is the sum over all its predicted tokens divided once by their number, whatever the
    micro-batches: a mean of means is biased when they hold unequal numbers. The sentence loss likewise over rows.
    """

    def __init__(self, spec: Pretraining, vocabulary: int, seed: int) -> None:
        super().__init__(spec.optimizer, spec.schedule, spec.budget.steps, seed, "pretrain")
        assert isinstance(spec.objective, MlmSpec)
        self.encoder = build_encoder(spec.encoder, vocabulary)
        self.head = build_head(spec.encoder, self.encoder)
        kinds = spec.objective.kinds_of_pair
        self.sentence_head = PooledHead(spec.encoder.width, kinds) if kinds else None
        initialise(self, seed, spec.encoder.init_std)
        self.draw = Draw(spec.objective, vocabulary)
        self.guess = math.log(vocabulary)

    def losses(self, micro: Micro) -> tuple[Tensor, Tensor | None]:
        """Summed token loss in nats, and summed sentence loss (None without a sentence objective)."""
        states = self.encoder.states(micro.tokens_BT, micro.segments_BT, micro.unseen)
        logits_MV = self.head(states, micro.places_M)
        token_loss = F.cross_entropy(logits_MV.float(), micro.targets_M, reduction="sum")
        if self.sentence_head is None or micro.labels_B is None:
            return token_loss, None
        logits_BC = self.sentence_head(states.last_BTD)
        return token_loss, F.cross_entropy(logits_BC.float(), micro.labels_B, reduction="sum")

    def training_step(self, step: Step, _: int) -> None:
        self.update(self.ranks.level(step), self._parts)

    def _parts(self, step: Step) -> Losses:
        for micro in step.micros:
            yield self.passes(self.part, micro, step.predicted, step.rows)

    def part(self, micro: Micro, predicted: int | Tensor, rows: int | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What a micro-batch adds to the loss of a step with so many predicted tokens and rows, and its named parts."""
        token_loss, sentence_loss = self.losses(self.draw(micro))
        parts = {"loss": token_loss / predicted}
        if sentence_loss is None:
            return parts["loss"], parts
        parts["sentence_loss"] = sentence_loss / rows
        return parts["loss"] + parts["sentence_loss"], parts

    def files(self) -> dict[str, dict[str, Tensor]]:
        heads = named("head", self.head)
        if self.sentence_head is not None:
            heads |= named("sentence_head", self.sentence_head)
        return {"encoder": self.encoder.state_dict(), "heads": heads}
