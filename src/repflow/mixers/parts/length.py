"""Vectors of length 1, as the delta rule wants its keys and queries."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_length(x: Tensor, eps: float) -> Tensor:
    """Divide x (…, dim) by √(‖x‖² + eps), in float32 at least.

    >>> unit_length(torch.tensor([3.0, 4.0]), 0.0).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * reciprocal_length(wide, eps)[..., None]).to(x.dtype)


def reciprocal_length(x: Tensor, eps: float) -> Tensor:
    """1 / √(‖x‖² + eps) of x (…, dim).

    >>> reciprocal_length(torch.tensor([3.0, 4.0]), 0.0).item()
    0.20000000298023224
    """
    return torch.rsqrt(torch.linalg.vector_norm(x, dim=-1).square() + eps)
