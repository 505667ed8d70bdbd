"""The loss of masked language modelling."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paribus.data import packing
from paribus.data.document import Document
from paribus.data.packing import load
from paribus.data.vocabulary import Vocabulary
from paribus.objectives.batch import Step
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.plan.stages import Pretraining
from paribus.spec.data import SegmentPairs, SentencePairs

Make = Callable[..., Pretraining]
SIZE = 512


def step(spec: Pretraining, packed: Path, micro_rows: int | None = None) -> Step:
    return Steps(load(packed, "train"), spec, SIZE, 0, micro_rows).step(0)


def gradients(module: Mlm) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def total(module: Mlm, asked: Step) -> Tensor:
    """The loss of a step; its gradients are the module's."""
    module.zero_grad()
    return torch.stack([part for named in module._parts(asked) for part in named.values()]).sum()


def test_an_untrained_model_guesses_uniformly(pretraining: Make, packed: Path) -> None:
    spec = pretraining()
    loss = total(Mlm(spec, SIZE, 0), step(spec, packed))
    assert loss.item() == pytest.approx(math.log(SIZE), rel=0.01)


def test_the_loss_at_the_places_is_that_of_all_logits_with_the_others_ignored(pretraining: Make, packed: Path) -> None:
    spec = pretraining()
    module, asked = Mlm(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    labels = torch.full((micro.tokens_BT.numel(),), -100)
    labels[micro.places_M] = micro.targets_M
    everywhere = torch.arange(micro.tokens_BT.numel())
    logits = module.head(module.encoder.states(micro.tokens_BT, micro.segments_BT, micro.padding_BT), everywhere)
    slow = F.cross_entropy(logits, labels, ignore_index=-100)
    slow.backward()  # type: ignore[no-untyped-call]
    slow_gradients = gradients(module)
    torch.testing.assert_close(total(module, asked), slow, rtol=0, atol=1e-6)
    for name, gradient in gradients(module).items():
        torch.testing.assert_close(gradient, slow_gradients[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("micro_rows", [1, 3])
def test_micro_batches_give_the_gradient_of_the_whole_step(pretraining: Make, packed: Path, micro_rows: int) -> None:
    spec = pretraining()
    module = Mlm(spec, SIZE, 0)
    whole, cut = step(spec, packed), step(spec, packed, micro_rows)
    assert len({len(micro.places_M) for micro in cut.micros}) > 1  # uneven, so that a mean of means would differ
    total(module, whole)
    expected = gradients(module)
    total(module, cut)
    for name, gradient in gradients(module).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    of_means = sum(module.losses(m)[0] / len(m.places_M) for m in cut.micros) / len(cut.micros)
    assert not torch.allclose(of_means, total(module, whole), rtol=1e-5)


def test_rows_without_a_predicted_token_add_nothing(pretraining: Make, packed: Path) -> None:
    spec = pretraining()
    module, asked = Mlm(spec, SIZE, 0), step(spec, packed)
    (micro,) = asked.micros
    none = micro.places_M[:0]
    idle = replace(micro, places_M=none, targets_M=none)
    total(module, asked)
    expected = gradients(module)
    total(module, replace(asked, micros=(micro, idle)))
    for name, gradient in gradients(module).items():
        assert torch.equal(gradient, expected[name])


@pytest.fixture
def pairs(documents: list[Document], vocabulary: Vocabulary, tmp_path: Path) -> Path:
    rows = packing.pack(SegmentPairs(length=32, negatives="swapped"), documents[:2], vocabulary, None)
    packing.save([rows], tmp_path, "train", len(vocabulary))
    return tmp_path


def test_a_sentence_objective_adds_a_mean_over_rows(pretraining: Make, pairs: Path) -> None:
    plain = pretraining()
    both = pretraining(objective={"kind": "mlm", "masking": "dynamic", "sentence": "sop"})
    module, asked = Mlm(both, SIZE, 0), step(both, pairs, 5)
    sentence = torch.stack([named["sentence_loss"] for named in module._parts(asked)]).sum()
    assert sentence.item() == pytest.approx(math.log(2), abs=0.05)
    without = total(Mlm(plain, SIZE, 0), step(plain, pairs, 5))
    torch.testing.assert_close(total(module, asked), without + sentence)
    losses = [module.part(micro, asked.predicted, asked.rows)[0] for micro in asked.micros]
    torch.testing.assert_close(torch.stack(losses).sum(), without + sentence)
    assert gradients(module).keys() >= {"sentence_head.out.weight", "sentence_head.dense.weight"}


@pytest.mark.parametrize(
    ("sentence", "negatives", "labels"), [("nsp", "random-document", 2), ("three-way", "three-way", 3)]
)
def test_an_untrained_sentence_head_guesses_among_the_kinds_of_pair(
    pretraining: Make, documents: list[Document], vocabulary: Vocabulary, sentence: str, negatives: str, labels: int
) -> None:
    spec = pretraining(objective={"kind": "mlm", "masking": "dynamic", "sentence": sentence})
    rows = packing.pack(SentencePairs(length=32, negatives=negatives), documents[:3], vocabulary, None)  # type: ignore[arg-type]
    (micro,) = Steps(rows, spec, SIZE, 0, None).step(0).micros
    assert micro.labels_B is not None and set(rows.labels.tolist()) == set(range(labels))
    _, loss = Mlm(spec, SIZE, 0).losses(micro)
    assert loss is not None and loss.item() / len(micro.labels_B) == pytest.approx(math.log(labels), abs=0.05)


def test_pairs_without_the_loss_share_rows_masks_and_starts_with_those_that_have_it(
    pretraining: Make, documents: list[Document], vocabulary: Vocabulary
) -> None:
    rows = packing.pack(SegmentPairs(length=32), documents[:3], vocabulary, None)
    arms = [pretraining(objective={"kind": "mlm", "masking": "dynamic", "sentence": s}) for s in ("none", "nsp")]
    plain, nsp = (Steps(rows, spec, SIZE, 0, None).step(4).micros[0] for spec in arms)
    assert plain.labels_B is None and nsp.labels_B is not None
    assert torch.equal(plain.tokens_BT, nsp.tokens_BT) and torch.equal(plain.places_M, nsp.places_M)
    starts = [dict(Mlm(spec, SIZE, 0).named_parameters()) for spec in arms]
    assert starts[1].keys() - starts[0].keys() == {
        f"sentence_head.{part}.{name}" for part in ("dense", "out") for name in ("weight", "bias")
    }
    assert all(torch.equal(starts[1][name], start) for name, start in starts[0].items())
