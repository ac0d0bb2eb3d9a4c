"""Triton kernels of the delta rule: products within a chunk, the inverse of its triangle, states with outputs.

Glossary: chunks have Q = 64 tokens, in four blocks of 16; k keys, q queries, v values, beta write strength; c running
sum of log decays within a chunk: hi + lo, two float32 parts, where a head has one decay; `fades` (batch, chunk, head,
Q, KEY) in float32 where every key has one; `lower` beta k kᵀ, `seen` q kᵀ, faded from the key's token to the row's;
`inverse` (I + L)⁻¹, L what of `lower` is below the diagonal, with beta on its columns. These three are (batch, chunk,
head, Q, Q), the last two 0 above the diagonal. h state (key, value). Per-token numbers of a head
are (batch, chunk, head, Q). DECAY is 0 without decay, 1 for one of a head, 2 for one of a key. Tokens beyond the end
write nothing.

A token that is not finite must spoil none before it (see repflow.mixers.triton.kernels.ssd). Here it counts as 0 in
the triangles, its kept beta and its place on the inverse's diagonal are NaN, and heads whose last state is not finite
are run once more with masks.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import finite, sigmoid, softplus


@triton.jit
def _strengths(source, at, token, tokens, LAYER: tl.constexpr, scale):
    # write strengths, 0 beyond the end, and which are not finite
    b = tl.load(source + at * token, mask=at < tokens, other=0.0).to(tl.float32)
    if LAYER:
        b = sigmoid(b) * scale
    b = tl.where(at < tokens, b, 0.0)
    return b, finite(b) == 0


@triton.jit
def _tile(source, at, n, token, tokens, KEY: tl.constexpr):
    inside = (at < tokens)[:, None] & (n < KEY)[None, :]
    return tl.load(source + at[:, None] * token + n[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def head_pair_kernel(
    q, k, raw, strength, rates, shifts, hi, lo, kept, lower, seen, spoiled, tokens, heads, share, per, chunks, q_batch,
    q_token, q_head, k_batch, k_token, k_head, raw_batch, raw_token, raw_group, s_batch, s_token, s_group, scale,
    KEY: tl.constexpr, K: tl.constexpr, Q: tl.constexpr, DECAY: tl.constexpr, LAYER: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    # a chunk of a head, without decay or with one of the head. With LAYER the gates are as a layer projects them,
    # before softplus and sigmoid; `per` heads lie side by side in each group of them. `spoiled` starts at 0 here
    place = tl.program_id(0)
    head = tl.program_id(1)
    sample = (place // chunks).to(tl.int64)
    i = tl.arange(0, Q)
    n = tl.arange(0, K)
    at = ((place % chunks) * Q + i).to(tl.int64)
    row = place.to(tl.int64) * heads + head
    if place % chunks == 0:
        tl.store(spoiled + sample * heads + head, 0)
    strength += sample * s_batch + (head // per) * s_group + head % per
    b, bad = _strengths(strength, at, s_token, tokens, LAYER, scale)
    g = tl.zeros((Q,), tl.float32)
    if DECAY == 1:
        raw += sample * raw_batch + (head // per) * raw_group + head % per
        g = tl.load(raw + at * raw_token, mask=at < tokens, other=0.0).to(tl.float32)
        if LAYER:
            g = -tl.exp(tl.load(rates + head).to(tl.float32)) * softplus(g + tl.load(shifts + head).to(tl.float32))
        wrong = (g != g) | (g == float("inf"))
        bad = bad | (wrong & (at < tokens))
        # e^-88 is a closed gate: more would cost the differences their digits
        g = tl.where(wrong | (at >= tokens), 0.0, tl.maximum(g, -88.0))
    keys = _tile(k + sample * k_batch + (head // share) * k_head, at, n, k_token, tokens, KEY)
    bad = bad | (tl.sum(tl.where(finite(keys), 0, 1), 1) > 0)
    keys = tl.where(finite(keys), keys, 0.0).to(KIND)
    rows = _tile(q + sample * q_batch + (head // share) * q_head, at, n, q_token, tokens, KEY).to(KIND)
    known = tl.dot(keys, tl.trans(keys), input_precision=PRECISION)
    asked = tl.dot(rows, tl.trans(keys), input_precision=PRECISION)
    until = i[:, None] >= i[None, :]
    if DECAY == 1:
        c = tl.cumsum(g.to(tl.float64), 0)
        c_hi = c.to(tl.float32)
        c_lo = (c - c_hi.to(tl.float64)).to(tl.float32)
        tl.store(hi + row * Q + i, c_hi)
        tl.store(lo + row * Q + i, c_lo)
        gap = (c_hi[:, None] - c_hi[None, :]) + (c_lo[:, None] - c_lo[None, :])
        # masked before exp: the other order gives inf · 0
        fade = tl.exp(tl.where(until, gap, float("-inf")))
        known = known * fade
        asked = asked * fade
    b = tl.where(bad, 0.0, b)
    tl.store(kept + row * Q + i, tl.where(bad, float("nan"), b))
    cell = row * Q * Q + i[:, None] * Q + i[None, :]
    tl.store(lower + cell, known * b[:, None], mask=until)
    tl.store(seen + cell, tl.where(until, asked, 0.0).to(seen.dtype.element_ty))


@triton.jit(do_not_specialize=["tokens", "chunks"])
def key_sum_kernel(
    k, raw, strength, kept, fades, spoiled, tokens, heads, share, chunks, k_batch, k_token, k_head, raw_batch,
    raw_token, raw_head, s_batch, s_token, s_head,
    KEY: tl.constexpr, K: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    # running sums of the log decays of every key, and the strengths
    place = tl.program_id(0)
    head = tl.program_id(1)
    sample = (place // chunks).to(tl.int64)
    i = tl.arange(0, Q)
    n = tl.arange(0, K)
    at = ((place % chunks) * Q + i).to(tl.int64)
    row = place.to(tl.int64) * heads + head
    if place % chunks == 0:
        tl.store(spoiled + sample * heads + head, 0)
    b, bad = _strengths(strength + sample * s_batch + head * s_head, at, s_token, tokens, False, 1.0)
    g = _tile(raw + sample * raw_batch + head * raw_head, at, n, raw_token, tokens, KEY).to(tl.float32)
    wrong = (g != g) | (g == float("inf"))
    keys = _tile(k + sample * k_batch + (head // share) * k_head, at, n, k_token, tokens, KEY)
    bad = bad | (tl.sum(tl.where(finite(keys) & (wrong == 0), 0, 1), 1) > 0)
    sums = tl.cumsum(tl.where(wrong, 0.0, tl.maximum(g, -88.0)), 0)
    tl.store(fades + (row * Q + i[:, None]) * KEY + n[None, :], sums, mask=(n < KEY)[None, :] & (i >= 0)[:, None])
    tl.store(kept + row * Q + i, tl.where(bad, float("nan"), b))


@triton.jit
def _one_by_one(rows, keys, c, r):
    # within a block, key by key: no point between two of its tokens would keep both exponents below 0
    out = tl.zeros((16, 16), tl.float32)
    for s in range(0, 16):
        one = (r == s)[:, None]
        key = tl.sum(tl.where(one, keys, 0.0), 0)
        end = tl.sum(tl.where(one, c, 0.0), 0)
        # rows before s are masked later; till then their exponents, above 0, must not overflow
        column = tl.sum(rows * key[None, :] * tl.exp(tl.minimum(c - end[None, :], 0.0)), 1)
        out += tl.where((r == s)[None, :], column[:, None], 0.0)
    return out


@triton.jit(do_not_specialize=["tokens", "chunks"])
def key_pair_kernel(
    q, k, kept, fades, lower, seen, tokens, heads, share, chunks, q_batch, q_token, q_head, k_batch, k_token, k_head,
    KEY: tl.constexpr, K: tl.constexpr, Q: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # block (of_row, of_key) of a chunk's products, every key channel faded by itself
    place = tl.program_id(0)
    head = tl.program_id(1)
    of_row = tl.program_id(2) // 4
    of_key = tl.program_id(2) % 4
    if of_row >= of_key:
        sample = (place // chunks).to(tl.int64)
        r = tl.arange(0, 16)
        n = tl.arange(0, K)
        row = place.to(tl.int64) * heads + head
        start = (place % chunks) * Q
        i = of_row * 16 + r
        j = of_key * 16 + r
        mine = (start + i).to(tl.int64)
        theirs = (start + j).to(tl.int64)
        rows = _tile(q + sample * q_batch + (head // share) * q_head, mine, n, q_token, tokens, KEY).to(tl.float32)
        source = k + sample * k_batch + (head // share) * k_head
        own = _tile(source, mine, n, k_token, tokens, KEY).to(tl.float32)
        keys = _tile(source, theirs, n, k_token, tokens, KEY).to(tl.float32)
        own = tl.where(finite(own), own, 0.0)
        keys = tl.where(finite(keys), keys, 0.0)
        real = (n < KEY)[None, :] & (r >= 0)[:, None]
        c = tl.load(fades + (row * Q + i[:, None]) * KEY + n[None, :], mask=real, other=0.0)
        b = tl.load(kept + row * Q + i)
        b = tl.where(b == b, b, 0.0)
        if of_row == of_key:
            until = r[:, None] >= r[None, :]
            asked = tl.where(until, _one_by_one(rows, keys, c, r), 0.0)
            known = tl.where(until, _one_by_one(own, keys, c, r), 0.0)
        else:
            d = tl.load(fades + (row * Q + j[:, None]) * KEY + n[None, :], mask=real, other=0.0)
            # through the token before the row's block: both exponents are at most 0
            border = tl.load(fades + (row * Q + of_row * 16 - 1) * KEY + n, mask=n < KEY, other=0.0)
            near = tl.exp(c - border[None, :])
            past = (keys * tl.exp(border[None, :] - d)).to(KIND)
            asked = tl.dot((rows * near).to(KIND), tl.trans(past), input_precision=PRECISION)
            known = tl.dot((own * near).to(KIND), tl.trans(past), input_precision=PRECISION)
        cell = row * Q * Q + i[:, None] * Q + j[None, :]
        tl.store(lower + cell, known * b[:, None])
        tl.store(seen + cell, asked.to(seen.dtype.element_ty))
        if of_row > of_key:
            above = row * Q * Q + j[:, None] * Q + i[None, :]
            tl.store(seen + above, tl.zeros((16, 16), seen.dtype.element_ty))


@triton.jit
def _block(source, i: tl.constexpr, j: tl.constexpr, r, Q: tl.constexpr):
    return tl.load(source + (i * 16 + r)[:, None] * Q + (j * 16 + r)[None, :])


@triton.jit
def _inverted(source, i: tl.constexpr, r, Q: tl.constexpr):
    # (I + L)^-1 of a block on the diagonal by substitution: row t is e_t - sum_s L_ts row_s
    across = tl.load(source + (i * 16 + r)[None, :] * Q + (i * 16 + r)[:, None])  # L_ts at (s, t)
    across = tl.where(r[:, None] < r[None, :], across, 0.0)
    inverse = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    for t in range(1, 16):
        weight = tl.sum(tl.where((r == t)[None, :], across, 0.0), 1)
        value = tl.sum(weight[:, None] * inverse, 0)
        inverse -= tl.where((r == t)[:, None], value[None, :], 0.0)
    return inverse


@triton.jit
def _put(target, kept, i: tl.constexpr, j: tl.constexpr, r, block, Q: tl.constexpr):
    b = tl.load(kept + j * 16 + r)
    value = block * tl.where(b == b, b, 0.0)[None, :]
    if i == j:
        value = tl.where((r[:, None] == r[None, :]) & (b != b)[None, :], float("nan"), value)
        value = tl.where(r[:, None] >= r[None, :], value, 0.0)
    tl.store(target + (i * 16 + r)[:, None] * Q + (j * 16 + r)[None, :], value.to(target.dtype.element_ty))
    if i > j:
        # what lies above the diagonal is read without a mask
        nothing = tl.zeros((16, 16), target.dtype.element_ty)
        tl.store(target + (j * 16 + r)[:, None] * Q + (i * 16 + r)[None, :], nothing)


@triton.jit
def inverse_kernel(lower, kept, inverse, Q: tl.constexpr, PRECISION: tl.constexpr):
    # of blocks (A 0; C D) the inverse is (A^-1 0; -D^-1 C A^-1 D^-1), here for four blocks
    row = tl.program_id(0).to(tl.int64)
    lower += row * Q * Q
    inverse += row * Q * Q
    kept += row * Q
    r = tl.arange(0, 16)
    x00 = _inverted(lower, 0, r, Q)
    x11 = _inverted(lower, 1, r, Q)
    x22 = _inverted(lower, 2, r, Q)
    x33 = _inverted(lower, 3, r, Q)
    _put(inverse, kept, 0, 0, r, x00, Q)
    _put(inverse, kept, 1, 1, r, x11, Q)
    _put(inverse, kept, 2, 2, r, x22, Q)
    _put(inverse, kept, 3, 3, r, x33, Q)
    l10 = _block(lower, 1, 0, r, Q)
    x10 = -tl.dot(x11, tl.dot(l10, x00, input_precision=PRECISION), input_precision=PRECISION)
    _put(inverse, kept, 1, 0, r, x10, Q)
    l21 = _block(lower, 2, 1, r, Q)
    x21 = -tl.dot(x22, tl.dot(l21, x11, input_precision=PRECISION), input_precision=PRECISION)
    _put(inverse, kept, 2, 1, r, x21, Q)
    sum2 = tl.dot(_block(lower, 2, 0, r, Q), x00, input_precision=PRECISION)
    sum2 = tl.dot(l21, x10, sum2, input_precision=PRECISION)
    x20 = -tl.dot(x22, sum2, input_precision=PRECISION)
    _put(inverse, kept, 2, 0, r, x20, Q)
    l32 = _block(lower, 3, 2, r, Q)
    l31 = _block(lower, 3, 1, r, Q)
    x32 = -tl.dot(x33, tl.dot(l32, x22, input_precision=PRECISION), input_precision=PRECISION)
    _put(inverse, kept, 3, 2, r, x32, Q)
    sum3 = tl.dot(l31, x11, input_precision=PRECISION)
    sum3 = tl.dot(l32, x21, sum3, input_precision=PRECISION)
    _put(inverse, kept, 3, 1, r, -tl.dot(x33, sum3, input_precision=PRECISION), Q)
    sum3 = tl.dot(_block(lower, 3, 0, r, Q), x00, input_precision=PRECISION)
    sum3 = tl.dot(l31, x10, sum3, input_precision=PRECISION)
    sum3 = tl.dot(l32, x20, sum3, input_precision=PRECISION)
    _put(inverse, kept, 3, 0, r, -tl.dot(x33, sum3, input_precision=PRECISION), Q)


@triton.jit
def _run(
    pair, column, q, k, v, inverse, seen, hi, lo, fades, first, y, tokens, heads, share, chunks, q_batch, q_token,
    q_head, k_batch, k_token, k_head, v_batch, v_token, v_head,
    KEY: tl.constexpr, K: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr, DECAY: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, FIRST: tl.constexpr, CLEAN: tl.constexpr,
):  # fmt: skip
    # outputs of some values of a head, chunk by chunk, and the last state (key, value). With CLEAN what is not finite
    # counts as 0, and outputs from the first such token on are left as they were
    sample = (pair // heads).to(tl.int64)
    head = pair % heads
    i = tl.arange(0, Q)
    n = tl.arange(0, K)
    p = column * BLOCK + tl.arange(0, BLOCK)
    cell = n[:, None] * VALUE + p[None, :]
    both = (n < KEY)[:, None] & (p < VALUE)[None, :]
    q += sample * q_batch + (head // share) * q_head
    k += sample * k_batch + (head // share) * k_head
    v += sample * v_batch + head * v_head
    y += (sample * tokens * heads + head) * VALUE
    h = tl.zeros((K, BLOCK), tl.float32)
    if FIRST:
        h = tl.load(first + pair.to(tl.int64) * KEY * VALUE + cell, mask=both, other=0.0).to(tl.float32)
    past = tl.zeros((BLOCK,), tl.float32)  # of CLEAN: tokens so far that are not finite
    for chunk in range(0, chunks):
        row = (sample * chunks + chunk) * heads + head
        at = (chunk * Q + i).to(tl.int64)
        here = (at < tokens)[:, None] & (p < VALUE)[None, :]
        keys = _tile(k, at, n, k_token, tokens, KEY)
        rows = _tile(q, at, n, q_token, tokens, KEY)
        values = tl.load(v + at[:, None] * v_token + p[None, :], mask=here, other=0.0)
        square = row * Q * Q + i[:, None] * Q + i[None, :]
        solve = tl.load(inverse + square)
        weights = tl.load(seen + square)
        if CLEAN:
            bad = tl.sum(tl.where(finite(keys), 0.0, 1.0), 1) + tl.sum(tl.where(finite(solve), 0.0, 1.0), 1)
            bad = tl.where(finite(values), 0.0, 1.0) + bad[:, None]
            keys = tl.where(finite(keys), keys, 0.0)
            values = tl.where(finite(values), values, 0.0)
            solve = tl.where(finite(solve), solve, 0.0)
        held = h.to(KIND)
        if DECAY == 2:
            c = tl.load(
                fades + (row * Q + i[:, None]) * KEY + n[None, :],
                mask=(n < KEY)[None, :] & (i >= 0)[:, None],
                other=0.0,
            )
            end = tl.load(fades + (row * Q + Q - 1) * KEY + n, mask=n < KEY, other=0.0)
            start = tl.exp(c)
            wide = keys.to(tl.float32)
            known = tl.dot((wide * start).to(KIND), held, input_precision=PRECISION)
        else:
            known = tl.dot(keys.to(KIND), held, input_precision=PRECISION)
        if DECAY == 1:
            c_hi = tl.load(hi + row * Q + i)
            c_lo = tl.load(lo + row * Q + i)
            end_hi = tl.load(hi + row * Q + Q - 1)
            end_lo = tl.load(lo + row * Q + Q - 1)
            from_start = tl.exp(c_hi + c_lo)[:, None]
            known = known * from_start
        u = tl.dot(solve.to(KIND), (values.to(tl.float32) - known).to(KIND), input_precision=PRECISION)
        if DECAY == 2:
            out = tl.dot((rows.to(tl.float32) * start).to(KIND), held, input_precision=PRECISION)
        else:
            out = tl.dot(rows.to(KIND), held, input_precision=PRECISION)
        if DECAY == 1:
            out = out * from_start
        out = tl.dot(weights.to(KIND), u.to(KIND), out, input_precision=PRECISION)
        if DECAY == 2:
            written = (wide * tl.exp(end[None, :] - c)).to(KIND)
            h = tl.dot(tl.trans(written), u.to(KIND), h * tl.exp(end)[:, None], input_precision=PRECISION)
        else:
            if DECAY == 1:
                u = u * tl.exp((end_hi - c_hi) + (end_lo - c_lo))[:, None]
                h = h * tl.exp(end_hi + end_lo)
            h = tl.dot(tl.trans(keys.to(KIND)), u.to(KIND), h, input_precision=PRECISION)
        place_y = y + at[:, None] * heads * VALUE + p[None, :]
        if CLEAN:
            count = tl.cumsum(bad, 0) + past[None, :]
            past += tl.sum(bad, 0)
            tl.store(place_y, out.to(y.dtype.element_ty), mask=here & (count == 0.0))
        else:
            tl.store(place_y, out.to(y.dtype.element_ty), mask=here)
    return h


@triton.jit(do_not_specialize=["tokens", "chunks"])
def state_kernel(
    q, k, v, inverse, seen, hi, lo, fades, first, last, y, spoiled, tokens, heads, share, chunks, q_batch, q_token,
    q_head, k_batch, k_token, k_head, v_batch, v_token, v_head,
    KEY: tl.constexpr, K: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr, DECAY: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0)
    column = tl.program_id(1)
    h = _run(
        pair, column, q, k, v, inverse, seen, hi, lo, fades, first, y, tokens, heads, share, chunks, q_batch, q_token,
        q_head, k_batch, k_token, k_head, v_batch, v_token, v_head, KEY, K, VALUE, BLOCK, Q, DECAY, KIND, PRECISION,
        FIRST, False,
    )  # fmt: skip
    n = tl.arange(0, K)
    p = column * BLOCK + tl.arange(0, BLOCK)
    cell = pair.to(tl.int64) * KEY * VALUE + n[:, None] * VALUE + p[None, :]
    tl.store(last + cell, h, mask=(n < KEY)[:, None] & (p < VALUE)[None, :])
    # several programs may write the same 1
    if tl.sum(tl.sum(h * 0.0, 1), 0) != 0.0:
        tl.store(spoiled + pair, 1)


@triton.jit(do_not_specialize=["tokens", "chunks"])
def repair_kernel(
    q, k, v, inverse, seen, hi, lo, fades, first, y, spoiled, tokens, heads, share, chunks, q_batch, q_token, q_head,
    k_batch, k_token, k_head, v_batch, v_token, v_head,
    KEY: tl.constexpr, K: tl.constexpr, VALUE: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr, DECAY: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    # ends at once where a head's state is finite
    pair = tl.program_id(0)
    if tl.load(spoiled + pair) != 0:
        _run(
            pair, tl.program_id(1), q, k, v, inverse, seen, hi, lo, fades, first, y, tokens, heads, share, chunks,
            q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head, KEY, K, VALUE, BLOCK, Q,
            DECAY, KIND, PRECISION, FIRST, True,
        )  # fmt: skip
