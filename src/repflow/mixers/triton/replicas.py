"""Residual blocks of Mamba over many short rows, of several models of one shape side by side, with gradients.

    x + out_proj(scan(silu(conv(u)), softplus(dt)) silu(z))        u, z = in_proj(norm(x))        dt, B, C = x_proj(u)

Many small models do not fill a GPU one by one. Here their parameters are stacked along a first axis (replica, ...), the
products run as batches, and every kernel takes all rows of all models at once. No sum goes over two replicas. The
scan's kernels give a model the same bits whatever stands beside it; a library of matrix products may choose another
kernel for another number of models.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from repflow.mixers.triton.block import SPAN, conv_backward, conv_forward, norm_backward, norm_forward
from repflow.mixers.triton.launch import ceil_div, on_device
from repflow.mixers.triton.row_scan import (
    FOUR,
    STATES,
    Scanned,
    Sizes,
    product,
    product_over_tokens,
    row_scan,
    row_scan_back,
)

NEVER = -1e30
"""Rate that stands for −∞, a decay of exactly 0 for every step size above 1e-28."""
NORM_ROWS = 16
"""Rows over which a program sums a norm's gradient, at most. With 256, 2 models of 64 rows of 256 tokens had 128
programs that went over them one by one: 0.21 ms a layer on an H200, where their bytes would take 0.02."""


class BlockWeights(NamedTuple):
    """Parameters of one block of all models, in float32.

    Attributes:
        norm: Of the norm (replica, width).
        in_proj: (replica, 2 channels, width).
        conv: (replica, channel, tap).
        conv_bias: (replica, channel).
        x_proj: (replica, rank + 2 states, channel).
        dt_proj: (replica, channel, rank).
        dt_bias: (replica, channel).
        A: Decay rates (replica, channel, state), at least NEVER.
        D: Skip (replica, channel).
        out_proj: (replica, width, channel).
    """

    norm: Tensor
    in_proj: Tensor
    conv: Tensor
    conv_bias: Tensor
    x_proj: Tensor
    dt_proj: Tensor
    dt_bias: Tensor
    A: Tensor
    D: Tensor
    out_proj: Tensor


def _wide(tensor: Tensor, replicas: int) -> Tensor:
    """(replica · row, token, width) → (replica, row · token, width)."""
    return tensor.view(replicas, -1, tensor.shape[-1])


class _Block(torch.autograd.Function):
    """One residual block of all models; x is (replica · row, token, width) in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, half: torch.dtype, *parts: Tensor) -> Tensor:
        weights = BlockWeights(*parts)
        size = Sizes.of(x, weights)
        keep = any(ctx.needs_input_grad)
        with on_device(x):
            normed = norm_forward(x, weights.norm.contiguous(), eps, half, replicas=size.replicas)
            into, side, out = _halves(weights, size, half)
            xz = torch.bmm(_wide(normed, size.replicas), into.mT).view(*x.shape[:2], -1)
            u = conv_forward(
                xz[..., : size.channels], weights.conv.contiguous(), weights.conv_bias.contiguous(),
                replicas=size.replicas,
            )  # fmt: skip
            maps = product(_wide(u, size.replicas), side.mT).view(*x.shape[:2], -1)
            scanned = row_scan(u, xz, maps, weights, size, keep)
            mixed = torch.bmm(_wide(scanned.y, size.replicas), out.mT).view_as(x)
        if keep:
            ctx.save_for_backward(x, normed, xz, u, maps, *scanned, *parts)
            ctx.eps, ctx.half, ctx.size = eps, half, size
        return x + mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, normed, xz, u, maps, *rest = ctx.saved_tensors
        scanned, weights, size = Scanned(*rest[:4]), BlockWeights(*rest[4:]), ctx.size
        replicas, slope = size.replicas, slope.contiguous()
        with on_device(x):
            into, side, out = _halves(weights, size, ctx.half)
            narrow = slope.to(ctx.half)
            dy = torch.bmm(_wide(narrow, replicas), out).view_as(u)
            d_out = product_over_tokens(narrow, scanned.y, size)
            dxz = torch.empty_like(xz)
            back = row_scan_back(u, xz, maps, scanned, weights, dy, dxz, size)
            turned, ends = product_over_tokens(back.maps, u, size), 2 * size.state
            d_side = torch.cat([turned[:, ends : ends + size.rank], turned[:, :ends]], 1)
            du = torch.baddbmm(_wide(back.u, replicas), _wide(back.maps, replicas), side).view_as(u)
            d_conv = _conv_back(xz, weights, du, dxz, size)
            dn = torch.bmm(_wide(dxz, replicas), into).view_as(x)
            d_in = product_over_tokens(dxz, normed, size)
            dx = torch.empty_like(x)
            programs = len(x) * size.tokens // size.tile(NORM_ROWS)
            sums = torch.empty(programs, x.shape[2], dtype=torch.float32, device=x.device)
            norm_backward(x, weights.norm.contiguous(), ctx.eps, dn, dx, sums, passed=slope, replicas=replicas)
            d_norm = sums.view(replicas, -1, x.shape[2]).sum(1)
        gradients = BlockWeights(d_norm, d_in, *d_conv, d_side, back.dt_proj, back.dt_bias, back.A, back.D, d_out)
        return dx, None, None, *gradients


def _halves(weights: BlockWeights, size: Sizes, half: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the products in half precision; x_proj as the kernels read a token's projections: B, C, step size.

    Rows of zeros fill it up to a whole number of 16 bytes.
    """
    rank = size.rank
    turned = torch.cat([weights.x_proj[:, rank:], weights.x_proj[:, :rank]], 1)
    filled = functional.pad(turned, (0, 0, 0, size.side - turned.shape[1]))
    return weights.in_proj.to(half), filled.to(half), weights.out_proj.to(half)


def _conv_back(xz: Tensor, weights: BlockWeights, du: Tensor, dxz: Tensor, size: Sizes) -> tuple[Tensor, Tensor]:
    """Write the gradient of the convolution's input into dxz; gives those of weight and bias."""
    taps, channels = weights.conv.shape[2], size.channels
    spans = len(xz) * ceil_div(size.tokens, SPAN)
    sums = torch.empty(spans, channels * (taps + 1), dtype=torch.float32, device=xz.device)
    conv_backward(
        xz[..., :channels], weights.conv.contiguous(), weights.conv_bias.contiguous(), du, dxz[..., :channels], sums,
        SPAN, replicas=size.replicas,
    )  # fmt: skip
    total = sums.view(size.replicas, -1, channels * (taps + 1)).sum(1)
    return total[:, : channels * taps].view_as(weights.conv), total[:, channels * taps :]


def row_block(x: Tensor, weights: BlockWeights, eps: float, half: torch.dtype) -> Tensor:
    """One residual block of several models.

    Args:
        x: Stream (replica · row, token, width) in float32, the rows of one model after those of another.
        weights: Of the block.
        eps: Of the norm.
        half: Dtype of products and of what is kept for the gradient.
    """
    tokens, parts = x.shape[1], _filled(weights)
    if tokens % FOUR:  # rows are filled up behind their end, which no token before it sees
        return row_block(functional.pad(x, (0, 0, 0, -tokens % FOUR)), parts, eps, half)[:, :tokens]
    output: Tensor = _Block.apply(x, eps, half, *parts)  # type: ignore[no-untyped-call]
    return output


def _filled(weights: BlockWeights) -> BlockWeights:
    """Weights with states that nothing enters and nothing reads, up to whole groups."""
    state, rank = weights.A.shape[2], weights.dt_proj.shape[2]
    more = -state % STATES
    if not more:
        return weights
    low, into, out = torch.split(weights.x_proj, [rank, state, state], 1)
    into, out = (functional.pad(part, (0, 0, 0, more)) for part in (into, out))
    rates = functional.pad(weights.A, (0, more), value=-1.0)
    return weights._replace(x_proj=torch.cat([low, into, out], 1), A=rates)
