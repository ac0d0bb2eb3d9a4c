"""Triton kernels behind `repflow.metrics.fused`. Imported only where Triton is installed.

Glossary: a row is one token of one sample; x0..x9 are the window's states, oldest first: the first PREVIOUS were
already added and the next NEW are new; k counts states taken into a running mean.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103, RET505, SIM116

import triton
import triton.language as tl


@triton.jit
def _pick(which: tl.constexpr, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9):
    if which == 0:
        return x0
    elif which == 1:
        return x1
    elif which == 2:
        return x2
    elif which == 3:
        return x3
    elif which == 4:
        return x4
    elif which == 5:
        return x5
    elif which == 6:
        return x6
    elif which == 7:
        return x7
    elif which == 8:
        return x8
    else:
        return x9


@triton.jit
def _load(pointer, row, width, columns, inside):
    return tl.load(pointer + row * width + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def norm_kernel(state, norm, width, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros((BLOCK,), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        columns = chunk * BLOCK + tl.arange(0, BLOCK)
        h = _load(state, row, width, columns, columns < width)
        total += h * h
    tl.store(norm + row, tl.sqrt(tl.sum(total, 0)))


@triton.jit(do_not_specialize=["rows"])  # the batch decides it, and only single numbers are addressed with it
def depth_kernel(
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, norm_a, norm_b, norm, partial, mean, squares, mean_d, squares_d,
    rows, k, width, root,
    PREVIOUS: tl.constexpr, NEW: tl.constexpr, DIRECTION: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    columns = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = row * width + columns
    # partial (value, chunk, row): size, step, bend, bend of directions, std, variance, std of directions, then for each
    # new state its square and its inner product with the one before
    out = partial + chunk * rows + row
    value = tl.num_programs(1) * rows

    average = tl.zeros((BLOCK,), tl.float32)
    deviation = tl.zeros((BLOCK,), tl.float32)
    average_d = tl.zeros((BLOCK,), tl.float32)
    deviation_d = tl.zeros((BLOCK,), tl.float32)
    if not FIRST:
        average = tl.load(mean + place, mask=inside, other=0.0)
        deviation = tl.load(squares + place, mask=inside, other=0.0)
        if DIRECTION:
            average_d = tl.load(mean_d + place, mask=inside, other=0.0)
            deviation_d = tl.load(squares_d + place, mask=inside, other=0.0)

    q = tl.zeros((BLOCK,), tl.float32)
    p = tl.zeros((BLOCK,), tl.float32)
    q_scale = 0.0
    p_scale = 0.0
    if PREVIOUS == 1:
        p = _load(x0, row, width, columns, inside)
        if DIRECTION:
            p_scale = root / tl.load(norm_a + row)
    if PREVIOUS == 2:
        q = _load(x0, row, width, columns, inside)
        p = _load(x1, row, width, columns, inside)
        if DIRECTION:
            q_scale = root / tl.load(norm_a + row)
            p_scale = root / tl.load(norm_b + row)

    size = tl.zeros((BLOCK,), tl.float32)
    step = tl.zeros((BLOCK,), tl.float32)
    bend = tl.zeros((BLOCK,), tl.float32)
    bend_d = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(NEW):
        h = _load(_pick(PREVIOUS + i, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9), row, width, columns, inside)
        tl.store(out + (7 + 2 * i) * value, tl.sum(h * h, 0))
        size += tl.abs(h)
        if PREVIOUS + i >= 1:
            tl.store(out + (8 + 2 * i) * value, tl.sum(h * p, 0))
            change = h - p
            step += change * change
        if PREVIOUS + i >= 2:
            bend += tl.abs(h - 2.0 * p + q)
        seen = k + i
        off = average - h
        average -= off / (seen + 1.0)
        deviation += off * off * (seen / (seen + 1.0))
        h_scale = 0.0
        if DIRECTION:
            h_scale = root / tl.load(norm + i * rows + row)
            # a token of norm 0 has scale inf: outside columns must not turn that into NaN
            turned = tl.where(inside, h * h_scale, 0.0)
            if PREVIOUS + i >= 2:
                bend_d += tl.where(inside, tl.abs(turned - 2.0 * (p * p_scale) + q * q_scale), 0.0)
            off = average_d - turned
            average_d -= off / (seen + 1.0)
            deviation_d += off * off * (seen / (seen + 1.0))
        q = p
        q_scale = p_scale
        p = h
        p_scale = h_scale

    tl.store(out, tl.sum(size, 0))
    tl.store(out + value, tl.sum(step, 0))
    tl.store(out + 2 * value, 0.5 * tl.sum(bend, 0))
    tl.store(out + 3 * value, 0.5 * tl.sum(bend_d, 0))
    if LAST:
        count = k + NEW
        tl.store(out + 4 * value, tl.sum(tl.sqrt(deviation / count), 0))
        tl.store(out + 5 * value, tl.sum(deviation / count, 0))
        tl.store(out + 6 * value, tl.sum(tl.sqrt(deviation_d / count), 0))
    else:
        tl.store(mean + place, average, mask=inside)
        tl.store(squares + place, deviation, mask=inside)
        if DIRECTION:
            tl.store(mean_d + place, average_d, mask=inside)
            tl.store(squares_d + place, deviation_d, mask=inside)


@triton.jit
def _state(which, x0, x1, x2, x3, x4, x5, x6, x7):
    state = x0
    if which == 1:
        state = x1
    if which == 2:
        state = x2
    if which == 3:
        state = x3
    if which == 4:
        state = x4
    if which == 5:
        state = x5
    if which == 6:
        state = x6
    if which == 7:
        state = x7
    return state


@triton.jit
def _bfloat16_part(x):
    # what bfloat16 keeps of x, and the rest
    part = x.to(tl.bfloat16)
    return part, x - part.to(tl.float32)


@triton.jit(do_not_specialize=["batch"])
def column_kernel(
    x0, x1, x2, x3, x4, x5, x6, x7, weights, sums, energy, lengths, batch, token, width, span,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    # states of one dtype: the compiler cannot choose between pointers of two. Weights are bfloat16; states that are
    # wider are cut into three bfloat16 parts in registers, which carry all their bits
    pair = tl.program_id(0).to(tl.int64)  # of state and sample
    sample = pair % batch
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(2)
    inside = columns < width
    end = tl.minimum((part + 1) * span, tl.load(lengths + sample))
    row = tl.arange(0, ROWS)
    state = _state(pair // batch, x0, x1, x2, x3, x4, x5, x6, x7)
    x_base = state + sample * token * width + columns[None, :]
    w_base = weights + pair * ROWS * token + row[:, None] * token

    mixed = tl.zeros((ROWS, COLUMNS), tl.float32)
    square = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for start in tl.range(part * span, end, TOKENS, num_stages=3):
        at = start + tl.arange(0, TOKENS)
        real = at < end
        x = tl.load(x_base + at[:, None].to(tl.int64) * width, mask=real[:, None] & inside[None, :], other=0.0)
        w = tl.load(w_base + at[None, :], mask=real[None, :], other=0.0)
        wide = x.to(tl.float32)
        square += wide * wide
        if PARTS == 1:
            mixed = tl.dot(w, x.to(w.dtype), mixed)
        else:
            high, rest = _bfloat16_part(wide)
            middle, rest = _bfloat16_part(rest)
            mixed = tl.dot(w, high.to(w.dtype), mixed)
            mixed = tl.dot(w, middle.to(w.dtype), mixed)
            mixed = tl.dot(w, rest.to(tl.bfloat16).to(w.dtype), mixed)

    place = part * tl.num_programs(0) + pair
    tl.store(sums + (place * ROWS + row[:, None]) * width + columns[None, :], mixed, mask=inside[None, :])
    tl.store(energy + place * width + columns, tl.sum(square, 0), mask=inside)


@triton.jit(do_not_specialize=["batch"])
def product_kernel(
    x0, x1, x2, x3, x4, x5, x6, x7, few, many, few_off, many_off, others, lengths, singles, table, batch, token, width,
    SINGLES: tl.constexpr, PROBES: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # few (pair, part, SINGLES, width) and many (pair, part, PROBES, width): each vector whole in float32, or as two
    # bfloat16 parts; states of one dtype, as in column_kernel
    pair = tl.program_id(0).to(tl.int64)
    sample = pair % batch
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = at < tl.load(lengths + sample)
    single = tl.arange(0, SINGLES)
    probe = tl.arange(0, PROBES)
    state = _state(pair // batch, x0, x1, x2, x3, x4, x5, x6, x7)
    x_base = state + (sample * token + at[:, None]) * width
    few_base = few + pair * PARTS * SINGLES * width + single[None, :] * width
    many_base = many + pair * PARTS * PROBES * width + probe[None, :] * width

    one = tl.zeros((ROWS, SINGLES), tl.float32)
    mixed = tl.zeros((ROWS, PROBES), tl.float32)
    for start in tl.range(0, width, CHUNK, num_stages=4):
        k = start + tl.arange(0, CHUNK)
        inside = k < width
        x = tl.load(x_base + k[None, :], mask=real[:, None] & inside[None, :], other=0.0)
        for part in tl.static_range(PARTS):
            f = tl.load(few_base + part * SINGLES * width + k[:, None], mask=inside[:, None], other=0.0)
            m = tl.load(many_base + part * PROBES * width + k[:, None], mask=inside[:, None], other=0.0)
            one = tl.dot(x.to(f.dtype), f, one, input_precision=PRECISION)
            mixed = tl.dot(x.to(m.dtype), m, mixed, input_precision=PRECISION)

    one = tl.where(real[:, None], one - tl.load(few_off + pair * SINGLES + single)[None, :], 0.0)
    place = (pair * token + at[:, None]) * SINGLES + single[None, :]
    tl.store(singles + place, one, mask=(at < token)[:, None])
    counted = tl.load(others + pair * token + at, mask=real, other=0) != 0
    mixed = tl.where(counted[:, None], mixed - tl.load(many_off + pair * PROBES + probe)[None, :], 0.0)
    square = tl.dot(tl.trans(mixed), mixed, input_precision="ieee")
    out = table + ((pair * tl.num_programs(1) + tl.program_id(1)) * PROBES + probe[:, None]) * PROBES + probe[None, :]
    tl.store(out, square)
