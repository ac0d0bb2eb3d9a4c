"""Triton kernel of the selective scan's gradient, behind `repflow.mixers.triton.s6`.

Glossary and tiles as in `repflow.mixers.triton.kernels.s6`. A program takes BLOCK channels of every `workers`-th chunk.
Forward through the chunk it keeps the state before each token in a scratch of its own, which it uses again for the next
chunk, so that much of it stays in the GPU's cache; then it goes backward from the adjoint that leaves the chunk. The
parameters' gradients are summed over the program's chunks. The next token's rows are loaded before the current token is
worked on.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid
from repflow.mixers.triton.kernels.s6 import step_size


@triton.jit
def _row(pointer, inside):
    # converted where it is used: a row that waits takes half the registers in half precision
    return tl.load(pointer, mask=inside, other=0.0)


@triton.jit(do_not_specialize=["tokens", "span", "chunks", "samples"])
def gradient_kernel(
    x, dt, B, C, z, bias, A2, D, entering, leaving, dy, kept, dx, ddt, dz, dB, dC, sums,
    tokens, span, chunks, samples, x_batch, x_token, dt_batch, dt_token, b_batch, b_token, c_batch, c_token,
    z_batch, z_token, dy_batch, dy_token,
    channels: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr,
    BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, GATED: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    worker = tl.program_id(0)
    column = tl.program_id(1)
    # EACH neighbours to a thread: with BLOCK / 32 of them rows and tiles lie in the same threads, and a thread holds
    # whole columns; with more, sums over channels take fewer steps and rows are handed round
    lane = tl.max_contiguous(tl.arange(0, BLOCK), EACH)
    at = column * BLOCK + lane
    n = tl.arange(0, N)
    inside = at < channels
    real = n < STATE
    both = real[:, None] & inside[None, :]
    cell = n[:, None] * channels + at[None, :]
    size = STATE * channels
    rate = tl.load(A2 + cell, mask=both, other=0.0)
    shift = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        shift = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    skip = tl.zeros((BLOCK,), tl.float32)
    if SKIP:
        skip = tl.load(D + at, mask=inside, other=0.0).to(tl.float32)
    tile = n[:, None] * BLOCK + lane[None, :]
    own = kept + (worker * tl.num_programs(1) + column).to(tl.int64) * span * (N * BLOCK)
    sum_rate = tl.zeros((N, BLOCK), tl.float32)
    sum_skip = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)

    for place in range(worker, samples * chunks, tl.num_programs(0)):
        sample = (place // chunks).to(tl.int64)
        start = (place % chunks) * span
        last = tl.minimum(span, tokens - start) - 1
        first = start.to(tl.int64)
        edge = (sample * chunks + place % chunks) * size
        x_at = x + sample * x_batch + first * x_token
        dt_at = dt + sample * dt_batch + first * dt_token
        b_at = B + sample * b_batch + first * b_token
        c_at = C + sample * c_batch + first * c_token
        z_at = z + sample * z_batch + first * z_token
        dy_at = dy + sample * dy_batch + first * dy_token

        h = tl.load(entering + edge + cell, mask=both, other=0.0)
        x_next = _row(x_at + at, inside)
        dt_next = _row(dt_at + at, inside)
        b_next = _row(b_at + n, real)
        for i in range(0, last):
            tl.store(own + i * (N * BLOCK) + tile, h)
            x_now = x_next.to(tl.float32)
            raw = dt_next.to(tl.float32)
            b_now = b_next.to(tl.float32)
            x_at += x_token
            x_next = _row(x_at + at, inside)
            dt_at += dt_token
            dt_next = _row(dt_at + at, inside)
            b_at += b_token
            b_next = _row(b_at + n, real)
            d = step_size(raw, shift, BIAS, SOFTPLUS)
            h = h * tl.exp2(d[None, :] * rate) + (d * x_now)[None, :] * b_now[:, None]
        tl.debug_barrier()

        # the rows of x and dt loaded last are the last token's, and h is the state before it; B's row is loaded anew,
        # as the threads of this loop want it
        b_next = _row(b_at + n, real)
        c_at += last.to(tl.int64) * c_token
        dy_at += last.to(tl.int64) * dy_token
        z_at += last.to(tl.int64) * z_token
        z_next = x_next
        if GATED:
            z_next = _row(z_at + at, inside)
        dy_next = _row(dy_at + at, inside)
        c_next = _row(c_at + n, real)
        g = tl.load(leaving + edge + cell, mask=both, other=0.0)
        token = sample * tokens + first + last
        out = token * channels
        pair = (column * samples * tokens.to(tl.int64) + token) * STATE
        for j in range(0, last + 1):
            i = last - j
            x_now = x_next.to(tl.float32)
            raw = dt_next.to(tl.float32)
            b_now = b_next.to(tl.float32)
            c_now = c_next.to(tl.float32)
            slope = dy_next.to(tl.float32)
            z_now = z_next.to(tl.float32)
            # the first token is loaded once more: cheaper than a mask
            x_at -= tl.where(i > 0, x_token, 0)
            x_next = _row(x_at + at, inside)
            dt_at -= tl.where(i > 0, dt_token, 0)
            dt_next = _row(dt_at + at, inside)
            b_at -= tl.where(i > 0, b_token, 0)
            b_next = _row(b_at + n, real)
            c_at -= tl.where(i > 0, c_token, 0)
            c_next = _row(c_at + n, real)
            dy_at -= tl.where(i > 0, dy_token, 0)
            dy_next = _row(dy_at + at, inside)
            z_next = x_next
            if GATED:
                z_at -= tl.where(i > 0, z_token, 0)
                z_next = _row(z_at + at, inside)

            d = step_size(raw, shift, BIAS, SOFTPLUS)
            u = d * x_now
            decay = tl.exp2(d[None, :] * rate)
            now = h * decay + u[None, :] * b_now[:, None]
            if GATED:
                s = sigmoid(z_now)
                y = tl.sum(now * c_now[:, None], 0) + skip * x_now
                grad_z = slope * y * s * (1.0 + z_now * (1.0 - s))
                tl.store(dz + out + at, grad_z.to(dz.dtype.element_ty), mask=inside)
                slope = slope * z_now * s
            tl.store(dC + pair + n, tl.sum(now * slope[None, :], 1), mask=real)

            g += slope[None, :] * c_now[:, None]
            reach = tl.sum(g * b_now[:, None], 0)
            spread = g * u[None, :]
            g = g * decay
            through = g * h
            # as soon as its registers are free: the sums that follow give it time to arrive
            h = tl.load(own + tl.maximum(i - 1, 0) * (N * BLOCK) + tile)
            tl.store(dB + pair + n, tl.sum(spread, 1), mask=real)
            sum_rate += through * d[None, :]
            # A2 carries log2(e): ln 2 turns it back
            grad_d = tl.sum(through * rate, 0) * 0.6931471805599453 + x_now * reach
            if SOFTPLUS:
                grad_d = grad_d * sigmoid(raw + shift)
            grad_x = d * reach
            if SKIP:
                grad_x += skip * slope
                sum_skip += slope * x_now
            sum_bias += grad_d
            tl.store(dx + out + at, grad_x.to(dx.dtype.element_ty), mask=inside)
            tl.store(ddt + out + at, grad_d.to(ddt.dtype.element_ty), mask=inside)
            out -= channels
            pair -= STATE
        # the next chunk's states must not overtake these loads
        tl.debug_barrier()

    total = sums + worker.to(tl.int64) * (STATE + 2) * channels
    tl.store(total + cell, sum_rate, mask=both)
    tl.store(total + size + at, sum_skip, mask=inside)
    tl.store(total + size + channels + at, sum_bias, mask=inside)
