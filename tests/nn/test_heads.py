"""Heads of tasks: pooling, and what a frozen encoder's layers become."""

import pytest
import torch
from torch import Tensor

from paribus.nn.heads import LayerReader, PooledHead, pool
from paribus.nn.init import initialise

LENGTHS = [5, 2, 3]


def states() -> tuple[Tensor, Tensor]:
    """Three rows of 5, 2 and 3 tokens, and their padding."""
    hidden_BTD = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    return hidden_BTD, torch.arange(5) >= torch.tensor(LENGTHS)[:, None]


@pytest.mark.parametrize(
    ("how", "slow"), [("cls", lambda x: x[0]), ("mean", lambda x: x.mean(0)), ("max", lambda x: x.max(0).values)]
)
def test_pooling_is_over_the_tokens_of_each_row(how: str, slow: object) -> None:
    hidden_BTD, padding_BT = states()
    expected = torch.stack([slow(row[:length]) for row, length in zip(hidden_BTD, LENGTHS, strict=True)])  # type: ignore[operator]
    assert torch.allclose(pool(hidden_BTD, padding_BT, how), expected)  # type: ignore[arg-type]
    hidden_BTD[padding_BT] = 1e6
    assert torch.allclose(pool(hidden_BTD, padding_BT, how), expected)  # type: ignore[arg-type]


def test_a_sentence_objectives_head_reads_cls_and_needs_no_padding() -> None:
    hidden_BTD, padding_BT = states()
    head = PooledHead(4, 2)
    assert torch.equal(head(hidden_BTD), head(hidden_BTD, padding_BT))


def layers() -> list[Tensor]:
    """Embeddings and five layers, each filled with its number."""
    return [torch.full((3, 5, 4), float(number)) for number in range(6)]


@pytest.mark.parametrize(
    ("which", "expected", "width"),
    [
        ("embeddings", 0.0, 4),
        ("second-to-last", 4.0, 4),
        ("last", 5.0, 4),
        ("sum-last-four", 2.0 + 3 + 4 + 5, 4),
        ("mix-last-four", (2.0 + 3 + 4 + 5) / 4, 4),
        ("mix-all", (1.0 + 2 + 3 + 4 + 5) / 5, 4),
        ("concat-last-four", None, 16),
    ],
)
def test_the_layers_that_are_read(which: str, expected: float | None, width: int) -> None:
    reader = LayerReader(which, 5, 4, 0)
    initialise(reader, 0, 0.02)
    found = reader(layers(), states()[1])
    assert found.shape == (3, 5, width) == (3, 5, reader.width)
    if expected is None:
        assert found[0, 0].tolist() == [2.0] * 4 + [3.0] * 4 + [4.0] * 4 + [5.0] * 4
    else:
        assert torch.allclose(found, torch.full_like(found, expected))


def test_a_mix_is_the_scalar_mix_of_elmo() -> None:
    reader = LayerReader("mix-last-four", 5, 4, 0)
    initialise(reader, 0, 0.02)
    weights = torch.tensor([0.5, -1.0, 2.0, 0.0])
    assert reader.weights is not None and reader.gamma is not None
    reader.weights.data, reader.gamma.data = weights, torch.tensor(3.0)
    shares = (weights.exp() / weights.exp().sum()).tolist()
    slow = 3.0 * sum(share * value for share, value in zip(shares, (2, 3, 4, 5), strict=True))
    assert reader(layers(), states()[1])[0, 0, 0].item() == pytest.approx(slow)


def test_an_lstm_does_not_see_padding() -> None:
    hidden_BTD, padding_BT = states()
    reader = LayerReader("last", 1, 4, 3)
    initialise(reader, 0, 0.5)
    found = reader([hidden_BTD], padding_BT)
    assert found.shape == (3, 5, 6) and reader.width == 6
    alone = reader([hidden_BTD[1:2, :2]], padding_BT[1:2, :2])
    assert torch.allclose(found[1, :2], alone[0], atol=1e-6)
