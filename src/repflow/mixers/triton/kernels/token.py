"""Triton kernels that take recurrent layers one token further. Imported only where Triton is installed.

Each program owns its part of the state, reads it once and writes it back once: at a batch of 64 a Mamba-2 of 2.7
billion parameters keeps 11 GB of states, twice its weights, so their traffic is what a token costs.

Glossary: h state, A decay rate, B input map, C read-out, D skip, dt step size, z gate.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import bounded, silu, softplus


@triton.jit
def conv_token_kernel(
    x, window, weight, bias, y, channels, x_batch, K: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    # window (batch, K - 1, channel) moves on by one token
    sample = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    new = tl.load(x + sample * x_batch + c, mask=inside, other=0.0)
    total = new.to(tl.float32) * tl.load(weight + c * K + K - 1, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        total += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    row = window + sample * (K - 1) * channels + c
    for j in tl.static_range(K - 1):
        old = tl.load(row + j * channels, mask=inside, other=0.0)
        total += old.to(tl.float32) * tl.load(weight + c * K + j, mask=inside, other=0.0).to(tl.float32)
        if j > 0:
            tl.store(row + (j - 1) * channels, old, mask=inside)
    if K > 1:
        tl.store(row + (K - 2) * channels, new, mask=inside)
    tl.store(y + sample * channels + c, silu(total).to(y.dtype.element_ty), mask=inside)


@triton.jit
def s6_token_kernel(
    h, x, dt, bias, A, B, C, D, z, y, channels, x_batch, dt_batch, b_batch, c_batch, z_batch,
    STATE: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    # h (batch, state, channel); A (channel, state) is log(-rate)
    sample = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = tl.arange(0, N)
    inside = c < channels
    both = (n < STATE)[:, None] & inside[None, :]
    step = tl.load(dt + sample * dt_batch + c, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        step += tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    step = softplus(step)
    value = tl.load(x + sample * x_batch + c, mask=inside, other=0.0).to(tl.float32)
    rate = -tl.exp(tl.load(A + c[None, :] * STATE + n[:, None], mask=both, other=0.0).to(tl.float32))
    into = tl.load(B + sample * b_batch + n, mask=n < STATE, other=0.0).to(tl.float32)
    out_of = tl.load(C + sample * c_batch + n, mask=n < STATE, other=0.0).to(tl.float32)
    place = h + (sample * STATE + n[:, None]) * channels + c[None, :]
    state = tl.load(place, mask=both, other=0.0)
    state = state * tl.exp(step[None, :] * rate) + (step * value)[None, :] * into[:, None]
    tl.store(place, state, mask=both)
    output = tl.sum(state * out_of[:, None], 0) + value * tl.load(D + c, mask=inside, other=0.0).to(tl.float32)
    output = output * silu(tl.load(z + sample * z_batch + c, mask=inside, other=0.0).to(tl.float32))
    tl.store(y + sample * channels + c, output.to(y.dtype.element_ty), mask=inside)


@triton.jit
def ssd_token_kernel(
    h, x, dt, bias, A, B, C, D, y, heads, share, low, high, x_batch, dt_batch, b_batch, c_batch,
    DIM: tl.constexpr, STATE: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    # h (batch, head, dim, state); A is log(-rate)
    sample = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    p = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, N)
    inside = p < DIM
    both = inside[:, None] & (n < STATE)[None, :]
    step = tl.load(dt + sample * dt_batch + head).to(tl.float32) + tl.load(bias + head).to(tl.float32)
    step = bounded(softplus(step), low, high)
    keep = tl.exp(-step * tl.exp(tl.load(A + head).to(tl.float32)))
    value = tl.load(x + sample * x_batch + head * DIM + p, mask=inside, other=0.0).to(tl.float32)
    group = head // share
    into = tl.load(B + sample * b_batch + group * STATE + n, mask=n < STATE, other=0.0).to(tl.float32)
    out_of = tl.load(C + sample * c_batch + group * STATE + n, mask=n < STATE, other=0.0).to(tl.float32)
    place = h + ((sample * heads + head) * DIM + p[:, None]) * STATE + n[None, :]
    state = tl.load(place, mask=both, other=0.0)
    state = state * keep + (step * value)[:, None] * into[None, :]
    tl.store(place, state, mask=both)
    output = tl.sum(state * out_of[None, :], 1) + value * tl.load(D + head).to(tl.float32)
    tl.store(y + (sample * heads + head) * DIM + p, output.to(y.dtype.element_ty), mask=inside)
