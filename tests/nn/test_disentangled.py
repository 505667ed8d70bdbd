"""DeBERTa: disentangled attention and the enhanced mask decoder, against slow code and by what must not change."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor, nn

from paribus.nn.attention import DisentangledAttention
from paribus.nn.build import build_encoder, build_head
from paribus.nn.count import cost
from paribus.nn.encoder import Encoder
from paribus.nn.heads import EnhancedMaskDecoder, MlmHead
from paribus.nn.init import initialise
from paribus.nn.position import AlibiPosition, Position, RelativeTable, Unordered, by_pair, relative_row
from paribus.spec import model as spec
from paribus.spec.load import build

Make = Callable[..., spec.Encoder]

ATTENTION: dict[str, Any] = {"kind": "disentangled", "dropout": 0.0, "max_distance": 4}
EMD: dict[str, Any] = {"kind": "emd", "max_length": 32}
DEBERTA: dict[str, Any] = {"position": "unordered", "attention": ATTENTION, "head": EMD, "segments": 0, "layers": 3}
TERMS = [(True, True), (True, False), (False, True)]


@pytest.fixture
def deberta(encoder: Make) -> Make:
    """A small DeBERTa without dropout; keywords replace fields."""
    return lambda **changes: encoder(**{**DEBERTA, **changes})


def built(made: spec.Encoder) -> tuple[Encoder, MlmHead]:
    """Weights and biases large enough that order and context are seen in the output."""
    module = build_encoder(made, 50)
    head = build_head(made, module)
    for part in (module, head):
        initialise(part, 0, 0.3)
        for number, (name, parameter) in enumerate(part.named_parameters()):
            if parameter.ndim < 2 and "norm" not in name:
                nn.init.normal_(parameter, 0.0, 0.3, generator=torch.Generator().manual_seed(number))
    assert isinstance(head, MlmHead)
    return module.eval(), head.eval()


def logits(module: Encoder, head: MlmHead, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
    """(B, T, V): every place predicted."""
    return head(module.states(tokens, None, padding), torch.arange(tokens.numel())).view(*tokens.shape, -1)


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=1e-5)


# --- rows of the relative table ---


@pytest.mark.parametrize(
    ("distance", "row"),
    [
        (0, 256), (1, 257), (-1, 255), (128, 384), (129, 385), (131, 387), (200, 425), (255, 448), (256, 448),
        (300, 463), (400, 489), (511, 511), (-511, 1), (512, 511), (4000, 511), (-4000, 1),
    ],
)  # fmt: skip
def test_log_buckets_are_those_of_the_reference_code(distance: int, row: int) -> None:
    assert relative_row(distance, 512, 256) == row


def test_log_buckets_agree_with_single_precision() -> None:
    distance = torch.arange(-511, 512, dtype=torch.float32)
    steps = torch.ceil(torch.log(distance.abs() / 128) / math.log(511 / 128) * 127) + 128
    bucket = torch.where(distance.abs() <= 128, distance, steps * distance.sign())
    rows = (bucket.long() + 256).clamp(0, 511).tolist()
    assert rows == [relative_row(r, 512, 256) for r in range(-511, 512)]
    assert set(rows) == set(range(1, 512))


@given(k=some.integers(1, 600), distance=some.integers(-2000, 2000))
def test_exact_rows_are_those_of_the_paper(k: int, distance: int) -> None:
    expected = 0 if distance <= -k else 2 * k - 1 if distance >= k else distance + k
    assert relative_row(distance, k, None) == expected


@given(half=some.integers(1, 200), more=some.integers(0, 300))
def test_log_buckets_never_fall_and_are_odd(half: int, more: int) -> None:
    buckets, reach = 2 * half, 2 * half + more
    rows = [relative_row(r, reach, buckets) for r in range(-reach, reach + 1)]
    assert rows == sorted(rows) and 0 <= rows[0] and rows[-1] == 2 * buckets - 1
    assert all(a + b == 2 * buckets for a, b in zip(rows, reversed(rows), strict=True))
    linear = [relative_row(r, reach, buckets) for r in range(-half, half + 1)]
    assert linear == list(range(buckets - half, buckets + half + 1))


@pytest.mark.parametrize("buckets", [None, 4])
@pytest.mark.parametrize("length", [1, 2, 7, 20])
@torch.no_grad()
def test_the_table_gives_the_rows_a_length_needs(buckets: int | None, length: int) -> None:
    table = RelativeTable(3, 8, buckets, nn.Identity(), 0.0)
    nn.init.normal_(table.table)
    rows, row = table(length)
    index = by_pair(row)
    assert len(rows) == index.max() + 1 <= 2 * length
    for query in range(length):
        for key in range(length):
            assert torch.equal(rows[index[query, key]], table.table[relative_row(query - key, 8, buckets)])


# --- attention against loops ---


def slowly(
    attention: DisentangledAttention, x: Tensor, padding: Tensor | None, source: Tensor, row: Callable[[int], int]
) -> Tensor:
    """Every score by its own, in double precision; keys and values of `source`, `row` of the whole table."""
    heads, length = attention.heads, x.shape[1]
    weights, biases = attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3)
    q, k, v = (F.linear(of, w, b) for of, w, b in zip((x, source, source), weights, biases, strict=True))
    relative = attention._position[0].relative
    if relative is not None:
        table = relative.norm(relative.table)
        key, query = attention.position_key, attention.position_query
        key_r = key(table) if key else F.linear(table, weights[1], biases[1])
        query_r = query(table) if query else F.linear(table, weights[0], biases[0])
    bias = attention._position[0].bias(attention.layer, length)

    def of(tensor: Tensor, head: int) -> Any:
        return tensor.double().numpy()[..., head * tensor.shape[-1] // heads : (head + 1) * tensor.shape[-1] // heads]

    out = np.zeros(x.shape)
    for head in range(heads):
        qc, kc, vc = of(q, head), of(k, head), of(v, head)
        scale = math.sqrt(qc.shape[-1] * (1 + attention.c2p + attention.p2c))
        for b in range(len(x)):
            scores = np.full((length, length), -np.inf)
            for i in range(length):
                for j in range(length):
                    if padding is not None and padding[b, j]:
                        continue
                    score = qc[b, i] @ kc[b, j]
                    if attention.c2p:
                        score += qc[b, i] @ of(key_r, head)[row(i - j)]
                    if attention.p2c:
                        score += kc[b, j] @ of(query_r, head)[row(j - i if attention.paper_index else i - j)]
                    scores[i, j] = score / scale + (0 if bias is None else float(bias[head, i, j]))
            share = np.exp(scores - scores.max(-1, keepdims=True))
            part = slice(head * qc.shape[-1], (head + 1) * qc.shape[-1])
            out[b, :, part] = share / share.sum(-1, keepdims=True) @ vc[b]
    return attention.out(torch.from_numpy(out).float())


def disentangled(
    position: Position, buckets: int | None, norm: bool, c2p: bool, p2c: bool, share: bool, paper_index: bool
) -> DisentangledAttention:
    position.relative = RelativeTable(8, 8 if buckets else 4, buckets, nn.LayerNorm(8) if norm else nn.Identity(), 0.0)
    attention = DisentangledAttention(1, 8, 2, 0.0, position, c2p, p2c, share, paper_index).eval()
    for parameter in (*position.parameters(), *attention.parameters()):
        nn.init.normal_(parameter, 0.0, 0.5)
    return attention


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize(("c2p", "p2c"), TERMS)
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(("buckets", "norm", "paper_index"), [(None, False, False), (4, True, False), (4, False, True)])
@torch.no_grad()
def test_disentangled_attention_is_slow_attention(
    length: int, c2p: bool, p2c: bool, share: bool, buckets: int | None, norm: bool, paper_index: bool
) -> None:
    torch.manual_seed(0)
    attention = disentangled(Unordered(), buckets, norm, c2p, p2c, share, paper_index)
    x = torch.randn(1, length, 8)
    row = [relative_row(r, 8 if buckets else 4, buckets) for r in range(-40, 41)]
    torch.testing.assert_close(
        attention(x, None), slowly(attention, x, None, x, lambda r: row[r + 40]), rtol=0, atol=1e-5
    )


@torch.no_grad()
def test_disentangled_attention_composes_with_padding_another_source_and_another_position() -> None:
    torch.manual_seed(0)
    attention = disentangled(AlibiPosition(2), None, False, True, True, False, False)
    x, source = torch.randn(2, 7, 8), torch.randn(2, 7, 8)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    expected = slowly(attention, x, padding, source, lambda r: relative_row(r, 4, None))
    torch.testing.assert_close(attention(x, padding, source), expected, rtol=0, atol=1e-5)
    assert not close(attention(x, padding), expected)


@torch.no_grad()
def test_code_and_paper_index_differ_by_which_way_p2c_looks() -> None:
    torch.manual_seed(0)
    code = disentangled(Unordered(), None, False, False, True, False, False)
    x = torch.randn(1, 7, 8)
    found = code(x, None)
    code.paper_index = True
    assert not close(code(x, None), found)
    relative = code._position[0].relative
    assert relative is not None
    relative.table[1:] = relative.table[1:].flip(
        0
    )  # row of r to row of -r; row 0, of -4 and beyond, has no counterpart
    x = torch.randn(1, 4, 8)
    mirrored = code(x, None)
    code.paper_index = False
    relative.table[1:] = relative.table[1:].flip(0)
    assert close(mirrored, code(x, None))


# --- attention by what must hold ---


@torch.no_grad()
def test_without_both_terms_it_is_full_attention(deberta: Make) -> None:
    off = {**ATTENTION, "c2p": False, "p2c": False}
    tokens = torch.randint(5, 50, (2, 9))
    for position in ("absolute", "unordered"):
        ours, _ = built(deberta(attention=off, head="bert", position=position))
        full, _ = built(deberta(attention={"kind": "full", "dropout": 0.0}, head="bert", position=position))
        assert dict(ours.named_parameters()).keys() == dict(full.named_parameters()).keys()
        assert torch.equal(ours(tokens), full(tokens))


@pytest.mark.parametrize(("c2p", "p2c"), [(False, False), *TERMS])
@torch.no_grad()
def test_order_matters_as_soon_as_one_term_is_on(deberta: Make, c2p: bool, p2c: bool) -> None:
    module, _ = built(deberta(attention={**ATTENTION, "c2p": c2p, "p2c": p2c}, head="bert"))
    tokens, order = torch.randint(5, 50, (1, 12)), torch.randperm(12)
    assert close(module(tokens[:, order]), module(tokens)[:, order]) == (not (c2p or p2c))


@pytest.mark.parametrize(("c2p", "p2c"), TERMS)
@torch.no_grad()
def test_a_table_of_zeros_leaves_the_scale_of_its_terms(c2p: bool, p2c: bool) -> None:
    torch.manual_seed(0)
    attention = disentangled(Unordered(), None, False, c2p, p2c, False, False)
    relative = attention._position[0].relative
    assert relative is not None
    relative.table.zero_()
    for own in (attention.position_key, attention.position_query):
        if own is not None:
            own.bias.zero_()
    plain = DisentangledAttention(1, 8, 2, 0.0, Unordered(), False, False, False, False)
    plain.load_state_dict({n: w for n, w in attention.state_dict().items() if not n.startswith("position")})
    x = torch.randn(1, 7, 8)
    assert not close(attention(x, None), plain(x, None))
    plain.qkv.weight[:8] /= math.sqrt(1 + c2p + p2c)
    plain.qkv.bias[:8] /= math.sqrt(1 + c2p + p2c)
    assert close(attention(x, None), plain(x, None))


@torch.no_grad()
def test_dropout_acts_on_the_table_anew_in_every_layer_and_only_while_training() -> None:
    table = RelativeTable(8, 4, None, nn.Identity(), 0.5)
    nn.init.ones_(table.table)
    first, second = (table(4)[0] for _ in range(2))
    assert not torch.equal(first, second) and set(first.unique().tolist()) == {0.0, 2.0}
    table.eval()
    assert torch.equal(table(4)[0], table.table[1:8])


def test_a_term_that_is_off_has_no_projection_and_shared_ones_are_the_contents_own(deberta: Make) -> None:
    def names(**changes: object) -> set[str]:
        module, _ = built(deberta(attention={**ATTENTION, **changes}))
        return {name for name, _ in module.named_parameters() if ".position_" in name or ".relative." in name}

    def own(kind: str) -> set[str]:
        return {f"blocks.{n}.attention.position_{kind}.{part}" for n in range(3) for part in ("weight", "bias")}

    table = {"position.relative.table"}
    assert names() == table | own("key") | own("query")
    assert names(c2p=False) == table | own("query")
    assert names(p2c=False) == table | own("key")
    assert names(share_projections=True) == table
    assert names(share_projections=True, table_norm=True) == table | {
        "position.relative.norm.weight", "position.relative.norm.bias",
    }  # fmt: skip


@pytest.mark.parametrize(("c2p", "p2c"), TERMS)
def test_a_term_that_is_off_sends_no_gradient(c2p: bool, p2c: bool) -> None:
    """With shared projections, only the half of the content's projection that is in use sees the table."""
    attention = disentangled(Unordered(), None, False, c2p, p2c, True, False)
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)  # constants, so the table is the only way
    attention.bias(q, k).square().sum().backward()
    seen = [bool(part.abs().sum() > 0) for part in attention.qkv.weight.grad.chunk(3)]
    assert seen == [p2c, c2p, False]


# --- counts ---


def v3(layers: int, width: int, heads: int, **attention: object) -> spec.Encoder:
    shared = {"kind": "disentangled", "buckets": 256, "share_projections": True, "table_norm": True}
    sizes = {"layers": layers, "width": width, "heads": heads, "feed_forward": {"kind": "gelu", "width": 4 * width}}
    data = {**DEBERTA, **sizes, "norm": "post", "head": "bert", "attention": {**shared, **attention}}
    return build(spec.Encoder, data, "encoder")


def trunk(made: spec.Encoder, vocabulary: int = 128100) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build_encoder(made, vocabulary).parameters())


@pytest.mark.parametrize(
    ("layers", "width", "heads", "count"),
    [(12, 384, 6, 70_682_112), (6, 768, 12, 141_304_320), (12, 768, 12, 183_831_552), (24, 1024, 16, 434_012_160)],
    ids=["xsmall", "small", "base", "large"],
)
def test_the_trunk_of_deberta_v3_has_as_many_parameters_as_published(
    layers: int, width: int, heads: int, count: int
) -> None:
    assert trunk(v3(layers, width, heads)) == count
    assert trunk(v3(layers, width, heads, c2p=False)) == trunk(v3(layers, width, heads, p2c=False)) == count


def test_what_the_parts_add_to_the_count() -> None:
    layers, width = 6, 768
    shared, apart = trunk(v3(layers, width, 12)), trunk(v3(layers, width, 12, share_projections=False))
    assert apart - shared == 2 * layers * (width**2 + width)
    assert apart - trunk(v3(layers, width, 12, share_projections=False, c2p=False)) == layers * (width**2 + width)
    assert shared - trunk(v3(layers, width, 12, c2p=False, p2c=False)) == (512 + 2) * width
    with_emd = v3(layers, width, 12).model_copy(update={"head": spec.EnhancedMaskDecoder()})
    one, other = (cost(made, 1000, 128, 0.15) for made in (with_emd, v3(layers, width, 12)))
    assert one.parameters - other.parameters == one.embedding - other.embedding == 512 * width
    assert one.train_flops_a_token > other.train_flops_a_token  # layer 6 twice, instead of once


# --- the mask decoder ---


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_one_step_without_positions_is_the_last_layer(deberta: Make, norm: str) -> None:
    module, head = built(deberta(head={**EMD, "steps": 1}, norm=norm))
    assert isinstance(head, EnhancedMaskDecoder)
    states = module.states(torch.randint(5, 50, (2, 9)))
    assert not close(head.decode(states), states.last_BTD)
    head.position.places.zero_()
    torch.testing.assert_close(head.decode(states), states.last_BTD, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("steps", [1, 2, 3])
@torch.no_grad()
def test_the_mask_decoder_runs_the_last_layer_on_its_own_output_over_fixed_keys(
    deberta: Make, norm: str, steps: int
) -> None:
    module, head = built(deberta(head={**EMD, "steps": steps}, norm=norm))
    assert isinstance(head, EnhancedMaskDecoder)
    tokens = torch.randint(5, 50, (2, 9))
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    h = module.first_norm(module.tokens(tokens))
    for block in module.blocks[:2]:
        h = block(h, padding)
    last = module.blocks[2]
    q = h + head.position.places[:9]
    for _ in range(steps):
        normed = (lambda x: x) if norm == "post" else last.attention_norm
        mixed = q + slowly(last.attention, normed(q), padding, normed(h), lambda r: relative_row(r, 4, None))
        middle = last.attention_norm(mixed) if norm == "post" else mixed
        inner = middle if norm == "post" else last.feed_forward_norm(middle)
        q = middle + last.feed_forward(inner)
        q = last.feed_forward_norm(q) if norm == "post" else q
    expected = head.norm(F.gelu(head.dense(module.last_norm(q)))) @ module.tokens.weight.mT + head.bias
    torch.testing.assert_close(logits(module, head, tokens, padding), expected, rtol=0, atol=2e-5)


def test_the_loss_reaches_the_last_layer_through_the_decoder_only_and_fine_tuning_never_sees_its_positions(
    deberta: Make,
) -> None:
    module, head = built(deberta())
    assert isinstance(head, EnhancedMaskDecoder)
    states = module.states(torch.randint(5, 50, (2, 9)))
    last = states.last_BTD
    last.retain_grad()
    head(states, torch.arange(4)).logsumexp(-1).sum().backward()
    assert last.grad is None
    assert module.blocks[-1].attention.qkv.weight.grad.abs().sum() > 0
    assert head.position.places.grad[:9].abs().sum() > 0 and not head.position.places.grad[9:].any()
    head.position.places.grad = None
    module(torch.randint(5, 50, (2, 9))).sum().backward()
    assert head.position.places.grad is None


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_the_encoder_does_not_see_where_a_row_begins_but_the_mask_decoder_does(deberta: Make, norm: str) -> None:
    tokens = torch.randint(5, 50, (1, 9))
    moved = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    padding = torch.arange(12)[None, :] < 3
    for head_spec in (EMD, "bert"):
        module, head = built(deberta(head=head_spec, norm=norm))
        assert close(module(moved, None, padding)[:, 3:], module(tokens))
        same = torch.allclose(logits(module, head, moved, padding)[:, 3:], logits(module, head, tokens), atol=1e-4)
        assert same == (head_spec == "bert")


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("attention", [{}, {"buckets": 4, "share_projections": True, "table_norm": True}], ids=str)
@pytest.mark.parametrize("convolution", [None, 3])
@torch.no_grad()
def test_padding_and_what_stands_in_it_change_no_prediction(
    deberta: Make, norm: str, attention: dict[str, object], convolution: int | None
) -> None:
    module, head = built(deberta(norm=norm, attention={**ATTENTION, **attention}, convolution=convolution))
    tokens = torch.randint(5, 50, (2, 9))
    alone, hidden = logits(module, head, tokens), module(tokens)
    for extra in (1, 7):
        padded = torch.cat([tokens, torch.randint(0, 50, (2, extra))], dim=1)
        padding = torch.arange(9 + extra)[None, :].expand(2, -1) >= 9
        assert close(module(padded, None, padding)[:, :9], hidden)
        assert torch.allclose(logits(module, head, padded, padding)[:, :9], alone, rtol=0, atol=1e-4)


def test_the_last_layer_runs_when_it_is_asked_for_and_once(deberta: Make) -> None:
    module, head = built(deberta())
    runs = []
    module.blocks[-1].register_forward_hook(lambda *_: runs.append(1))
    states = module.states(torch.randint(5, 50, (1, 5)))
    assert not runs
    head(states, torch.arange(2))
    assert len(runs) == 2
    assert states.last_BTD is states.last_BTD and len(runs) == 3


# --- the convolution ---


@pytest.mark.parametrize("kernel", [1, 3, 5])
@torch.no_grad()
def test_the_convolution_adds_neighbours_of_the_embeddings_to_the_first_layer(deberta: Make, kernel: int) -> None:
    module, _ = built(deberta(convolution=kernel, layers=2, norm="post"))
    beside = module.convolution
    assert beside is not None
    tokens = torch.randint(5, 50, (2, 9))
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    embedded = module.first_norm(module.tokens(tokens))
    mixed = beside.convolution.bias.expand(2, 9, -1).clone()
    for row, length in enumerate((9, 6)):
        for place in range(9):
            for offset in range(-(kernel // 2), kernel // 2 + 1):
                if 0 <= place + offset < length:
                    weight = beside.convolution.weight[:, :, offset + kernel // 2]
                    mixed[row, place] += weight @ embedded[row, place + offset]
    expected = beside.norm(module.blocks[0](embedded, padding) + F.gelu(mixed))
    found = module.states(tokens, None, padding).before_BTD
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, :6], expected[1, :6], rtol=0, atol=1e-5)


def test_the_convolution_adds_its_weights_to_the_count() -> None:
    plain = v3(24, 1024, 16)
    assert trunk(plain.model_copy(update={"convolution": 3})) - trunk(plain) == 3 * 1024**2 + 3 * 1024
