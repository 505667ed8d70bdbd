"""Rows without their padding: everything that reads hidden states finds what it finds in padded rows."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paribus.nn import attention, encoder, unpadded
from paribus.nn.build import RTD_HEAD, build_encoder, build_head
from paribus.nn.heads import LayerReader, PooledHead, TokenHead
from paribus.nn.init import initialise
from paribus.nn.unpadded import Unpadded
from paribus.spec import model as spec

Make = Callable[..., spec.Encoder]
Outputs = dict[str, Tensor]
LENGTH = 24
RELATIVE = {"kind": "disentangled", "dropout": 0.0, "c2p": True, "p2c": True, "max_distance": 6}
ENCODERS: dict[str, dict[str, Any]] = {
    "absolute": {},
    "unordered, pre-norm": {"position": "unordered", "norm": "pre"},
    "one layer, gated, narrow table": {
        "layers": 1,
        "feed_forward": {"kind": "geglu", "width": 32},
        "embedding_width": 8,
    },
    "relative bias": {"position": {"kind": "relative-bias", "max_distance": 4}},
    "alibi": {"position": "alibi"},
    "disentangled": {"position": "unordered", "attention": RELATIVE},
    "mask decoder": {"position": "unordered", "attention": RELATIVE, "head": {"kind": "emd", "max_length": LENGTH}},
}
BY_ROW = list(ENCODERS)[:3]
ROWS = st.lists(st.integers(1, LENGTH), min_size=1, max_size=5)


def padded(lengths: list[int]) -> Tensor:
    """The padding of rows of these lengths."""
    return torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]


def row_by_row(self: Unpadded, q_NHK: Tensor, k_NHK: Tensor, v_NHK: Tensor, dropout: float, scale: float) -> Tensor:
    """What the kernel computes."""
    found = []
    for start, end in pairwise(self.starts_S.tolist()):
        q_HTK, k_HTK, v_HTK = (x[start:end].transpose(0, 1) for x in (q_NHK, k_NHK, v_NHK))
        found.append(F.scaled_dot_product_attention(q_HTK, k_HTK, v_HTK, scale=scale).transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows go without padding on the CPU too: how often attention was asked to take them row by row."""
    made: list[int] = []

    def attend(rows: Unpadded, *told: Any) -> Tensor:
        made.append(1)
        return row_by_row(rows, *told)

    monkeypatch.setattr(encoder, "halved", lambda device: True)
    monkeypatch.setattr(attention, "flashes", lambda device, number, width: True)
    monkeypatch.setattr(unpadded, "MOST", 1.0)
    monkeypatch.setattr(Unpadded, "attend", attend)
    yield made


def outputs(module: encoder.Encoder, heads: nn.ModuleDict, tokens: Tensor, rows: Any) -> Outputs:
    """What each head says of the places that are not padding."""
    there = rows.unseen if isinstance(rows, Unpadded) else rows
    states = module.states(tokens, tokens % 2, rows)
    read = {f"layer {number}": layer[~there] for number, layer in enumerate(states.layers)}
    read["vocabulary"] = heads["vocabulary"](states, (~there).flatten().nonzero()[:, 0])
    for name in ("cls", "mean", "max"):
        read[name] = heads[name](states.last_BTD, there)
    read |= {name: heads[name](states.last_BTD)[~there] for name in ("token", *RTD_HEAD)}
    read["reader"] = heads["reader"](states.layers, there)[~there]
    return read


def built(asked: spec.Encoder) -> tuple[encoder.Encoder, nn.ModuleDict]:
    module = build_encoder(asked, 50)
    heads: dict[str, nn.Module] = {"vocabulary": build_head(asked, module), "token": TokenHead(asked.width, 3, 0.0)}
    heads |= {how: PooledHead(asked.width, 2, pooling=how) for how in ("cls", "mean", "max")}  # type: ignore[arg-type]
    heads |= {name: make(asked) for name, make in RTD_HEAD.items()}
    heads["reader"] = LayerReader("mix-all", asked.layers, asked.width, 4)
    both = nn.ModuleDict(heads)
    for part in (module, both):
        initialise(part, 0, 0.3)
    return module, both


def gradients(found: Outputs, *modules: nn.Module) -> list[Tensor]:
    """Of all parameters, of a sum in which every output has a weight of its own."""
    total = sum((x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in found.values())
    parameters = [p for module in modules for p in module.parameters()]
    asked = torch.autograd.grad(total, parameters, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, asked, strict=True)]


@given(ROWS)
def test_all_tokens_are_kept_in_their_order_and_little_padding(lengths: list[int]) -> None:
    padding_BT = padded(lengths)
    rows = Unpadded.of(padding_BT)
    real, kept = sum(lengths), len(rows.kept_N)
    assert rows.kept_N[:real].tolist() == (~padding_BT).flatten().nonzero()[:, 0].tolist()
    assert len(set(rows.kept_N.tolist())) == kept and real <= kept <= min(real * 17 / 16, padding_BT.numel())
    starts = rows.starts_S.tolist()
    assert starts[0] == 0 and starts[-1] == kept
    sizes = [end - start for start, end in pairwise(starts)]
    assert sizes[: len(lengths)] == lengths and max(sizes) <= LENGTH and min(sizes) >= 0
    x_BTD = torch.randn(*padding_BT.shape, 3)
    assert torch.equal(rows.put(rows.take(x_BTD))[~padding_BT], x_BTD[~padding_BT])


def test_padding_that_is_kept_comes_in_pieces_no_longer_than_a_row() -> None:
    rows = Unpadded.of(torch.arange(4) >= torch.tensor([3, 1] * 401)[:, None])
    sizes = rows.starts_S.diff().tolist()
    assert len(rows.kept_N) == 1664 and sizes == [3, 1] * 401 + [4] * 15 + [0]


def test_the_number_of_kept_places_recurs() -> None:
    found = {len(Unpadded.of(torch.arange(4096)[None] >= tokens).kept_N) for tokens in range(2048, 4096)}
    assert len(found) == 17


@pytest.mark.parametrize("name", ENCODERS)
def test_every_head_finds_the_same_and_so_do_gradients(encoder: Make, name: str, calls: list[int]) -> None:
    changes = ENCODERS[name]
    asked = encoder(**{"segments": 2, **changes})
    module, heads = built(asked)

    @settings(max_examples=8, deadline=None)
    @given(ROWS, st.integers(0, 1000))
    def check(lengths: list[int], seed: int) -> None:
        padding_BT = padded(lengths)
        tokens = torch.randint(5, 50, padding_BT.shape, generator=torch.Generator().manual_seed(seed))
        calls.clear()
        expected = outputs(module, heads, tokens, padding_BT)
        assert not calls
        found = outputs(module, heads, tokens, Unpadded.of(padding_BT))
        fewer = len(Unpadded.of(padding_BT).kept_N) < tokens.numel()
        assert len(calls) == (asked.layers if name in BY_ROW and fewer else 0)
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=1e-4, atol=1e-4), key
        pairs = zip(gradients(found, module, heads), gradients(expected, module, heads), strict=True)
        assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-3) for one, other in pairs)

    check()


def test_blocked_pairs_stay_blocked(encoder: Make, calls: list[int]) -> None:
    module, _ = built(encoder())
    padding_BT = padded([20, 7])
    document_BT = torch.arange(LENGTH) // 5 + 9 * padding_BT
    blocked_BTT = document_BT[:, :, None] != document_BT[:, None, :]
    rows = Unpadded.of(padding_BT)
    tokens = torch.randint(5, 50, padding_BT.shape)
    found = module(tokens, None, Unpadded(blocked_BTT, rows.kept_N, rows.starts_S))
    assert torch.allclose(found[~padding_BT], module(tokens, None, blocked_BTT)[~padding_BT], atol=1e-5)
    assert not calls and found[padding_BT].eq(0).any()


def test_what_mixes_neighbours_elsewhere_sees_padded_rows(encoder: Make, calls: list[int]) -> None:
    module, _ = built(encoder(convolution=3))
    padding_BT = padded([20, 7])
    tokens = torch.randint(5, 50, padding_BT.shape)
    assert torch.equal(module(tokens, None, Unpadded.of(padding_BT)), module(tokens, None, padding_BT))
    assert not calls


def test_on_a_cpu_rows_stay_padded(encoder: Make) -> None:
    module, _ = built(encoder())
    padding_BT = padded([20, 7])
    tokens = torch.randint(5, 50, padding_BT.shape)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(tokens, None, Unpadded.of(padding_BT)), module(tokens, None, padding_BT))


def far(found: Tensor, expected: Tensor) -> float:
    """How far apart, as a share of what is expected."""
    return float((found.double() - expected).norm() / expected.norm().clamp(min=1e-6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("lengths", [[24, 3, 17, 1], [5, 0, 24, 0, 9, 2], [1, 2, 1, 1, 2]])
def test_in_half_precision_it_is_as_near_as_padded_rows(
    encoder: Make, monkeypatch: pytest.MonkeyPatch, name: str, lengths: list[int]
) -> None:
    module, heads = (part.cuda() for part in built(encoder(width=64, heads=2, segments=2, **ENCODERS[name])))
    padding_BT = padded(lengths).cuda()
    kept = Unpadded.of(padding_BT)
    padding_BT[padding_BT.all(1), 0] = False  # rows of which nothing is kept are not all padding
    tokens = torch.randint(5, 50, padding_BT.shape).cuda()
    real_BT = torch.zeros_like(padding_BT).flatten()
    real_BT[kept.kept_N[: sum(lengths)]] = True
    calls = []
    monkeypatch.setattr(unpadded, "MOST", 1.0)
    monkeypatch.setattr(Unpadded, "attend", lambda *told, attend=Unpadded.attend: calls.append(1) or attend(*told))

    def computed(rows: Any) -> list[Tensor]:
        hidden_BTD = module(tokens, tokens % 2, rows).float()
        asked = heads["token"](hidden_BTD).flatten(0, 1)[real_BT.view(-1)]
        asked = asked.float()
        asked.mul(torch.linspace(-1, 1, asked.numel(), device="cuda").view_as(asked)).sum().backward()
        found = [asked.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]
        module.zero_grad()
        return found

    exact = [x.double() for x in computed(padding_BT)]
    with torch.autocast("cuda", torch.bfloat16):
        there = computed(padding_BT)
        assert not calls
        without = computed(Unpadded(padding_BT, kept.kept_N, kept.starts_S))
    assert bool(calls) == (name in BY_ROW)
    for one, other, expected in zip(without, there, exact, strict=True):
        assert far(one, expected) < 2 * far(other, expected) + 1e-2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_kernel_drops_out_in_both_directions_alike() -> None:
    lengths = [300, 1, 512, 40]
    rows = Unpadded.of((torch.arange(512) >= torch.tensor(lengths)[:, None]).cuda())
    count = len(rows.kept_N)
    q_NHK, k_NHK = torch.zeros(2, count, 4, 64, device="cuda", dtype=torch.bfloat16)
    v_NHK = torch.ones(count, 4, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(0)
    out_NHK = rows.attend(q_NHK, k_NHK, v_NHK, 0.1, 0.125)
    out_NHK.sum().backward()
    assert v_NHK.grad is not None
    whole = (torch.arange(count) < 300).cuda()
    assert out_NHK[whole].float().mean().item() == pytest.approx(1, abs=0.01)
    assert out_NHK[whole].float().std().item() == pytest.approx((0.1 / 0.9 / 300) ** 0.5, rel=0.1)
    # The same weights are dropped: the output is linear in the values.
    assert v_NHK.grad.float().sum().item() == pytest.approx(out_NHK.float().sum().item(), rel=1e-2)
    assert far(v_NHK.grad[:300, 0, 0], torch.ones(300, device="cuda").double()) > 0.01
