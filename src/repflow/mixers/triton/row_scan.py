"""Residual blocks of Mamba over many short rows, of several models of one shape side by side, with gradients.

    x + out_proj(scan(silu(conv(u)), softplus(dt)) silu(z))        u, z = in_proj(norm(x))        dt, B, C = x_proj(u)

Many small models do not fill a GPU one by one. Here their parameters are stacked along a first axis (replica, ...), the
products run as batches, and every kernel takes all rows of all models at once. What a model computes does not depend on
those beside it: no sum goes over two replicas, and how sums are cut depends on the shape of a batch alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton.block import SPAN, conv_backward, conv_forward, norm_backward, norm_forward
from repflow.mixers.triton.group_scan import (
    CHANNELS,
    FOUR,
    STATES,
    Gradients,
    Scanned,
    Sizes,
    group_scan,
    group_scan_back,
)
from repflow.mixers.triton.launch import ceil_div, on_device, power

TILE = 1024
"""Numbers of a (state, channel) tile. On an H200 the gradient takes 0.51 ms of a model's step (benchmarks/replicas.py).
With 32 channels to a tile (TILE = 512) the conversion in front of the matrix unit conflicts in
shared memory: 6.9 ms. There sums go across lanes: 1.4 ms at 16 states."""
NEVER = -1e30
"""Rate that stands for −∞, a decay of exactly 0 for every step size above 1e-28."""
PART = 1024
"""Tokens over which one product sums a weight's gradient, at most."""
NORM_ROWS = 256
"""Rows over which a program sums a norm's gradient, at most."""


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


class _Sizes(Sizes):
    """Sizes of a launch, and how its kernels are cut."""

    @classmethod
    def of(cls, x: Tensor, weights: BlockWeights) -> _Sizes:
        replicas, channels, state = weights.A.shape
        rank = weights.dt_proj.shape[2]
        side = ceil_div(rank + 2 * state, 8) * 8
        return cls(replicas, x.shape[0] // replicas, x.shape[1], channels, state, rank, side)

    def tiles(self) -> dict[str, Any]:
        """How channels are cut; 32 lanes hold whole columns of a tile."""
        n = power(self.state, 16)
        block = min(max(32, TILE // n), power(self.channels, 32))
        even = self.tokens % 4 == 0 and self.channels % block == 0
        return {
            "channels": self.channels, "side": self.side, "RANK": self.rank, "K": power(self.rank), "STATE": self.state,
            "N": n, "BLOCK": block, "EACH": block // 32, "EVEN": even, "num_warps": 1,
        }  # fmt: skip

    def parts(self, most: int) -> int:
        """Greatest power of two that divides the tokens of one model, up to a bound."""
        return math.gcd(self.rows * self.tokens, most)


def _wide(tensor: Tensor, replicas: int) -> Tensor:
    """(replica · row, token, width) → (replica, row · token, width)."""
    return tensor.view(replicas, -1, tensor.shape[-1])


def _product_over_tokens(a: Tensor, b: Tensor, size: _Sizes) -> Tensor:
    """Sum over a model's tokens of a ⊗ b, (replica, a's width, b's width) in float32: in parts, then over the parts."""
    part = size.parts(PART)
    left, right = (tensor.view(-1, part, tensor.shape[-1]) for tensor in (a, b))
    products = _product(left.mT, right)
    return products.view(size.replicas, -1, *products.shape[1:]).sum(1)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Products of a batch of matrices in float32, whatever their dtype."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right).float()


def _scan(
    u: Tensor, xz: Tensor, maps: Tensor, weights: BlockWeights, size: _Sizes, keep: bool
) -> tuple[Tensor, None, None, None, Tensor | None]:
    """Gated output (replica · row, token, channel), and for the gradient the states before every fourth token."""
    from repflow.mixers.triton.kernels.row_scan import row_kernel

    samples, fours = len(u), ceil_div(size.tokens, 4)
    y, marks = torch.empty_like(u), None
    if keep:
        marks = torch.empty(samples, fours, size.state, size.channels, dtype=torch.float32, device=u.device)
    tiles = size.tiles()
    row_kernel[(samples, ceil_div(size.channels, tiles["BLOCK"]))](
        u, xz, maps, *_parameters(weights), u if marks is None else marks, y, size.tokens, size.rows,
        KEEP=keep, **tiles,
    )  # fmt: skip
    return y, None, None, None, marks


def _parameters(weights: BlockWeights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As the kernels read them: (replica, rank, channel), bias, (replica, state, channel) with log2(e), skip."""
    rate = (weights.A.mT * math.log2(math.e)).contiguous()
    return weights.dt_proj.mT.contiguous(), weights.dt_bias.contiguous(), rate, weights.D.contiguous()


def _scan_back(
    u: Tensor, xz: Tensor, maps: Tensor, scanned: Scanned, weights: BlockWeights, dy: Tensor, dxz: Tensor, size: _Sizes
) -> Gradients:
    """Gradients of the scan; that of z is written into the second half of dxz."""
    from repflow.mixers.triton.kernels.row_scan import row_gradient_kernel

    samples, tiles = len(u), size.tiles()
    columns = ceil_div(size.channels, tiles["BLOCK"])
    new: dict[str, Any] = {"dtype": torch.float32, "device": u.device}
    du = torch.empty_like(u)
    parts = torch.empty(columns, samples, size.tokens, size.side, **new)
    sums = torch.empty(samples, size.state + size.rank + 2, size.channels, **new)
    row_gradient_kernel[(samples, columns)](
        u, xz, maps, *_parameters(weights), scanned.marks, dy, du, dxz, parts, sums, size.tokens, size.rows, samples,
        DOT=u.dtype != torch.float32 and tiles["BLOCK"] >= 64, num_stages=1, **tiles,
    )  # fmt: skip
    total = sums.view(size.replicas, size.rows, *sums.shape[1:]).sum(1)
    rate, step, skip, bias = torch.split(total, [size.state, size.rank, 1, 1], 1)
    d_maps = torch.empty(maps.shape, dtype=u.dtype, device=u.device)
    torch.add(parts[0], parts[1], out=d_maps) if columns == 2 else d_maps.copy_(parts.sum(0))
    return Gradients(du, d_maps, rate.mT, step.mT, skip[:, 0], bias[:, 0])


class _Block(torch.autograd.Function):
    """One residual block of all models; x is (replica · row, token, width) in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, half: torch.dtype, *parts: Tensor) -> Tensor:
        weights = BlockWeights(*parts)
        size = _Sizes.of(x, weights)
        keep = any(ctx.needs_input_grad)
        with on_device(x):
            normed = norm_forward(x, weights.norm.contiguous(), eps, half, replicas=size.replicas)
            into, side, out = _halves(weights, size, half)
            xz = torch.bmm(_wide(normed, size.replicas), into.mT).view(*x.shape[:2], -1)
            u = conv_forward(
                xz[..., : size.channels], weights.conv.contiguous(), weights.conv_bias.contiguous(),
                replicas=size.replicas,
            )  # fmt: skip
            maps = _product(_wide(u, size.replicas), side.mT).view(*x.shape[:2], -1)
            if size.fits():
                scanned = group_scan(u, xz, maps, weights, size, keep)
            else:
                scanned = Scanned(*_scan(u, xz, maps, weights, size, keep))
            mixed = torch.bmm(_wide(scanned.y, size.replicas), out.mT).view_as(x)
        if keep:
            ctx.save_for_backward(x, normed, xz, u, maps, *scanned, *parts)
            ctx.eps, ctx.half, ctx.size = eps, half, size
        return x + mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, normed, xz, u, maps, *rest = ctx.saved_tensors
        scanned, weights, size = Scanned(*rest[:5]), BlockWeights(*rest[5:]), ctx.size
        replicas, slope = size.replicas, slope.contiguous()
        with on_device(x):
            into, side, out = _halves(weights, size, ctx.half)
            narrow = slope.to(ctx.half)
            dy = torch.bmm(_wide(narrow, replicas), out).view_as(u)
            d_out = _product_over_tokens(narrow, scanned.y, size)
            dxz = torch.empty_like(xz)
            back_through = group_scan_back if size.fits() else _scan_back
            back = back_through(u, xz, maps, scanned, weights, dy, dxz, size)
            turned, ends = _product_over_tokens(back.maps, u, size), 2 * size.state
            d_side = torch.cat([turned[:, ends : ends + size.rank], turned[:, :ends]], 1)
            du = torch.baddbmm(_wide(back.u, replicas), _wide(back.maps, replicas), side).view_as(u)
            d_conv = _conv_back(xz, weights, du, dxz, size)
            dn = torch.bmm(_wide(dxz, replicas), into).view_as(x)
            d_in = _product_over_tokens(dxz, normed, size)
            dx = torch.empty_like(x)
            programs = len(x) * size.tokens // size.parts(NORM_ROWS)
            sums = torch.empty(programs, x.shape[2], dtype=torch.float32, device=x.device)
            norm_backward(x, weights.norm.contiguous(), ctx.eps, dn, dx, sums, passed=slope, replicas=replicas)
            d_norm = sums.view(replicas, -1, x.shape[2]).sum(1)
        gradients = BlockWeights(d_norm, d_in, *d_conv, d_side, back.dt_proj, back.dt_bias, back.A, back.D, d_out)
        return dx, None, None, *gradients


def _halves(weights: BlockWeights, size: _Sizes, half: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the products in half precision; x_proj as the kernels read a token's projections: B, C, step size.

    Rows of zeros fill it up to a whole number of 16 bytes.
    """
    rank = size.rank
    turned = torch.cat([weights.x_proj[:, rank:], weights.x_proj[:, :rank]], 1)
    filled = torch.nn.functional.pad(turned, (0, 0, 0, size.side - turned.shape[1]))
    return weights.in_proj.to(half), filled.to(half), weights.out_proj.to(half)


def _conv_back(xz: Tensor, weights: BlockWeights, du: Tensor, dxz: Tensor, size: _Sizes) -> tuple[Tensor, Tensor]:
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
    output: Tensor = _Block.apply(x, eps, half, *_filled(weights, x.shape[1]))  # type: ignore[no-untyped-call]
    return output


def _filled(weights: BlockWeights, tokens: int) -> BlockWeights:
    """Weights with states that nothing enters and nothing reads, up to whole groups, where the kernels for these run.

    18 states become two groups of 16: a tile of 32 states by 32 channels, which would hold them, is far slower.
    """
    state, rank = weights.A.shape[2], weights.dt_proj.shape[2]
    more = -state % STATES
    even = tokens % FOUR == 0 and weights.A.shape[1] % CHANNELS == 0
    if state < STATES or not more or not even:
        return weights
    low, into, out = torch.split(weights.x_proj, [rank, state, state], 1)
    into, out = (torch.nn.functional.pad(part, (0, 0, 0, more)) for part in (into, out))
    rates = torch.nn.functional.pad(weights.A, (0, more), value=-1.0)
    return weights._replace(x_proj=torch.cat([low, into, out], 1), A=rates)
