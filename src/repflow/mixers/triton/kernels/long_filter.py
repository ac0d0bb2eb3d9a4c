"""Triton kernels behind `repflow.mixers.triton.long_filter`: causal filters as long as a row, by matrix products.

A line is a channel of a replica. Its rows are a matrix (row, token) that is multiplied by a triangle made of the
filter's taps, tile by tile: a tile of the triangle has a tap on each of its diagonals, and is put together from them
where it is needed. Lines are the first axis of a grid, which alone may be long. Rows stand as (line, row, token)
between the kernels, as (row, token, channel) around them; what is done number by number is done where a tile is turned
over.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl

HALF_ROOT = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)
"""1 / √2 and 1 / √(2π), of the normal distribution."""


@triton.jit
def _gelu(v):
    return v * 0.5 * (1.0 + tl.erf(v * HALF_ROOT))


@triton.jit
def _gelu_slope(v):
    return 0.5 * (1.0 + tl.erf(v * HALF_ROOT)) + v * DENSITY * tl.exp(-0.5 * v * v)


@triton.jit
def _places(tokens, channels, rows, T: tl.constexpr, C: tl.constexpr):
    # of a tile (channel, token) between the kernels and (token, channel) around them, with what lies inside
    row = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * T + tl.arange(0, T)
    c = tl.program_id(2) * C + tl.arange(0, C)
    line = row // rows * channels + c
    inner = ((line * rows + row % rows) * tokens)[:, None] + t[None, :]
    outer = (row * tokens + t)[:, None] * channels + c[None, :]
    real = (c < channels)[:, None] & (t < tokens)[None, :]
    real_outer = (t < tokens)[:, None] & (c < channels)[None, :]
    return row, c, line, inner, outer, real, real_outer


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def enter_kernel(u, x, tokens, channels, rows, T: tl.constexpr, C: tl.constexpr):
    # (row, token, channel) → (line, row, token)
    _, _, _, inner, outer, real, real_outer = _places(tokens, channels, rows, T, C)
    tile = tl.load(u + outer, mask=real_outer, other=0.0).to(tl.float32)
    tl.store(x + inner, tl.trans(tile), mask=real)


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def leave_kernel(
    y, x, skip, scale, out, tokens, channels, rows,
    T: tl.constexpr, C: tl.constexpr, SKIP: tl.constexpr, GELU: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    # scale · gelu(y + skip x), as far as there is each, to (row, token, channel)
    row, c, line, inner, outer, real, real_outer = _places(tokens, channels, rows, T, C)
    v = tl.load(y + inner, mask=real, other=0.0)
    if SKIP:
        d = tl.load(skip + line, mask=c < channels, other=0.0).to(tl.float32)
        v += d[:, None] * tl.load(x + inner, mask=real, other=0.0)
    if GELU:
        v = _gelu(v)
    if SCALE:
        v *= tl.load(scale + row * channels + c, mask=c < channels, other=0.0).to(tl.float32)[:, None]
    tl.store(out + outer, tl.trans(v).to(out.dtype.element_ty), mask=real_outer)


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def return_kernel(
    slope, y, x, skip, scale, dy, d_skip, tokens, channels, rows,
    T: tl.constexpr, C: tl.constexpr, SKIP: tl.constexpr, GELU: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    # gradient of y, and what a tile adds to that of skip
    row, c, line, inner, outer, real, real_outer = _places(tokens, channels, rows, T, C)
    s = tl.trans(tl.load(slope + outer, mask=real_outer, other=0.0).to(tl.float32))
    if SCALE:
        s *= tl.load(scale + row * channels + c, mask=c < channels, other=0.0).to(tl.float32)[:, None]
    if SKIP:
        u = tl.load(x + inner, mask=real, other=0.0)
    if GELU:
        v = tl.load(y + inner, mask=real, other=0.0)
        if SKIP:
            d = tl.load(skip + line, mask=c < channels, other=0.0).to(tl.float32)
            v += d[:, None] * u
        s *= _gelu_slope(v)
    tl.store(dy + inner, s, mask=real)
    if SKIP:
        part = (row * tl.num_programs(1) + tl.program_id(1)) * channels + c
        tl.store(d_skip + part, tl.sum(tl.where(real, s * u, 0.0), 1), mask=c < channels)


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def end_kernel(
    dx, dy, skip, du, tokens, channels, rows, T: tl.constexpr, C: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    # gradient of u: that by the filter, and that past it
    _, c, line, inner, outer, real, real_outer = _places(tokens, channels, rows, T, C)
    v = tl.load(dx + inner, mask=real, other=0.0)
    if SKIP:
        d = tl.load(skip + line, mask=c < channels, other=0.0).to(tl.float32)
        v += d[:, None] * tl.load(dy + inner, mask=real, other=0.0)
    tl.store(du + outer, tl.trans(v).to(du.dtype.element_ty), mask=real_outer)


@triton.jit(do_not_specialize=["rows"])
def filter_kernel(
    x, taps, y, tokens, rows, reach, ROWS: tl.constexpr, T: tl.constexpr, S: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    # y_t = Σ_{s ≤ t} taps_{t−s} x_s; backwards Σ_{s ≥ t} taps_{s−t} x_s. A program has T tokens of some rows of a line;
    # a filter reaches as far as it has taps
    line = tl.program_id(0).to(tl.int64)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    # the longest sums first: a program that begins late should be a short one
    tile = tl.program_id(1) if BACK else tl.num_programs(1) - 1 - tl.program_id(1)
    first = tile * T
    t = first + tl.arange(0, T)
    place = x + (line * rows + row)[:, None] * tokens
    own = taps + line * reach
    total = tl.zeros((ROWS, T), tl.float32)
    low = first if BACK else tl.maximum(first - reach + 1, 0) // S * S
    high = tl.minimum(first + T + (reach - 1 if BACK else 0), tokens)
    for begin in range(low, high, S):
        s = begin + tl.arange(0, S)
        seen = tl.load(place + s[None, :], mask=(row < rows)[:, None] & (s < tokens)[None, :], other=0.0)
        lag = (s[:, None] - t[None, :]) if BACK else (t[None, :] - s[:, None])
        triangle = tl.load(own + lag, mask=(lag >= 0) & (lag < reach), other=0.0)
        total = tl.dot(seen, triangle, total, input_precision="tf32")
    out = y + (line * rows + row)[:, None] * tokens + t[None, :]
    tl.store(out, total, mask=(row < rows)[:, None] & (t < tokens)[None, :])


@triton.jit(do_not_specialize=["rows"])
def pair_kernel(x, dy, pairs, tokens, rows, ROWS: tl.constexpr, B: tl.constexpr):
    # Σ over rows and over pairs of tiles that are `tile` apart: x at place a of one, dy at place b of the other
    line = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    within = tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for begin in range(0, tokens - tile * B, B):
        s = begin + within
        t = s + tile * B
        for top in range(0, rows, ROWS):
            row = top + tl.arange(0, ROWS)
            place = ((line * rows + row) * tokens)[:, None]
            seen = tl.load(x + place + s[None, :], mask=(row < rows)[:, None] & (s < tokens)[None, :], other=0.0)
            slope = tl.load(dy + place + t[None, :], mask=(row < rows)[:, None] & (t < tokens)[None, :], other=0.0)
            total = tl.dot(tl.trans(seen), slope, total, input_precision="tf32")
    out = pairs + ((line * tl.num_programs(1) + tile) * B + within)[:, None] * B + within[None, :]
    tl.store(out, total)


@triton.jit(do_not_specialize=["reach", "tiles"])
def diagonal_kernel(pairs, d_taps, reach, tiles, B: tl.constexpr):
    # a tap's gradient: the sum along its diagonal, which enters the next tile where it leaves one
    line = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    a = tl.arange(0, B)[:, None]
    lag = tl.arange(0, B)[None, :]
    b = a + lag
    beyond = b >= B
    own = tile + tl.where(beyond, 1, 0)
    place = ((line * tiles + own) * B + a) * B + tl.where(beyond, b - B, b)
    total = tl.sum(tl.load(pairs + place, mask=own < tiles, other=0.0), 0)
    at = tile * B + tl.arange(0, B)
    tl.store(d_taps + line * reach + at, total, mask=at < reach)
