"""AdamW in Triton for models stacked along a first axis, each with a learning rate and a scale of its gradient.

m ← m + (1 − β₁)(s g − m)        v ← β₂ v + (1 − β₂) (s g)²
p ← p − η λ p − η (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε)        η, s of each replica
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, on_device, power


class Betas(NamedTuple):
    """Constants of AdamW: decays of mean and mean square, and what is added to the root."""

    mean: float
    square: float
    eps: float


def adamw_step(
    value: Tensor,
    slope: Tensor,
    mean: Tensor,
    square: Tensor,
    *,
    rates: Tensor,
    scales: Tensor,
    corrections: Tensor,
    decay: float,
    betas: Betas,
) -> None:
    """Update a parameter (replica, ...) and its moments in place, in float32.

    Args:
        value: the parameter, contiguous within each replica.
        slope: its gradient, likewise.
        mean: of the gradient, contiguous.
        square: mean square of the gradient, contiguous.
        rates: learning rates (replica,).
        scales: of the gradients (replica,).
        corrections: 1 − β₁ᵗ and 1 − β₂ᵗ (2,).
        decay: weight decay.
        betas: constants.
    """
    from repflow.mixers.triton.kernels.optimiser import adamw_kernel

    replicas, each = len(value), value[0].numel()
    block = min(1024, power(each))
    with on_device(value):
        adamw_kernel[(ceil_div(each, block), replicas)](
            value, slope, mean, square, rates, scales, corrections, each, value.stride(0), slope.stride(0),
            decay, *betas, BLOCK=block, num_warps=4,
        )  # fmt: skip
