"""Cross entropy over a vocabulary in Triton: one visit of the logits for the loss, one for the gradient.

    loss = mean over tokens of log Σ_v exp(logit_v) − logit_target

    d loss / d logit_v = (softmax(logits)_v − [v = target]) / tokens

The gradient replaces the logits where they lie, so a training step never holds a second tensor of their size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.triton.launch import ceil_div, on_device, power, rowwise


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        from repflow.mixers.triton.kernels.loss import loss_kernel

        logits, target = rowwise(logits), target.contiguous()
        rows, size = logits.shape
        loss, whole = torch.empty(2, rows, dtype=torch.float32, device=logits.device)
        with on_device(logits):
            loss_kernel[(rows,)](
                logits, target, loss, whole, loss, size, logits.stride(0),
                BLOCK=min(4096, power(size)), HIT=False, num_warps=4,
            )  # fmt: skip
        # not through save_for_backward, which would refuse the second use of a tensor that is overwritten
        ctx.held = logits, target, whole
        return loss.mean()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        from repflow.mixers.triton.kernels.loss import loss_gradient_kernel

        if ctx.held is None:
            raise InputError(teach("one backward pass through this loss", "a second one", "compute the loss again"))
        (logits, target, whole), ctx.held = ctx.held, None
        rows, size = logits.shape
        block = min(2048, power(size))
        with on_device(logits):
            loss_gradient_kernel[(rows, ceil_div(size, block))](
                logits, target, whole, slope, size, logits.stride(0), 0, 1.0 / rows, BLOCK=block, num_warps=4
            )  # fmt: skip
        return logits, None


class _RowLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        from repflow.mixers.triton.kernels.loss import loss_kernel

        logits, target = rowwise(logits), target.contiguous()
        rows, size = logits.shape
        loss, whole, hit = (torch.empty(rows, dtype=torch.float32, device=logits.device) for _ in range(3))
        with on_device(logits):
            loss_kernel[(rows,)](
                logits, target, loss, whole, hit, size, logits.stride(0),
                BLOCK=min(4096, power(size)), HIT=True, num_warps=4,
            )  # fmt: skip
        ctx.held = logits, target, whole
        ctx.mark_non_differentiable(hit)
        return loss, hit

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor, None]:
        from repflow.mixers.triton.kernels.loss import loss_gradient_kernel

        if ctx.held is None:
            raise InputError(teach("one backward pass through this loss", "a second one", "compute the loss again"))
        (logits, target, whole), ctx.held = ctx.held, None
        rows, size = logits.shape
        block = min(2048, power(size))
        with on_device(logits):
            loss_gradient_kernel[(rows, ceil_div(size, block))](
                logits, target, whole, slope.contiguous(), size, logits.stride(0), 1, 1.0, BLOCK=block, num_warps=4
            )  # fmt: skip
        return logits, None


def row_losses_in_place(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy of every row of logits (token, vocabulary), and 1 where the target has the greatest logit.

    As `cross_entropy_in_place`, the backward pass overwrites the logits and can run once.
    """
    loss, hit = _RowLosses.apply(logits, target)  # type: ignore[no-untyped-call]
    return loss, hit


def cross_entropy_in_place(logits: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of logits (token, vocabulary) against target (token,).

    The backward pass overwrites the logits, and can run once: give it logits that nothing reads later.
    """
    loss: Tensor = _CrossEntropy.apply(logits, target)  # type: ignore[no-untyped-call]
    return loss
