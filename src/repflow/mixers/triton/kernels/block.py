"""Triton kernels of a block's other parts: causal convolution with SiLU, RMS norm with or without a gate.

Rows are tokens, with a stride of their own, so that the parts of a projection are read and written where they lie.
ALIGNED says that the strides are multiples of 8, which Triton cannot see by itself and needs for wide loads.
`each` samples (rows, for norms) in a row share their parameters; those of the next follow in memory.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import silu, silu_slope


@triton.jit
def _stride(value, ALIGNED: tl.constexpr):
    if ALIGNED:
        value = (value // 8) * 8
    return value


@triton.jit(do_not_specialize=["tokens", "blocks", "each"])
def conv_kernel(
    x, weight, bias, y, tokens, channels, blocks, each, x_batch, x_token,
    K: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    sample = (place // blocks).to(tl.int64)
    t = (place % blocks) * T + tl.arange(0, T)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = c < channels
    weight += sample // each * channels * K
    bias += sample // each * channels
    source = x + sample * _stride(x_batch, ALIGNED) + c[None, :]
    token = _stride(x_token, ALIGNED)
    out = tl.zeros((T, BLOCK), tl.float32)
    if BIAS:
        out += tl.load(bias + c, mask=real, other=0.0).to(tl.float32)[None, :]
    for k in tl.static_range(K):
        w = tl.load(weight + c * K + k, mask=real, other=0.0).to(tl.float32)
        at = t + (k - K + 1)
        inside = ((at >= 0) & (at < tokens))[:, None] & real[None, :]
        out += w[None, :] * tl.load(source + at.to(tl.int64)[:, None] * token, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        out = silu(out)
    place_y = y + (sample * tokens + t[:, None]) * channels + c[None, :]
    tl.store(place_y, out.to(y.dtype.element_ty), mask=(t < tokens)[:, None] & real[None, :])


@triton.jit
def _conv_slope(v, slope, x1, x2, x3, w0, w1, w2, w3, shift, SILU: tl.constexpr):
    # one token: its input, and the gradient of what the SiLU saw
    v = v.to(tl.float32)
    g = slope.to(tl.float32)
    if SILU:
        g = g * silu_slope(shift + w0 * x3 + w1 * x2 + w2 * x1 + w3 * v)
    return v, g


@triton.jit
def _where(condition, c, channels):
    # channels to read or write where a condition of the whole row holds
    return c < tl.where(condition, channels, 0)


@triton.jit
def _tap(weight, c, real, j: tl.constexpr, K: tl.constexpr):
    # weight of the j-th of four taps; those that a shorter convolution lacks are 0
    w = tl.zeros(c.shape, tl.float32)
    if j + K >= 4:
        w = tl.load(weight + c * K + (j - 4 + K), mask=real, other=0.0).to(tl.float32)
    return w


@triton.jit(do_not_specialize=["tokens", "blocks", "span", "each", "row"])
def conv_gradient_kernel(
    x, weight, bias, dy, dx, dweight, dbias, tokens, channels, blocks, span, each, row, x_batch, x_token, dx_batch,
    dx_token,
    K: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    # One warp walks over `span` tokens of its channels with the last three inputs and slopes in registers: every
    # number is read once, and the sums over tokens need no other thread. Four tokens are loaded ahead.
    #   g_t = dy_t silu'(b + sum_j w_j x_{t-3+j})      dx_t = sum_j w_j g_{t+3-j}      dw_j = sum_t g_t x_{t-3+j}
    place = tl.program_id(0)
    sample = (place // blocks).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = c < channels
    weight += sample // each * channels * K
    bias += sample // each * channels
    start = (place % blocks) * span
    stop = tl.minimum(start + span, tokens)
    token = tl.cast(_stride(x_token, ALIGNED), tl.int64)
    dtoken = tl.cast(_stride(dx_token, ALIGNED), tl.int64)
    across = tl.cast(channels, tl.int64)
    source = x + sample * _stride(x_batch, ALIGNED) + c
    target = dx + sample * _stride(dx_batch, ALIGNED) + c
    slope = dy + sample * tokens * channels + c
    w0 = _tap(weight, c, real, 0, K)
    w1 = _tap(weight, c, real, 1, K)
    w2 = _tap(weight, c, real, 2, K)
    w3 = _tap(weight, c, real, 3, K)
    shift = tl.zeros((BLOCK,), tl.float32)
    if BIAS:
        shift = tl.load(bias + c, mask=real, other=0.0).to(tl.float32)
    x3 = tl.load(source + (start - 3) * token, mask=_where(start >= 3, c, channels), other=0.0).to(tl.float32)
    x2 = tl.load(source + (start - 2) * token, mask=_where(start >= 2, c, channels), other=0.0).to(tl.float32)
    x1 = tl.load(source + (start - 1) * token, mask=_where(start >= 1, c, channels), other=0.0).to(tl.float32)
    g1 = tl.zeros((BLOCK,), tl.float32)
    g2 = tl.zeros((BLOCK,), tl.float32)
    g3 = tl.zeros((BLOCK,), tl.float32)
    s0 = tl.zeros((BLOCK,), tl.float32)
    s1 = tl.zeros((BLOCK,), tl.float32)
    s2 = tl.zeros((BLOCK,), tl.float32)
    s3 = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    v0 = tl.load(source + start * token, mask=_where(start < tokens, c, channels), other=0.0)
    v1 = tl.load(source + (start + 1) * token, mask=_where(start + 1 < tokens, c, channels), other=0.0)
    v2 = tl.load(source + (start + 2) * token, mask=_where(start + 2 < tokens, c, channels), other=0.0)
    v3 = tl.load(source + (start + 3) * token, mask=_where(start + 3 < tokens, c, channels), other=0.0)
    y0 = tl.load(slope + start * across, mask=_where(start < tokens, c, channels), other=0.0)
    y1 = tl.load(slope + (start + 1) * across, mask=_where(start + 1 < tokens, c, channels), other=0.0)
    y2 = tl.load(slope + (start + 2) * across, mask=_where(start + 2 < tokens, c, channels), other=0.0)
    y3 = tl.load(slope + (start + 3) * across, mask=_where(start + 3 < tokens, c, channels), other=0.0)
    # dx of a token is known three tokens later, so the walk goes on behind the last one
    for step in range(0, (stop - start + 6) // 4):
        t = start + step * 4
        n = t + 4
        n0 = tl.load(source + n * token, mask=_where(n < tokens, c, channels), other=0.0)
        n1 = tl.load(source + (n + 1) * token, mask=_where(n + 1 < tokens, c, channels), other=0.0)
        n2 = tl.load(source + (n + 2) * token, mask=_where(n + 2 < tokens, c, channels), other=0.0)
        n3 = tl.load(source + (n + 3) * token, mask=_where(n + 3 < tokens, c, channels), other=0.0)
        m0 = tl.load(slope + n * across, mask=_where(n < tokens, c, channels), other=0.0)
        m1 = tl.load(slope + (n + 1) * across, mask=_where(n + 1 < tokens, c, channels), other=0.0)
        m2 = tl.load(slope + (n + 2) * across, mask=_where(n + 2 < tokens, c, channels), other=0.0)
        m3 = tl.load(slope + (n + 3) * across, mask=_where(n + 3 < tokens, c, channels), other=0.0)
        a, f = _conv_slope(v0, y0, x1, x2, x3, w0, w1, w2, w3, shift, SILU)
        value = w3 * g3 + w2 * g2 + w1 * g1 + w0 * f
        mine = _where((t - 3 >= start) & (t - 3 < stop), c, channels)
        tl.store(target + (t - 3) * dtoken, value.to(dx.dtype.element_ty), mask=mine)
        own = tl.where(t < stop, f, 0.0)
        total += own
        s0 += own * x3
        s1 += own * x2
        s2 += own * x1
        s3 += own * a
        b, g = _conv_slope(v1, y1, a, x1, x2, w0, w1, w2, w3, shift, SILU)
        value = w3 * g2 + w2 * g1 + w1 * f + w0 * g
        mine = _where((t - 2 >= start) & (t - 2 < stop), c, channels)
        tl.store(target + (t - 2) * dtoken, value.to(dx.dtype.element_ty), mask=mine)
        own = tl.where(t + 1 < stop, g, 0.0)
        total += own
        s0 += own * x2
        s1 += own * x1
        s2 += own * a
        s3 += own * b
        d, h = _conv_slope(v2, y2, b, a, x1, w0, w1, w2, w3, shift, SILU)
        value = w3 * g1 + w2 * f + w1 * g + w0 * h
        mine = _where((t - 1 >= start) & (t - 1 < stop), c, channels)
        tl.store(target + (t - 1) * dtoken, value.to(dx.dtype.element_ty), mask=mine)
        own = tl.where(t + 2 < stop, h, 0.0)
        total += own
        s0 += own * x1
        s1 += own * a
        s2 += own * b
        s3 += own * d
        e, i = _conv_slope(v3, y3, d, b, a, w0, w1, w2, w3, shift, SILU)
        value = w3 * f + w2 * g + w1 * h + w0 * i
        tl.store(target + t * dtoken, value.to(dx.dtype.element_ty), mask=_where(t < stop, c, channels))
        own = tl.where(t + 3 < stop, i, 0.0)
        total += own
        s0 += own * a
        s1 += own * b
        s2 += own * d
        s3 += own * e
        x1, x2, x3 = e, d, b
        g1, g2, g3 = i, h, g
        v0, v1, v2, v3 = n0, n1, n2, n3
        y0, y1, y2, y3 = m0, m1, m2, m3
    cell = dweight + place.to(tl.int64) * row + c * K + (K - 4)
    tl.store(cell + 3, s3, mask=real)
    if K >= 2:
        tl.store(cell + 2, s2, mask=real)
    if K >= 3:
        tl.store(cell + 1, s1, mask=real)
    if K >= 4:
        tl.store(cell, s0, mask=real)
    if BIAS:
        tl.store(dbias + place.to(tl.int64) * row + c, total, mask=real)


@triton.jit(do_not_specialize=["rows", "each"])
def norm_kernel(
    x, z, weight, y, rows, width, each, x_row, z_row, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (c < width)[None, :]
    v = tl.load(x + r[:, None] * _stride(x_row, ALIGNED) + c[None, :], mask=inside, other=0.0)
    if ROUND:
        v = v.to(weight.dtype.element_ty)
    v = v.to(tl.float32)
    if GATED:
        v = v * silu(
            tl.load(z + r[:, None] * _stride(z_row, ALIGNED) + c[None, :], mask=inside, other=0.0).to(tl.float32)
        )
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / width + eps)
    weight += tl.program_id(0).to(tl.int64) * ROWS // each * width
    w = tl.load(weight + c, mask=c < width, other=0.0).to(tl.float32)
    out = y + r[:, None] * width + c[None, :]
    tl.store(out, (v * scale[:, None] * w[None, :]).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _gradient_rows(
    x, z, dy, passed, r, c, stop, width, x_row, z_row, GATED: tl.constexpr, PASSED: tl.constexpr, ALIGNED: tl.constexpr
):
    # a tile's numbers as they lie; where a flag is off, those of x stand in and are not looked at
    inside = (r < stop)[:, None] & (c < width)[None, :]
    raw = tl.load(x + r[:, None] * _stride(x_row, ALIGNED) + c[None, :], mask=inside, other=0.0)
    slope = tl.load(dy + r[:, None] * width + c[None, :], mask=inside, other=0.0)
    gate = raw
    if GATED:
        gate = tl.load(z + r[:, None] * _stride(z_row, ALIGNED) + c[None, :], mask=inside, other=0.0)
    around = raw
    if PASSED:
        around = tl.load(passed + r[:, None] * width + c[None, :], mask=inside, other=0.0)
    return raw, slope, gate, around


@triton.jit(do_not_specialize=["rows", "span", "each", "row"])
def norm_gradient_kernel(
    x, z, weight, dy, passed, dx, dz, dweight, rows, width, span, each, row, x_row, z_row, dx_row, dz_row, eps,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, ROUND: tl.constexpr, PASSED: tl.constexpr,
    ALIGNED: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    # each program goes over `span` rows; with AHEAD the next tile is on its way while this one is worked on
    program = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    real = c < width
    w = tl.load(weight + tl.minimum(program * span, rows - 1) // each * width + c, mask=real, other=0.0).to(tl.float32)
    # a whole tile of sums: adding up its rows in every round would make the warps wait for each other
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    start = program * span
    stop = tl.minimum(start + span, rows)
    r = start + tl.arange(0, ROWS)
    raw, slope, gate, around = _gradient_rows(
        x, z, dy, passed, r, c, stop, width, x_row, z_row, GATED, PASSED, ALIGNED
    )  # fmt: skip
    for _ in range(0, (stop - start + ROWS - 1) // ROWS):
        inside = (r < stop)[:, None] & real[None, :]
        if AHEAD:
            next_raw, next_slope, next_gate, next_around = _gradient_rows(
                x, z, dy, passed, r + ROWS, c, stop, width, x_row, z_row, GATED, PASSED, ALIGNED
            )
        bare = raw
        if ROUND:
            bare = bare.to(weight.dtype.element_ty)
        bare = bare.to(tl.float32)
        v = bare
        if GATED:
            v = bare * silu(gate.to(tl.float32))
        scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / width + eps)
        unit = v * scale[:, None]
        total += slope.to(tl.float32) * unit
        g = slope.to(tl.float32) * w[None, :]
        value = scale[:, None] * (g - unit * (tl.sum(g * unit, 1) / width)[:, None])
        if GATED:
            out_z = dz + r[:, None] * _stride(dz_row, ALIGNED) + c[None, :]
            wide = gate.to(tl.float32)
            tl.store(out_z, (value * bare * silu_slope(wide)).to(dz.dtype.element_ty), mask=inside)
            value = value * silu(wide)
        if PASSED:
            value += around.to(tl.float32)
        out = dx + r[:, None] * _stride(dx_row, ALIGNED) + c[None, :]
        tl.store(out, value.to(dx.dtype.element_ty), mask=inside)
        r += ROWS
        if AHEAD:
            raw, slope, gate, around = next_raw, next_slope, next_gate, next_around
        else:
            raw, slope, gate, around = _gradient_rows(
                x, z, dy, passed, r, c, stop, width, x_row, z_row, GATED, PASSED, ALIGNED
            )
    tl.store(dweight + program * row + c, tl.sum(total, 0), mask=real)
