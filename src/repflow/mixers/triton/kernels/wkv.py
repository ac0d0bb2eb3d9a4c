"""Triton kernels behind `repflow.mixers.triton.wkv`: RWKV-4's weighted mean along a row, and its gradient.

Glossary as in `repflow.mixers.rwkv4`: k key, v value, w decay rate, u bonus; num, den the state before a token, over
e^m.
A program walks one row for BLOCK channels; `rows` rows in turn are of one replica and share its rates and bonuses.

Backwards the state's gradients are kept over e^n, n_t = max_{r ≥ t} (−M_r − w (r − t)), M_r the exponent that token r
read its state with: M_r is at least any key before r less its fading, so that no exponent below is above 0.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl

NEVER = tl.constexpr(-1e30)
"""Exponent that stands for −∞ without making a difference of two of them NaN."""


@triton.jit
def _seen_by(k, u, m):
    # exponent of what a token reads, and the weights of its past and of itself below it
    now = u + k
    top = tl.maximum(m, now)
    return top, tl.exp(m - top), tl.exp(now - top)


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def wkv_kernel(
    k, v, rate, bonus, mean, num_at, den_at, m_at, tokens, channels, rows, BLOCK: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < channels
    w = tl.load(rate + row // rows * channels + at, mask=real, other=0.0).to(tl.float32)
    u = tl.load(bonus + row // rows * channels + at, mask=real, other=0.0).to(tl.float32)
    place = row * tokens * channels + at
    num = tl.zeros((BLOCK,), tl.float32)
    den = tl.zeros((BLOCK,), tl.float32)
    m = tl.full((BLOCK,), NEVER, tl.float32)
    key = tl.load(k + place, mask=real, other=0.0).to(tl.float32)
    value = tl.load(v + place, mask=real, other=0.0).to(tl.float32)
    for t in range(0, tokens):
        # one token ahead; the last is loaded once more: cheaper than a mask
        ahead = place + tl.where(t + 1 < tokens, channels, 0)
        key_next = tl.load(k + ahead, mask=real, other=0.0).to(tl.float32)
        value_next = tl.load(v + ahead, mask=real, other=0.0).to(tl.float32)
        _, old, new = _seen_by(key, u, m)
        tl.store(mean + place, ((old * num + new * value) / (old * den + new)).to(mean.dtype.element_ty), mask=real)
        if KEEP:
            tl.store(num_at + place, num, mask=real)
            tl.store(den_at + place, den, mask=real)
            tl.store(m_at + place, m, mask=real)
        after = tl.maximum(m - w, key)
        fade = tl.exp(m - w - after)
        enter = tl.exp(key - after)
        num = fade * num + enter * value
        den = fade * den + enter
        m = after
        key = key_next
        value = value_next
        place = ahead


@triton.jit
def _token(place, real, pointers):
    k, v, num_at, den_at, m_at, slope = pointers
    key = tl.load(k + place, mask=real, other=0.0).to(tl.float32)
    value = tl.load(v + place, mask=real, other=0.0).to(tl.float32)
    num = tl.load(num_at + place, mask=real, other=0.0)
    den = tl.load(den_at + place, mask=real, other=0.0)
    m = tl.load(m_at + place, mask=real, other=0.0)
    dy = tl.load(slope + place, mask=real, other=0.0).to(tl.float32)
    return key, value, num, den, m, dy


@triton.jit(do_not_specialize=["tokens", "channels", "rows"])
def wkv_gradient_kernel(
    k, v, rate, bonus, num_at, den_at, m_at, slope, dk, dv, d_rate, d_bonus, tokens, channels, rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    #   s_t = dy_t / (den + e^{u+k})_t      a_t = s_t + e^{−w} a_{t+1}      b_t = −s_t y_t + e^{−w} b_{t+1}
    #   dv_t = s_t e^{u+k_t} + a_{t+1} e^{k_t}      dk_t = s_t e^{u+k_t} (v_t − y_t) + e^{k_t} (a_{t+1} v_t + b_{t+1})
    #   dw = −e^{−w} Σ (a_{t+1} num_t + b_{t+1} den_t)      du = Σ s_t e^{u+k_t} (v_t − y_t)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < channels
    w = tl.load(rate + row // rows * channels + at, mask=real, other=0.0).to(tl.float32)
    u = tl.load(bonus + row // rows * channels + at, mask=real, other=0.0).to(tl.float32)
    a = tl.zeros((BLOCK,), tl.float32)
    b = tl.zeros((BLOCK,), tl.float32)
    n = tl.full((BLOCK,), NEVER, tl.float32)
    sum_rate = tl.zeros((BLOCK,), tl.float32)
    sum_bonus = tl.zeros((BLOCK,), tl.float32)
    pointers = (k, v, num_at, den_at, m_at, slope)
    place = (row * tokens + tokens - 1) * channels + at
    token = _token(place, real, pointers)
    for t in range(0, tokens):
        # one token ahead, before anything is stored: a load does not pass a store that may be to the same place
        ahead = place - tl.where(t + 1 < tokens, channels, 0)
        token_next = _token(ahead, real, pointers)
        key, value, num, den, m, dy = token
        top, old, new = _seen_by(key, u, m)
        whole = old * den + new
        mean = (old * num + new * value) / whole
        s = dy / whole  # over e^top
        own = s * new
        enter = tl.exp(key + n)
        tl.store(dv + place, (own + a * enter).to(dv.dtype.element_ty), mask=real)
        bent = own * (value - mean)
        tl.store(dk + place, (bent + enter * (a * value + b)).to(dk.dtype.element_ty), mask=real)
        sum_bonus += bent
        sum_rate -= tl.exp(n + m - w) * (a * num + b * den)
        before = tl.maximum(-top, n - w)
        fade = tl.exp(n - w - before)
        add = s * tl.exp(-top - before)
        a = fade * a + add
        b = fade * b - add * mean
        n = before
        token = token_next
        place = ahead
    tl.store(d_rate + row * channels + at, sum_rate, mask=real)
    tl.store(d_bonus + row * channels + at, sum_bonus, mask=real)
