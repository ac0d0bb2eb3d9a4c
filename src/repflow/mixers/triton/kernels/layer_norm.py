"""Triton kernels behind `repflow.mixers.triton.layer_norm`: rows that fit into a tile, and sums for the parameters.

`each` rows in turn are of one replica and share its weight and bias. BIAS says that there is one.
"""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, ANN202, D103

import triton
import triton.language as tl


@triton.jit
def _normed(x, real, width, eps):
    # rows less their mean, over their deviation, and one over that
    mean = tl.sum(x, 1) / width
    centred = tl.where(real, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
    return centred * scale[:, None], scale


@triton.jit(do_not_specialize=["each", "width"])
def layer_norm_kernel(
    x, weight, bias, y, each, width, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    replica = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = at < width
    real = (row < each)[:, None] & inside[None, :]
    place = (replica * each + row)[:, None] * width + at[None, :]
    normed, _ = _normed(tl.load(x + place, mask=real, other=0.0).to(tl.float32), real, width, eps)
    out = normed * tl.load(weight + replica * width + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        out += tl.load(bias + replica * width + at, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(y + place, out.to(y.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["each", "width", "span"])
def layer_norm_gradient_kernel(
    x, weight, slope, dx, sums, each, width, span, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    # a program walks `span` rows of a replica and sums what they add to the gradients of weight and bias
    replica = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    w = tl.load(weight + replica * width + at, mask=inside, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    begin = tl.program_id(0) * span
    end = tl.minimum(begin + span, each)
    for first in range(begin, end, ROWS):
        row = first + tl.arange(0, ROWS)
        real = (row < end)[:, None] & inside[None, :]
        place = (replica * each + row)[:, None] * width + at[None, :]
        normed, scale = _normed(tl.load(x + place, mask=real, other=0.0).to(tl.float32), real, width, eps)
        s = tl.load(slope + place, mask=real, other=0.0).to(tl.float32)
        sum_weight += tl.sum(s * normed, 0)
        sum_bias += tl.sum(s, 0)
        g = s * w[None, :]
        level = tl.sum(g, 1) / width
        along = tl.sum(g * normed, 1) / width
        back = (g - level[:, None] - normed * along[:, None]) * scale[:, None]
        tl.store(dx + place, back.to(dx.dtype.element_ty), mask=real)
    part = sums + (replica * tl.num_programs(0) + tl.program_id(0)) * (2 * width) + at
    tl.store(part, sum_weight, mask=inside)
    if BIAS:
        tl.store(part + width, sum_bias, mask=inside)
