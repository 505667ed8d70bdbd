"""Fused relative attention answers to slow attention: in Triton's interpreter without a GPU, compiled with one.

Those under the marker `gpu` need one: `pytest -m gpu`.
"""

import importlib
import math
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from paribus.nn import attention
from paribus.nn.attention import DisentangledAttention
from paribus.nn.position import RelativeTable, Unordered, by_pair, relative_row

CARD = torch.cuda.is_available()
DEVICE = "cuda" if CARD else "cpu"
TERMS = [(True, True), (True, False), (False, True)]


@pytest.fixture(scope="module")
def fused() -> Iterator[ModuleType]:
    """The kernels; interpreted in small blocks, so that short rows have several."""
    pytest.importorskip("triton", reason="needs triton, which torch's CUDA wheels bring: pip install triton")
    if not CARD and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs a GPU that torch can use, or none and TRITON_INTERPRET=1")
    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module("paribus.nn.fused")
        if not CARD:
            patch.setattr(module, "SIZE", 32)
        yield module


def slowly(
    q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor, paper_index: bool,
    unseen: Tensor | None, dropout: float, scale: float, kept: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same from the scores of all pairs, with dropout by a mask."""
    index = by_pair(row.long())
    scores = q @ k.mT
    if key_rows is not None:
        scores = scores + (q @ key_rows.mT).gather(-1, index.expand_as(scores))
    if query_rows is not None:
        turned = (index if paper_index else index.mT).expand_as(scores)
        scores = scores + (k @ query_rows.mT).gather(-1, turned).mT
    if unseen is not None:
        scores = scores.masked_fill(unseen[:, None, None] if unseen.ndim == 2 else unseen[:, None], -math.inf)
    p = (scale * scores).softmax(-1).nan_to_num(0.0)  # 0 where a query sees no key
    return (p if kept is None else p * kept / (1 - dropout)) @ v


def kept_by(seed: Tensor, batch: int, heads: int, length: int, dropout: float) -> Tensor:
    """The probabilities that dropout leaves with a seed, (B, H, T, T): what the kernels compute in blocks."""

    def mix(x: Tensor) -> Tensor:
        x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
        return x ^ (x >> 15)

    def count(size: int) -> Tensor:
        return torch.arange(size, device=seed.device)

    head = mix((seed + mix(count(batch * heads))) & 0xFFFFFFFF)
    query = mix((head[:, None] + count(length)) & 0xFFFFFFFF)
    x = ((query[:, :, None] ^ mix(count(length))) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return (x >> 8 >= round(dropout * 2**24)).view(batch, heads, length, length)


def case(
    batch: int, heads: int, length: int, width: int, k: int, buckets: int | None, c2p: bool, p2c: bool, unseen: str
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Random inputs by name, each distance's row, what is unseen; drawn from torch's generator."""
    row = torch.tensor([relative_row(distance, k, buckets) for distance in range(1 - length, length)])
    row = row - row[0]
    rows = int(row[-1]) + 1 + int(torch.randint(3, ()))  # as many more for alignment
    inputs = {name: torch.randn(batch, heads, length, width) for name in ("q", "k", "v")}
    inputs |= {name: torch.randn(heads, rows, width) for name, on in (("key_rows", c2p), ("query_rows", p2c)) if on}
    inputs["q"] = inputs["q"].transpose(1, 2).contiguous().transpose(1, 2)  # as a projection leaves it
    masks = {
        "nothing": None,
        "keys": torch.arange(length) >= torch.randint(1, length + 1, (batch, 1)),
        "keys for each query": torch.rand(batch, length, length) > 0.7,
    }
    return inputs, row, masks[unseen]


def with_gradients(attend: Any, inputs: dict[str, Tensor], *others: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """The output and the gradient of each input, of a loss that weighs the outputs at random."""
    leaves = {name: tensor.to(DEVICE, dtype).requires_grad_() for name, tensor in inputs.items()}
    out = attend(*(leaves.get(name) for name in ("q", "k", "v", "key_rows", "query_rows")), *others)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    gradients = torch.autograd.grad(out, list(leaves.values()), weights)
    return {"out": out.detach(), **dict(zip(leaves, gradients, strict=True))}


@settings(max_examples=25)
@given(
    draw=some.integers(0, 1000),
    sizes=some.tuples(some.integers(1, 2), some.integers(1, 2), some.integers(1, 70), some.sampled_from([3, 16, 20])),
    k=some.integers(1, 80),
    buckets=some.sampled_from([None, None, 2, 8, 32]),
    terms=some.sampled_from(TERMS),
    paper_index=some.booleans(),
    unseen=some.sampled_from(["nothing", "keys", "keys for each query"]),
    dropout=some.sampled_from([0.0, 0.1, 0.6]),
)
def test_the_kernels_are_slow_attention_with_all_gradients(
    fused: ModuleType, draw: int, sizes: tuple[int, int, int, int], k: int, buckets: int | None,
    terms: tuple[bool, bool], paper_index: bool, unseen: str, dropout: float,
) -> None:  # fmt: skip
    torch.manual_seed(draw)
    inputs, row, mask = case(*sizes, max(k, buckets or 0), buckets, *terms, unseen)
    row, mask = row.to(DEVICE), mask if mask is None else mask.to(DEVICE)
    others = (row, paper_index, mask, dropout, sizes[-1] ** -0.5)
    torch.manual_seed(draw)
    seed = torch.randint(2**31, (1,), device=DEVICE)
    kept = kept_by(seed, *sizes[:3], dropout) if dropout else None
    torch.manual_seed(draw)
    found = with_gradients(fused.relative_attention, inputs, *others, dtype=torch.float32)
    expected = with_gradients(slowly, inputs, *others, kept, dtype=torch.float64)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name].double(), tensor, rtol=1e-5, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize(
    ("length", "k", "buckets"),
    [(1, 512, 256), (31, 1, None), (32, 2, None), (33, 512, 256), (97, 512, None), (96, 5, 4)],
)
def test_lengths_around_whole_blocks_and_tables_that_end_within_one(
    fused: ModuleType, length: int, k: int, buckets: int | None
) -> None:
    torch.manual_seed(0)
    inputs, row, mask = case(2, 1, length, 8, k, buckets, True, True, "nothing")
    others = (row.to(DEVICE), False, mask, 0.0, 0.2)
    found = with_gradients(fused.relative_attention, inputs, *others, dtype=torch.float32)
    expected = with_gradients(slowly, inputs, *others, dtype=torch.float64)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name].double(), tensor, rtol=1e-5, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_a_batch_larger_than_its_parts_adds_up_in_the_tables_gradients(
    fused: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "GROUPS", 2)
    torch.manual_seed(0)
    inputs, row, _ = case(3, 2, 40, 8, 9, None, True, True, "nothing")
    others = (row.to(DEVICE), False, None, 0.0, 0.2)
    found = with_gradients(fused.relative_attention, inputs, *others, dtype=torch.float32)
    expected = with_gradients(slowly, inputs, *others, dtype=torch.float64)
    for name in ("key_rows", "query_rows"):
        torch.testing.assert_close(found[name].double(), expected[name], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_takes_its_share_and_no_pattern(fused: ModuleType, dropout: float) -> None:
    seeds = [torch.tensor([seed]) for seed in (0, 1, 2**31 - 1)]
    kept = torch.stack([kept_by(seed, 2, 2, 200, dropout) for seed in seeds]).double()
    assert (kept.mean() - (1 - dropout)).abs() < 5 * math.sqrt(dropout * (1 - dropout) / kept.numel())
    apart = (kept - (1 - dropout)) / math.sqrt(dropout * (1 - dropout))
    for axis in range(kept.ndim):  # seeds, rows of the batch, heads, queries, keys
        size = apart.shape[axis]
        for step in {1, size // 2, size - 1}:
            pairs = apart.narrow(axis, 0, size - step) * apart.narrow(axis, step, size - step)
            assert pairs.mean().abs() < 5 / math.sqrt(pairs.numel()), (axis, step)


def attending(buckets: int | None, share: bool, paper_index: bool, c2p: bool, p2c: bool) -> DisentangledAttention:
    position = Unordered()
    position.relative = RelativeTable(16, 8 if buckets else 6, buckets, nn.LayerNorm(16), 0.0)
    made = DisentangledAttention(0, 16, 2, 0.0, position, c2p, p2c, share, paper_index)
    made.position = position  # so that its table is among the parameters
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0.0, 0.25)
    return made.to(DEVICE)


@pytest.mark.parametrize(("c2p", "p2c"), TERMS)
@pytest.mark.parametrize(
    ("buckets", "share", "paper_index"), [(None, False, False), (4, True, False), (4, False, True)]
)
def test_disentangled_attention_is_the_same_with_and_without_its_kernel(
    fused: ModuleType, monkeypatch: pytest.MonkeyPatch, buckets: int | None, share: bool, paper_index: bool,
    c2p: bool, p2c: bool,
) -> None:  # fmt: skip
    torch.manual_seed(0)
    made = attending(buckets, share, paper_index, c2p, p2c)
    x, source = (torch.randn(2, 21, 16, device=DEVICE, requires_grad=True) for _ in range(2))
    padding = (torch.arange(21) >= torch.tensor([[21], [13]])).to(DEVICE)
    wanted = [x, source, *made.parameters()]
    found = []
    for reason in ("slow", None):
        monkeypatch.setattr(attention, "_no_kernel", lambda *_, reason=reason: reason)
        out = made(x, padding, source)
        found.append((out, *torch.autograd.grad(out.square().mean(), wanted, allow_unused=True)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-5)


def test_the_kernels_are_an_operator_that_a_graph_can_hold(fused: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    inputs, row, mask = case(1, 2, 19, 8, 6, None, True, True, "keys")
    assert mask is not None
    tensors = [inputs[name].to(DEVICE).requires_grad_() for name in ("q", "k", "v", "key_rows", "query_rows")]
    more = [row.to(DEVICE, torch.int32), mask.to(DEVICE).view(torch.uint8), torch.tensor([7], device=DEVICE)]
    torch.library.opcheck(fused._attend, (*tensors, *more, False, 0.1, 0.3))
    monkeypatch.setattr(attention, "_no_kernel", lambda *_: None)
    made = attending(4, True, False, True, True)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 11, 16, device=DEVICE)
    torch.testing.assert_close(compiled(x, None), made(x, None))


def test_without_a_kernel_it_says_so_once_and_breaks_no_graph(capfd: pytest.CaptureFixture[str]) -> None:
    attention._say.cache_clear()
    made = attending(None, False, False, True, True).double()
    x = torch.randn(1, 5, 16, device=DEVICE, dtype=torch.float64)
    out = torch.compile(made, fullgraph=True, backend="eager")(x, None)
    torch.testing.assert_close(made(x, None), out)
    why = "in float64: it is for bfloat16 and float16" if CARD else "on cpu: it needs a CUDA GPU"
    assert capfd.readouterr().err.splitlines() == [f"disentangled attention without the fused kernel, {why}"]


ON_CARD = {
    # name: batch, heads, length, width, k, buckets, c2p, p2c, unseen, paper_index, dropout
    "one token": (3, 2, 1, 64, 512, None, True, True, "nothing", False, 0.0),
    "short": (3, 2, 17, 64, 512, 256, True, True, "keys", False, 0.1),
    "a block and one": (2, 2, 65, 64, 512, 256, True, True, "nothing", False, 0.1),
    "clamped in a block": (3, 2, 191, 64, 4, None, True, True, "keys", False, 0.1),
    "many rows of a batch": (19, 2, 128, 64, 512, 256, True, True, "keys", False, 0.1),
    "v1": (2, 3, 512, 64, 512, None, True, True, "nothing", False, 0.1),
    "v3": (2, 3, 512, 64, 512, 256, True, True, "keys", False, 0.1),
    "documents": (2, 3, 500, 64, 512, 256, True, True, "keys for each query", False, 0.0),
    "narrow heads": (2, 3, 300, 32, 128, 32, True, True, "keys", True, 0.1),
    "wide heads": (1, 2, 700, 128, 256, None, True, True, "nothing", False, 0.1),
    "odd heads": (1, 2, 130, 48, 32, None, True, True, "keys", False, 0.0),
    "c2p alone": (2, 2, 512, 64, 512, 256, True, False, "nothing", False, 0.1),
    "p2c alone": (2, 2, 512, 64, 512, 256, False, True, "nothing", True, 0.1),
    "long, exact": (1, 2, 2048, 64, 512, None, True, True, "keys", False, 0.1),
    "long, buckets": (1, 2, 2048, 64, 512, 256, True, True, "nothing", False, 0.0),
    "long, few rows": (1, 2, 2000, 64, 16, None, True, True, "keys for each query", True, 0.1),
}


@pytest.mark.gpu
@pytest.mark.skipif(not CARD, reason="needs a CUDA GPU")
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in ON_CARD), ("v3", torch.float16)], ids=str
)
def test_on_the_card_the_kernels_are_slow_attention_in_double_precision(
    fused: ModuleType, name: str, dtype: torch.dtype
) -> None:
    """Error over norm of each result: at most 1 % in bf16, 0.2 % in fp16, from the same rounded inputs.

    A rounding of bf16 is off by 0.2 % (2^-9), of fp16 by 0.02 %, and the products take rounded probabilities.
    """
    *sizes, unseen, paper_index, dropout = ON_CARD[name]
    torch.manual_seed(len(name))
    inputs, row, mask = case(*sizes, unseen)
    inputs = {key: tensor.to(dtype) for key, tensor in inputs.items()}
    others = (row.to(DEVICE), paper_index, mask if mask is None else mask.to(DEVICE), dropout, sizes[3] ** -0.5)
    torch.manual_seed(0)
    kept = kept_by(torch.randint(2**31, (1,), device=DEVICE), *sizes[:3], dropout) if dropout else None
    expected = with_gradients(slowly, inputs, *others, kept, dtype=torch.float64)
    torch.full((2**27,), math.nan, device=DEVICE)  # what the kernels do not write is then seen
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        runs.append(with_gradients(fused.relative_attention, inputs, *others, dtype=dtype))
    for key, tensor in expected.items():
        assert torch.equal(runs[0][key], runs[1][key]), f"{key}: other bits the second time"
        error = (runs[0][key].double() - tensor).norm() / tensor.norm().clamp(min=1e-3)  # of one token some are nothing
        assert error < {torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype], f"{key}: {error}"
