"""Triton kernel behind `repflow.mixers.triton.loss`. Imported only where Triton is installed."""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def loss_kernel(logits, target, loss, whole, hit, size, row, BLOCK: tl.constexpr, HIT: tl.constexpr):
    # one visit: running maximum and sum of each column of the tile, joined at the end
    at = tl.program_id(0).to(tl.int64)
    base = logits + at * row
    column = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -1e38, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        v = tl.load(base + start + column, mask=start + column < size, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(top, v)
        total = total * tl.exp(top - higher) + tl.exp(v - higher)
        top = higher
    most = tl.max(top, 0)
    log_sum = tl.log(tl.sum(total * tl.exp(top - most), 0)) + most
    tl.store(whole + at, log_sum)
    wanted = tl.load(base + tl.load(target + at)).to(tl.float32)
    tl.store(loss + at, log_sum - wanted)
    if HIT:
        tl.store(hit + at, tl.where(wanted >= most, 1.0, 0.0))


@triton.jit
def loss_gradient_kernel(logits, target, whole, slope, size, row, slope_row, scale, BLOCK: tl.constexpr):
    # one slope for all rows (slope_row = 0), or one for each
    at = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    v = tl.load(logits + at * row + column, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.exp(v - tl.load(whole + at)) - tl.where(column == tl.load(target + at), 1.0, 0.0)
    value = value * (scale * tl.load(slope + at * slope_row).to(tl.float32))
    tl.store(logits + at * row + column, value.to(logits.dtype.element_ty), mask=inside)
