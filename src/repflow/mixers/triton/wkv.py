"""RWKV-4's weighted mean of past values in Triton, with gradients, also of several models side by side.

By transition and readout a layer is some fifty operations on whole tensors; here keys and values are read once, and the
mean is written once. The state before every token is kept for the gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, obstacle, on_device
from repflow.mixers.triton.transforms import batch_first, whole_tensors

BLOCK = 32
"""Channels of a program, which is one warp."""


class _Mean(torch.autograd.Function):
    """Mean (replica · row, token, channel) of keys and values; rate and bonus are (replica, channel)."""

    @staticmethod
    def forward(k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, keep: bool) -> tuple[Tensor, ...]:
        from repflow.mixers.triton.kernels import wkv as kernels

        k, v, rate, bonus = (part.contiguous() for part in (k, v, rate, bonus))
        mean = torch.empty(k.shape, dtype=torch.float32, device=k.device)
        num, den, scale = (torch.empty_like(mean if keep else mean[:, 0, 0]) for _ in range(3))
        with on_device(k):
            kernels.wkv_kernel[(len(k), ceil_div(k.shape[2], BLOCK))](
                k, v, rate, bonus, mean, num, den, scale, *k.shape[1:], len(k) // len(rate),
                BLOCK=BLOCK, KEEP=keep, num_warps=1,
            )  # fmt: skip
        return mean, num, den, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:4], *output[1:])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        from repflow.mixers.triton.kernels import wkv as kernels

        if slope is None:
            return None, None, None, None, None
        k, v, rate, bonus, num, den, scale = (part.contiguous() for part in ctx.saved_tensors)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        d_rate, d_bonus = (torch.empty(len(k), k.shape[2], dtype=torch.float32, device=k.device) for _ in range(2))
        with on_device(k):
            kernels.wkv_gradient_kernel[(len(k), ceil_div(k.shape[2], BLOCK))](
                k, v, rate, bonus, num, den, scale, slope.contiguous(), dk, dv, d_rate, d_bonus, *k.shape[1:],
                len(k) // len(rate), BLOCK=BLOCK, num_warps=1,
            )  # fmt: skip
        sums = (part.view(len(rate), -1, k.shape[2]).sum(1) for part in (d_rate, d_bonus))
        d_rate, d_bonus = (part.to(kind.dtype) for part, kind in zip(sums, (rate, bonus), strict=True))
        return dk, dv, d_rate, d_bonus, None

    @staticmethod
    def vmap(info: Any, axes: Any, k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor, keep: bool) -> tuple[Any, Any]:
        """Inside torch.vmap there is one replica, whose axis the batched one becomes; its rows follow one another."""
        parts = [part.flatten(0, 1) for part in batch_first(info, axes[:4], k, v, rate, bonus)]
        outputs = _Mean.apply(*parts, keep)  # type: ignore[no-untyped-call]
        return tuple(torch.unflatten(part, 0, (info.batch_size, -1)) for part in outputs), (0,) * len(outputs)


def wkv_obstacle(*tensors: Tensor) -> str | None:
    """Why the kernels cannot take what is made of these; None if they can."""
    return obstacle(*tensors) if whole_tensors() else "a torch.func transform or forward-mode differentiation"


def weighted_mean(k: Tensor, v: Tensor, rate: Tensor, bonus: Tensor) -> Tensor:
    """Mean of the values so far, differentiable: (batch, token, channel) in float32.

        (num_t + e^{u + k_t} v_t) / (den_t + e^{u + k_t})        num_{t+1} = e^{−w} num_t + e^{k_t} v_t, den likewise

    Args:
        k: Keys (batch, token, channel).
        v: Values, likewise.
        rate: Decay rates w (channel,), at least 0.
        bonus: Of the current token, u (channel,).
    """
    mean: Tensor = _Mean.apply(k, v, rate[None], bonus[None], torch.is_grad_enabled())[0]  # type: ignore[no-untyped-call]
    return mean
