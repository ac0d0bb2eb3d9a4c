"""Triton kernels of the SSD scan: steps, scores, states, outputs, and the gradients of these. Needs Triton.

Glossary: A decay rate of a head, B input map, C read-out, D skip, dt step size; cum the running sum of dt·A within a
chunk, kept as two float32 parts (hi + lo), so that differences after one huge step lose nothing; scores C Bᵀ of a
chunk, one matrix per group; states (batch, chunk, head, state,
dim) are those that enter a chunk. Per-token numbers of a head are (batch, chunk,
head, Q). Tokens beyond the end have dt = 0: they change nothing. KIND is the dtype of matrix products, PRECISION
their float32 mode.

A token that is not finite must spoil none before it, but a product with a masked 0 is NaN, and masks in every tile
made the scan 1.6 times slower. So only heads that need it are worked on again with masks: `spoiled` (batch, head) is 1
where a head's last state is not finite, and no state is finite again once a token was not.

Backward, R (batch, chunk, head, state, dim) is the adjoint of the state that leaves a chunk, u the gradient of dt·x.
The gradient of a decay sums all pairs of tokens on either side of it; no sum here cancels, so that a huge step, which
multiplies it, finds no rounding in it.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, E741, SIM102

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import bounded, finite, sigmoid, softplus


@triton.jit(do_not_specialize=["tokens", "chunks"])
def step_kernel(
    raw, bias, A, dt, hi, lo, spoiled, tokens, heads, chunks, raw_batch, raw_token, low, high,
    Q: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, LIMIT: tl.constexpr,
    LOG: tl.constexpr,
):  # fmt: skip
    # with LOG, A is log(-rate), as Mamba-2 keeps it. `spoiled` starts at 0 here, which saves a launch
    place = tl.program_id(0)
    sample = (place // chunks).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    q = tl.arange(0, Q)
    at = (place % chunks) * Q + q
    inside = (at < tokens)[:, None] & (head < heads)[None, :]
    source = raw + sample * raw_batch + at.to(tl.int64)[:, None] * raw_token + head[None, :]
    d = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        d += tl.load(bias + head, mask=head < heads, other=0.0).to(tl.float32)[None, :]
    if SOFTPLUS:
        d = softplus(d)
    if LIMIT:
        d = bounded(d, low, high)
    d = tl.where(inside, d, 0.0)
    rate = tl.load(A + head, mask=head < heads, other=0.0).to(tl.float32)
    if LOG:
        rate = -tl.exp(rate)
    cum = tl.cumsum((d * rate[None, :]).to(tl.float64), 0)
    whole = cum.to(tl.float32)
    out = (place.to(tl.int64) * heads + head[None, :]) * Q + q[:, None]
    if place % chunks == 0:
        tl.store(spoiled + sample * heads + head, tl.zeros((BLOCK,), tl.int32), mask=head < heads)
    written = (head < heads)[None, :] & (q >= 0)[:, None]
    tl.store(dt + out, d, mask=written)
    tl.store(hi + out, whole, mask=written)
    tl.store(lo + out, (cum - whole.to(tl.float64)).to(tl.float32), mask=written)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def score_kernel(
    B, C, scores, tokens, groups, chunks, b_batch, b_token, b_group, c_batch, c_token, c_group,
    STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    group = tl.program_id(1)
    sample = (place // chunks).to(tl.int64)
    q = tl.arange(0, Q)
    n = tl.arange(0, N)
    at = ((place % chunks) * Q + q).to(tl.int64)
    inside = (at < tokens)[:, None] & (n < STATE)[None, :]
    c = tl.load(C + sample * c_batch + group * c_group + at[:, None] * c_token + n[None, :], mask=inside, other=0.0)
    b = tl.load(B + sample * b_batch + group * b_group + at[:, None] * b_token + n[None, :], mask=inside, other=0.0)
    score = tl.dot(c.to(KIND), tl.trans(b.to(KIND)), input_precision=PRECISION)
    out = scores + (place.to(tl.int64) * groups + group) * Q * Q + q[:, None] * Q + q[None, :]
    tl.store(out, score)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def state_kernel(
    x, B, dt, hi, lo, first, entering, states, last, through, spoiled, tokens, heads, share, chunks, x_batch,
    x_token, x_head, b_batch, b_token, b_group,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, FIRST: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    # forward: the state that enters each chunk. reverse (x = dy, B = C): the adjoint of the state that leaves each
    # chunk, and `through`, its product with what is left of the entering state
    pair = tl.program_id(0)
    sample = (pair // heads).to(tl.int64)
    head = pair % heads
    column = tl.program_id(1)
    q = tl.arange(0, Q)
    p = tl.arange(0, P)
    n = column * BLOCK + tl.arange(0, BLOCK)
    cell = n[:, None] * DIM + p[None, :]
    both = (n < STATE)[:, None] & (p < DIM)[None, :]
    size = STATE * DIM
    x_base = x + sample * x_batch + head * x_head + p[None, :]
    b_base = B + sample * b_batch + (head // share) * b_group + n[None, :]
    h = tl.zeros((BLOCK, P), tl.float32)
    if FIRST:
        h = tl.load(first + pair.to(tl.int64) * size + cell, mask=both, other=0.0).to(tl.float32)
    for i in range(0, chunks):
        k = i
        if REVERSE:
            k = chunks - 1 - i
        row = (sample * chunks + k) * heads + head
        tl.store(states + row * size + cell, h.to(states.dtype.element_ty), mask=both)
        at = (k * Q + q).to(tl.int64)
        real = (at < tokens)[:, None]
        cum_hi = tl.load(hi + row * Q + q)
        cum_lo = tl.load(lo + row * Q + q)
        end_hi = tl.load(hi + row * Q + Q - 1)
        end_lo = tl.load(lo + row * Q + Q - 1)
        left = tl.exp(end_hi + end_lo)
        if REVERSE:
            weight = tl.exp(cum_hi + cum_lo)
            before = tl.load(entering + row * size + cell, mask=both, other=0.0).to(tl.float32)
            tl.store(through + row * tl.num_programs(1) + column, left * tl.sum(tl.sum(h * before, 1), 0))
        else:
            weight = tl.exp((end_hi - cum_hi) + (end_lo - cum_lo)) * tl.load(dt + row * Q + q)
        v = tl.load(x_base + at[:, None] * x_token, mask=real & (p < DIM)[None, :], other=0.0)
        b = tl.load(b_base + at[:, None] * b_token, mask=real & (n < STATE)[None, :], other=0.0)
        v = (v.to(tl.float32) * weight[:, None]).to(KIND)
        h = tl.dot(tl.trans(b.to(KIND)), v, h * left, input_precision=PRECISION)
    tl.store(last + pair.to(tl.int64) * size + cell, h, mask=both)
    if not REVERSE:
        # several programs may write the same 1
        if tl.sum(tl.sum(h * 0.0, 1), 0) != 0.0:
            tl.store(spoiled + pair, 1)


@triton.jit
def _outputs(
    head, place, part, x, C, D, scores, dt, hi, lo, states, tokens, heads, share, chunks, groups, x_batch, x_token,
    x_head, c_batch, c_token, c_group, d_head, d_dim,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, SKIP: tl.constexpr, CLEAN: tl.constexpr,
):  # fmt: skip
    # M tokens of a head; with CLEAN nothing of a later token is in them, and nothing of an x that is not finite where
    # it may be a later token's
    sample = (place // chunks).to(tl.int64)
    group = head // share
    i = part * M + tl.arange(0, M)
    p = tl.arange(0, P)
    n = tl.arange(0, N)
    at = ((place % chunks) * Q + i).to(tl.int64)
    row = place.to(tl.int64) * heads + head
    i_hi = tl.load(hi + row * Q + i)
    i_lo = tl.load(lo + row * Q + i)
    c = tl.load(
        C + sample * c_batch + group * c_group + at[:, None] * c_token + n[None, :],
        mask=(at < tokens)[:, None] & (n < STATE)[None, :], other=0.0,
    )  # fmt: skip
    s = tl.load(
        states + row * STATE * DIM + n[:, None] * DIM + p[None, :],
        mask=(n < STATE)[:, None] & (p < DIM)[None, :],
        other=0.0,
    )
    out = tl.dot(c.to(KIND), s.to(KIND), input_precision=PRECISION) * tl.exp(i_hi + i_lo)[:, None]
    x_base = x + sample * x_batch + head * x_head + p[None, :]
    grid = scores + (place.to(tl.int64) * groups + group) * Q * Q + i[:, None] * Q
    for start in range(0, (part + 1) * M, M):
        j = start + tl.arange(0, M)
        j_at = ((place % chunks) * Q + j).to(tl.int64)
        j_hi = tl.load(hi + row * Q + j)
        j_lo = tl.load(lo + row * Q + j)
        step = tl.load(dt + row * Q + j)
        g = tl.load(grid + j[None, :])
        v = tl.load(x_base + j_at[:, None] * x_token, mask=(j_at < tokens)[:, None] & (p < DIM)[None, :], other=0.0)
        if CLEAN:
            v = tl.where(finite(v) | (start < part * M), v, 0.0)
        gap = (i_hi[:, None] - j_hi[None, :]) + (i_lo[:, None] - j_lo[None, :])
        # masked before exp: the other order gives inf · 0
        weight = g * tl.exp(tl.where(i[:, None] >= j[None, :], gap, float("-inf"))) * step[None, :]
        if CLEAN:
            weight = tl.where(i[:, None] >= j[None, :], weight, 0.0)
        out = tl.dot(weight.to(KIND), v.to(KIND), out, input_precision=PRECISION)
    if SKIP:
        inside = (at < tokens)[:, None] & (p < DIM)[None, :]
        skip = tl.load(D + head * d_head + p * d_dim, mask=p < DIM, other=0.0).to(tl.float32)
        out += skip[None, :] * tl.load(x_base + at[:, None] * x_token, mask=inside, other=0.0).to(tl.float32)
    return out


@triton.jit(do_not_specialize=["tokens", "chunks"])
def output_kernel(
    x, C, D, scores, dt, hi, lo, states, y, tokens, heads, share, chunks, groups, x_batch, x_token, x_head, c_batch,
    c_token, c_group, d_head, d_dim,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    # heads first: neighbours in time share the chunk's scores and C
    head = tl.program_id(0) % heads
    place = tl.program_id(0) // heads
    part = tl.program_id(1)
    sample = (place // chunks).to(tl.int64)
    p = tl.arange(0, P)
    at = ((place % chunks) * Q + part * M + tl.arange(0, M)).to(tl.int64)
    out = _outputs(
        head, place, part, x, C, D, scores, dt, hi, lo, states, tokens, heads, share, chunks, groups, x_batch, x_token,
        x_head, c_batch, c_token, c_group, d_head, d_dim, DIM, P, STATE, N, Q, M, KIND, PRECISION, SKIP, False,
    )  # fmt: skip
    place_y = y + ((sample * tokens + at[:, None]) * heads + head) * DIM + p[None, :]
    tl.store(place_y, out.to(y.dtype.element_ty), mask=(at < tokens)[:, None] & (p < DIM)[None, :])


@triton.jit(do_not_specialize=["tokens", "chunks"])
def repair_kernel(
    x, C, D, scores, dt, hi, lo, states, spoiled, y, tokens, heads, share, chunks, groups, x_batch, x_token, x_head,
    c_batch, c_token, c_group, d_head, d_dim,
    DIM: tl.constexpr, P: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, Q: tl.constexpr, M: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    # a kernel of its own: inside output_kernel it took registers from every head (239 instead of 166, 2 programs a
    # multiprocessor instead of 3), 1.17 times its time. Few programs, which end at once where nothing is spoiled, each
    # go through tiles of a spoiled head
    pair = tl.program_id(0)
    head = pair % heads
    sample = (pair // heads).to(tl.int64)
    if tl.load(spoiled + pair) != 0:
        for tile in range(tl.program_id(1), chunks * (Q // M), tl.num_programs(1)):
            tl.debug_barrier()  # no thread is still at work on the tile before
            place = (pair // heads) * chunks + tile // (Q // M)
            part = tile % (Q // M)
            out = _outputs(
                head, place, part, x, C, D, scores, dt, hi, lo, states, tokens, heads, share, chunks, groups, x_batch,
                x_token, x_head, c_batch, c_token, c_group, d_head, d_dim, DIM, P, STATE, N, Q, M, KIND, PRECISION,
                SKIP, True,
            )  # fmt: skip
            m = tl.arange(0, M)
            p = tl.arange(0, P)
            at = ((tile // (Q // M)) * Q + part * M + m).to(tl.int64)
            inside = (at < tokens)[:, None] & (p < DIM)[None, :]
            place_x = x + sample * x_batch + head * x_head + at[:, None] * x_token + p[None, :]
            own = tl.load(place_x, mask=inside, other=0.0)
            # no product with a constant matrix: Triton 3.6 keeps that in shared memory across tiles and gets it wrong
            bad = tl.cumsum(tl.where(finite(own), 0.0, 1.0), 0)
            # tokens before the first x of their tile that is not finite are written again
            place_y = y + ((sample * tokens + at[:, None]) * heads + head) * DIM + p[None, :]
            tl.store(place_y, out.to(y.dtype.element_ty), mask=inside & (bad == 0.0))


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
    value = u * tl.load(dt + row * Q + q)[:, None]
    if SKIP:
        wide = slope.to(tl.float32)
        skip = tl.load(D + head * d_head + p * d_dim, mask=p < DIM, other=0.0).to(tl.float32)
        value += skip[None, :] * wide
        # D is one number of a head, or with WIDE one of each of its channels
        if WIDE:
            tl.store(dD + place.to(tl.int64) * d_row + head * DIM + p, tl.sum(wide * v, 0), mask=p < DIM)
        else:
            tl.store(dD + place.to(tl.int64) * d_row + head, tl.sum(tl.sum(wide * v, 1), 0))
    out = dx + sample * dx_batch + at[:, None] * dx_token + head * dx_head + p[None, :]
    tl.store(out, value.to(dx.dtype.element_ty), mask=inside)


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
        pair = tl.dot(slope.to(KIND), tl.trans(v.to(KIND)), input_precision=PRECISION) * fade * step[None, :]
        total += pair
        reach = tl.dot((pair * g).to(KIND), earlier, input_precision=PRECISION)
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
    value = slope * rate[None, :] + tl.load(direct + cell, mask=known, other=0.0)
    source = raw + sample * raw_batch + at.to(tl.int64)[:, None] * raw_token + head[None, :]
    d = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        d += tl.load(bias + head, mask=head < heads, other=0.0).to(tl.float32)[None, :]
    if LIMIT:
        # at a limit dt is that limit exactly
        value = tl.where((step > low) & (step < high), value, 0.0)
    if SOFTPLUS:
        value = value * sigmoid(d)
    value = tl.where(inside, value, 0.0)
    if BIAS:
        tl.store(dbias + part, tl.sum(value, 0), mask=head < heads)
    out = draw + sample * draw_batch + at.to(tl.int64)[:, None] * draw_token + head[None, :]
    tl.store(out, value.to(draw.dtype.element_ty), mask=inside)
