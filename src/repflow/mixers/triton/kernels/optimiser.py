"""Triton kernel behind `repflow.mixers.triton.optimiser`. Imported only where Triton is installed."""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["each", "decay"])
def adamw_kernel(
    p, g, m, v, rates, scales, corrections, each, p_replica, g_replica, decay, beta1, beta2, eps, BLOCK: tl.constexpr
):
    # one replica's numbers lie side by side; `corrections` holds 1 - beta1^t and 1 - beta2^t
    replica = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < each
    rate = tl.load(rates + replica)
    slope = tl.load(g + replica * g_replica + at, mask=inside, other=0.0) * tl.load(scales + replica)
    value = tl.load(p + replica * p_replica + at, mask=inside, other=0.0)
    mean = tl.load(m + replica * each + at, mask=inside, other=0.0)
    square = tl.load(v + replica * each + at, mask=inside, other=0.0)
    mean += (slope - mean) * (1.0 - beta1)
    square = square * beta2 + slope * slope * (1.0 - beta2)
    value -= value * (rate * decay)
    root = tl.sqrt(square / tl.load(corrections + 1)) + eps
    value -= rate * (mean / tl.load(corrections)) / root
    tl.store(m + replica * each + at, mean, mask=inside)
    tl.store(v + replica * each + at, square, mask=inside)
    tl.store(p + replica * p_replica + at, value, mask=inside)
