"""Triton kernels behind `repflow.mixers.triton.group_scan`: Mamba's scan with more states than a warp holds.

Glossary as in `kernels.s6`: h state, g its adjoint, A decay rate, B input map, C read-out, D skip, z gate, d step size,
entry d u. A program walks one whole row for BLOCK channels and one group of N states, so nothing is handed from program
to program; what is summed over all states is written by each group for itself and summed by the kernels around the
scan, which go over tokens. `rows` rows in turn are of one replica. A token's projections lie side by side, `side`
numbers: B, C, and low, the RANK numbers that the step size is made of. The forward pass keeps the state before every
fourth token; the gradient makes those between them again.

Tokens come in fours and channels and states fill their tiles: no masks. DOT has the matrix unit sum over channels, in
half precision.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, SIM102

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import silu, silu_slope, softplus


@triton.jit
def _load(pointer):
    return tl.load(pointer).to(tl.float32)


@triton.jit
def _tile(tokens_each, channels: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr):
    # T tokens of one replica and their channels: row of each, channel of each, replica
    row = tl.program_id(0) * T + tl.arange(0, T)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row.to(tl.int64), at, tl.program_id(0) * T // tokens_each


@triton.jit(do_not_specialize=["tokens_each"])
def step_kernel(
    maps, u, weight, bias, step, entry, tokens_each,
    channels: tl.constexpr, side: tl.constexpr, LOW: tl.constexpr, RANK: tl.constexpr, T: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, at, replica = _tile(tokens_each, channels, T, BLOCK)
    raw = tl.zeros((T, BLOCK), tl.float32) + _load(bias + replica * channels + at)[None, :]
    for k in tl.static_range(RANK):
        low = _load(maps + row * side + LOW + k)
        raw += low[:, None] * _load(weight + (replica * RANK + k) * channels + at)[None, :]
    d = softplus(raw)
    place = row[:, None] * channels + at[None, :]
    tl.store(step + place, d)
    tl.store(entry + place, d * _load(u + place))


@triton.jit(do_not_specialize=["tokens_each", "count"])
def gate_kernel(
    parts, u, xz, D, read, y, tokens_each, count,
    channels: tl.constexpr, GROUPS: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    # what all groups read, the skip, the gate
    row, at, replica = _tile(tokens_each, channels, T, BLOCK)
    place = row[:, None] * channels + at[None, :]
    total = _load(u + place) * _load(D + replica * channels + at)[None, :]
    for group in tl.static_range(GROUPS):
        total += tl.load(parts + group * count.to(tl.int64) * channels + place)
    if KEEP:
        tl.store(read + place, total.to(read.dtype.element_ty))
    z = _load(xz + row[:, None] * (2 * channels) + channels + at[None, :])
    tl.store(y + place, (total * silu(z)).to(y.dtype.element_ty))


@triton.jit
def gate_gradient_kernel(
    dy, read, xz, slope, dxz, channels: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # gradient of what was read, and that of the gate, which is written into the second half of dxz
    row = (tl.program_id(0) * T + tl.arange(0, T)).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = row[:, None] * channels + at[None, :]
    wide = row[:, None] * (2 * channels) + channels + at[None, :]
    z = _load(xz + wide)
    back = _load(dy + place)
    tl.store(dxz + wide, (back * _load(read + place) * silu_slope(z)).to(dxz.dtype.element_ty))
    tl.store(slope + place, back * silu(z))


@triton.jit(do_not_specialize=["tokens_each", "count"])
def step_gradient_kernel(
    reach, faded, step, u, slope, D, du, raw, sums, tokens_each, count,
    channels: tl.constexpr, GROUPS: tl.constexpr, T: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # gradients of u and of the step size before softplus, and their sums for the skip and the bias
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    replica = tl.program_id(0) * SPAN // tokens_each
    skip = _load(D + replica * channels + at)
    sum_skip = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, SPAN, T):
        row = (tl.program_id(0) * SPAN + first + tl.arange(0, T)).to(tl.int64)
        place = row[:, None] * channels + at[None, :]
        got = tl.zeros((T, BLOCK), tl.float32)
        decayed = tl.zeros((T, BLOCK), tl.float32)
        for group in tl.static_range(GROUPS):
            got += tl.load(reach + group * count.to(tl.int64) * channels + place)
            decayed += tl.load(faded + group * count.to(tl.int64) * channels + place)
        d = tl.load(step + place)
        w = _load(u + place)
        s = tl.load(slope + place)
        tl.store(du + place, (d * got + skip[None, :] * s).to(du.dtype.element_ty))
        # the rates carry log2(e): ln 2 turns it back; sigmoid(raw) = 1 − exp(−d), by its series where d is small
        share = tl.where(d < 0.01, d * (1.0 - d * (0.5 - d * (1.0 / 6.0))), 1.0 - tl.exp(-d))
        grad = (decayed * 0.6931471805599453 + w * got) * share
        tl.store(raw + place, grad.to(raw.dtype.element_ty))
        sum_skip += tl.sum(s * w, 0)
        sum_bias += tl.sum(grad, 0)
    out = sums + tl.program_id(0) * (2 * channels) + at
    tl.store(out, sum_skip)
    tl.store(out + channels, sum_bias)


@triton.jit
def _onward(h, d, e, b, rate):
    # the state behind a token
    return h * tl.exp2(d[None, :] * rate) + e[None, :] * b[:, None]


@triton.jit(do_not_specialize=["tokens", "rows", "samples"])
def group_kernel(
    step, entry, maps, A2, marks, parts, tokens, rows, samples,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    EACH: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    group = tl.program_id(2)
    # EACH neighbours to a thread: a thread then holds whole columns of a (state, channel) tile
    at = tl.program_id(1) * BLOCK + tl.max_contiguous(tl.arange(0, BLOCK), EACH)
    n = group * N + tl.arange(0, N)
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + sample // rows * STATE * channels + cell)
    h = tl.zeros((N, BLOCK), tl.float32)
    d_at = step + sample * tokens * channels + at
    e_at = entry + sample * tokens * channels + at
    p_at = maps + sample * tokens * side + n
    y_at = parts + (group * samples.to(tl.int64) + sample) * tokens * channels + at
    mark = marks + sample * (tokens // 4) * STATE * channels + cell
    d_next = tl.load(d_at)
    e_next = tl.load(e_at)
    b_next = tl.load(p_at)
    c_next = tl.load(p_at + STATE)
    for t in range(0, tokens):
        if KEEP:
            if t % 4 == 0:
                tl.store(mark, h)
                mark += STATE * channels
        d = d_next
        e = e_next
        b = b_next
        c = c_next
        # the last token is loaded once more: cheaper than a mask
        ahead = tl.minimum(t + 1, tokens - 1)
        d_next = tl.load(d_at + ahead * channels)
        e_next = tl.load(e_at + ahead * channels)
        b_next = tl.load(p_at + ahead * side)
        c_next = tl.load(p_at + ahead * side + STATE)
        h = _onward(h, d, e, b, rate)
        tl.store(y_at + t * channels, tl.sum(h * c[:, None], 0))


@triton.jit
def _put_sum(pointer, n, values, half: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr):
    # sums over channels of (state, channel)
    if DOT:
        column = tl.arange(0, 16)
        total = tl.dot(values.to(half), tl.full((BLOCK, 16), 1.0, half))
        place = pointer + n[:, None] + column[None, :] * 0
        tl.store(place, total.to(pointer.dtype.element_ty), mask=(column < 1)[None, :] & (n >= 0)[:, None])
    else:
        tl.store(pointer + n, tl.sum(values, 1).to(pointer.dtype.element_ty))


@triton.jit
def _again(h, t, d_at, e_at, p_at, rate, channels: tl.constexpr, side: tl.constexpr):
    # the state behind token t
    return _onward(h, tl.load(d_at + t * channels), tl.load(e_at + t * channels), tl.load(p_at + t * side), rate)


@triton.jit
def _back(
    h, now, g, sum_rate, rate, t, n, d_at, e_at, s_at, p_at, r_at, f_at, dp_at,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, BLOCK: tl.constexpr, half: tl.constexpr,
    DOT: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    # back through token t: h is the state before it, now that behind it (of a LAST one made here), g its adjoint
    d = tl.load(d_at + t * channels)
    e = tl.load(e_at + t * channels)
    s = tl.load(s_at + t * channels)
    b = tl.load(p_at + t * side)
    decay = tl.exp2(d[None, :] * rate)
    if LAST:
        now = h * decay + e[None, :] * b[:, None]
    _put_sum(dp_at + t * side + STATE, n, now * s[None, :], half, BLOCK, DOT)
    g += s[None, :] * tl.load(p_at + t * side + STATE)[:, None]
    tl.store(r_at + t * channels, tl.sum(g * b[:, None], 0))
    _put_sum(dp_at + t * side, n, g * e[None, :], half, BLOCK, DOT)
    g = g * decay
    through = g * h
    sum_rate += through * d[None, :]
    tl.store(f_at + t * channels, tl.sum(through * rate, 0))
    return g, sum_rate


@triton.jit(do_not_specialize=["tokens", "rows", "samples"])
def group_gradient_kernel(
    step, entry, slope, maps, A2, marks, reach, faded, d_maps, sums, tokens, rows, samples,
    channels: tl.constexpr, side: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr,
    EACH: tl.constexpr, half: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1)
    group = tl.program_id(2)
    at = column * BLOCK + tl.max_contiguous(tl.arange(0, BLOCK), EACH)
    n = group * N + tl.arange(0, N)
    cell = n[:, None] * channels + at[None, :]
    rate = tl.load(A2 + sample // rows * STATE * channels + cell)
    g = tl.zeros((N, BLOCK), tl.float32)
    sum_rate = tl.zeros((N, BLOCK), tl.float32)
    d_at = step + sample * tokens * channels + at
    e_at = entry + sample * tokens * channels + at
    s_at = slope + sample * tokens * channels + at
    p_at = maps + sample * tokens * side + n
    own = (group * samples.to(tl.int64) + sample) * tokens * channels + at
    r_at = reach + own
    f_at = faded + own
    dp_at = d_maps + (column * samples.to(tl.int64) + sample) * tokens * side
    pairs = tokens // 2
    for j in range(0, pairs):
        # two tokens at a time: from the mark, or from two tokens behind it
        t = (pairs - 1 - j) * 2
        mark = marks + (sample * (tokens // 4) + t // 4) * STATE * channels + cell
        first = tl.load(mark)
        if t % 4 == 2:
            first = _again(first, t - 2, d_at, e_at, p_at, rate, channels, side)
            first = _again(first, t - 1, d_at, e_at, p_at, rate, channels, side)
        second = _again(first, t, d_at, e_at, p_at, rate, channels, side)
        g, sum_rate = _back(
            second, second, g, sum_rate, rate, t + 1, n, d_at, e_at, s_at, p_at, r_at, f_at, dp_at,
            channels, side, STATE, BLOCK, half, DOT, True,
        )  # fmt: skip
        g, sum_rate = _back(
            first, second, g, sum_rate, rate, t, n, d_at, e_at, s_at, p_at, r_at, f_at, dp_at,
            channels, side, STATE, BLOCK, half, DOT, False,
        )  # fmt: skip
    tl.store(sums + sample * STATE * channels + cell, sum_rate)
