"""LayerNorm of many narrow rows in Triton, with gradients, also of several models side by side.

torch gives every row a block of threads: on an H200 a norm of 400,000 rows of 32 numbers took 0.6 ms, where its bytes
take 0.03, and under torch.vmap weight and bias are operations of their own, with a sum each in the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from repflow.mixers.triton.launch import ceil_div, obstacle, on_device, power
from repflow.mixers.triton.transforms import batch_first, whole_tensors

MOST = 256
"""Numbers of a row, at most; torch's own kernel is as fast for wide ones."""
TILE = 2048
"""Numbers of a tile, whole rows."""
SPAN = 256
"""Rows over which a program sums the gradients of weight and bias, at least a tile of them."""


class _LayerNorm(torch.autograd.Function):
    """Of x (replica, ..., width) with weight and bias (replica, width); torch.vmap makes replicas of one model."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, kind: torch.dtype) -> Tensor:
        from repflow.mixers.triton.kernels import layer_norm as kernels

        x = x.contiguous()
        y = torch.empty(x.shape, dtype=kind, device=x.device)
        replicas, width = weight.shape
        each, rows = x.numel() // (replicas * width), _rows(width)
        with on_device(x):
            kernels.layer_norm_kernel[(ceil_div(each, rows), replicas)](
                x, weight.contiguous(), _or(bias, weight), y, each, width, eps,
                ROWS=rows, BLOCK=power(width), BIAS=bias is not None, num_warps=4,
            )  # fmt: skip
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.eps, _ = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        from repflow.mixers.triton.kernels import layer_norm as kernels

        x, weight = ctx.saved_tensors
        x, slope = x.contiguous(), slope.contiguous()
        replicas, width = weight.shape
        each, rows = x.numel() // (replicas * width), _rows(width)
        span = max(rows, SPAN // rows * rows)
        programs = ceil_div(each, span)
        dx = torch.empty_like(x)
        sums = torch.empty(replicas, programs, 2, width, dtype=torch.float32, device=x.device)
        with on_device(x):
            kernels.layer_norm_gradient_kernel[(programs, replicas)](
                x, weight.contiguous(), slope, dx, sums, each, width, span, ctx.eps,
                ROWS=rows, BLOCK=power(width), BIAS=ctx.biased, num_warps=4,
            )  # fmt: skip
        d_weight = sums[:, :, 0].sum(1).to(weight.dtype)
        d_bias = sums[:, :, 1].sum(1).to(weight.dtype) if ctx.biased else None
        return dx, d_weight, d_bias, None, None

    @staticmethod
    def vmap(
        info: Any, axes: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, kind: torch.dtype
    ) -> tuple[Tensor, int]:
        """Inside torch.vmap there is one replica, whose axis the batched one becomes."""
        x, weight, *rest = batch_first(
            info, axes[: 2 + (bias is not None)], x, weight, *([] if bias is None else [bias])
        )
        parts = (x.squeeze(1), weight.squeeze(1), rest[0].squeeze(1) if rest else None)
        y: Tensor = _LayerNorm.apply(*parts, eps, kind)  # type: ignore[no-untyped-call]
        return y.unsqueeze(1), 0


def _rows(width: int) -> int:
    return max(1, TILE // power(width))


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor.contiguous()


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm over the last axis, by the kernels where they are faster: narrow rows on a GPU.

    >>> [round(number, 2) for number in LayerNorm(4)(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()]
    [-1.34, -0.45, 0.45, 1.34]
    """

    def forward(self, input: Tensor) -> Tensor:
        """(..., width) → same."""
        if (
            self.normalized_shape[0] > MOST
            or not whole_tensors()
            or obstacle(input, self.weight, self.bias) is not None
        ):
            return super().forward(input)
        mixed = input.is_cuda and torch.is_autocast_enabled("cuda")
        kind = torch.float32 if mixed else input.dtype  # as torch's own
        bias = None if self.bias is None else self.bias[None]
        y: Tensor = _LayerNorm.apply(input[None], self.weight[None], bias, self.eps, kind)  # type: ignore[no-untyped-call]
        return y[0]
