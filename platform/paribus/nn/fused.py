"""Attention with relative scores as Triton kernels: forward and backward, in blocks of queries and keys.

Scores are scale x (q_i k_j + q_i (position key) + k_j (position query)), the rows of both position tables a function of
i - j alone. No product of tokens and positions is kept: a block of X x X pairs has distances of two bands, X each, so a
program takes a band's position vectors, multiplies them with X tokens, (X, X), and turns each row by one place more
than the row above it, which puts the product of each pair in the pair's place. A band belongs to two neighbouring
blocks, to the pairs on either side of their diagonals; its products with the program's own tokens serve both.

Softmax is online (Dao et al. 2022, arXiv:2205.14135, algorithm 1); the backward pass makes the probabilities anew from
the logarithm of each query's sum (Dao 2023, arXiv:2307.08691), writes the gradient of the scores once by pair and once
for each side by distance, and from these all others. Nothing is added up atomically: equal inputs give equal bits.

B batch, H heads, T tokens, K width of a head, R rows of the position table, S = 2T - 1 distances, X side of a block
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 64
"""Tokens in a block: queries and keys alike."""

LAUNCH = {"forward": (4, 2, None), "backward": (4, 2, None), "side": (4, 2, 128), "table": (4, 4, 128)}
"""Warps of a program, stages of pipelining, and at most how many registers of a thread, so that more programs run at
once: the fastest of those that were tried on an H100."""

MEMORY = 116 * 1024
"""Bytes of shared memory that the stages above take at most; a card with less is given one stage."""

GROUPS = 8
"""Parts of a batch whose gradients of the position tables are added up apart, so that programs are many."""

LOG2_E = 1 / math.log(2)


@triton.jit
def _mix(x):  # type: ignore[no-untyped-def]
    """Spreads a change of any bit over all 32: multiply and xorshift, as Wellons 2018, lowbias32."""
    x = (x ^ (x >> 16)) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return x ^ (x >> 15)


@triton.jit
def _kept(seed, bh, i, j, DROPPED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which probabilities stay, by a hash of seed, row of the batch and head, query, key, so in both passes the same.

    DROPPED of 2^24 go.
    """
    head = _mix(tl.load(seed).to(tl.uint32) + _mix(bh.to(tl.uint32)))
    x = (_mix(head + i.to(tl.uint32)) ^ _mix(j.to(tl.uint32))) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return (x >> 8).to(tl.int32) >= DROPPED


@triton.jit
def _tokens(x, start, stride, T, K: tl.constexpr, X: tl.constexpr, BK: tl.constexpr):  # type: ignore[no-untyped-def]
    """The vectors of a block of tokens; 0 outside."""
    t, width = start + tl.arange(0, X), tl.arange(0, BK)
    return tl.load(x + t[:, None] * stride + width[None, :], mask=(t[:, None] < T) & (width[None, :] < K), other=0.0)


@triton.jit
def _band(  # type: ignore[no-untyped-def]
    table, stride, row, band, T, BACK: tl.constexpr, K: tl.constexpr, X: tl.constexpr, BK: tl.constexpr
):
    """The position vectors of the distances X (band - 1) + 1 to X band, or where BACK of the same below zero; some
    vector where no pair is so far apart."""
    distance, width = (band - 1) * X + 1 + tl.arange(0, X), tl.arange(0, BK)
    distance = tl.minimum(tl.maximum(-distance if BACK else distance, 1 - T), T - 1)
    rows = tl.load(row + distance + (T - 1))
    return tl.load(table + rows[:, None] * stride + width[None, :], mask=width[None, :] < K, other=0.0)


@triton.jit
def _turn(x, AXIS: tl.constexpr, X: tl.constexpr):  # type: ignore[no-untyped-def]
    """Between distances and partners: x[a, m] to [a, b] or back, m = a - b - 1 modulo X; AXIS 0 the same of columns.

    The relative shift (Dai et al. 2019, arXiv:1901.02860, appendix B) within a block. A band's pairs with a <= b, which
    is m >= a, are of the block with that number, the others of the one before it.
    """
    a, b = tl.arange(0, X)[:, None], tl.arange(0, X)[None, :]
    return tl.gather(x, (a - b - 1 if AXIS == 1 else b - a - 1) & (X - 1), AXIS)


@triton.jit
def _product(x, y, EXACT: tl.constexpr):  # type: ignore[no-untyped-def]
    """x y^T, rounded to their type."""
    return tl.dot(x, tl.trans(y), input_precision="ieee" if EXACT else "tf32").to(x.dtype)


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    own, others, above, block, other, i, j, own_table, own_stride, others_table, others_stride, row, unseen, T, scale,
    OWN: tl.constexpr, OTHERS: tl.constexpr, OWN_BACK: tl.constexpr, OTHERS_BACK: tl.constexpr, UNSEEN: tl.constexpr,
    EXACT: tl.constexpr, K: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Scores of a block of tokens, down, with block `other` of partners, along, times log2(e) so that exp2 serves;
    minus infinity outside and where a key is unseen. Then `above` for the next block: the products of its upper band.

    `row` holds the row of each distance, from 1 - T on. UNSEEN: 0 nothing, 1 a key for all queries, 2 for each.
    """
    a, b = tl.arange(0, X)[:, None], tl.arange(0, X)[None, :]
    scores = tl.zeros([X, X], tl.float32)
    if OWN:
        rows = _band(own_table, own_stride, row, block - other, T, OWN_BACK, K, X, BK)
        below = _product(own, rows, EXACT)
        scores += _turn(tl.where(b >= a, below, above), 1, X)
        above = below
    if OTHERS:
        low = _band(others_table, others_stride, row, other - block, T, OTHERS_BACK, K, X, BK)
        high = _band(others_table, others_stride, row, other - block + 1, T, OTHERS_BACK, K, X, BK)
        scores += _turn(tl.where(a >= b, _product(low, others, EXACT), _product(high, others, EXACT)), 0, X)
    scores = tl.dot(own, tl.trans(others), scores, input_precision="ieee" if EXACT else "tf32")
    seen = (i < T) & (j < T)
    if UNSEEN == 1:
        seen = seen & (tl.load(unseen + j, mask=j < T, other=1) == 0)
    if UNSEEN == 2:
        seen = seen & (tl.load(unseen + i * T + j, mask=seen, other=1) == 0)
    return tl.where(seen, scores * scale, float("-inf")), above


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, key_rows, query_rows, row, unseen, seed, out, lse,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, ch, cr, ph, pr, H, T, scale,
    K: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr, BACK: tl.constexpr, UNSEEN: tl.constexpr,
    DROPPED: tl.constexpr, EXACT: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of queries against all keys."""
    bh, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    b, h = bh // H, bh % H
    i, width = block * X + tl.arange(0, X), tl.arange(0, BK)
    queries = _tokens(q + b * qb + h * qh, block * X, qt, T, K, X, BK)
    most = tl.full([X], float("-inf"), tl.float32)
    total = tl.zeros([X], tl.float32)
    mixed = tl.zeros([X, BK], tl.float32)
    k += b * kb + h * kh
    v += b * vb + h * vh
    key_rows += h * ch
    query_rows += h * ph
    unseen += b * T * (T if UNSEEN == 2 else 1)
    above = tl.zeros([X, X], queries.dtype)
    if C2P:
        above = _product(queries, _band(key_rows, cr, row, block + 1, T, False, K, X, BK), EXACT)
    for other in range(0, tl.cdiv(T, X)):
        j = other * X + tl.arange(0, X)
        keys = _tokens(k, other * X, kt, T, K, X, BK)
        scores, above = _scores(
            queries, keys, above, block, other, i[:, None], j[None, :], key_rows, cr, query_rows, pr, row, unseen, T,
            scale, C2P, P2C, False, BACK, UNSEEN, EXACT, K, X, BK,
        )  # fmt: skip
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen no key yet
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(p, 1)
        if DROPPED:
            p = tl.where(_kept(seed, bh, i[:, None], j[None, :], DROPPED), p, 0.0)
        values = _tokens(v, other * X, vt, T, K, X, BK)
        mixed *= shrink[:, None]
        mixed = tl.dot(p.to(values.dtype), values, mixed, input_precision="ieee" if EXACT else "tf32")
        most = higher
    some = total > 0
    mixed /= tl.where(some, total * (1.0 - DROPPED / 16777216.0), 1.0)[:, None]
    place = out + b * ob + h * oh + i[:, None] * ot + width[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=(i[:, None] < T) & (width[None, :] < K))
    tl.store(lse + bh * T + i, tl.where(some, most + tl.log2(tl.where(some, total, 1.0)), 0.0), mask=i < T)


@triton.jit
def _delta(  # type: ignore[no-untyped-def]
    out, dout, delta, ob, oh, ot, gb, gh, gt, H, T, K: tl.constexpr, X: tl.constexpr, BK: tl.constexpr
):
    """The sum of out x dout of each query."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    start = tl.program_id(0) * X
    i = start + tl.arange(0, X)
    o = _tokens(out + b * ob + h * oh, start, ot, T, K, X, BK).to(tl.float32)
    g = _tokens(dout + b * gb + h * gh, start, gt, T, K, X, BK).to(tl.float32)
    tl.store(delta + bh * T + i, tl.sum(o * g, 1), mask=i < T)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    q, k, v, key_rows, query_rows, row, unseen, seed, dout, lse, delta, dv, ds,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, ch, cr, ph, pr, H, T, padded, scale, log2_scale,
    K: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr, BACK: tl.constexpr, UNSEEN: tl.constexpr,
    DROPPED: tl.constexpr, EXACT: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of keys, down, against all queries: the gradients of values and of the unscaled scores, whole blocks."""
    bh, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    b, h = bh // H, bh % H
    j, width = block * X + tl.arange(0, X), tl.arange(0, BK)
    keys = _tokens(k + b * kb + h * kh, block * X, kt, T, K, X, BK)
    values = _tokens(v + b * vb + h * vh, block * X, vt, T, K, X, BK)
    dvalues = tl.zeros([X, BK], tl.float32)
    q += b * qb + h * qh
    dout += b * gb + h * gh
    key_rows += h * ch
    query_rows += h * ph
    unseen += b * T * (T if UNSEEN == 2 else 1)
    ds += bh * padded * padded
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    share: tl.constexpr = 1.0 - DROPPED / 16777216.0  # of the probabilities, that stays
    above = tl.zeros([X, X], keys.dtype)
    if P2C:
        above = _product(keys, _band(query_rows, pr, row, block + 1, T, BACK, K, X, BK), EXACT)
    for other in range(0, tl.cdiv(T, X)):
        i = other * X + tl.arange(0, X)
        queries = _tokens(q, other * X, qt, T, K, X, BK)
        g = _tokens(dout, other * X, gt, T, K, X, BK)
        scores, above = _scores(
            keys, queries, above, block, other, i[None, :], j[:, None], query_rows, pr, key_rows, cr, row, unseen, T,
            log2_scale, P2C, C2P, BACK, False, UNSEEN, EXACT, K, X, BK,
        )  # fmt: skip
        p = tl.exp2(scores - tl.load(lse + bh * T + i, mask=i < T, other=0.0)[None, :])
        dp = tl.dot(values, tl.trans(g), input_precision=precision) * (scale / share)
        kept = p
        if DROPPED:
            stays = _kept(seed, bh, i[None, :], j[:, None], DROPPED)
            kept = tl.where(stays, p, 0.0)
            dp = tl.where(stays, dp, 0.0)
        dvalues = tl.dot(kept.to(g.dtype), g, dvalues, input_precision=precision)
        down = tl.load(delta + bh * T + i, mask=i < T, other=0.0) * scale
        dscores = (p * (dp - down[None, :])).to(g.dtype)
        tl.store(ds + i[None, :] * padded + j[:, None], dscores)
    place = dv + bh * T * K + j[:, None] * K + width[None, :]
    tl.store(place, (dvalues / share).to(dv.dtype.element_ty), mask=(j[:, None] < T) & (width[None, :] < K))


@triton.jit
def _side(  # type: ignore[no-untyped-def]
    ds, partners, table, row, by_distance, gradient, da, db, xb, xh, xt, th, tr, H, T, padded,
    K: tl.constexpr, RELATIVE: tl.constexpr, BACK: tl.constexpr, EXACT: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of queries (keys): their gradient, by way of their `partners`, the keys (queries), and of the position
    table, and the gradient of the scores by distance: column X n + m holds band `block` + 1 - n."""
    bh, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    b, h = bh // H, bh % H
    start = block * X
    t, along, width = start + tl.arange(0, X), tl.arange(0, X), tl.arange(0, BK)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    total = tl.zeros([X, BK], tl.float32)
    ds += bh * padded * padded
    by_distance += bh * padded * (padded + X)
    partners += b * xb + h * xh
    table += h * th
    before = tl.zeros([X, X], ds.dtype.element_ty)
    blocks = tl.cdiv(T, X)
    for n in range(0, blocks + 1 if RELATIVE else blocks):
        other = n * X + along
        place = ds + t[:, None] * da + other[None, :] * db
        pairs = tl.load(place, mask=(other < blocks * X)[None, :], other=0.0)
        total = tl.dot(pairs, _tokens(partners, n * X, xt, T, K, X, BK), total, input_precision=precision)
        if RELATIVE:
            turned = _turn(pairs, 1, X)
            band = tl.where(along[None, :] >= along[:, None], before, turned)
            before = turned
            tl.store(by_distance + t[:, None] * (padded + X) + other[None, :], band)
            rows = _band(table, tr, row, block + 1 - n, T, BACK, K, X, BK)
            total = tl.dot(band, rows, total, input_precision=precision)
    place = gradient + bh * T * K + t[:, None] * K + width[None, :]
    tl.store(place, total.to(gradient.dtype.element_ty), mask=(t[:, None] < T) & (width[None, :] < K))


@triton.jit
def _table(  # type: ignore[no-untyped-def]
    by_distance, own, summed, xb, xh, xt, B, H, T, padded,
    K: tl.constexpr, GROUPS: tl.constexpr, EXACT: tl.constexpr, X: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of the position vectors of a band, from the queries (keys) of a part of the batch."""
    h, group = tl.program_id(1), tl.program_id(2)
    blocks = tl.cdiv(T, X)
    band = tl.program_id(0) - blocks + 1
    along, width = tl.arange(0, X), tl.arange(0, BK)
    first, after = tl.maximum(band - 1, 0), tl.minimum(blocks, blocks + band)  # blocks of tokens that it reaches
    total = tl.zeros([X, BK], tl.float32)
    for n in range(0, (after - first) * tl.cdiv(B - group, GROUPS)):
        b = (group + n // (after - first) * GROUPS).to(tl.int64)
        block = first + n % (after - first)
        line = (b * H + h) * padded + block * X + along
        pairs = tl.load(by_distance + line[:, None] * (padded + X) + (block + 1 - band) * X + along[None, :])
        x = _tokens(own + b * xb + h * xh, block * X, xt, T, K, X, BK)
        total = tl.dot(tl.trans(pairs), x, total, input_precision="ieee" if EXACT else "tf32")
    line = (group * H + h).to(tl.int64) * 2 * blocks * X + tl.program_id(0) * X + along
    tl.store(summed + line[:, None] * K + width[None, :], total, mask=width[None, :] < K)


@torch.library.custom_op("paribus::relative_attention", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, paper_index: bool, dropout: float, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The mixed values and, for the backward pass, the base-2 logarithm of each query's sum (B, H, T)."""
    batch, heads, length, _ = q.shape
    out, lse = _outputs(q)
    x, launch = _block(q), _launch("forward", q)
    _forward[(triton.cdiv(length, x), batch * heads)](
        q, k, v, *_given(q, key_rows, query_rows), row, *_given(q, unseen, seed), out, lse,
        *_strides(q, k, v, out), *_table_strides(key_rows, query_rows), heads, length, scale * LOG2_E,
        **_terms(key_rows, query_rows, unseen, paper_index, dropout), **_constants(q, x), **launch,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, paper_index: bool, dropout: float, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _outputs(q)


@torch.library.custom_op("paribus::relative_attention_backward", mutates_args=())
def _attend_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor, paper_index: bool, dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, key_rows and query_rows; an empty one for what is not there."""
    batch, heads, length, width = q.shape
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    x = _block(q)
    blocks = triton.cdiv(length, x)
    padded, grid, constants = blocks * x, (blocks, batch * heads), _constants(q, x)
    delta, ds = torch.empty_like(lse), q.new_empty(batch, heads, padded, padded)
    _delta[grid](out, dout, delta, *_strides(out, dout), heads, length, K=width, X=x, BK=constants["BK"])
    _backward[grid](
        q, k, v, *_given(q, key_rows, query_rows), row, *_given(q, unseen, seed), dout, lse, delta, dv, ds,
        *_strides(q, k, v, dout), *_table_strides(key_rows, query_rows), heads, length, padded, scale, scale * LOG2_E,
        **_terms(key_rows, query_rows, unseen, paper_index, dropout), **constants, **_launch("backward", q),
    )  # fmt: skip
    found, groups, by_distance = [], min(batch, GROUPS), q.new_empty(batch, heads, padded, padded + x)
    for own, partners, table, back, gradient, strides in (
        (q, k, key_rows, False, dq, (padded, 1)), (k, q, query_rows, not paper_index, dk, (1, padded)),
    ):  # fmt: skip
        _side[grid](
            ds, partners, *_given(q, table), row, by_distance, gradient, *strides, *_strides(partners),
            *_table_strides(table), heads, length, padded, RELATIVE=table is not None, BACK=back, **constants,
            **_launch("side", q),
        )  # fmt: skip
        if table is None:
            found.append(q.new_empty(0))
            continue
        summed = q.new_empty(groups, heads, 2 * padded, width, dtype=torch.float32)
        _table[(2 * blocks, heads, groups)](
            by_distance, own, summed, *_strides(own), batch, heads, length, padded, GROUPS=groups, **constants,
            **_launch("table", q),
        )  # fmt: skip
        distance = torch.arange(1 - padded, padded + 1, device=row.device).clamp(1 - length, length - 1)
        rows = row[(-distance if back else distance) + (length - 1)]
        of_row = (rows == torch.arange(table.shape[1], device=row.device)[:, None]).float()  # (R, 2 x padded)
        found.append((of_row @ summed.sum(0)).to(table.dtype))
    return dq, dk, dv, found[0], found[1]


@_attend_backward.register_fake
def _(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor, paper_index: bool, dropout: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (q.new_empty(x.shape) for x in (q, k, v))
    of_rows = [q.new_empty(0 if table is None else table.shape) for table in (key_rows, query_rows)]
    return dq, dk, dv, of_rows[0], of_rows[1]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.paper_index, ctx.dropout, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dout: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    _q, _k, _v, *tables = ctx.saved_tensors[:5]
    found = _attend_backward(dout, *ctx.saved_tensors, ctx.paper_index, ctx.dropout, ctx.scale)
    of_rows = (None if table is None else gradient for table, gradient in zip(tables, found[3:], strict=True))
    return *found[:3], *of_rows, *(None,) * 6


_attend.register_autograd(_differentiate, setup_context=_keep)


def _outputs(q: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, length, width = q.shape
    out = q.new_empty(batch, length, heads, width).transpose(1, 2)  # so that joining the heads again copies nothing
    return out, q.new_empty(batch, heads, length, dtype=torch.float32)


def _given(instead: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Any tensor in place of one that is not there: no kernel reads it."""
    return [instead if tensor is None else tensor for tensor in tensors]


def _strides(*tensors: Tensor) -> list[int]:
    """Of rows of the batch, heads and tokens."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def _table_strides(*tables: Tensor | None) -> list[int]:
    return [stride for x in tables for stride in ((0, 0) if x is None else x.stride()[:2])]


def _block(q: Tensor) -> int:
    """Wide heads take half as many tokens at once: registers are as many."""
    return SIZE if q.shape[-1] <= 64 else SIZE // 2


def _launch(kernel: str, q: Tensor) -> dict[str, int | None]:
    warps, stages, registers = LAUNCH[kernel]
    if q.is_cuda and torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin < MEMORY:  # type: ignore[attr-defined]
        stages = 1
    return {"num_warps": warps, "num_stages": stages, "maxnreg": registers}


def _constants(q: Tensor, x: int) -> dict[str, Any]:
    width = q.shape[-1]
    return {"K": width, "BK": max(16, triton.next_power_of_2(width)), "X": x, "EXACT": q.dtype == torch.float32}


def _terms(
    key_rows: Tensor | None, query_rows: Tensor | None, unseen: Tensor | None, paper_index: bool, dropout: float
) -> dict[str, Any]:
    """What the kernels of scores are compiled for. Keys see a distance backwards, but as the paper prints it."""
    return {
        "C2P": key_rows is not None,
        "P2C": query_rows is not None,
        "BACK": not paper_index,
        "UNSEEN": 0 if unseen is None else unseen.ndim - 1,
        "DROPPED": round(dropout * 2**24),
    }


def relative_attention(
    q_BHTK: Tensor,
    k_BHTK: Tensor,
    v_BHTK: Tensor,
    key_HRK: Tensor | None,
    query_HRK: Tensor | None,
    row_S: Tensor,
    paper_index: bool,
    unseen: Tensor | None,
    dropout: float,
    scale: float,
) -> Tensor:
    """softmax(scale x (q k^T + c2p + p2c)) v, (B, H, T, K), from position keys (c2p), position queries (p2c) or both.

    `row_S`: the row of each distance i - j from 1 - T to T - 1 (p2c's of j - i with `paper_index`).
    `unseen`: True at keys to leave out, (B, T), or (B, T, T) for each query; a query that sees none gives 0. The
    dropout seed is drawn from torch's generator of the device, without waiting for it.
    """
    seed = torch.randint(2**31, (1,), device=q_BHTK.device) if dropout else None
    given = (q_BHTK, k_BHTK, v_BHTK, key_HRK, query_HRK)
    tensors = [x if x is None or x.stride(-1) == 1 else x.contiguous() for x in given]
    unseen = None if unseen is None else unseen.contiguous().view(torch.uint8)
    out: Tensor = _attend(*tensors, row_S.to(torch.int32), unseen, seed, paper_index, dropout, scale)[0]
    return out
