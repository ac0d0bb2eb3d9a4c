"""Mamba's scan over many short rows with more states than a warp holds: groups of states side by side, with gradients.

A warp holds 16 states of 64 channels in its registers. With 64 states `repflow.mixers.triton.row_scan` keeps most of
them in slow memory; here four programs walk a row side by side, each with its own states, and what is summed over all
states is summed behind them. The parts around the scan (step size, gate, skip) go over tokens, not along rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

STATES, CHANNELS, FOUR = 16, 64, 4
"""Of a program: states, channels, and tokens from one kept state to the next."""
TOKENS, SPAN = 32, 256
"""Tokens of a tile of the parts around the scan, and those over which they sum a parameter's gradient, at most."""
LOG2E = math.log2(math.e)


class Sizes(NamedTuple):
    """Sizes of a launch: models, rows of one, tokens, channels, states, rank, numbers beside a token."""

    replicas: int
    rows: int
    tokens: int
    channels: int
    state: int
    rank: int
    side: int

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

    def fits(self) -> bool:
        """Whether the kernels here take it: more states than one warp holds, nothing over in any tile."""
        even = self.tokens % FOUR == 0 and self.channels % CHANNELS == 0 and self.state % STATES == 0
        return even and self.state > STATES

    def tile(self, most: int) -> int:
        """Tokens of a tile: a power of two that divides those of one model."""
        return math.gcd(self.each, most)

    def scan(self) -> dict[str, Any]:
        """Constants of the scan's kernels."""
        shape = {"channels": self.channels, "side": self.side, "STATE": self.state, "N": STATES}
        return {**shape, "BLOCK": CHANNELS, "EACH": CHANNELS // 32, "num_warps": 1}


class Scanned(NamedTuple):
    """Gated output (row, token, channel), and what the gradient needs: steps, entries, what was read, marks."""

    y: Tensor
    step: Tensor | None
    entry: Tensor | None
    read: Tensor | None
    marks: Tensor | None


class Gradients(NamedTuple):
    """Gradients of u, of a token's projections (B, C, low), of A, dt_proj, D and dt_bias."""

    u: Tensor
    maps: Tensor
    A: Tensor
    dt_proj: Tensor
    D: Tensor
    dt_bias: Tensor


def group_scan(u: Tensor, xz: Tensor, maps: Tensor, weights: Any, size: Sizes, keep: bool) -> Scanned:
    """Scan, skip and gate.

    Args:
        u: Channels behind the convolution (replica · row, token, channel).
        xz: What in_proj gives (replica · row, token, 2 channels); the gate is its second half.
        maps: Projections of each token, in float32: B, C, low, fillers.
        weights: `repflow.mixers.triton.row_scan.BlockWeights`.
        size: Sizes.
        keep: Whether a gradient will be asked for.
    """
    from repflow.mixers.triton.kernels import group_scan as kernels

    new: dict[str, Any] = {"dtype": torch.float32, "device": u.device}
    samples, columns, tile = len(u), size.channels // CHANNELS, size.tile(TOKENS)
    step, entry = torch.empty(u.shape, **new), torch.empty(u.shape, **new)
    around = {"channels": size.channels, "T": tile, "BLOCK": CHANNELS, "num_warps": 4}
    kernels.step_kernel[(size.whole // tile, columns)](
        maps, u, weights.dt_proj.mT.contiguous(), weights.dt_bias.contiguous(), step, entry, size.each,
        side=size.side, LOW=2 * size.state, RANK=size.rank, **around,
    )  # fmt: skip
    marks = torch.empty(samples, size.tokens // FOUR, size.state, size.channels, **new) if keep else None
    parts = torch.empty(size.groups, *u.shape, **new)
    kernels.group_kernel[(samples, columns, size.groups)](
        step, entry, maps, _rates(weights), step if marks is None else marks, parts, size.tokens, size.rows, samples,
        KEEP=keep, **size.scan(),
    )  # fmt: skip
    y = torch.empty_like(u)
    read = torch.empty_like(u) if keep else y
    kernels.gate_kernel[(size.whole // tile, columns)](
        parts, u, xz, weights.D.contiguous(), read, y, size.each, size.whole, GROUPS=size.groups, KEEP=keep, **around,
    )  # fmt: skip
    return Scanned(y, step, entry, read, marks)


def _rates(weights: Any) -> Tensor:
    """(replica, state, channel) with log2(e), as the kernels read them."""
    return (weights.A.mT * LOG2E).contiguous()


def group_scan_back(
    u: Tensor, xz: Tensor, maps: Tensor, scanned: Scanned, weights: Any, dy: Tensor, dxz: Tensor, size: Sizes
) -> Gradients:
    """Gradients of the scan; that of the gate is written into the second half of dxz."""
    from repflow.mixers.triton.kernels import group_scan as kernels

    new: dict[str, Any] = {"dtype": torch.float32, "device": u.device}
    samples, columns, tile = len(u), size.channels // CHANNELS, size.tile(TOKENS)
    around = {"channels": size.channels, "T": tile, "BLOCK": CHANNELS, "num_warps": 4}
    slope = torch.empty(u.shape, **new)
    kernels.gate_gradient_kernel[(size.whole // tile, columns)](dy, scanned.read, xz, slope, dxz, **around)
    reach, faded = (torch.empty(size.groups, *u.shape, **new) for _ in range(2))
    kind = u.dtype if columns == 1 else torch.float32
    d_maps = torch.empty(columns, *maps.shape, dtype=kind, device=u.device)
    sums = torch.empty(samples, size.state, size.channels, **new)
    kernels.group_gradient_kernel[(samples, columns, size.groups)](
        scanned.step, scanned.entry, slope, maps, _rates(weights), scanned.marks, reach, faded, d_maps, sums,
        size.tokens, size.rows, samples, half=_half(u.dtype), DOT=u.dtype != torch.float32, num_stages=1, **size.scan(),
    )  # fmt: skip
    span = size.tile(SPAN)
    du, raw = torch.empty_like(u), torch.empty_like(u)
    ends = torch.empty(size.whole // span, 2, size.channels, **new)
    kernels.step_gradient_kernel[(size.whole // span, columns)](
        reach, faded, scanned.step, u, slope, weights.D.contiguous(), du, raw, ends, size.each, size.whole,
        GROUPS=size.groups, SPAN=span, **(around | {"T": math.gcd(span, 16)}),
    )  # fmt: skip
    skip, bias = ends.view(size.replicas, -1, 2, size.channels).sum(1).unbind(1)
    rates = sums.view(size.replicas, size.rows, size.state, size.channels).sum(1).mT
    joined = d_maps[0] if columns == 1 else d_maps.sum(0).to(u.dtype)
    d_weight = _low_rank(raw, maps, joined, weights, size)
    return Gradients(du, joined, rates, d_weight, skip, bias)


def _low_rank(raw: Tensor, maps: Tensor, d_maps: Tensor, weights: Any, size: Sizes) -> Tensor:
    """Write the gradient of low into d_maps, zeros into its fillers; gives that of dt_proj (replica, channel, rank)."""
    first, last = 2 * size.state, 2 * size.state + size.rank
    wide = raw.view(size.replicas, size.each, size.channels)
    low = torch.bmm(wide, weights.dt_proj.to(raw.dtype)).view(*raw.shape[:2], size.rank)
    d_maps[..., first:last] = low
    d_maps[..., last:] = 0
    part = size.tile(1024)
    left, right = (
        value.reshape(-1, part, value.shape[-1]).to(raw.dtype) for value in (raw, maps[..., first:last].contiguous())
    )
    products = torch.bmm(left.mT, right).float()
    return products.view(size.replicas, -1, size.channels, size.rank).sum(1)


def _half(kind: torch.dtype) -> Any:
    """Triton's name of a dtype; the matrix unit is not used for float32."""
    import triton.language as tl

    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}.get(kind, tl.bfloat16)
