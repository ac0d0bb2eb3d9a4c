"""Triton kernels of a delta-rule layer's other parts: convolution with SiLU and unit length, gated norm of each head.

Heads are taken where a projection leaves them: a unit (a head of queries, keys, values or gates) of DIM channels
begins at `step` · its kind + `group` · its group + DIM · its place in the group.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl

from repflow.mixers.triton.kernels.math import sigmoid, silu


@triton.jit(do_not_specialize=["tokens", "blocks"])
def mix_kernel(
    x, weight, y, tokens, blocks, units, count, per, step, group, x_batch, x_token, scale, eps,
    TAPS: tl.constexpr, T: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    # `count` units of a kind; with UNIT they are divided by their length, those of the first kind multiplied by scale
    place = tl.program_id(0)
    unit = tl.program_id(1)
    sample = (place // blocks).to(tl.int64)
    t = (place % blocks) * T + tl.arange(0, T)
    c = tl.arange(0, D)
    begin = (unit // count) * step + ((unit % count) // per) * group + (unit % per) * DIM
    source = x + sample * x_batch + begin + c[None, :]
    out = tl.zeros((T, D), tl.float32)
    for tap in tl.static_range(TAPS):
        w = tl.load(weight + (unit * DIM + c) * TAPS + tap, mask=c < DIM, other=0.0).to(tl.float32)
        at = t + (tap - TAPS + 1)
        inside = ((at >= 0) & (at < tokens))[:, None] & (c < DIM)[None, :]
        out += w[None, :] * tl.load(source + at.to(tl.int64)[:, None] * x_token, mask=inside, other=0.0).to(tl.float32)
    out = silu(out)
    if UNIT:
        out = out * (tl.where(unit < count, scale, 1.0) / tl.sqrt(tl.sum(out * out, 1) + eps))[:, None]
    target = y + ((sample * tokens + t[:, None]) * units + unit) * DIM + c[None, :]
    tl.store(target, out.to(y.dtype.element_ty), mask=(t < tokens)[:, None] & (c < DIM)[None, :])


@triton.jit(do_not_specialize=["rows"])
def head_norm_kernel(
    y, z, weight, out, rows, heads, per, group, z_token, eps,
    ROWS: tl.constexpr, DIM: tl.constexpr, D: tl.constexpr, SILU: tl.constexpr,
):  # fmt: skip
    # rows are heads of tokens
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D)
    inside = (r < rows)[:, None] & (c < DIM)[None, :]
    v = tl.load(y + r[:, None] * DIM + c[None, :], mask=inside, other=0.0).to(tl.float32)
    head = r % heads
    begin = (r // heads) * z_token + (head // per) * group + (head % per) * DIM
    gate = tl.load(z + begin[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + c, mask=c < DIM, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(v * v, 1) / DIM + eps)
    act = sigmoid(gate)
    if SILU:
        act = act * gate
    tl.store(
        out + r[:, None] * DIM + c[None, :],
        (v * scale[:, None] * w[None, :] * act).to(out.dtype.element_ty),
        mask=inside,
    )
