"""Mamba's scan over many short rows of several models side by side, with gradients.

One warp walks one row with 16 states of 32 channels: all of a channel's states are in one lane's registers, so that a
token's read-out is summed within the lane. More states are groups of 16 that walk a row side by side, each for itself;
what is summed over all states is summed behind them, by kernels that go over tokens. Fewer fill one group up.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div

STATES, CHANNELS, FOUR = 16, 32, 4
"""Of a program: states, channels, and tokens from one kept state to the next.

Of a layer's scan on an H200, in bfloat16, in µs (in brackets the kernels before, which had 64 channels to a warp).
Columns of channels were then summed by torch; the compiler has as many registers and no more instructions for what is
here:

| models x rows x tokens x channels x states | forward | back |
|---|---|---|
| 2 x 64 x 256 x 336 x 16 | 227 (207) | 654 (1331) |
| 2 x 16 x 1024 x 160 x 16 | 599 (1009) | 1093 (2870) |
| 8 x 64 x 256 x 256 x 16 | 547 (438) | 1360 (2549) |

States kept before every eighth token in place of every fourth cost more than they save: 925, 1456 and 1793 back.
"""
TILE, TOKENS, SPAN = 64, 32, 256
"""Of a program of the parts around the scan: channels, tokens, and those over which it sums a parameter's gradient."""
PART = 1024
"""Tokens over which one product sums a weight's gradient, at most."""
JOINED = 1024
"""Numbers of a program that joins the gradients of B and C."""


class Sizes(NamedTuple):
    """Sizes of a launch: models, rows of one, tokens, channels, states, rank, numbers beside a token."""

    replicas: int
    rows: int
    tokens: int
    channels: int
    state: int
    rank: int
    side: int

    @classmethod
    def of(cls, x: Tensor, weights: Any) -> Sizes:
        """Of a stream (replica · row, token, width) and the weights of a block."""
        replicas, channels, state = weights.A.shape
        rank = weights.dt_proj.shape[2]
        side = ceil_div(rank + 2 * state, 8) * 8
        return cls(replicas, x.shape[0] // replicas, x.shape[1], channels, state, rank, side)

    @property
    def whole(self) -> int:
        """Tokens of all rows."""
        return self.replicas * self.rows * self.tokens

    @property
    def each(self) -> int:
        """Tokens of one model."""
        return self.rows * self.tokens

    @property
    def groups(self) -> int:
        """Groups of states."""
        return self.state // STATES

    @property
    def columns(self) -> int:
        """Programs side by side that have the channels of a row."""
        return ceil_div(self.channels, CHANNELS)

    def tile(self, most: int) -> int:
        """Greatest power of two that divides the tokens of one model, up to a bound, itself a power of two."""
        return math.gcd(self.each, most)

    def scan(self) -> dict[str, Any]:
        """Constants of the scan's kernels."""
        shape = {"channels": self.channels, "side": self.side, "STATE": self.state, "N": STATES, "BLOCK": CHANNELS}
        even, fused = self.channels % CHANNELS == 0, self.groups == 1
        return {**shape, "EVEN": even, "FUSED": fused, "num_warps": 1, "num_stages": 1}

    def around(self, tokens: int) -> tuple[tuple[int, int], dict[str, Any]]:
        """Grid and constants of the kernels around the scan, for a number of tokens to a program."""
        constants = {"channels": self.channels, "T": tokens, "BLOCK": TILE, "num_warps": 4}
        return (self.whole // tokens, ceil_div(self.channels, TILE)), constants


class Scanned(NamedTuple):
    """Gated output (row, token, channel), and what the gradient needs: step sizes, what was read, kept states."""

    y: Tensor
    step: Tensor
    read: Tensor
    marks: Tensor


class Gradients(NamedTuple):
    """Gradients of u, of a token's projections (B, C, low), of A, dt_proj, D and dt_bias."""

    u: Tensor
    maps: Tensor
    A: Tensor
    dt_proj: Tensor
    D: Tensor
    dt_bias: Tensor


def row_scan(u: Tensor, xz: Tensor, maps: Tensor, weights: Any, size: Sizes, keep: bool) -> Scanned:
    """Scan, skip and gate.

    Args:
        u: Channels behind the convolution (replica · row, token, channel).
        xz: What in_proj gives (replica · row, token, 2 channels); the gate is its second half.
        maps: Projections of each token, in float32: B, C, low, fillers.
        weights: `repflow.mixers.triton.replicas.BlockWeights`.
        size: Tokens in fours, states in groups.
        keep: Whether a gradient will be asked for; without it only the output means anything.
    """
    from repflow.mixers.triton.kernels import row_scan as kernels

    new: dict[str, Any] = {"dtype": torch.float32, "device": u.device}
    samples, D, (grid, around) = len(u), weights.D.contiguous(), size.around(size.tile(TOKENS))
    step, y = torch.empty(u.shape, **new), torch.empty_like(u)
    kernels.step_kernel[grid](
        maps, weights.dt_proj.mT.contiguous(), weights.dt_bias.contiguous(), step, size.each, side=size.side,
        LOW=2 * size.state, RANK=size.rank, **around,
    )  # fmt: skip
    marks = torch.empty(samples, size.tokens // FOUR, size.state, size.channels, **new) if keep else step
    read = torch.empty_like(u) if keep else y
    out = y if size.groups == 1 else torch.empty(size.groups, *u.shape, **new)
    kernels.row_kernel[(samples, size.columns, size.groups)](
        step, u, xz, maps, _rates(weights), D, marks, read, out, size.tokens, size.rows, samples, KEEP=keep,
        **size.scan(),
    )  # fmt: skip
    if size.groups > 1:
        kernels.gate_kernel[grid](
            out, u, xz, D, read, y, size.each, size.whole, GROUPS=size.groups, EVEN=size.channels % TILE == 0,
            KEEP=keep, **around,
        )  # fmt: skip
    return Scanned(y, step, read, marks)


def _rates(weights: Any) -> Tensor:
    """(replica, state, channel) with log2(e), as the kernels read them."""
    return (weights.A.mT * math.log2(math.e)).contiguous()


def row_scan_back(
    u: Tensor, xz: Tensor, maps: Tensor, scanned: Scanned, weights: Any, dy: Tensor, dxz: Tensor, size: Sizes
) -> Gradients:
    """Gradients of the scan; that of the gate is written into the second half of dxz."""
    from repflow.mixers.triton.kernels import row_scan as kernels

    new: dict[str, Any] = {"dtype": torch.float32, "device": u.device}
    samples, fused = len(u), size.groups == 1
    # of u and of the step size before softplus; of several groups what each adds to them
    slope, du, raw = dy, torch.empty_like(u), torch.empty_like(u)
    if not fused:
        grid, around = size.around(size.tile(TOKENS))
        slope, du, raw = (torch.empty(*lead, *u.shape, **new) for lead in ((), (size.groups,), (size.groups,)))
        kernels.gate_gradient_kernel[grid](
            dy, scanned.read, xz, slope, dxz, EVEN=size.channels % TILE == 0, **around
        )  # fmt: skip
    parts = torch.empty(size.columns, *maps.shape, **new)
    rates = torch.empty(samples, size.state, size.channels, **new)
    ends = torch.empty(samples, 2, size.channels, **new)
    kernels.row_gradient_kernel[(samples, size.columns, size.groups)](
        scanned.step, u, xz, slope, scanned.read, maps, _rates(weights), weights.D.contiguous(), scanned.marks, du, raw,
        dxz, parts, rates, ends, size.tokens, size.rows, samples, half=_half(u.dtype), DOT=u.dtype != torch.float32,
        **size.scan(),
    )  # fmt: skip
    if not fused:
        du, raw, ends = _summed_groups(du, raw, scanned.step, u, slope, weights.D.contiguous(), size)
    skip, bias = ends.view(size.replicas, -1, 2, size.channels).sum(1).unbind(1)
    d_rates = rates.view(size.replicas, size.rows, size.state, size.channels).sum(1).mT
    d_maps, d_weight = _projections(parts, raw, maps, weights, size)
    return Gradients(du, d_maps, d_rates, d_weight, skip, bias)


def _summed_groups(
    reach: Tensor, faded: Tensor, step: Tensor, u: Tensor, slope: Tensor, D: Tensor, size: Sizes
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of u and of the step size before softplus, and sums of those of skip and bias over spans of tokens."""
    from repflow.mixers.triton.kernels import row_scan as kernels

    span = size.tile(SPAN)
    grid, around = size.around(span)
    du, raw = torch.empty_like(u), torch.empty_like(u)
    ends = torch.empty(grid[0], 2, size.channels, dtype=torch.float32, device=u.device)
    kernels.step_gradient_kernel[grid](
        reach, faded, step, u, slope, D, du, raw, ends, size.each, size.whole, GROUPS=size.groups, SPAN=span,
        EVEN=size.channels % TILE == 0, **(around | {"T": math.gcd(span, 16)}),
    )  # fmt: skip
    return du, raw, ends


def _projections(parts: Tensor, raw: Tensor, maps: Tensor, weights: Any, size: Sizes) -> tuple[Tensor, Tensor]:
    """Gradients of a token's projections, in the dtype of products, and of dt_proj (replica, channel, rank)."""
    from repflow.mixers.triton.kernels import row_scan as kernels

    first, fillers = 2 * size.state, size.side - 2 * size.state - size.rank
    joined = torch.empty(maps.shape, dtype=raw.dtype, device=raw.device)
    kernels.join_kernel[(ceil_div(joined.numel(), JOINED),)](
        parts, joined, joined.numel(), side=size.side, KNOWN=first, COLUMNS=size.columns, BLOCK=JOINED, num_warps=4,
    )  # fmt: skip
    wide = raw.view(size.replicas, size.each, size.channels)
    # with the fillers, which are zeros: products of whole 16 bytes a row are faster
    weight = torch.nn.functional.pad(weights.dt_proj, (0, fillers)).to(raw.dtype)
    joined[..., first:] = torch.bmm(wide, weight).view(*raw.shape[:2], -1)
    low = maps[..., first:].to(raw.dtype, memory_format=torch.contiguous_format)
    return joined, product_over_tokens(raw, low, size)[..., : size.rank]


def product_over_tokens(a: Tensor, b: Tensor, size: Sizes) -> Tensor:
    """Sum over a model's tokens of a ⊗ b, (replica, a's width, b's width) in float32: in parts, then over the parts."""
    part = size.tile(PART)
    left, right = (tensor.view(-1, part, tensor.shape[-1]) for tensor in (a, b))
    products = product(left.mT, right)
    return products.view(size.replicas, -1, *products.shape[1:]).sum(1)


def product(left: Tensor, right: Tensor) -> Tensor:
    """Products of a batch of matrices in float32, whatever their dtype."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left, right).float()


def _half(kind: torch.dtype) -> Any:
    """Triton's name of a dtype; the matrix unit is not used for float32."""
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(kind, tl.bfloat16)
