"""Replaced-token detection: who moves which table, what is replaced, and what the losses are divided by."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from paribus.data.packing import load
from paribus.data.vocabulary import FIRST_ORDINARY, PAD
from paribus.nn.rtd import corrupt
from paribus.objectives.batch import IGNORED, Micro, Step
from paribus.objectives.loader import Steps
from paribus.objectives.rtd import Rtd
from paribus.plan.stages import Pretraining
from paribus.spec.run import Runtime
from paribus.train.fit import fit

Make = Callable[..., Pretraining]
SIZE = 512
CPU = Runtime(device="cpu")
BODY = "blocks.0.attention.qkv.weight"


@pytest.fixture
def rtd(pretraining: Make) -> Make:
    """A small pretraining by replaced-token detection; keywords replace fields of the objective."""

    def made(optimizer: object = None, **changes: object) -> Pretraining:
        objective = {"kind": "rtd", "masking": "dynamic", "shared": "tokens", **changes}
        more = {"optimizer": optimizer} if optimizer else {}
        return pretraining(objective=objective, **more)

    return made


def step(spec: Pretraining, packed: Path, micro_rows: int | None = None, number: int = 0) -> Step:
    return Steps(load(packed, "train"), spec, SIZE, 0, micro_rows).step(number)


def losses(module: Rtd, asked: Step) -> tuple[Tensor, Tensor]:
    """L_MLM and L_RTD of a step."""
    (micro,) = asked.micros
    generator_loss, sampled = module.generate(micro)
    return generator_loss / asked.predicted, module.detect(micro, sampled) / asked.tokens


def detected(module: Rtd, asked: Step, micro: Micro, sampled: Tensor) -> Tensor:
    """L_RTD of a step of one micro-batch."""
    return module.discriminator_part(micro, module._asked(asked), sampled)[1]["discriminator_loss"]


def added_up(module: Rtd) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.model.named_parameters() if p.grad is not None}


def gradients(module: Rtd, loss: Tensor) -> dict[str, Tensor]:
    module.zero_grad()
    loss.backward()
    return added_up(module)


def jointly(module: Rtd, asked: Step) -> dict[str, Tensor]:
    """The gradients of a step of both losses."""
    module.zero_grad()
    for _ in module._both(asked):
        pass
    return added_up(module)


def tables(module: Rtd) -> tuple[str, str]:
    """The names of E_G and of what the discriminator's loss moves."""
    names = dict(module.model.named_parameters())
    delta = "encoder.tokens.parametrizations.weight.original"
    mine = next((name for name in (delta, "encoder.tokens.weight") if name in names), "generator.tokens.weight")
    return "generator.tokens.weight", mine


def train(spec: Pretraining, packed: Path, steps: int = 1, micro_rows: int | None = None) -> Rtd:
    """A module after some updates, by Lightning."""
    module = Rtd(spec, SIZE, 0)
    fit(module, Several(Steps(load(packed, "train"), spec, SIZE, 0, micro_rows)), steps, "fp32", CPU)
    return module


class Several:
    """What a data loader iterates."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)


# --- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_each_loss_moves_the_tables_and_layers_that_the_paper_says(rtd: Make, packed: Path, sharing: str) -> None:
    spec = rtd(sharing=sharing)
    module = Rtd(spec, SIZE, 0)
    theirs, mine = tables(module)
    assert (theirs == mine) == (sharing == "es")
    by_mlm = gradients(module, losses(module, step(spec, packed))[0])
    by_rtd = gradients(module, losses(module, step(spec, packed))[1])
    assert by_mlm[theirs].abs().max() > 0 and by_rtd[mine].abs().max() > 0
    if sharing != "es":
        assert mine not in by_mlm and theirs not in by_rtd
        assert not by_mlm.keys() & by_rtd.keys()
    assert f"generator.{BODY}" in by_mlm and f"encoder.{BODY}" not in by_mlm
    assert f"encoder.{BODY}" in by_rtd and not any(name.startswith("generator.blocks") for name in by_rtd)
    assert {name for name in by_mlm | by_rtd} == {name for name, _ in module.model.named_parameters()}


@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_the_gradient_of_a_joint_step_is_the_sum_of_both(rtd: Make, packed: Path, sharing: str) -> None:
    spec = rtd(sharing=sharing, optimizers="joint", discriminator_weight=7.0)
    module, asked = Rtd(spec, SIZE, 0), step(spec, packed)
    by_mlm, by_rtd = (gradients(module, losses(module, asked)[which]) for which in (0, 1))
    for name, gradient in jointly(module, asked).items():
        expected = by_mlm.get(name, torch.zeros(())) + 7.0 * by_rtd.get(name, torch.zeros(()))
        torch.testing.assert_close(gradient, expected.expand_as(gradient), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("micro_rows", [1, 3])
def test_micro_batches_give_the_samples_and_the_gradient_of_the_whole_step(
    rtd: Make, packed: Path, micro_rows: int
) -> None:
    spec = rtd()
    module = Rtd(spec, SIZE, 0)
    whole, cut = step(spec, packed, number=1), step(spec, packed, micro_rows, number=1)
    sampled = torch.cat([module.generate(micro)[1] for micro in cut.micros])
    assert torch.equal(sampled, module.generate(whole.micros[0])[1])
    expected, found = (jointly(module, s) for s in (whole, cut))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5)


# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_disentangled_table_starts_as_the_generators_and_only_the_discriminator_parts_them(
    rtd: Make, packed: Path
) -> None:
    spec = rtd(sharing="gdes", optimizer={"kind": "adamw", "lr": 1e-2, "weight_decay": 0.0})
    module = Rtd(spec, SIZE, 0)
    table, delta = module.model.generator.tokens.weight, dict(module.model.named_parameters())[tables(module)[1]]
    assert torch.equal(module.model.encoder.tokens.weight, table) and not delta.any()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.0)
    before, asked = table.detach().clone(), step(spec, packed)
    for which, moves in ((0, table), (1, delta)):
        kept, start = (delta if which == 0 else table).detach().clone(), moves.detach().clone()
        optimizer.zero_grad()
        losses(module, asked)[which].backward()
        optimizer.step()
        assert not torch.equal(moves, start)
        assert torch.equal(delta if which == 0 else table, kept)
        assert torch.equal(module.model.encoder.tokens.weight, table + delta)
    assert not torch.equal(table, before)


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_alternating_is_two_optimizers_each_with_its_own_clipping(rtd: Make, packed: Path, sharing: str) -> None:
    spec = rtd(sharing=sharing, optimizer={"kind": "adamw", "lr": 1e-2, "clip": 0.05})
    slow = Rtd(spec, SIZE, 0)
    mine = [p for n, p in slow.model.named_parameters() if n.startswith(("encoder", "head"))]
    theirs = [p for n, p in slow.model.named_parameters() if n.startswith("generator")]
    parts = [
        (theirs, torch.optim.AdamW(theirs, weight_decay=0.01, eps=1e-6)),
        (mine, torch.optim.AdamW(mine, eps=1e-6)),
    ]
    for number, factor in ((0, 0.95), (1, 0.85), (2, 0.75)):  # ten steps, warm-up in the first tenth of one
        asked = step(spec, packed, number=number)
        (micro,) = asked.micros
        rate = 1e-2 * factor
        loss, sampled = slow.generate(micro)
        for which, (parameters, optimizer) in enumerate(parts):
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad()
            part = loss / asked.predicted if which == 0 else 50.0 * slow.detect(micro, sampled) / asked.tokens
            part.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 0.05)
            for parameter in parameters:  # matrices only
                if parameter.ndim < 2:
                    parameter.data.div_(1 - rate * 0.01)
            optimizer.step()
    fast = train(replace_schedule(spec), packed, 3)
    for (name, expected), found in zip(slow.model.named_parameters(), fast.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_turns_have_the_two_terms_of_the_joint_loss(rtd: Make, packed: Path) -> None:
    spec = rtd(sharing="nes", discriminator_weight=7.0)
    module, asked, sampled = Rtd(spec, SIZE, 0), step(spec, packed, 3), []
    turns = [*module._generator(sampled, asked)], [*module._discriminator(sampled, asked)]
    parts = [*module._both(asked)]
    told, predicted = module._asked(asked), asked.predicted
    loss = sum(module.part(micro, predicted, told)[0] for micro in asked.micros)
    in_turns = sum(module.generator_part(micro, predicted)[0] for micro in asked.micros) + sum(
        module.discriminator_part(micro, told, tokens_M)[0]
        for micro, tokens_M in zip(asked.micros, sampled, strict=True)
    )
    torch.testing.assert_close(in_turns, loss)
    torch.testing.assert_close(sum(n["loss"] for turn in turns for n in turn), loss)
    torch.testing.assert_close(sum(n["loss"] for n in parts), loss)
    for which, name in enumerate(("generator_loss", "discriminator_loss")):
        torch.testing.assert_close(sum(n[name] for n in turns[which]), sum(n[name] for n in parts))


def replace_schedule(spec: Pretraining) -> Pretraining:
    return spec.model_copy(update={"schedule": type(spec.schedule)(warmup=0.0)})


def test_an_update_of_two_turns_is_one_step_of_the_clock(rtd: Make, packed: Path) -> None:
    module = train(rtd(sharing="nes"), packed, 4)
    assert module.last["lr"].item() == pytest.approx(1e-2 * (10 - 3.5) / 9.9)


def test_the_weight_of_the_discriminator_matters_to_a_shared_table_and_not_to_one_of_its_own(
    rtd: Make, packed: Path
) -> None:
    adam = {"kind": "adamw", "lr": 1e-2, "eps": 1e-30, "clip": 0.0}
    table = {}
    for sharing in ("nes", "es"):
        for weight in (50.0, 100.0):
            module = train(rtd(adam, sharing=sharing, discriminator_weight=weight), packed, 2)
            table[sharing, weight] = module.model.encoder.tokens.weight.detach()
    seen = (table["nes", 50.0] - table["nes", 100.0]).abs().max()
    assert seen < 1e-4 < (table["es", 50.0] - table["es", 100.0]).abs().max()


# --- counts and files ------------------------------------------------------------------------------------------------


def count(spec: Pretraining) -> int:
    return sum(p.numel() for p in Rtd(spec, SIZE, 0).parameters())


def test_two_tables_cost_as_many_parameters_as_the_second_has(rtd: Make) -> None:
    width = rtd().encoder.width
    assert count(rtd(sharing="nes")) == count(rtd(sharing="gdes")) == count(rtd(sharing="es")) + SIZE * width
    # All: 32 places, 2 segments, and a norm of two rows.
    assert count(rtd(sharing="nes")) == count(rtd(sharing="es", shared="all")) + (SIZE + 32 + 2 + 2) * width
    assert count(rtd(sharing="gdes", shared="all")) == count(rtd(sharing="nes"))


@pytest.mark.parametrize("shared", ["tokens", "all"])
@pytest.mark.parametrize("sharing", ["es", "nes", "gdes"])
def test_what_is_kept_is_an_encoder_with_plain_tables_that_says_the_same(
    rtd: Make, packed: Path, sharing: str, shared: str, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    from paribus.evaluate.held_out import load_encoder, load_rtd

    spec = rtd(sharing=sharing, shared=shared)
    module = train(spec, packed, 2).eval()
    for name, weights in module.files().items():
        save_file(weights, tmp_path / f"{name}.safetensors")
    (micro,) = step(spec, packed).micros
    seen = micro.tokens_BT, micro.segments_BT, micro.padding_BT
    whole = load_rtd(spec.encoder, spec.objective, SIZE, tmp_path).eval()
    assert torch.equal(whole.detect(*seen), module.model.detect(*seen))
    assert torch.equal(whole.predict(*seen, micro.places_M), module.model.predict(*seen, micro.places_M))
    assert torch.equal(load_encoder(spec.encoder, SIZE, tmp_path).eval()(*seen), module.model.encoder(*seen))
    apart = not torch.equal(whole.generator.tokens.weight, whole.encoder.tokens.weight)
    assert apart == (sharing != "es")
    assert set(load_file(tmp_path / "encoder.safetensors")) == set(
        load_encoder(spec.encoder, SIZE, tmp_path).state_dict()
    )


def test_the_generators_head_is_tied_to_its_own_table(rtd: Make) -> None:
    for sharing in ("es", "nes", "gdes"):
        model = Rtd(rtd(sharing=sharing), SIZE, 0).model
        assert model.generator_head._embedding[0] is model.generator.tokens
        assert (model.encoder.tokens.weight is model.generator.tokens.weight) == (sharing == "es")


# --- labels and samples ----------------------------------------------------------------------------------------------


def forced(module: Rtd, micro: Micro, tokens_M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the discriminator sees, and the labels its loss reveals, when the generator says `tokens_M`."""
    module.model.predict = lambda *_: 100.0 * F.one_hot(tokens_M, SIZE).float()
    _, sampled = module.generate(micro)
    logits = torch.zeros_like(micro.tokens_BT, dtype=torch.float, requires_grad=True)
    seen: list[Tensor] = []
    module.model.detect = lambda tokens_BT, *_: seen.append(tokens_BT) or logits
    module.detect(micro, sampled).backward()
    assert logits.grad is not None
    return seen[0], logits.grad < 0, sampled  # at a logit of 0 the gradient is 1/2 - label


def test_samples_that_are_the_original_leave_nothing_replaced(rtd: Make, packed: Path) -> None:
    spec = rtd()
    (micro,) = step(spec, packed).micros
    original = corrupt(micro.tokens_BT, micro.places_M, micro.targets_M)
    seen, labels, sampled = forced(Rtd(spec, SIZE, 0), micro, micro.targets_M)
    assert torch.equal(sampled, micro.targets_M) and torch.equal(seen, original) and not labels.any()


def test_samples_that_are_wrong_are_replaced_exactly_at_the_masked_places(rtd: Make, packed: Path) -> None:
    spec = rtd()
    (micro,) = step(spec, packed).micros
    wrong = (micro.targets_M + 1) % SIZE
    seen, labels, _ = forced(Rtd(spec, SIZE, 0), micro, wrong)
    assert torch.equal(labels.flatten().nonzero()[:, 0], micro.places_M)
    assert torch.equal(seen.flatten()[micro.places_M], wrong)


@pytest.mark.parametrize("mask", [0.85, 1.0])
def test_special_tokens_are_never_replaced_and_no_mask_is_left(rtd: Make, packed: Path, mask: float) -> None:
    spec = rtd(replacement={"mask": mask, "random": 0.0})
    asked = step(spec, packed)
    (micro,) = asked.micros
    original = corrupt(micro.tokens_BT, micro.places_M, micro.targets_M)
    kept = (micro.tokens_BT == original).flatten()[micro.places_M].float().mean()
    assert kept == pytest.approx(1 - mask, abs=0.12)
    seen, labels, _ = forced(Rtd(spec, SIZE, 0), micro, torch.full_like(micro.targets_M, FIRST_ORDINARY))
    special = original < FIRST_ORDINARY - 1
    assert special.any() and torch.equal(seen[special], original[special]) and not labels[special].any()
    assert torch.equal(seen.flatten()[micro.places_M], torch.full_like(micro.targets_M, FIRST_ORDINARY))


def test_places_have_fresh_draws_at_every_visit_whatever_the_masks(rtd: Make, packed: Path) -> None:
    rows = load(packed, "train")
    tokens = int(rows.lengths.sum())
    budget = {"train_tokens": 8 * tokens, "batch_tokens": tokens}
    spec = rtd(masking="static")
    steps = Steps(rows, spec.model_copy(update={"budget": type(spec.budget)(**budget)}), SIZE, 0, None)
    draws = [steps.step(number).micros[0].draws_M for number in range(3)]
    assert all(d is not None and ((d >= 0) & (d < 1)).all() for d in draws)
    once, again, later = (sorted(d.tolist()) for d in draws if d is not None)
    assert once != again != later


# --- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["linear", "electra", "deberta"])
def test_untrained_networks_guess_uniformly(rtd: Make, packed: Path, head: str) -> None:
    spec = rtd(head=head)
    generator_loss, discriminator_loss = losses(Rtd(spec, SIZE, 0), step(spec, packed))
    assert generator_loss.item() == pytest.approx(math.log(SIZE), rel=0.01)
    assert discriminator_loss.item() == pytest.approx(math.log(2), abs=0.02)


def test_padding_adds_nothing_and_the_divisor_counts_every_other_token(rtd: Make, packed: Path) -> None:
    spec = rtd()
    module, asked = Rtd(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    assert micro.padding_BT is not None
    assert asked.tokens == int((~micro.padding_BT).sum())
    _, sampled = module.generate(micro)
    logits = module.model.detect(corrupt(micro.tokens_BT, micro.places_M, sampled), None, micro.padding_BT)
    labels = torch.zeros_like(logits)
    labels.view(-1)[micro.places_M] = (sampled != micro.targets_M).float()
    slow = F.binary_cross_entropy_with_logits(logits[~micro.padding_BT], labels[~micro.padding_BT])
    torch.testing.assert_close(module.detect(micro, sampled) / asked.tokens, slow)
    other = micro.tokens_BT.masked_fill(micro.tokens_BT == PAD, 9)
    torch.testing.assert_close(module.detect(replace(micro, tokens_BT=other), sampled) / asked.tokens, slow)


def test_electra_15_is_asked_at_the_masked_places_only(rtd: Make, packed: Path) -> None:
    spec = rtd(discriminator="detect-masked")
    module, asked = Rtd(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    _, sampled = module.generate(micro)
    tokens = corrupt(micro.tokens_BT, micro.places_M, sampled)
    logits = module.model.detect(tokens, None, micro.padding_BT).flatten()[micro.places_M]
    slow = F.binary_cross_entropy_with_logits(logits, (sampled != micro.targets_M).float())
    torch.testing.assert_close(detected(module, asked, micro, sampled), slow)


def test_replace_mlm_predicts_the_masked_tokens_from_the_samples(rtd: Make, packed: Path) -> None:
    spec = rtd(discriminator="replace-mlm")
    module, asked = Rtd(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    _, sampled = module.generate(micro)
    states = module.model.encoder.states(corrupt(micro.tokens_BT, micro.places_M, sampled), None, micro.padding_BT)
    assert module.model.head is None and module.model.vocabulary_head is not None
    slow = F.cross_entropy(module.model.vocabulary_head(states, micro.places_M), micro.targets_M)
    torch.testing.assert_close(detected(module, asked, micro, sampled), slow)


def test_all_tokens_mlm_predicts_every_token_and_may_copy(rtd: Make, packed: Path) -> None:
    spec = rtd(discriminator="all-tokens-mlm")
    module, asked = Rtd(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    _, sampled = module.generate(micro)
    tokens = corrupt(micro.tokens_BT, micro.places_M, sampled)
    original = corrupt(micro.tokens_BT, micro.places_M, micro.targets_M)
    real = (original != PAD).flatten().nonzero()[:, 0]
    model = module.model
    assert model.head is not None and model.vocabulary_head is not None
    copy = model.head(model.encoder(tokens, None, micro.padding_BT)).flatten()[real].sigmoid()
    guess = model.vocabulary_head(model.encoder.states(tokens, None, micro.padding_BT), real).softmax(-1)
    given, wanted = tokens.flatten()[real], original.flatten()[real]
    slow = copy * (given == wanted) + (1 - copy) * guess[torch.arange(len(real)), wanted]
    torch.testing.assert_close(detected(module, asked, micro, sampled), -slow.log().mean())


@pytest.mark.parametrize("discriminator", ["detect", "detect-masked", "replace-mlm", "all-tokens-mlm"])
def test_what_fills_up_a_fixed_shape_adds_nothing(rtd: Make, packed: Path, discriminator: str) -> None:
    spec = rtd(discriminator=discriminator, mask_specials=True)
    module = Rtd(spec, SIZE, 0)
    (micro,) = step(spec, packed).micros
    rows, length = micro.tokens_BT.shape
    filled = micro.fixed(rows + 3, min(32, length + 8), 9, True, False)
    assert filled.draws_M is not None and len(filled.draws_M) == len(filled.places_M) == 9 * (rows + 3)
    (loss, sampled), (filled_loss, filled_sampled) = module.generate(micro), module.generate(filled)
    assert torch.equal(filled_sampled[filled.targets_M != IGNORED], sampled)
    torch.testing.assert_close(filled_loss, loss)
    torch.testing.assert_close(module.detect(filled, filled_sampled), module.detect(micro, sampled))


@pytest.mark.parametrize("control", ["replace-mlm", "all-tokens-mlm"])
def test_the_head_of_an_encoder_that_predicts_is_tied_kept_and_moved(rtd: Make, packed: Path, control: str) -> None:
    module = train(rtd(discriminator=control, discriminator_weight=1.0), packed, 1)
    assert module.model.vocabulary_head._embedding[0] is module.model.encoder.tokens  # type: ignore[union-attr,index]
    assert "vocabulary_head.dense.weight" in module.files()["heads"]
    moved = gradients(module, losses(module, step(rtd(discriminator=control), packed))[1])
    assert {name.split(".")[0] for name in moved} >= {"encoder", "vocabulary_head"}
    assert ("head.out.weight" in moved) == (control == "all-tokens-mlm")


@pytest.mark.parametrize(
    "change",
    [
        {"generator": {"kind": "shallow", "depth": 1.0}},
        {"generator": {"kind": "narrow", "width": 0.5}},
        {"head": "linear"},
        {"head": "deberta"},
        {"sharing": "gdes"},
        {"sharing": "gdes", "optimizers": "joint"},
        {"shared": "all"},
        {"discriminator_weight": 10.0},
        {"replacement": {"mask": 1.0, "random": 0.0}},
        {"discriminator": "detect-masked"},
        {"discriminator": "replace-mlm"},
        {"discriminator": "all-tokens-mlm"},
    ],
)
def test_every_choice_moves_the_discriminator(rtd: Make, packed: Path, change: dict[str, object]) -> None:
    one, other = (train(rtd(**fields), packed, 2).model.discriminator_state() for fields in ({}, change))
    assert not torch.equal(one[BODY], other[BODY])
    if change == {"sharing": "gdes"}:
        joint = train(rtd(**change, optimizers="joint"), packed, 2).model.discriminator_state()
        assert not torch.equal(joint[BODY], other[BODY])


def test_generator_and_discriminator_both_keep_to_the_documents_of_isolated_rows(rtd: Make, packed: Path) -> None:
    spec = rtd()
    module, (micro,) = Rtd(spec, SIZE, 0).eval(), step(spec, packed).micros
    for parameter in module.parameters():
        parameter.data.mul_(8)  # at their first values a change of attention drowns in the rounding of the sum
    length = micro.tokens_BT.shape[1]
    alone = ~torch.eye(length, dtype=torch.bool).expand(len(micro.tokens_BT), -1, -1)  # every token a document
    isolated = replace(micro, blocked_BTT=alone)
    for losses_of in (lambda m: module.generate(m)[0], lambda m: module.detect(m, m.targets_M)):
        assert losses_of(isolated).item() != losses_of(micro).item()
