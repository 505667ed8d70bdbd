"""Attention with relative scores as Triton kernels: forward and backward, in blocks of queries and keys.

Scores are scale x (q_i k_j + c2p[i, row] + p2c[j, row]), `row` a function of i - j. c2p = q x (position keys) and
p2c = k x (position queries), (B, H, T, R) each, are dense products: along a row of them neighbouring keys (queries)
stand side by side, so a block of scores reads short contiguous pieces and gathers nothing. Softmax is online (Dao et
al. 2022, arXiv:2205.14135, algorithm 1); the backward pass makes the probabilities anew from the logarithm of each
query's sum (Dao 2023, arXiv:2307.08691), writes the gradient of the scores once, and adds it up over the pairs that
share a row of the table. Nothing is added up atomically: equal inputs give equal bits.

B batch, H heads, T tokens, K width of a head, R rows of the position table, S = 2T - 1 distances
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = {"forward": (64, 64, 4, 2), "backward": (64, 64, 4, 1), "side": (64, 32, 4, 1)}
"""Queries (rows) and keys (columns) a program takes at once, its warps, its stages of pipelining."""

LOG2_E = 1 / math.log(2)

FEW = tl.constexpr(16)
"""Distances of a table's row that are added up one by one; the ends of a table can have many more."""


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
    x = (_mix(head + i.to(tl.uint32))[:, None] ^ _mix(j.to(tl.uint32))[None, :]) * 0x21F0AAAD
    x = (x ^ (x >> 15)) * 0x735A2D97
    return (x >> 8).to(tl.int32) >= DROPPED


@triton.jit
def _scores(  # type: ignore[no-untyped-def]
    q, k, i, j, c2p, p2c, row, unseen, T, R, scale,
    C2P: tl.constexpr, P2C: tl.constexpr, PAPER: tl.constexpr, UNSEEN: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Scores of a block, times log2(e) so that exp2 serves; minus infinity outside and where a key is unseen.

    `row` holds the row of each distance, from 1 - T on. UNSEEN: 0 nothing, 1 a key for all queries, 2 for each.
    """
    inside = (i[:, None] < T) & (j[None, :] < T)
    if C2P:
        rows = tl.load(row + (i[:, None] - j[None, :] + T - 1), mask=inside, other=0)
        content = tl.load(c2p + i[:, None] * R + rows, mask=inside, other=0.0)
    if P2C:  # keys down, queries along, as they lie in memory
        turned = (j[:, None] < T) & (i[None, :] < T)
        distance = j[:, None] - i[None, :] if PAPER else i[None, :] - j[:, None]
        rows = tl.load(row + (distance + T - 1), mask=turned, other=0)
        position = tl.load(p2c + j[:, None] * R + rows, mask=turned, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee" if EXACT else "tf32")
    if C2P:
        scores += content
    if P2C:
        scores += tl.trans(position)
    seen = inside
    if UNSEEN == 1:
        seen = seen & (tl.load(unseen + j, mask=j < T, other=1) == 0)[None, :]
    if UNSEEN == 2:
        seen = seen & (tl.load(unseen + i[:, None] * T + j[None, :], mask=inside, other=1) == 0)
    return tl.where(seen, scores * scale, float("-inf"))


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    q, k, v, c2p, p2c, row, unseen, seed, out, lse,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot, H, T, R, scale,
    K: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr, PAPER: tl.constexpr, UNSEEN: tl.constexpr,
    DROPPED: tl.constexpr, EXACT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of queries against all keys."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    i, width = tl.program_id(0) * BI + tl.arange(0, BI), tl.arange(0, BK)
    mask_i = (i[:, None] < T) & (width[None, :] < K)
    queries = tl.load(q + b * qb + h * qh + i[:, None] * qt + width[None, :], mask=mask_i, other=0.0)
    most = tl.full([BI], float("-inf"), tl.float32)
    total = tl.zeros([BI], tl.float32)
    mixed = tl.zeros([BI, BK], tl.float32)
    c2p += bh * T * R
    p2c += bh * T * R
    unseen += b * T * (T if UNSEEN == 2 else 1)
    k += b * kb + h * kh
    v += b * vb + h * vh
    for start in range(0, T, BJ):
        j = start + tl.arange(0, BJ)
        mask_j = (j[:, None] < T) & (width[None, :] < K)
        keys = tl.load(k + j[:, None] * kt + width[None, :], mask=mask_j, other=0.0)
        scores = _scores(queries, keys, i, j, c2p, p2c, row, unseen, T, R, scale, C2P, P2C, PAPER, UNSEEN, EXACT)
        higher = tl.maximum(most, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # of a query that has seen no key yet
        p = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(most - base)
        total = total * shrink + tl.sum(p, 1)
        if DROPPED:
            p = tl.where(_kept(seed, bh, i, j, DROPPED), p, 0.0)
        values = tl.load(v + j[:, None] * vt + width[None, :], mask=mask_j, other=0.0)
        mixed *= shrink[:, None]
        mixed = tl.dot(p.to(values.dtype), values, mixed, input_precision="ieee" if EXACT else "tf32")
        most = higher
    some = total > 0
    mixed /= tl.where(some, total * (1.0 - DROPPED / 16777216.0), 1.0)[:, None]
    place = out + b * ob + h * oh + i[:, None] * ot + width[None, :]
    tl.store(place, mixed.to(out.dtype.element_ty), mask=mask_i)
    tl.store(lse + bh * T + i, tl.where(some, most + tl.log2(tl.where(some, total, 1.0)), 0.0), mask=i < T)


@triton.jit
def _delta(  # type: ignore[no-untyped-def]
    out, dout, delta, ob, oh, ot, gb, gh, gt, H, T, K: tl.constexpr, BI: tl.constexpr, BK: tl.constexpr
):
    """The sum of out x dout of each query."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    i, width = tl.program_id(0) * BI + tl.arange(0, BI), tl.arange(0, BK)
    mask = (i[:, None] < T) & (width[None, :] < K)
    o = tl.load(out + b * ob + h * oh + i[:, None] * ot + width[None, :], mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dout + b * gb + h * gh + i[:, None] * gt + width[None, :], mask=mask, other=0.0).to(tl.float32)
    tl.store(delta + bh * T + i, tl.sum(o * g, 1), mask=i < T)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    q, k, v, c2p, p2c, row, unseen, seed, dout, lse, delta, dv, ds, turned,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, H, T, R, scale, log2_scale,
    K: tl.constexpr, C2P: tl.constexpr, P2C: tl.constexpr, PAPER: tl.constexpr, UNSEEN: tl.constexpr,
    DROPPED: tl.constexpr, EXACT: tl.constexpr, BI: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of keys against all queries: the gradients of values and of the unscaled scores, these with queries down
    and, `turned`, with keys down."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    j, width = tl.program_id(0) * BJ + tl.arange(0, BJ), tl.arange(0, BK)
    mask_j = (j[:, None] < T) & (width[None, :] < K)
    keys = tl.load(k + b * kb + h * kh + j[:, None] * kt + width[None, :], mask=mask_j, other=0.0)
    values = tl.load(v + b * vb + h * vh + j[:, None] * vt + width[None, :], mask=mask_j, other=0.0)
    dvalues = tl.zeros([BJ, BK], tl.float32)
    c2p += bh * T * R
    p2c += bh * T * R
    unseen += b * T * (T if UNSEEN == 2 else 1)
    q += b * qb + h * qh
    dout += b * gb + h * gh
    ds += bh * T * T
    turned += bh * T * T
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    share: tl.constexpr = 1.0 - DROPPED / 16777216.0  # of the probabilities, that stays
    for start in range(0, T, BI):
        i = start + tl.arange(0, BI)
        mask_i = (i[:, None] < T) & (width[None, :] < K)
        queries = tl.load(q + i[:, None] * qt + width[None, :], mask=mask_i, other=0.0)
        g = tl.load(dout + i[:, None] * gt + width[None, :], mask=mask_i, other=0.0)
        scores = _scores(queries, keys, i, j, c2p, p2c, row, unseen, T, R, log2_scale, C2P, P2C, PAPER, UNSEEN, EXACT)
        p = tl.exp2(scores - tl.load(lse + bh * T + i, mask=i < T, other=0.0)[:, None])
        dp = tl.dot(g, tl.trans(values), input_precision=precision) * (scale / share)
        kept = p
        if DROPPED:
            stays = _kept(seed, bh, i, j, DROPPED)
            kept = tl.where(stays, p, 0.0)
            dp = tl.where(stays, dp, 0.0)
        dvalues = tl.dot(tl.trans(kept.to(g.dtype)), g, dvalues, input_precision=precision)
        down = tl.load(delta + bh * T + i, mask=i < T, other=0.0) * scale
        dscores = (p * (dp - down[:, None])).to(g.dtype)
        tl.store(ds + i[:, None] * T + j[None, :], dscores, mask=(i[:, None] < T) & (j[None, :] < T))
        place = turned + j[:, None] * T + i[None, :]
        tl.store(place, tl.trans(dscores), mask=(j[:, None] < T) & (i[None, :] < T))
    tl.store(dv + bh * T * K + j[:, None] * K + width[None, :], (dvalues / share).to(dv.dtype.element_ty), mask=mask_j)


@triton.jit
def _by_row(  # type: ignore[no-untyped-def]
    ds, first, after, row, a, start, T, R, BACK: tl.constexpr, BA: tl.constexpr, BR: tl.constexpr
):
    """The sum of `ds`[a, b] over all b with row r, for BR rows from `start` on.

    Row r is that of the distances first[r] to after[r] - 1, counted from 1 - T on; of none where both are the same. The
    distance is a - b, or where BACK b - a.
    """
    r = start + tl.arange(0, BR)
    low, high = tl.load(first + r, mask=r < R, other=0), tl.load(after + r, mask=r < R, other=0)
    many = high - low
    # Turn n takes b = `begin` + n or, where not BACK, - n: within the tokens from turn `since` to `until`.
    distance = low[None, :] - (T - 1)
    begin = a[:, None] + distance if BACK else a[:, None] - distance
    since = tl.maximum(-begin if BACK else begin - (T - 1), 0)
    until = tl.minimum(T - begin if BACK else begin + 1, tl.where(many > FEW, 0, many)[None, :])
    until = tl.where(a[:, None] < T, until, 0)
    total = tl.zeros([BA, BR], tl.float32)
    for n in range(tl.min(tl.min(since, 1), 0), tl.max(tl.max(until, 1), 0)):
        place = ds + a[:, None] * T + begin + (n if BACK else -n)
        total += tl.load(place, mask=(n >= since) & (n < until), other=0.0)
    if tl.max(many, 0) > FEW:
        for one in range(start, min(start + BR, R)):
            if tl.load(after + one) - tl.load(first + one) > FEW:
                much = tl.zeros([BA], tl.float32)
                for b0 in range(0, T, BR):
                    b = b0 + tl.arange(0, BR)
                    place = b[None, :] - a[:, None] if BACK else a[:, None] - b[None, :]
                    mask = (b[None, :] < T) & (a[:, None] < T)
                    mask = mask & (tl.load(row + (place + T - 1), mask=mask, other=-1) == one)
                    much += tl.sum(tl.load(ds + a[:, None] * T + b[None, :], mask=mask, other=0.0).to(tl.float32), 1)
                total = tl.where((r == one)[None, :], much[:, None], total)
    return total


@triton.jit
def _side(  # type: ignore[no-untyped-def]
    ds, other, table, first, after, row, summed, gradient, xb, xh, xt, th, tr, H, T, R,
    K: tl.constexpr, RELATIVE: tl.constexpr, BACK: tl.constexpr, EXACT: tl.constexpr,
    BA: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A block of queries (keys): their gradient, by way of `other`, the keys (queries), and of the position table, and
    the gradient of c2p (p2c), `summed`."""
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    a, width = tl.program_id(0) * BA + tl.arange(0, BA), tl.arange(0, BK)
    precision: tl.constexpr = "ieee" if EXACT else "tf32"
    total = tl.zeros([BA, BK], tl.float32)
    ds += bh * T * T
    other += b * xb + h * xh
    for start in range(0, T, BR):
        place = start + tl.arange(0, BR)
        mask = (place[:, None] < T) & (width[None, :] < K)
        others = tl.load(other + place[:, None] * xt + width[None, :], mask=mask, other=0.0)
        mask = (a[:, None] < T) & (place[None, :] < T)
        block = tl.load(ds + a[:, None] * T + place[None, :], mask=mask, other=0.0)
        total = tl.dot(block, others, total, input_precision=precision)
    if RELATIVE:
        summed += bh * T * R
        for start in range(0, R, BR):
            r = start + tl.arange(0, BR)
            block = _by_row(ds, first, after, row, a, start, T, R, BACK, BA, BR).to(summed.dtype.element_ty)
            tl.store(summed + a[:, None] * R + r[None, :], block, mask=(a[:, None] < T) & (r[None, :] < R))
            mask = (r[:, None] < R) & (width[None, :] < K)
            rows = tl.load(table + h * th + r[:, None] * tr + width[None, :], mask=mask, other=0.0)
            total = tl.dot(block, rows, total, input_precision=precision)
    place = gradient + bh * T * K + a[:, None] * K + width[None, :]
    tl.store(place, total.to(gradient.dtype.element_ty), mask=(a[:, None] < T) & (width[None, :] < K))


@torch.library.custom_op("paribus::relative_attention", mutates_args=())
def _attend(
    q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, paper_index: bool, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The mixed values and, for the backward pass, the base-2 logarithm of each query's sum (B, H, T), c2p, p2c."""
    batch, heads, length, width = q.shape
    out, lse, *_ = _outputs(q, None, None)
    c2p, p2c = (_product(x, rows) for x, rows in ((q, key_rows), (k, query_rows)))
    bi, bj, warps, stages = _blocks("forward", width)
    _forward[(triton.cdiv(length, bi), batch * heads)](
        q, k, v, c2p, p2c, row, *_given(q, unseen, seed), out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3], heads, length,
        max(c2p.shape[-1], p2c.shape[-1]), scale * LOG2_E,
        **_constants(q, key_rows, query_rows, unseen, paper_index, dropout),
        BI=bi, BJ=bj, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out, lse, c2p, p2c


@_attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, paper_index: bool, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    return _outputs(q, key_rows, query_rows)


@torch.library.custom_op("paribus::relative_attention_backward", mutates_args=())
def _attend_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor, c2p: Tensor, p2c: Tensor,
    paper_index: bool, dropout: float, scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of q, k, v, key_rows and query_rows; an empty one for what is not there."""
    batch, heads, length, width = q.shape
    dout = dout if dout.stride(-1) == 1 else dout.contiguous()
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    delta, ds = torch.empty_like(lse), q.new_empty(batch, heads, length, length)
    turned = torch.empty_like(ds)
    constants = _constants(q, key_rows, query_rows, unseen, paper_index, dropout)
    rows = max(c2p.shape[-1], p2c.shape[-1])
    bi, bj, warps, stages = _blocks("backward", width)
    _delta[(triton.cdiv(length, 64), batch * heads)](
        out, dout, delta, *out.stride()[:3], *dout.stride()[:3], heads, length, K=width, BI=64, BK=constants["BK"]
    )
    _backward[(triton.cdiv(length, bj), batch * heads)](
        q, k, v, c2p, p2c, row, *_given(q, unseen, seed), dout, lse, delta, dv, ds, turned,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], heads, length, rows,
        scale, scale * LOG2_E, **constants, BI=bi, BJ=bj, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    used = torch.arange(rows, dtype=row.dtype, device=row.device)
    first, after = (torch.searchsorted(row, used, right=right, out_int32=True) for right in (False, True))
    ba, br, warps, stages = _blocks("side", width)
    found = []
    for scores, own, other, table, back, gradient in (
        (ds, q, k, key_rows, False, dq), (turned, k, q, query_rows, not paper_index, dk),
    ):  # fmt: skip
        summed = q.new_empty(0) if table is None else q.new_empty(batch, heads, length, rows)
        strides = (0, 0) if table is None else table.stride()[:2]
        _side[(triton.cdiv(length, ba), batch * heads)](
            scores, other, *_given(q, table), first, after, row, summed, gradient, *other.stride()[:3], *strides,
            heads, length, rows, K=width, RELATIVE=table is not None, BACK=back, EXACT=constants["EXACT"],
            BA=ba, BR=br, BK=constants["BK"], num_warps=warps, num_stages=stages,
        )  # fmt: skip
        found.append(summed if table is None else (summed.mT @ own).sum(0))
    return dq, dk, dv, found[0], found[1]


@_attend_backward.register_fake
def _(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, row: Tensor,
    unseen: Tensor | None, seed: Tensor | None, out: Tensor, lse: Tensor, c2p: Tensor, p2c: Tensor,
    paper_index: bool, dropout: float, scale: float,
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


def _product(x: Tensor, rows: Tensor | None) -> Tensor:
    return x.new_empty(0) if rows is None else x @ rows.mT


def _outputs(q: Tensor, key_rows: Tensor | None, query_rows: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, width = q.shape
    out = q.new_empty(batch, length, heads, width).transpose(1, 2)  # so that joining the heads again copies nothing
    c2p, p2c = (
        q.new_empty(0) if rows is None else q.new_empty(batch, heads, length, rows.shape[1])
        for rows in (key_rows, query_rows)
    )
    return out, q.new_empty(batch, heads, length, dtype=torch.float32), c2p, p2c


def _given(instead: Tensor, *tensors: Tensor | None) -> list[Tensor]:
    """Any tensor in place of one that is not there: no kernel reads it."""
    return [instead if tensor is None else tensor for tensor in tensors]


def _blocks(kernel: str, width: int) -> tuple[int, int, int, int]:
    """Wide heads take half as many rows at once: registers are as many."""
    rows, columns, warps, stages = BLOCKS[kernel]
    return (rows if width <= 64 else rows // 2), columns, warps, stages


def _constants(
    q: Tensor, key_rows: Tensor | None, query_rows: Tensor | None, unseen: Tensor | None, paper_index: bool,
    dropout: float,
) -> dict[str, Any]:  # fmt: skip
    """What a kernel is compiled for."""
    return {
        "K": q.shape[-1],
        "BK": max(16, triton.next_power_of_2(q.shape[-1])),
        "C2P": key_rows is not None,
        "P2C": query_rows is not None,
        "PAPER": paper_index,
        "UNSEEN": 0 if unseen is None else unseen.ndim - 1,
        "DROPPED": round(dropout * 2**24),
        "EXACT": q.dtype == torch.float32,
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

    `row_S`: the row of each distance i - j from 1 - T to T - 1, never falling (p2c's of j - i with `paper_index`).
    `unseen`: True at keys to leave out, (B, T), or (B, T, T) for each query; a query that sees none gives 0. The
    dropout seed is drawn from torch's generator of the device, without waiting for it.
    """
    seed = torch.randint(2**31, (1,), device=q_BHTK.device) if dropout else None
    given = (q_BHTK, k_BHTK, v_BHTK, key_HRK, query_HRK)
    tensors = [x if x is None or x.stride(-1) == 1 else x.contiguous() for x in given]
    unseen = None if unseen is None else unseen.contiguous().view(torch.uint8)
    out: Tensor = _attend(*tensors, row_S.to(torch.int32), unseen, seed, paper_index, dropout, scale)[0]
    return out
