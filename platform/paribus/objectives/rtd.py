"""Replaced-token detection: a generator by MLM, and a discriminator on its samples."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paribus.nn.build import build_rtd
from paribus.nn.init import initialise
from paribus.nn.rtd import GeneratorAndDiscriminator, corrupt, sample
from paribus.objectives.batch import IGNORED, Micro, Step
from paribus.objectives.draw import Draw
from paribus.objectives.module import Pretrained, named
from paribus.plan.stages import Pretraining
from paribus.spec.objective import Rtd as RtdSpec
from paribus.train.module import Losses
from paribus.train.passes import Parts


def detection_loss(model: GeneratorAndDiscriminator, asked: RtdSpec, micro: Micro, sampled_M: Tensor) -> Tensor:
    """Summed loss, in nats, of the encoder on the samples: of telling those that differ from the original from all
    other tokens, or another task, see `paribus.spec.objective.Rtd.discriminator`."""
    chosen_M = micro.targets_M != IGNORED
    tokens_BT = corrupt(micro.tokens_BT, micro.places_M, sampled_M, chosen_M)
    original_BT = corrupt(micro.tokens_BT, micro.places_M, micro.targets_M, chosen_M)
    everywhere = torch.arange(tokens_BT.numel(), device=tokens_BT.device)
    asked_N = everywhere if asked.of_all_tokens else micro.places_M
    original_N, same_N = original_BT.flatten()[asked_N], (tokens_BT == original_BT).flatten()[asked_N]
    if asked.detects:
        logits_N = model.detect(tokens_BT, micro.segments_BT, micro.unseen).float().flatten()[asked_N]
        nats_N = F.binary_cross_entropy_with_logits(logits_N, (~same_N).float(), reduction="none")
    else:
        logits_NV, copy_N = model.restore(tokens_BT, micro.segments_BT, micro.unseen, asked_N)
        nats_N = F.cross_entropy(logits_NV.float(), original_N, reduction="none")
        if copy_N is not None:  # p = D [same] + (1 - D) p_MLM
            copied_N = F.logsigmoid(copy_N.float()).masked_fill(~same_N, -math.inf)
            nats_N = -torch.logaddexp(copied_N, F.logsigmoid(-copy_N.float()) - nats_N)
    if not asked.of_all_tokens:
        return (nats_N * chosen_M).sum()
    if micro.padding_BT is None:
        return nats_N.sum()
    counts_BT = ~micro.padding_BT if micro.real_B is None else ~micro.padding_BT & micro.real_B[:, None]
    return (nats_N * counts_BT.flatten()).sum()


class Rtd(Pretrained):
    """Replaced-token detection. Clark et al. 2020, arXiv:2003.10555, section 2; He et al. 2021, arXiv:2111.09543.

    L_MLM is the sum over all masked tokens of the optimizer step divided once by their number, L_RTD over all tokens
    but [PAD] by theirs.  The generator is in training mode when it is sampled from, with the logits it is trained on.
    """

    def __init__(self, spec: Pretraining, vocabulary: int, seed: int) -> None:
        super().__init__(spec.optimizer, spec.schedule, spec.budget.steps, seed, "pretrain")
        assert isinstance(spec.objective, RtdSpec)
        self.weight = spec.objective.discriminator_weight
        self.joint = spec.objective.joint
        self.model = build_rtd(spec.encoder, spec.objective, vocabulary)
        initialise(self.model, seed, spec.encoder.init_std)
        self.model.share(spec.objective.sharing, spec.objective.shared)
        self.draw = Draw(spec.objective, vocabulary)
        self.asked = spec.objective
        self.guess = math.log(vocabulary) + self.weight * math.log(2 if spec.objective.detects else vocabulary)

    def generate(self, micro: Micro) -> tuple[Tensor, Tensor]:
        """Summed MLM loss in nats, and a sample for each masked place."""
        assert micro.draws_M is not None
        logits_MV = self.model.predict(micro.tokens_BT, micro.segments_BT, micro.unseen, micro.places_M).float()
        return F.cross_entropy(logits_MV, micro.targets_M, reduction="sum"), sample(logits_MV, micro.draws_M)

    def detect(self, micro: Micro, sampled_M: Tensor) -> Tensor:
        """Summed loss, in nats, of the encoder on the samples."""
        return detection_loss(self.model, self.asked, micro, sampled_M)

    def training_step(self, step: Step, _: int) -> None:
        if self.joint:
            return self.update(step, self._both)
        sampled: list[Tensor] = []
        self.update(step, partial(self._generator, sampled), partial(self._discriminator, sampled))

    def _generator(self, sampled: list[Tensor], step: Step) -> Losses:
        """What is drawn goes to `sampled`."""
        sampled.clear()
        for micro in step.micros:
            parts = self.passes(self.generator_part, micro, step.predicted)
            sampled.append(parts.pop("sampled"))
            yield parts

    def _discriminator(self, sampled: list[Tensor], step: Step) -> Losses:
        # The micro-batches may have become smaller since.
        drawn = torch.split(torch.cat(sampled), [len(micro.places_M) for micro in step.micros])
        for micro, tokens_M in zip(step.micros, drawn, strict=True):
            yield self.passes(self.discriminator_part, micro, self._asked(step), tokens_M)

    def _both(self, step: Step) -> Losses:
        for micro in step.micros:
            yield self.passes(self.part, micro, step.predicted, self._asked(step))

    def _asked(self, step: Step) -> int | Tensor:
        """The tokens of the whole step that the discriminator is asked about."""
        return step.tokens if self.asked.of_all_tokens else step.predicted

    def generator_part(self, micro: Micro, predicted: int | Tensor) -> Parts:
        """What a micro-batch adds to the loss of the generator's turn in a step with so many predicted tokens, and the
        samples."""
        loss, tokens_M = self.generate(self.draw(micro))
        loss = loss / predicted
        return loss, {"loss": loss, "generator_loss": loss, "sampled": tokens_M}

    def discriminator_part(self, micro: Micro, asked: int | Tensor, sampled_M: Tensor) -> Parts:
        """What a micro-batch adds to the loss of the discriminator's turn in a step with so many tokens asked about."""
        loss = self.detect(self.draw(micro), sampled_M) / asked
        return self.weight * loss, {"loss": self.weight * loss, "discriminator_loss": loss}

    def part(self, micro: Micro, predicted: int | Tensor, asked: int | Tensor) -> Parts:
        """What it adds where both are one step."""
        micro = self.draw(micro)  # once for both: what is drawn is left as it is
        generator_loss, generated = self.generator_part(micro, predicted)
        discriminator_loss, parts = self.discriminator_part(micro, asked, generated["sampled"])
        loss = generator_loss + discriminator_loss
        return loss, {**parts, "generator_loss": generator_loss, "loss": loss}

    def files(self) -> dict[str, dict[str, Tensor]]:
        heads: dict[str, Tensor] = {}
        for name in ("head", "generator_head", "vocabulary_head"):
            if (head := getattr(self.model, name)) is not None:
                heads |= named(name, head)
        return {
            "encoder": self.model.discriminator_state(),
            "generator": self.model.generator.state_dict(),
            "heads": heads,
        }
