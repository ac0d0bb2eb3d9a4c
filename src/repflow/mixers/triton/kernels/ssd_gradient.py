"""Triton kernels of the SSD scan, backward. Imported only where Triton is installed.

Glossary: as in `triton_ssd_kernels`; R (batch, chunk, head, state, dim) is the adjoint of the state that leaves a
chunk; u the gradient of dt·x. The gradient of a decay sums all pairs of tokens on either side of it; no sum
here cancels, so that a huge step, which multiplies it, finds no rounding in it.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103, E741

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid


@triton.jit(do_not_specialize=["tokens", "chunks"])
def input_kernel(
    x, B, D, dy, scores, dt, hi, lo, R, dx, direct, dD, tokens, heads, share, chunks, groups, x_batch, x_token, x_head,
    b_batch, b_token, b_group, d_head, d_dim, d_row, y_batch, y_token, y_head, dx_batch, dx_token, dx_head,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, SKIP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # gradient of the inputs: u_j = sum_i scores_ij fade_ij dy_i + exp(end - cum_j) R B_j; `direct` is u · x
    head = tl.program_id(0) % heads
    place = tl.program_id(0) // heads
    sample = (place // chunks).to(tl.int64)
    group = head // share
    q = tl.arange(0, Q)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    at = ((place % chunks) * Q + q).to(tl.int64)
    row = place.to(tl.int64) * heads + head
    cum_hi = tl.load(hi + row * Q + q)
    cum_lo = tl.load(lo + row * Q + q)
    end = (tl.load(hi + row * Q + Q - 1) - cum_hi) + (tl.load(lo + row * Q + Q - 1) - cum_lo)
    inside = (at < tokens)[:, None] & (p < DIM)[None, :]
    b = tl.load(
        B + sample * b_batch + group * b_group + at[:, None] * b_token + n[None, :],
        mask=(at < tokens)[:, None] & (n < STATE)[None, :], other=0.0,
    )  # fmt: skip
    r = tl.load(
        R + row * STATE * DIM + n[:, None] * DIM + p[None, :], mask=(n < STATE)[:, None] & (p < DIM)[None, :], other=0.0
    )
    u = tl.dot(b.to(KIND), r.to(KIND), input_precision=PRECISION) * tl.exp(end)[:, None]
    g = tl.load(scores + (place.to(tl.int64) * groups + group) * Q * Q + q[:, None] * Q + q[None, :])
    gap = (cum_hi[:, None] - cum_hi[None, :]) + (cum_lo[:, None] - cum_lo[None, :])
    fade = tl.exp(tl.where(q[:, None] >= q[None, :], gap, float("-inf")))
    slope = tl.load(dy + sample * y_batch + at[:, None] * y_token + head * y_head + p[None, :], mask=inside, other=0.0)
    u = tl.dot(tl.trans((g * fade).to(KIND)), slope.to(KIND), u, input_precision=PRECISION)
    v = tl.load(x + sample * x_batch + at[:, None] * x_token + head * x_head + p[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    tl.store(direct + row * Q + q, tl.sum(u * v, 1))
    made = u * tl.load(dt + row * Q + q)[:, None]
    if SKIP:
        wide = slope.to(tl.float32)
        skip = tl.load(D + head * d_head + p * d_dim, mask=p < DIM, other=0.0).to(tl.float32)
        made += skip[None, :] * wide
        # D is one number of a head, or with WIDE one of each of its channels
        if WIDE:
            tl.store(dD + place.to(tl.int64) * d_row + head * DIM + p, tl.sum(wide * v, 0), mask=p < DIM)
        else:
            tl.store(dD + place.to(tl.int64) * d_row + head, tl.sum(tl.sum(wide * v, 1), 0))
    out = dx + sample * dx_batch + at[:, None] * dx_token + head * dx_head + p[None, :]
    tl.store(out, made.to(dx.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "chunks", "parts"])
def pair_kernel(
    x, dy, scores, dt, hi, lo, dscores, pairs, tokens, heads, share, chunks, groups, parts, x_batch, x_token, x_head,
    y_batch, y_token, y_head,
    DIM: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # gradient of a group's scores, summed over its heads (in `parts` pieces); `pairs`: for each token the sum over
    # all pairs of a token from it on and one before it. Sums of differences would leave rounding there, which a huge
    # step multiplies
    place = tl.program_id(0)
    group = tl.program_id(1)
    piece = tl.program_id(2)
    sample = (place // chunks).to(tl.int64)
    q = tl.arange(0, Q)
    p = tl.arange(0, P)
    at = ((place % chunks) * Q + q).to(tl.int64)
    inside = (at < tokens)[:, None] & (p < DIM)[None, :]
    square = (place.to(tl.int64) * groups + group) * Q * Q + q[:, None] * Q + q[None, :]
    g = tl.load(scores + square)
    total = tl.zeros((Q, Q), tl.float32)
    earlier = tl.where(q[:, None] < q[None, :], 1.0, 0.0).to(KIND)
    size = (share + parts - 1) // parts
    for i in range(piece * size, tl.minimum((piece + 1) * size, share)):
        head = group * share + i
        row = place.to(tl.int64) * heads + head
        cum_hi = tl.load(hi + row * Q + q)
        cum_lo = tl.load(lo + row * Q + q)
        step = tl.load(dt + row * Q + q)
        v = tl.load(x + sample * x_batch + at[:, None] * x_token + head * x_head + p[None, :], mask=inside, other=0.0)
        slope = tl.load(
            dy + sample * y_batch + at[:, None] * y_token + head * y_head + p[None, :], mask=inside, other=0.0
        )
        gap = (cum_hi[:, None] - cum_hi[None, :]) + (cum_lo[:, None] - cum_lo[None, :])
        fade = tl.exp(tl.where(q[:, None] >= q[None, :], gap, float("-inf")))
        made = tl.dot(slope.to(KIND), tl.trans(v.to(KIND)), input_precision=PRECISION) * fade * step[None, :]
        total += made
        reach = tl.dot((made * g).to(KIND), earlier, input_precision=PRECISION)
        tl.store(pairs + row * Q + q, tl.sum(tl.where(q[:, None] >= q[None, :], reach, 0.0), 0))
    out = dscores + (piece * tl.num_programs(0)).to(tl.int64) * groups * Q * Q + square
    tl.store(out, total)


@triton.jit(do_not_specialize=["tokens", "chunks", "parts"])
def map_kernel(
    v, W, O, S, dscores, dt, hi, lo, made, term, tokens, heads, share, chunks, groups, parts, v_batch, v_token, v_head,
    w_batch, w_token, w_group, o_batch, o_token, o_group, m_piece, m_batch, m_token, m_group,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr, INPUT: tl.constexpr,
):  # fmt: skip
    # gradient of C (v = dy, W = C, other map O = B, S = entering states) or, with INPUT, of B (v = x, W = B, O = C, S
    # = R); `term` is each head's part through the chunk's border, for the gradient of the decays
    place = tl.program_id(0)
    group = tl.program_id(1)
    piece = tl.program_id(2)
    sample = (place // chunks).to(tl.int64)
    q = tl.arange(0, Q)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    at = ((place % chunks) * Q + q).to(tl.int64)
    inside = (at < tokens)[:, None] & (p < DIM)[None, :]
    mapped = (at < tokens)[:, None] & (n < STATE)[None, :]
    w = tl.load(W + sample * w_batch + group * w_group + at[:, None] * w_token + n[None, :], mask=mapped, other=0.0)
    w = w.to(tl.float32)
    total = tl.zeros((Q, N), tl.float32)
    if piece == 0:
        o = tl.load(O + sample * o_batch + group * o_group + at[:, None] * o_token + n[None, :], mask=mapped, other=0.0)
        d = tl.load(dscores + (place.to(tl.int64) * groups + group) * Q * Q + q[:, None] * Q + q[None, :])
        if INPUT:
            d = tl.trans(d)
        total = tl.dot(d.to(KIND), o.to(KIND), total, input_precision=PRECISION)
    size = (share + parts - 1) // parts
    for i in range(piece * size, tl.minimum((piece + 1) * size, share)):
        head = group * share + i
        row = place.to(tl.int64) * heads + head
        cum_hi = tl.load(hi + row * Q + q)
        cum_lo = tl.load(lo + row * Q + q)
        t = tl.load(v + sample * v_batch + at[:, None] * v_token + head * v_head + p[None, :], mask=inside, other=0.0)
        s = tl.load(
            S + row * STATE * DIM + n[:, None] * DIM + p[None, :],
            mask=(n < STATE)[:, None] & (p < DIM)[None, :],
            other=0.0,
        )
        if INPUT:
            end = (tl.load(hi + row * Q + Q - 1) - cum_hi) + (tl.load(lo + row * Q + Q - 1) - cum_lo)
            weight = tl.exp(end) * tl.load(dt + row * Q + q)
        else:
            weight = tl.exp(cum_hi + cum_lo)
        part = tl.dot(t.to(KIND), tl.trans(s.to(KIND)), input_precision=PRECISION) * weight[:, None]
        tl.store(term + row * Q + q, tl.sum(part * w, 1))
        total += part
    out = made + tl.cast(m_piece, tl.int64) * piece + sample * m_batch + group * m_group
    tl.store(out + at[:, None] * m_token + n[None, :], total.to(made.dtype.element_ty), mask=mapped)


@triton.jit(do_not_specialize=["tokens", "chunks", "splits", "row_a"])
def step_gradient_kernel(
    raw, bias, A, dt, pairs, leaving, entering, through, direct, draw, dA, dbias, tokens, heads, chunks, splits,
    row_a, raw_batch, raw_token, draw_batch, draw_token, low, high,
    Q: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    sample = (place // chunks).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    q = tl.arange(0, Q)
    at = (place % chunks) * Q + q
    known = (head < heads)[None, :] & (q >= 0)[:, None]
    inside = known & (at < tokens)[:, None]
    row = place.to(tl.int64) * heads + head
    cell = row[None, :] * Q + q[:, None]
    # float64: the sum from here to the end is the whole less the sum up to here
    after = tl.load(leaving + cell, mask=known, other=0.0).to(tl.float64)
    before = tl.load(entering + cell, mask=known, other=0.0).to(tl.float64)
    decay = tl.sum(after, 0)[None, :] - tl.cumsum(after, 0) + after + tl.cumsum(before, 0) - before
    whole = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, splits):
        whole += tl.load(through + row * splits + i, mask=head < heads, other=0.0)
    slope = decay.to(tl.float32) + whole[None, :] + tl.load(pairs + cell, mask=known, other=0.0)
    step = tl.load(dt + cell, mask=known, other=0.0)
    rate = tl.load(A + head, mask=head < heads, other=0.0).to(tl.float32)
    total = tl.sum(slope * step, 0)
    if LOG:
        rate = -tl.exp(rate)
        total = total * rate
    part = place.to(tl.int64) * row_a + head
    tl.store(dA + part, total, mask=head < heads)
    made = slope * rate[None, :] + tl.load(direct + cell, mask=known, other=0.0)
    source = raw + sample * raw_batch + at.to(tl.int64)[:, None] * raw_token + head[None, :]
    d = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        d += tl.load(bias + head, mask=head < heads, other=0.0).to(tl.float32)[None, :]
    if LIMIT:
        # at a limit dt is that limit exactly
        made = tl.where((step > low) & (step < high), made, 0.0)
    if SOFTPLUS:
        made = made * sigmoid(d)
    made = tl.where(inside, made, 0.0)
    if BIAS:
        tl.store(dbias + part, tl.sum(made, 0), mask=head < heads)
    out = draw + sample * draw_batch + at.to(tl.int64)[:, None] * draw_token + head[None, :]
    tl.store(out, made.to(draw.dtype.element_ty), mask=inside)
