"""Triton kernels behind `repflow.mixers.triton.row_scan`: Mamba's inner part over many short rows, and its gradient.

Glossary as in `kernels.s6`: h state, g its adjoint, A decay rate, B input map, C read-out, D skip, z gate, d step size.
A program walks one whole row for BLOCK channels, so nothing is handed from program to program. `rows` rows in turn are
of one replica and share its parameters. A token's projections lie side by side, `side` numbers: B, C, and low, the RANK
numbers that the step size is made of. The forward pass keeps the state before every fourth token. The gradient takes
four tokens at a time and makes their states again, two at a time, for which there are registers.

EVEN says that tokens come in fours and channels fill the tiles: no masks. DOT has the matrix unit sum over channels, in
the inputs' precision; sums across the lanes of a warp would take a third of the time.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM102, SIM108

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid, silu, softplus


@triton.jit
def _row(pointer, at, size, EVEN: tl.constexpr):
    if EVEN:
        row = tl.load(pointer + at)
    else:
        row = tl.load(pointer + at, mask=at < size, other=0.0)
    return row.to(tl.float32)


@triton.jit
def _put(pointer, at, size, value, EVEN: tl.constexpr):
    if EVEN:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + at, value.to(pointer.dtype.element_ty), mask=at < size)


@triton.jit
def _until(t, tokens, size, EVEN: tl.constexpr):
    # how many numbers of token t there are: none behind the row's end
    count = size
    if not EVEN:
        count = tl.where(t < tokens, size, 0)
    return count


@triton.jit
def _before_softplus(low, weight, shift):
    return tl.sum(weight * low[:, None], 0) + shift


@triton.jit(do_not_specialize=["tokens", "rows"])
def row_kernel(
    u, xz, maps, weight, bias, A2, D, marks, y, tokens, rows,
    channels: tl.constexpr, side: tl.constexpr, RANK: tl.constexpr, K: tl.constexpr, STATE: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr, EVEN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    replica = sample // rows
    # EACH neighbours to a thread: a thread then holds whole columns of a (state, channel) tile
    lane = tl.max_contiguous(tl.arange(0, BLOCK), EACH)
    at = tl.program_id(1) * BLOCK + lane
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    both = (n < STATE)[:, None] & (at < channels)[None, :]
    known = (k < RANK)[:, None] & (at < channels)[None, :]
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + replica * STATE * channels + cell, mask=both, other=0.0)
    w = tl.load(weight + replica * RANK * channels + k[:, None] * channels + at[None, :], mask=known, other=0.0)
    shift = _row(bias + replica * channels, at, channels, False)
    skip = _row(D + replica * channels, at, channels, False)
    h = tl.zeros((N, BLOCK), tl.float32)
    u_at = u + sample * tokens * channels
    z_at = xz + sample * tokens * (2 * channels) + channels
    p_at = maps + sample * tokens * side
    y_at = y + sample * tokens * channels
    mark = marks + sample * tl.cdiv(tokens, 4) * STATE * channels + cell
    full: tl.constexpr = N == STATE
    u_next = _row(u_at, at, channels, EVEN)
    z_next = _row(z_at, at, channels, EVEN)
    b_next = _row(p_at, n, STATE, full)
    c_next = _row(p_at + STATE, n, STATE, full)
    low_next = _row(p_at + 2 * STATE, k, RANK, K == RANK)
    for t in range(0, tokens):
        if KEEP:
            if t % 4 == 0:
                tl.store(mark, h, mask=both)
                mark += STATE * channels
        u_now = u_next
        z_now = z_next
        low_now = low_next
        b_now = b_next
        c_now = c_next
        # the last token is loaded once more: cheaper than a mask
        ahead = tl.minimum(t + 1, tokens - 1)
        beside = p_at + ahead * side
        u_next = _row(u_at + ahead * channels, at, channels, EVEN)
        z_next = _row(z_at + ahead * (2 * channels), at, channels, EVEN)
        b_next = _row(beside, n, STATE, full)
        c_next = _row(beside + STATE, n, STATE, full)
        low_next = _row(beside + 2 * STATE, k, RANK, K == RANK)
        d = softplus(_before_softplus(low_now, w, shift))
        h = h * tl.exp2(d[None, :] * rate) + (d * u_now)[None, :] * b_now[:, None]
        out = (tl.sum(h * c_now[:, None], 0) + skip * u_now) * silu(z_now)
        _put(y_at + t * channels, at, channels, out, EVEN)


@triton.jit
def _size(t, tokens, p_at, w, shift, k, side: tl.constexpr, RANK: tl.constexpr, K: tl.constexpr, STATE: tl.constexpr,
          EVEN: tl.constexpr):  # fmt: skip
    # step size of token t before and after softplus; 0 behind the row's end, where nothing changes
    low = _row(p_at + t * side + 2 * STATE, k, _until(t, tokens, RANK, EVEN), EVEN and K == RANK)
    raw = _before_softplus(low, w, shift)
    d = softplus(raw)
    if not EVEN:
        d = tl.where(t < tokens, d, 0.0)
    return raw, d


@triton.jit
def _step(
    h, d, t, tokens, u_at, p_at, rate, at, n,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # the state behind token t
    u = _row(u_at + t * channels, at, _until(t, tokens, channels, EVEN), EVEN)
    b = _row(p_at + t * side, n, _until(t, tokens, STATE, EVEN), EVEN and N == STATE)
    return h * tl.exp2(d[None, :] * rate) + (d * u)[None, :] * b[:, None]


@triton.jit
def _put_sum(pointer, n, size, values, half, BLOCK: tl.constexpr, DOT: tl.constexpr):
    # sums over channels of (state, channel), to `size` numbers
    if DOT:
        column = tl.arange(0, 16)
        total = tl.dot(values.to(half), tl.full((BLOCK, 16), 1.0, half))
        place = pointer + n[:, None] + column[None, :] * 0
        tl.store(place, total, mask=(n < size)[:, None] & (column < 1)[None, :])
    else:
        tl.store(pointer + n, tl.sum(values, 1), mask=n < size)


@triton.jit
def _back(
    h, raw, d, g, sum_rate, sum_skip, sum_bias, sum_weight, t, tokens, u_at, z_at, p_at, dy_at, du_at, dz_at, dp_at,
    w, skip, rate, at, n, k,
    channels: tl.constexpr, side: tl.constexpr, RANK: tl.constexpr, K: tl.constexpr, STATE: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    # back through token t: h is the state before it, g the adjoint of the state behind it
    here = _until(t, tokens, channels, EVEN)
    states = _until(t, tokens, STATE, EVEN)
    known = _until(t, tokens, RANK, EVEN)
    full: tl.constexpr = EVEN and N == STATE
    u = _row(u_at + t * channels, at, here, EVEN)
    z = _row(z_at + t * (2 * channels), at, here, EVEN)
    slope = _row(dy_at + t * channels, at, here, EVEN)
    b = _row(p_at + t * side, n, states, full)
    c = _row(p_at + t * side + STATE, n, states, full)
    low = _row(p_at + t * side + 2 * STATE, k, known, EVEN and K == RANK)
    beside = dp_at + t * side
    entry = d * u
    decay = tl.exp2(d[None, :] * rate)
    now = h * decay + entry[None, :] * b[:, None]
    s = sigmoid(z)
    y = tl.sum(now * c[:, None], 0) + skip * u
    _put(dz_at + t * (2 * channels), at, here, slope * y * s * (1.0 + z * (1.0 - s)), EVEN)
    slope = slope * z * s
    half: tl.constexpr = u_at.dtype.element_ty
    _put_sum(beside + STATE, n, states, now * slope[None, :], half, BLOCK, DOT)
    g += slope[None, :] * c[:, None]
    reach = tl.sum(g * b[:, None], 0)
    _put_sum(beside, n, states, g * entry[None, :], half, BLOCK, DOT)
    g = g * decay
    through = g * h
    sum_rate += through * d[None, :]
    # A2 carries log2(e): ln 2 turns it back
    grad = (tl.sum(through * rate, 0) * 0.6931471805599453 + u * reach) * sigmoid(raw)
    if not EVEN:
        grad = tl.where(t < tokens, grad, 0.0)
    tl.store(beside + 2 * STATE + k, tl.sum(w * grad[None, :], 1), mask=k < known)
    _put(du_at + t * channels, at, here, d * reach + skip * slope, EVEN)
    if side > RANK + 2 * STATE:  # fillers up to a whole number of 16 bytes
        filler = RANK + 2 * STATE + tl.arange(0, 8)
        tl.store(beside + filler, tl.zeros((8,), tl.float32), mask=filler < _until(t, tokens, side, EVEN))
    sum_skip += slope * u
    sum_bias += grad
    sum_weight += grad[None, :] * low[:, None]
    return g, sum_rate, sum_skip, sum_bias, sum_weight


@triton.jit(do_not_specialize=["tokens", "rows", "samples"])
def row_gradient_kernel(
    u, xz, maps, weight, bias, A2, D, marks, dy, du, dxz, parts, sums, tokens, rows, samples,
    channels: tl.constexpr, side: tl.constexpr, RANK: tl.constexpr, K: tl.constexpr, STATE: tl.constexpr,
    N: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr, EVEN: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    replica = sample // rows
    lane = tl.max_contiguous(tl.arange(0, BLOCK), EACH)
    at = column * BLOCK + lane
    n = tl.arange(0, N)
    k = tl.arange(0, K)
    both = (n < STATE)[:, None] & (at < channels)[None, :]
    known = (k < RANK)[:, None] & (at < channels)[None, :]
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + replica * STATE * channels + cell, mask=both, other=0.0)
    w = tl.load(weight + replica * RANK * channels + k[:, None] * channels + at[None, :], mask=known, other=0.0)
    shift = _row(bias + replica * channels, at, channels, False)
    skip = _row(D + replica * channels, at, channels, False)
    g = tl.zeros((N, BLOCK), tl.float32)
    sum_rate = tl.zeros((N, BLOCK), tl.float32)
    sum_skip = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    sum_weight = tl.zeros((K, BLOCK), tl.float32)
    u_at = u + sample * tokens * channels
    z_at = xz + sample * tokens * (2 * channels) + channels
    p_at = maps + sample * tokens * side
    dy_at = dy + sample * tokens * channels
    du_at = du + sample * tokens * channels
    dz_at = dxz + sample * tokens * (2 * channels) + channels
    dp_at = parts + (column * samples.to(tl.int64) + sample) * tokens * side
    fours = tl.cdiv(tokens, 4)
    for j in range(0, fours):
        t = (fours - 1 - j) * 4
        mark = marks + (sample * fours + fours - 1 - j) * STATE * channels + cell
        raw0, d0 = _size(t, tokens, p_at, w, shift, k, side, RANK, K, STATE, EVEN)
        raw1, d1 = _size(t + 1, tokens, p_at, w, shift, k, side, RANK, K, STATE, EVEN)
        raw2, d2 = _size(t + 2, tokens, p_at, w, shift, k, side, RANK, K, STATE, EVEN)
        raw3, d3 = _size(t + 3, tokens, p_at, w, shift, k, side, RANK, K, STATE, EVEN)
        first = tl.load(mark, mask=both, other=0.0)
        first = _step(first, d0, t, tokens, u_at, p_at, rate, at, n, channels, side, STATE, N, EVEN)
        first = _step(first, d1, t + 1, tokens, u_at, p_at, rate, at, n, channels, side, STATE, N, EVEN)
        second = _step(first, d2, t + 2, tokens, u_at, p_at, rate, at, n, channels, side, STATE, N, EVEN)
        g, sum_rate, sum_skip, sum_bias, sum_weight = _back(
            second, raw3, d3, g, sum_rate, sum_skip, sum_bias, sum_weight, t + 3, tokens, u_at, z_at, p_at, dy_at,
            du_at, dz_at, dp_at, w, skip, rate, at, n, k, channels, side, RANK, K, STATE, N, BLOCK, EVEN, DOT,
        )  # fmt: skip
        g, sum_rate, sum_skip, sum_bias, sum_weight = _back(
            first, raw2, d2, g, sum_rate, sum_skip, sum_bias, sum_weight, t + 2, tokens, u_at, z_at, p_at, dy_at,
            du_at, dz_at, dp_at, w, skip, rate, at, n, k, channels, side, RANK, K, STATE, N, BLOCK, EVEN, DOT,
        )  # fmt: skip
        first = tl.load(mark, mask=both, other=0.0)
        second = _step(first, d0, t, tokens, u_at, p_at, rate, at, n, channels, side, STATE, N, EVEN)
        g, sum_rate, sum_skip, sum_bias, sum_weight = _back(
            second, raw1, d1, g, sum_rate, sum_skip, sum_bias, sum_weight, t + 1, tokens, u_at, z_at, p_at, dy_at,
            du_at, dz_at, dp_at, w, skip, rate, at, n, k, channels, side, RANK, K, STATE, N, BLOCK, EVEN, DOT,
        )  # fmt: skip
        g, sum_rate, sum_skip, sum_bias, sum_weight = _back(
            first, raw0, d0, g, sum_rate, sum_skip, sum_bias, sum_weight, t, tokens, u_at, z_at, p_at, dy_at,
            du_at, dz_at, dp_at, w, skip, rate, at, n, k, channels, side, RANK, K, STATE, N, BLOCK, EVEN, DOT,
        )  # fmt: skip
    total = sums + sample * (STATE + RANK + 2) * channels
    tl.store(total + cell, sum_rate, mask=both)
    total += STATE * channels
    tl.store(total + k[:, None] * channels + at[None, :], sum_weight, mask=known)
    total += RANK * channels
    tl.store(total + at, sum_skip, mask=at < channels)
    tl.store(total + channels + at, sum_bias, mask=at < channels)
