"""Norm of each head's output, before the heads are joined."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from repflow.mixers.option import one_of

KINDS = ("rms", "group")
EPSILON = 1e-5


class HeadRMSNorm(nn.Module):
    """x / √(mean x² + ε) · weight over the last axis, one weight shared by all heads.

    >>> HeadRMSNorm(2)(torch.tensor([[3.0, 4.0]])).detach().square().mean().round(decimals=4)
    tensor(1.)
    """

    def __init__(self, size: int, *, eps: float = EPSILON) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm (..., head, dim), in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * self.weight).to(x.dtype)


class HeadGroupNorm(nn.Module):
    """GroupNorm with one group per head: (x − mean) / √(variance + ε) · weight + bias, both of (head, dim).

    >>> HeadGroupNorm(1, 2)(torch.tensor([[3.0, 5.0]])).detach().round(decimals=3)
    tensor([[-1.,  1.]])
    """

    def __init__(self, heads: int, size: int, *, eps: float = EPSILON) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, size))
        self.bias = nn.Parameter(torch.zeros(heads, size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Norm (..., head, dim), in float32 at least."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = nn.functional.layer_norm(wide, x.shape[-1:], eps=self.eps)
        return (normed * self.weight + self.bias).to(x.dtype)


def head_norm(kind: str, heads: int, size: int) -> HeadRMSNorm | HeadGroupNorm:
    """Norm by name: `rms` (weight shared by the heads) or `group` (mean removed, weight and bias per head)."""
    one_of("norm_kind", kind, KINDS)
    return HeadRMSNorm(size) if kind == "rms" else HeadGroupNorm(heads, size)
