"""A delta-rule layer's other parts in Triton, forward: convolution with SiLU and unit length, gated norm of each head.

Tensors are (batch, token, channel) as projections write them, and heads are taken where they lie.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, on_device, power

ROWS = 32
"""Tokens of a convolution's program."""


class Place(NamedTuple):
    """Where units of equal size lie in a projection's channels.

    Attributes:
        kinds: Kinds of units: 2 for queries and keys.
        number: Units of a kind.
        dim: Channels of a unit.
        first: Channel at which the first unit begins.
        step: Channels from the first unit of a kind to that of the next.
        group: Channels from a group of units to the next.
        per: Units of a group, side by side.
    """

    kinds: int
    number: int
    dim: int
    first: int
    step: int
    group: int
    per: int = 1


def mixed_heads(
    x: Tensor, weight: Tensor, place: Place, *, unit: float | None = None, scale: float = 1.0
) -> Tensor:  # fmt: skip
    """silu(causal depthwise convolution) of some channels of x: (batch, token, kind · unit, dim).

    Args:
        x: Projection (batch, token, channel).
        weight: Taps (kind · unit · dim, 1, tap), in the order of the result.
        place: Where the units lie.
        unit: Divide every unit by √(‖·‖² + unit), and multiply those of the first kind by `scale`.
        scale: See there.
    """
    from repflow.mixers.triton.kernels import heads as kernels

    batch, tokens = x.shape[:2]
    units, blocks = place.kinds * place.number, ceil_div(tokens, ROWS)
    y = torch.empty(batch, tokens, units, place.dim, dtype=x.dtype, device=x.device)
    part = x[..., place.first :]
    with on_device(x):
        kernels.mix_kernel[(batch * blocks, units)](
            part, weight, y, tokens, blocks, units, place.number, place.per, place.step, place.group, part.stride(0),
            part.stride(1), scale, 0.0 if unit is None else unit,
            TAPS=weight.shape[-1], T=ROWS, DIM=place.dim, D=power(place.dim, 16), UNIT=unit is not None, num_warps=4,
        )  # fmt: skip
    return y


def gated_head_norm(y: Tensor, z: Tensor, place: Place, weight: Tensor, eps: float, *, silu: bool = True) -> Tensor:
    """Give y / √(mean y² + eps) · weight · silu(z) of every head (or sigmoid(z)): (batch, token, head · dim).

    Args:
        y: (batch, token, head, dim), contiguous.
        z: Projection that the gates lie in (batch, token, channel), contiguous.
        place: Where.
        weight: (dim,).
        eps: Added to the mean square.
        silu: Whether the gate is silu, or else sigmoid.
    """
    from repflow.mixers.triton.kernels import heads as kernels

    batch, tokens, heads, dim = y.shape
    rows = batch * tokens * heads
    out = torch.empty(batch, tokens, heads * dim, dtype=y.dtype, device=y.device)
    each = max(1, 2048 // power(dim, 16))
    with on_device(y):
        kernels.head_norm_kernel[(ceil_div(rows, each),)](
            y, z[..., place.first :], weight, out, rows, heads, place.per, place.group, z.stride(1), eps,
            ROWS=each, DIM=dim, D=power(dim, 16), SILU=silu, num_warps=4,
        )  # fmt: skip
    return out
