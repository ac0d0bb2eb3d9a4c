"""Triton kernels behind `repflow.mixers.triton.s6`, forward and gradient. Imported only where Triton is installed.

Glossary: h state, g its adjoint, A decay rate, B input map, C read-out, D skip, dt step size, z gate. Tiles are (state,
channel) with channels along the lanes, so that one thread holds whole columns and reading out needs few shuffles. A2 is
(state, channel) and carries log2(e); states in memory are (batch, chunk, state, channel). A program takes one sample,
one chunk of `span` tokens and BLOCK channels; the next token's values are loaded before the current token is worked on.

Gradient: a program takes BLOCK channels of every `workers`-th chunk. Through the chunk it keeps the state before
each token in a scratch of its own, which it uses again for the next chunk, so that much of it stays in the GPU's cache;
then it goes backward from the adjoint that leaves the chunk. The parameters' gradients are summed over the program's
chunks.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM102

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid, silu, softplus


@triton.jit
def step_size(dt, bias, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr):
    if BIAS:
        dt = dt + bias
    if SOFTPLUS:
        dt = softplus(dt)
    return dt


@triton.jit
def _row(pointer, inside):
    return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["tokens", "span", "chunks"])
def chunk_kernel(
    v, dt, w, z, bias, A2, local, total, tokens, channels, span, chunks, v_batch, v_token, dt_batch, dt_token,
    w_batch, w_token,
    z_batch, z_token,
    STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, SOFTPLUS: tl.constexpr, GATED: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    # forward: state at the chunk's end from nothing at its start (v = x, w = B);
    # reverse: adjoint of the chunk's entering state from nothing after it (v = dy, w = C)
    place = tl.program_id(0)
    sample = (place // chunks).to(tl.int64)
    start = (place % chunks) * span
    count = tl.minimum(span, tokens - start)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, N)
    inside = at < channels
    real = n < STATE
    both = real[:, None] & inside[None, :]
    rate = tl.load(A2 + n[:, None] * channels + at[None, :], mask=both, other=0.0)
    shift = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        shift = _row(bias + at, inside)

    step = 1
    first = start.to(tl.int64)
    if REVERSE:
        step = -1
        first += count - 1
    v_at = v + sample * v_batch + first * v_token + at
    dt_at = dt + sample * dt_batch + first * dt_token + at
    w_at = w + sample * w_batch + first * w_token + n
    z_at = z + sample * z_batch + first * z_token + at
    v_next = _row(v_at, inside)
    dt_next = _row(dt_at, inside)
    w_next = _row(w_at, real)
    z_next = tl.zeros((BLOCK,), tl.float32)
    if GATED:
        z_next = _row(z_at, inside)

    h = tl.zeros((N, BLOCK), tl.float32)
    summed = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, count):
        v_now = v_next
        d = step_size(dt_next, shift, BIAS, SOFTPLUS)
        w_now = w_next
        if GATED:
            v_now = v_now * silu(z_next)
        # the last token is loaded once more: cheaper than a mask
        ahead = step * tl.minimum(i + 1, count - 1).to(tl.int64)
        v_next = _row(v_at + ahead * v_token, inside)
        dt_next = _row(dt_at + ahead * dt_token, inside)
        w_next = _row(w_at + ahead * w_token, real)
        if GATED:
            z_next = _row(z_at + ahead * z_token, inside)
        decay = tl.exp2(d[None, :] * rate)
        summed += d
        if REVERSE:
            h = (h + v_now[None, :] * w_now[:, None]) * decay
        else:
            h = h * decay + (d * v_now)[None, :] * w_now[:, None]

    out = place.to(tl.int64) * STATE * channels
    tl.store(local + out + n[:, None] * channels + at[None, :], h, mask=both)
    tl.store(total + place.to(tl.int64) * channels + at, summed, mask=inside)


@triton.jit(do_not_specialize=["chunks"])
def pass_kernel(
    A2, local, total, first, last, channels, chunks,
    STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, FIRST: tl.constexpr, REVERSE: tl.constexpr,
):  # fmt: skip
    # each chunk's own contribution is replaced by the state that enters it (reverse: by the adjoint of the state that
    # leaves it)
    sample = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, N)
    inside = at < channels
    both = (n < STATE)[:, None] & inside[None, :]
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + cell, mask=both, other=0.0)
    size = STATE * channels
    h = tl.zeros((N, BLOCK), tl.float32)
    if FIRST:
        h = tl.load(first + sample * size + cell, mask=both, other=0.0)
    for i in range(0, chunks):
        k = sample * chunks + i
        if REVERSE:
            k = sample * chunks + chunks - 1 - i
        own = tl.load(local + k * size + cell, mask=both, other=0.0)
        span = tl.load(total + k * channels + at, mask=inside, other=0.0)
        tl.store(local + k * size + cell, h, mask=both)
        h = h * tl.exp2(span[None, :] * rate) + own
    tl.store(last + sample * size + cell, h, mask=both)


@triton.jit(do_not_specialize=["tokens", "span", "chunks"])
def scan_kernel(
    x, dt, B, C, z, bias, A2, D, entering, final, marks, y, tokens, channels, span, chunks, x_batch, x_token, dt_batch,
    dt_token,
    b_batch, b_token, c_batch, c_token, z_batch, z_token,
    STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SOFTPLUS: tl.constexpr,
    GATED: tl.constexpr, SKIP: tl.constexpr, ENTER: tl.constexpr, FINAL: tl.constexpr,
    MARK: tl.constexpr,
):  # fmt: skip
    # MARK > 0: the state before every MARK-th token is handed out, for the gradient to start from
    place = tl.program_id(0)
    sample = (place // chunks).to(tl.int64)
    start = (place % chunks) * span
    count = tl.minimum(span, tokens - start)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, N)
    inside = at < channels
    real = n < STATE
    both = real[:, None] & inside[None, :]
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + cell, mask=both, other=0.0)
    shift = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        shift = _row(bias + at, inside)
    skip = tl.zeros((BLOCK,), tl.float32)
    if SKIP:
        skip = _row(D + at, inside)
    h = tl.zeros((N, BLOCK), tl.float32)
    if ENTER:
        h = tl.load(entering + place.to(tl.int64) * STATE * channels + cell, mask=both, other=0.0)

    first = start.to(tl.int64)
    x_at = x + sample * x_batch + first * x_token + at
    dt_at = dt + sample * dt_batch + first * dt_token + at
    b_at = B + sample * b_batch + first * b_token + n
    c_at = C + sample * c_batch + first * c_token + n
    z_at = z + sample * z_batch + first * z_token + at
    y_at = y + (sample * tokens + first) * channels + at
    x_next = _row(x_at, inside)
    dt_next = _row(dt_at, inside)
    b_next = _row(b_at, real)
    c_next = _row(c_at, real)
    z_next = tl.zeros((BLOCK,), tl.float32)
    if GATED:
        z_next = _row(z_at, inside)

    for i in range(0, count):
        if MARK > 0:
            if (start + i) % MARK == 0:
                mark = sample * tl.cdiv(tokens, MARK) + (start + i) // MARK
                tl.store(marks + mark * STATE * channels + cell, h, mask=both)
        x_now = x_next
        d = step_size(dt_next, shift, BIAS, SOFTPLUS)
        b_now = b_next
        c_now = c_next
        z_now = z_next
        # the last token is loaded once more: cheaper than a mask
        ahead = tl.minimum(i + 1, count - 1).to(tl.int64)
        x_next = _row(x_at + ahead * x_token, inside)
        dt_next = _row(dt_at + ahead * dt_token, inside)
        b_next = _row(b_at + ahead * b_token, real)
        c_next = _row(c_at + ahead * c_token, real)
        if GATED:
            z_next = _row(z_at + ahead * z_token, inside)
        h = h * tl.exp2(d[None, :] * rate) + (d * x_now)[None, :] * b_now[:, None]
        out = tl.sum(h * c_now[:, None], 0)
        if SKIP:
            out += skip * x_now
        if GATED:
            out = out * silu(z_now)
        tl.store(y_at, out.to(y.dtype.element_ty), mask=inside)
        y_at += channels

    if FINAL:
        if start + span >= tokens:
            tl.store(final + sample * STATE * channels + cell, h, mask=both)


@triton.jit
def _raw_row(pointer, inside):
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
        x_next = _raw_row(x_at + at, inside)
        dt_next = _raw_row(dt_at + at, inside)
        b_next = _raw_row(b_at + n, real)
        for i in range(0, last):
            tl.store(own + i * (N * BLOCK) + tile, h)
            x_now = x_next.to(tl.float32)
            raw = dt_next.to(tl.float32)
            b_now = b_next.to(tl.float32)
            x_at += x_token
            x_next = _raw_row(x_at + at, inside)
            dt_at += dt_token
            dt_next = _raw_row(dt_at + at, inside)
            b_at += b_token
            b_next = _raw_row(b_at + n, real)
            d = step_size(raw, shift, BIAS, SOFTPLUS)
            h = h * tl.exp2(d[None, :] * rate) + (d * x_now)[None, :] * b_now[:, None]
        tl.debug_barrier()

        # the rows of x and dt loaded last are the last token's, and h is the state before it; B's row is loaded anew,
        # as the threads of this loop want it
        b_next = _raw_row(b_at + n, real)
        c_at += last.to(tl.int64) * c_token
        dy_at += last.to(tl.int64) * dy_token
        z_at += last.to(tl.int64) * z_token
        z_next = x_next
        if GATED:
            z_next = _raw_row(z_at + at, inside)
        dy_next = _raw_row(dy_at + at, inside)
        c_next = _raw_row(c_at + n, real)
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
            x_next = _raw_row(x_at + at, inside)
            dt_at -= tl.where(i > 0, dt_token, 0)
            dt_next = _raw_row(dt_at + at, inside)
            b_at -= tl.where(i > 0, b_token, 0)
            b_next = _raw_row(b_at + n, real)
            c_at -= tl.where(i > 0, c_token, 0)
            c_next = _raw_row(c_at + n, real)
            dy_at -= tl.where(i > 0, dy_token, 0)
            dy_next = _raw_row(dy_at + at, inside)
            z_next = x_next
            if GATED:
                z_at -= tl.where(i > 0, z_token, 0)
                z_next = _raw_row(z_at + at, inside)

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
