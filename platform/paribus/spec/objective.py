"""What the encoder is trained to do."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from paribus.spec.base import Slot
from paribus.spec.data import Masking, Replacement, Tokens, Unit
from paribus.spec.model import Encoder


class Objective(Slot):
    """A pretraining objective: tokens are masked, and predicted."""

    masking: Masking
    rate: float = Field(0.15, gt=0, lt=1)
    """Share of a row's ordinary tokens that is chosen and predicted: floor(rate x tokens + 0.5), at least one."""
    unit: Unit = Tokens()
    """What is chosen as one: tokens, whole words, spans."""
    replacement: Replacement = Replacement()
    mask_specials: bool = False
    """Whether [CLS] and [SEP] are chosen like other tokens, as in RoBERTa's code (fairseq); in BERT's they are not."""


class Mlm(Objective):
    """Masked language modelling. Devlin et al. 2019, arXiv:1810.04805, section 3.1."""

    kind: Literal["mlm"] = "mlm"
    sentence: Literal["none", "nsp", "sop", "three-way"] = "none"
    """A second loss, of weight 1, on which kind of pair a row is: `nsp` next-sentence prediction (Devlin et al. 2019,
    section 3.1), `sop` sentence order (Lan et al. 2020, arXiv:1909.11942, section 3.1), `three-way` both at once (Wang
    et al. 2020, StructBERT, arXiv:1908.04577). `none` leaves the rows as they are: pairs without the loss are an arm.
    """

    @property
    def kinds_of_pair(self) -> int:
        """How many kinds of pair `sentence` tells apart; 0 where it tells none."""
        return {"none": 0, "nsp": 2, "sop": 2, "three-way": 3}[self.sentence]


class Generator(Slot):
    """The smaller masked language model whose samples stand in for the masked tokens.

    Its tables are as wide as the discriminator's, so that they can be shared; its head is `encoder.head`.
    """

    def sizes(self, discriminator: Encoder) -> dict[str, Any]:
        """What its encoder has otherwise than the discriminator's."""
        raise NotImplementedError

    def encoder(self, discriminator: Encoder) -> Encoder:
        """Its encoder. ValueError if there can be none of these sizes."""
        found = discriminator.model_copy(update=self.sizes(discriminator))
        try:
            return Encoder.model_validate(found.model_dump())
        except ValidationError as error:
            reason = "; ".join(problem["msg"] for problem in error.errors()).removeprefix("Value error, ")
            raise ValueError(
                f"objective.generator {self.model_dump()} gives an encoder that cannot be: {reason}"
            ) from None


class Shallow(Generator):
    """The discriminator's width, a share of its layers.

    Half of them in He et al. 2021, arXiv:2111.09543 (dashboards/papers/debertav3-ablation).
    """

    kind: Literal["shallow"] = "shallow"
    depth: float = Field(0.5, gt=0, le=1)
    """Share of the layers."""

    def sizes(self, discriminator: Encoder) -> dict[str, Any]:
        return {"layers": max(1, int(self.depth * discriminator.layers + 0.5))}


class Narrow(Generator):
    """All layers, a share of the width, heads as wide as the discriminator's.

    Clark et al. 2020, arXiv:2003.10555, section 3.2 (1/4 to 1/2 of the width is best) and table 6.
    """

    kind: Literal["narrow"] = "narrow"
    width: float = Field(1 / 3, gt=0, le=1)
    """Share of the width, of the feed-forward width and of the heads: 1/3 in ELECTRA-base, 1/4 in small and large."""

    def sizes(self, discriminator: Encoder) -> dict[str, Any]:
        width, inner = (int(self.width * w + 0.5) for w in (discriminator.width, discriminator.feed_forward.width))
        return {
            "width": width,
            "heads": max(1, width * discriminator.heads // discriminator.width),
            "embedding_width": discriminator.table_width,
            "feed_forward": discriminator.feed_forward.model_copy(update={"width": inner}),
        }


class Rtd(Objective):
    """Replaced-token detection. Clark et al. 2020, arXiv:2003.10555, section 2.

    A generator is trained by MLM; its samples (temperature 1, no gradient) stand in for the masked tokens, and the
    encoder, the discriminator, says of every token whether it was replaced. A sample that is the original token was
    not. L = L_MLM (a masked token) + discriminator_weight x L_RTD (a token that it is asked, all with [CLS] and [SEP]).
    """

    kind: Literal["rtd"] = "rtd"
    replacement: Replacement = Replacement(mask=0.85, random=0.0)
    """What the generator sees: 85 % [MASK], 15 % as they were, in ELECTRA's code; its paper reads as 100 % [MASK],
    which is DeBERTaV3's code."""
    generator: Generator = Narrow()
    sharing: Literal["es", "nes", "gdes"] = "es"
    """He et al. 2021, arXiv:2111.09543, section 3.2. The generator's tables E_G and the discriminator's E_D:
    `es` are the same; `nes` are two; `gdes`: E_D = sg(E_G) + E_delta, E_delta from 0, so L_RTD moves E_delta only."""
    shared: Literal["tokens", "all"] = "all"
    """The tables that `sharing` speaks of (under `nes` none is). `tokens`: the token table. `all`, ELECTRA's code: also
    the segment and absolute-position tables and the norm over them, where the encoder has them. Never shared: the
    projection behind the tables, relative positions, the layers."""
    optimizers: Literal["paper", "joint"] = "paper"
    """`paper`: es one step on L; nes and gdes a generator step on L_MLM, then a discriminator step on the second term,
    on samples from before it, each clipped by itself (DeBERTaV3's code). `joint`: one step on L for all three."""
    discriminator: Literal["detect", "detect-masked", "replace-mlm", "all-tokens-mlm"] = "detect"
    """What the encoder is asked, on the samples of the generator. Clark et al. 2020, section 3.4 and table 5.
    `detect`: of every token, whether it was replaced; `detect-masked` (ELECTRA 15 %): only at the masked places.
    `replace-mlm`: to predict the masked tokens; `all-tokens-mlm`: to predict every token, p = D [it is the input's] +
    (1 - D) p_MLM, the probability D to copy from `head`. Both by `encoder.head`, and at a weight of 1."""
    discriminator_weight: float = Field(50.0, gt=0)
    """50 in Clark et al. 2020, section 2, and He et al. 2021; 10 in DeBERTaV3's code."""
    head: Literal["linear", "electra", "deberta"] = "electra"
    """`linear`: ELECTRA's paper; `electra`: its code, linear, GELU, linear; `deberta`: DeBERTaV3's code, norm of the
    token's state plus that of [CLS], linear, GELU, linear."""

    @property
    def joint(self) -> bool:
        """Whether an update is one step on L."""
        return self.sharing == "es" or self.optimizers == "joint"

    @property
    def detects(self) -> bool:
        """Whether the encoder tells replaced tokens from others."""
        return self.discriminator in ("detect", "detect-masked")

    @property
    def of_all_tokens(self) -> bool:
        """Whether the encoder is asked about every token, not only about the masked ones."""
        return self.discriminator in ("detect", "all-tokens-mlm")
