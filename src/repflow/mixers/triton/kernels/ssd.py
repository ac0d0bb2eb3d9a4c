"""Triton kernels of the SSD scan, forward: steps, scores, states, outputs. Imported only where Triton is installed.

Glossary: A decay rate of a head, B input map, C read-out, D skip, dt step size; cum the running sum of dt·A within a
chunk, kept as two float32 parts (hi + lo), so that differences after one huge step lose nothing; scores C Bᵀ of a
chunk, one matrix per group; states (batch, chunk, head, state,
dim) are those that enter a chunk. Per-token numbers of a head are (batch, chunk,
head, Q). Tokens beyond the end have dt = 0: they change nothing. KIND is the dtype of matrix products, PRECISION
their float32 mode.

A token that is not finite must spoil none before it, but a product with a masked 0 is NaN, and masks in every tile
made the scan 1.6 times slower. So only heads that need it are worked on again with masks: `spoiled` (batch, head) is 1
where a head's last state is not finite, and no state is finite again once a token was not.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM102

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import bounded, finite, softplus


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
    made = tl.dot(c.to(KIND), tl.trans(b.to(KIND)), input_precision=PRECISION)
    out = scores + (place.to(tl.int64) * groups + group) * Q * Q + q[:, None] * Q + q[None, :]
    tl.store(out, made)


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
