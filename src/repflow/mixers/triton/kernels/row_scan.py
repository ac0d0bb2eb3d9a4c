"""Triton kernels behind `repflow.mixers.triton.row_scan`: Mamba's scan over many short rows, and its gradient.

Glossary as in `kernels.s6`: h state, g its adjoint, A decay rate, B input map, C read-out, D skip, z gate, d step size.
A program is one warp. It walks one whole row for BLOCK channels, one to a lane, and one group of N states: nothing is
handed from program to program. `rows` rows in turn are of one replica and share its parameters. A token's projections
lie side by side, `side` numbers: B, C, and low, the RANK numbers that the step size is made of. Step sizes are made for
all tokens at once. The forward pass keeps the state before every fourth token; the gradient makes those between again.

FUSED: there is one group of states, and skip, gate and the step size's gradient are taken along the row. With several
groups each writes what it read, and the kernels around the scan, which go over tokens, sum over groups. EVEN says that
channels fill the blocks: no masks. Rows have whole fours of tokens.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM108

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid, silu, silu_slope, softplus


@triton.jit
def _load(pointer, seen, EVEN: tl.constexpr):
    if EVEN:
        value = tl.load(pointer)
    else:
        value = tl.load(pointer, mask=seen, other=0.0)
    return value


@triton.jit
def _wide(pointer, seen, EVEN: tl.constexpr):
    return _load(pointer, seen, EVEN).to(tl.float32)


@triton.jit
def _put(pointer, value, seen, EVEN: tl.constexpr):
    if EVEN:
        tl.store(pointer, value.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer, value.to(pointer.dtype.element_ty), mask=seen)


@triton.jit
def _share(d):
    # slope of softplus by what it gave: sigmoid(raw) = 1 − exp(−d), by its series where d is small
    return tl.where(d < 0.01, d * (1.0 - d * (0.5 - d * (1.0 / 6.0))), 1.0 - tl.exp(-d))


@triton.jit(do_not_specialize=["tokens_each"])
def step_kernel(
    maps, weight, bias, step, tokens_each,
    channels: tl.constexpr, side: tl.constexpr, LOW: tl.constexpr, RANK: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    # step sizes of T tokens of one replica
    row = (tl.program_id(0) * T + tl.arange(0, T)).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    replica = tl.program_id(0) * T // tokens_each
    seen = at < channels
    raw = tl.zeros((T, BLOCK), tl.float32) + _wide(bias + replica * channels + at, seen, False)[None, :]
    for k in tl.static_range(RANK):
        low = tl.load(maps + row * side + LOW + k)
        raw += low[:, None] * _wide(weight + (replica * RANK + k) * channels + at, seen, False)[None, :]
    tl.store(step + row[:, None] * channels + at[None, :], softplus(raw), mask=seen[None, :])


@triton.jit(do_not_specialize=["tokens_each", "count"])
def gate_kernel(
    parts, u, xz, D, read, y, tokens_each, count,
    channels: tl.constexpr, GROUPS: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    # what all groups read, the skip, the gate
    row = (tl.program_id(0) * T + tl.arange(0, T)).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = at < channels
    both = seen[None, :]
    place = row[:, None] * channels + at[None, :]
    skip = _wide(D + tl.program_id(0) * T // tokens_each * channels + at, seen, EVEN)
    total = _wide(u + place, both, EVEN) * skip[None, :]
    for group in tl.static_range(GROUPS):
        total += _load(parts + group * count.to(tl.int64) * channels + place, both, EVEN)
    if KEEP:
        _put(read + place, total, both, EVEN)
    z = _wide(xz + row[:, None] * (2 * channels) + channels + at[None, :], both, EVEN)
    _put(y + place, total * silu(z), both, EVEN)


@triton.jit
def gate_gradient_kernel(
    dy, read, xz, slope, dxz, channels: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    # gradient of what was read, and that of the gate, which is written into the second half of dxz
    row = (tl.program_id(0) * T + tl.arange(0, T)).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    both = (at < channels)[None, :]
    place = row[:, None] * channels + at[None, :]
    wide = row[:, None] * (2 * channels) + channels + at[None, :]
    z = _wide(xz + wide, both, EVEN)
    back = _wide(dy + place, both, EVEN)
    _put(dxz + wide, back * _wide(read + place, both, EVEN) * silu_slope(z), both, EVEN)
    _put(slope + place, back * silu(z), both, EVEN)


@triton.jit(do_not_specialize=["tokens_each", "count"])
def step_gradient_kernel(
    reach, faded, step, u, slope, D, du, raw, ends, tokens_each, count,
    channels: tl.constexpr, GROUPS: tl.constexpr, T: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    # gradients of u and of the step size before softplus, and their sums over SPAN tokens for the skip and the bias
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seen = at < channels
    both = seen[None, :]
    skip = _wide(D + tl.program_id(0) * SPAN // tokens_each * channels + at, seen, EVEN)
    sum_skip = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SPAN, T):
        row = (tl.program_id(0) * SPAN + first + tl.arange(0, T)).to(tl.int64)
        place = row[:, None] * channels + at[None, :]
        got = tl.zeros((T, BLOCK), tl.float32)
        decayed = tl.zeros((T, BLOCK), tl.float32)
        for group in tl.static_range(GROUPS):
            got += _load(reach + group * count.to(tl.int64) * channels + place, both, EVEN)
            decayed += _load(faded + group * count.to(tl.int64) * channels + place, both, EVEN)
        d = _load(step + place, both, EVEN)
        w = _wide(u + place, both, EVEN)
        s = _load(slope + place, both, EVEN)
        _put(du + place, d * got + skip[None, :] * s, both, EVEN)
        # the rates carry log2(e): ln 2 turns it back
        grad = (decayed * 0.6931471805599453 + w * got) * _share(d)
        _put(raw + place, grad, both, EVEN)
        sum_skip += tl.sum(s * w, 0)
        sum_bias += tl.sum(grad, 0)
    end = ends + tl.program_id(0) * (2 * channels) + at
    _put(end, sum_skip, seen, EVEN)
    _put(end + channels, sum_bias, seen, EVEN)


@triton.jit(do_not_specialize=["count"])
def join_kernel(parts, joined, count, side: tl.constexpr, KNOWN: tl.constexpr, COLUMNS: tl.constexpr,
                BLOCK: tl.constexpr):  # fmt: skip
    # gradients of B and C summed over columns of channels, always in one order; 0 beside them. A library's sum may be
    # cut by the whole shape, and then depend on how many models there are
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    known = (place < count) & (place % side < KNOWN)
    total = tl.zeros((BLOCK,), tl.float32)
    for column in range(0, COLUMNS):
        total += tl.load(parts + column * count.to(tl.int64) + place, mask=known, other=0.0)
    tl.store(joined + place, total.to(joined.dtype.element_ty), mask=place < count)


@triton.jit
def _lanes(column, BLOCK: tl.constexpr):
    # channels of a program, one to a lane with all its states. Not to know that a block begins at a multiple of more
    # than 1 keeps the compiler from giving four neighbours to a lane: sums over states would then go across lanes
    return tl.multiple_of(column * BLOCK + tl.arange(0, BLOCK), 1)


@triton.jit
def _onward(h, d, w, b, rate):
    # what a token leaves of a state, and the state behind it
    decay = tl.exp2(d[None, :] * rate)
    return decay, h * decay + (d * w.to(tl.float32))[None, :] * b[:, None]


@triton.jit
def _read(
    h, d, w, z, b, c, rate, skip, y_at, r_at, seen, EVEN: tl.constexpr, FUSED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    # through a token: write what it reads, give the state behind it
    _, h = _onward(h, d, w, b, rate)
    total = tl.sum(h * c[:, None], 0)
    if FUSED:
        total += skip * w
        if KEEP:
            _put(r_at, total, seen, EVEN)
        total = total * silu(z)
    _put(y_at, total, seen, EVEN)
    return h


@triton.jit(do_not_specialize=["tokens", "rows", "samples"])
def row_kernel(
    step, u, xz, maps, A2, D, marks, read, y, tokens, rows, samples,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, FUSED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    group = tl.program_id(2)
    at = _lanes(tl.program_id(1), BLOCK)
    n = group * N + tl.arange(0, N)
    seen = at < channels
    cell = n[:, None] * channels + at[None, :]
    rate = _wide(A2 + sample // rows * STATE * channels + cell, seen[None, :], EVEN)
    skip = _wide(D + sample // rows * channels + at, seen, EVEN)
    h = tl.zeros((N, BLOCK), tl.float32)
    first = sample * tokens * channels + at
    z_at = xz + 2 * sample * tokens * channels + channels + at
    p_at = maps + sample * tokens * side + n
    y_at = y + group * samples.to(tl.int64) * tokens * channels + first
    mark = marks + sample * (tokens // 4) * STATE * channels + cell
    d = _wide(step + first, seen, EVEN)
    w = _wide(u + first, seen, EVEN)
    b = tl.load(p_at)
    c = tl.load(p_at + STATE)
    z = w
    if FUSED:
        z = _wide(z_at, seen, EVEN)
    for t in range(0, tokens, 4):
        if KEEP:
            _put(mark, h, seen[None, :], EVEN)
            mark += STATE * channels
        for i in tl.static_range(4):
            # one token ahead; the last is loaded once more: cheaper than a mask
            ahead = tl.minimum(t + i + 1, tokens - 1)
            d_next = _wide(step + first + ahead * channels, seen, EVEN)
            w_next = _wide(u + first + ahead * channels, seen, EVEN)
            b_next = tl.load(p_at + ahead * side)
            c_next = tl.load(p_at + ahead * side + STATE)
            z_next = z
            if FUSED:
                z_next = _wide(z_at + ahead * (2 * channels), seen, EVEN)
            to = (t + i) * channels
            h = _read(h, d, w, z, b, c, rate, skip, y_at + to, read + first + to, seen, EVEN, FUSED, KEEP)
            d = d_next
            w = w_next
            b = b_next
            c = c_next
            z = z_next


@triton.jit
def _channel_sum(values, pick, half: tl.constexpr, DOT: tl.constexpr):
    # sums over channels of 16 states by 32 channels
    if DOT:
        # by the matrix unit, in half precision, from the lanes that hold the numbers: a number's place among the 64
        # rows of the second factor says its state (bits 0, 3, 4, 5) and two bits of its channel, its column the others;
        # the first factor picks the rows of each state
        spread = tl.reshape(values.to(half), (4, 2, 2, 8, 4))
        spread = tl.reshape(tl.permute(spread, (0, 1, 4, 2, 3)), (64, 8))
        total = tl.sum(tl.dot(pick, spread), 1)
    else:
        total = tl.sum(values, 1)
    return total


@triton.jit
def _picked(half: tl.constexpr):
    # first factor of `_channel_sum`: which rows are of which state
    k = tl.arange(0, 64)
    state = (k & 1) | ((k >> 2) & 14)
    return (state[None, :] == tl.arange(0, 16)[:, None]).to(half)


@triton.jit
def _token(t, places, seen, channels: tl.constexpr, EVEN: tl.constexpr, FUSED: tl.constexpr):
    # a token's step size, input, slope behind it, gate, what was read; in the precision they have until they are needed
    d_at, w_at, s_at, z_at, r_at = places
    d = _load(d_at + t * channels, seen, EVEN)
    w = _load(w_at + t * channels, seen, EVEN)
    s = _load(s_at + t * channels, seen, EVEN)
    z = s
    read = s
    if FUSED:
        z = _load(z_at + t * (2 * channels), seen, EVEN)
        read = _load(r_at + t * channels, seen, EVEN)
    return d, w, s, z, read


@triton.jit
def _four(t, places, seen, channels: tl.constexpr, EVEN: tl.constexpr, FUSED: tl.constexpr):
    a0 = _token(t, places, seen, channels, EVEN, FUSED)
    a1 = _token(t + 1, places, seen, channels, EVEN, FUSED)
    a2 = _token(t + 2, places, seen, channels, EVEN, FUSED)
    a3 = _token(t + 3, places, seen, channels, EVEN, FUSED)
    return a0, a1, a2, a3


@triton.jit
def _back(
    h, now, decay, token, maps, totals, rate, skip, pick,
    STATE: tl.constexpr, half: tl.constexpr, DOT: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    # back through a token: h before it, now behind it. Gives the sums so far, and the gradients of u (or a group's
    # reach), of the step size before softplus (or a group's share), of the gate, of B and of C
    d, w, s, z, read = token
    g, sum_rate, sum_skip, sum_bias = totals
    # B was loaded before: again from the first cache is cheaper than to hold it
    b = tl.load(maps, cache_modifier=".ca")
    c = tl.load(maps + STATE)
    w = w.to(tl.float32)
    s = s.to(tl.float32)
    gate = s
    if FUSED:
        z = z.to(tl.float32)
        open_ = sigmoid(z)
        gate = s * read.to(tl.float32) * open_ * (1.0 + z * (1.0 - open_))
        s = s * z * open_
    d_c = _channel_sum(now * s[None, :], pick, half, DOT)
    g += s[None, :] * c[:, None]
    reach = tl.sum(g * b[:, None], 0)
    d_b = _channel_sum(g * (d * w)[None, :], pick, half, DOT)
    g = g * decay
    through = g * h
    sum_rate += through * d[None, :]
    faded = tl.sum(through * rate, 0)
    if FUSED:
        # the rates carry log2(e): ln 2 turns it back
        faded = (faded * 0.6931471805599453 + w * reach) * _share(d)
        sum_skip += s * w
        sum_bias += faded
        reach = d * reach + skip * s
    return (g, sum_rate, sum_skip, sum_bias), (reach, faded, gate, d_b, d_c)


@triton.jit
def _put_token(
    t, gradients, places, seen,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, EVEN: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    reach, faded, gate, d_b, d_c = gradients
    x_at, f_at, dz_at, dp_at = places
    _put(x_at + t * channels, reach, seen, EVEN)
    _put(f_at + t * channels, faded, seen, EVEN)
    if FUSED:
        _put(dz_at + t * (2 * channels), gate, seen, EVEN)
    tl.store(dp_at + t * side, d_b)
    tl.store(dp_at + t * side + STATE, d_c)


@triton.jit
def _turn(
    h0, four, p, totals, rate, skip, pick,
    side: tl.constexpr, STATE: tl.constexpr, half: tl.constexpr, DOT: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    # onward through four tokens for their states, then back through them; h0 is the state before the first
    a0, a1, a2, a3 = four
    b0 = tl.load(p)
    b1 = tl.load(p + side)
    b2 = tl.load(p + 2 * side)
    b3 = tl.load(p + 3 * side)
    k0, h1 = _onward(h0, a0[0], a0[1], b0, rate)
    k1, h2 = _onward(h1, a1[0], a1[1], b1, rate)
    k2, h3 = _onward(h2, a2[0], a2[1], b2, rate)
    k3, h4 = _onward(h3, a3[0], a3[1], b3, rate)
    totals, o3 = _back(h3, h4, k3, a3, p + 3 * side, totals, rate, skip, pick, STATE, half, DOT, FUSED)
    totals, o2 = _back(h2, h3, k2, a2, p + 2 * side, totals, rate, skip, pick, STATE, half, DOT, FUSED)
    totals, o1 = _back(h1, h2, k1, a1, p + side, totals, rate, skip, pick, STATE, half, DOT, FUSED)
    totals, o0 = _back(h0, h1, k0, a0, p, totals, rate, skip, pick, STATE, half, DOT, FUSED)
    return totals, (o0, o1, o2, o3)


@triton.jit(do_not_specialize=["tokens", "rows", "samples"])
def row_gradient_kernel(
    step, u, xz, slope, read, maps, A2, D, marks, x, f, dxz, d_maps, sums, ends, tokens, rows, samples,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    EVEN: tl.constexpr, FUSED: tl.constexpr, half: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    # four tokens a turn; a turn asks for what the next one reads before it stores what it found, as a load does not
    # pass a store that may be to the same place
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    group = tl.program_id(2)
    at = _lanes(column, BLOCK)
    n = group * N + tl.arange(0, N)
    seen = at < channels
    cell = n[:, None] * channels + at[None, :]
    rate = _wide(A2 + sample // rows * STATE * channels + cell, seen[None, :], EVEN)
    skip = _wide(D + sample // rows * channels + at, seen, EVEN)
    pick = _picked(half)
    none = tl.zeros((BLOCK,), tl.float32)
    totals = (tl.zeros((N, BLOCK), tl.float32), tl.zeros((N, BLOCK), tl.float32), none, none)
    first = sample * tokens * channels + at
    own = group * samples.to(tl.int64) * tokens * channels + first
    gate = 2 * sample * tokens * channels + channels + at
    p_at = maps + sample * tokens * side + n
    dp_at = d_maps + (column * samples.to(tl.int64) + sample) * tokens * side + n
    m_at = marks + sample * (tokens // 4) * STATE * channels + cell
    inputs = (step + first, u + first, slope + first, xz + gate, read + first)
    outputs = (x + own, f + own, dxz + gate, dp_at)
    t = tokens - 4
    h0 = _load(m_at + t // 4 * STATE * channels, seen[None, :], EVEN)
    four = _four(t, inputs, seen, channels, EVEN, FUSED)
    for j in range(0, tokens // 4):
        t = tokens - 4 - 4 * j
        totals, slopes = _turn(h0, four, p_at + t * side, totals, rate, skip, pick, side, STATE, half, DOT, FUSED)
        # behind the last turn its own once more: cheaper than a mask
        ahead = tl.maximum(t - 4, 0)
        h0 = _load(m_at + ahead // 4 * STATE * channels, seen[None, :], EVEN)
        four = _four(ahead, inputs, seen, channels, EVEN, FUSED)
        _put_token(t + 3, slopes[3], outputs, seen, channels, side, STATE, EVEN, FUSED)
        _put_token(t + 2, slopes[2], outputs, seen, channels, side, STATE, EVEN, FUSED)
        _put_token(t + 1, slopes[1], outputs, seen, channels, side, STATE, EVEN, FUSED)
        _put_token(t, slopes[0], outputs, seen, channels, side, STATE, EVEN, FUSED)
    _put(sums + sample * STATE * channels + cell, totals[1], seen[None, :], EVEN)
    if FUSED:
        end = ends + sample * (2 * channels) + at
        _put(end, totals[2], seen, EVEN)
        _put(end + channels, totals[3], seen, EVEN)
