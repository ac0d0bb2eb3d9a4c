"""Small functions that the Triton kernels share. Imported only where Triton is installed."""

# Triton reads these functions' source: annotations and docstrings inside stay plain.
# mypy: ignore-errors
# ruff: noqa: ANN001, ANN201, D103

import triton
import triton.language as tl


@triton.jit
def sigmoid(v):
    # exp of a large positive number is inf and 1 / inf is 0: no NaN on either side
    return 1.0 / (1.0 + tl.exp(-v))


@triton.jit
def silu(v):
    return v * sigmoid(v)


@triton.jit
def silu_slope(v):
    s = sigmoid(v)
    return s * (1.0 + v * (1.0 - s))


@triton.jit
def softplus(v):
    # log(1 + e) by the series of 2 artanh(e / (2 + e)): small steps keep all their digits, which log(1 + e) would lose
    e = tl.exp(-tl.abs(v))
    z = e / (2.0 + e)
    q = z * z
    series = 1.0 / 11.0 + q * (1.0 / 13.0)
    series = 1.0 / 9.0 + q * series
    series = 1.0 / 7.0 + q * series
    series = 1.0 / 5.0 + q * series
    series = 1.0 / 3.0 + q * series
    return tl.maximum(v, 0.0) + 2.0 * z * (1.0 + q * series)


@triton.jit
def finite(v):
    return tl.abs(v.to(tl.float32)) < float("inf")


@triton.jit
def bounded(v, low, high):
    # by default the GPU's minimum and maximum drop a NaN, which would then never be seen
    v = tl.maximum(v, low, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(v, high, propagate_nan=tl.PropagateNan.ALL)
