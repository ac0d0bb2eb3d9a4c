"""Causal filters of many taps, up to as long as a row, in Triton, with gradients, also of several models side by side.

By Fourier transform a filter reads and writes complex numbers of twice the tokens many times over; here a row is
multiplied by a triangle of the filter's taps, on tensor cores. That is more arithmetic for long rows, so that there is
a length above which the transform stays. Products are in TF32, which is closer than the bfloat16 of autocast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, obstacle, on_device, power
from repflow.mixers.triton.transforms import batch_first, whole_tensors

LONGEST = 2048
"""Tokens of a row, at most."""


class Tiles(NamedTuple):
    """Sizes of what a program works on.

    Attributes:
        rows: of a product.
        tokens: that a program of the filter gives.
        step: tokens that it reads at a time.
        pair: tokens of a tile in the taps' gradient.
        turn: tokens and channels of a tile that is turned over.
    """

    rows: int = 64
    tokens: int = 128
    step: int = 64
    pair: int = 64
    turn: int = 32


TILES = Tiles()


class _Form(NamedTuple):
    """What is done behind a filter, and the dtype of the result."""

    gelu: bool
    kind: torch.dtype
    tiles: Tiles


class _Filter(torch.autograd.Function):
    """Of u (replica, row, token, channel) by taps (replica, channel, tap); torch.vmap makes replicas of one model."""

    @staticmethod
    def forward(
        u: Tensor, taps: Tensor, skip: Tensor | None, scale: Tensor | None, form: _Form
    ) -> tuple[Tensor, Tensor, Tensor]:
        from repflow.mixers.triton.kernels import long_filter as kernels

        u, taps = u.contiguous(), taps.contiguous()
        replicas, rows, tokens, channels = u.shape
        x, y = (torch.empty(replicas * channels, rows, tokens, dtype=torch.float32, device=u.device) for _ in range(2))
        out = torch.empty(u.shape, dtype=form.kind, device=u.device)
        grid, sizes = _turning(u, form.tiles)
        with on_device(u):
            kernels.enter_kernel[grid](u, x, tokens, channels, rows, **sizes)
            _filtered(x, taps, y, form.tiles, back=False)
            kernels.leave_kernel[grid](
                y, x, _or(skip, x), _or(scale, x), out, tokens, channels, rows,
                SKIP=skip is not None, GELU=form.gelu, SCALE=scale is not None, **sizes,
            )  # fmt: skip
        return out, x, y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        u, taps, skip, scale, ctx.form = inputs
        _, x, y = output
        ctx.mark_non_differentiable(x, y)
        ctx.set_materialize_grads(False)
        ctx.kind, ctx.shape, ctx.kinds = u.dtype, u.shape, (taps.dtype, None if skip is None else skip.dtype)
        ctx.save_for_backward(taps, skip, scale, x, y if ctx.form.gelu else x)  # y is for GELU's slope alone

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor | None, *others: Tensor | None) -> tuple[Tensor | None, ...]:
        from repflow.mixers.triton.kernels import long_filter as kernels

        if slope is None:
            return None, None, None, None, None
        taps, skip, scale, x, y = ctx.saved_tensors
        tiles: Tiles = ctx.form.tiles
        replicas, rows, tokens, channels = ctx.shape
        slope, taps = slope.contiguous(), taps.contiguous()
        grid, sizes = _turning(slope, tiles)
        dy, dx = torch.empty_like(x), torch.empty_like(x)
        du = torch.empty(ctx.shape, dtype=ctx.kind, device=x.device)
        parts = torch.empty(*grid[:2], channels, dtype=torch.float32, device=x.device) if skip is not None else x
        with on_device(x):
            kernels.return_kernel[grid](
                slope, y, x, _or(skip, x), _or(scale, x), dy, parts, tokens, channels, rows,
                SKIP=skip is not None, GELU=ctx.form.gelu, SCALE=scale is not None, **sizes,
            )  # fmt: skip
            _filtered(dy, taps, dx, tiles, back=True)
            kernels.end_kernel[grid](dx, dy, _or(skip, x), du, tokens, channels, rows, SKIP=skip is not None, **sizes)
            d_taps = _tap_gradient(x, dy, taps, tiles) if ctx.needs_input_grad[1] else None
        d_skip = None
        if skip is not None:
            d_skip = parts.view(replicas, -1, channels).sum(1).to(skip.dtype)
        return du, d_taps, d_skip, None, None

    @staticmethod
    def vmap(
        info: Any, axes: Any, u: Tensor, taps: Tensor, skip: Tensor | None, scale: Tensor | None, form: _Form
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Inside torch.vmap there is one replica, whose axis the batched one becomes."""
        parts: list[Tensor | None] = [u, taps, skip, scale]
        present = [place for place, part in enumerate(parts) if part is not None]
        first = batch_first(info, [axes[place] for place in present], *(part for part in parts if part is not None))
        for place, part in zip(present, first, strict=True):
            parts[place] = part.squeeze(1)
        out, x, y = _Filter.apply(*parts, form)  # type: ignore[no-untyped-call]
        apart = (torch.unflatten(part, 0, (info.batch_size, -1)) for part in (x, y))
        return (out.unsqueeze(1), *apart), (0, 0, 0)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    return other if tensor is None else tensor.contiguous()


def _turning(u: Tensor, tiles: Tiles) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Grid and sizes of the kernels that turn tiles over."""
    replicas, rows, tokens, channels = u.shape
    wide = min(tiles.turn, power(channels))
    grid = (replicas * rows, ceil_div(tokens, tiles.turn), ceil_div(channels, wide))
    return grid, {"T": tiles.turn, "C": wide, "num_warps": 4}


def _filtered(x: Tensor, taps: Tensor, y: Tensor, tiles: Tiles, *, back: bool) -> None:
    from repflow.mixers.triton.kernels import long_filter as kernels

    lines, rows, tokens = x.shape
    each = min(tiles.rows, power(rows, 16))
    kernels.filter_kernel[(lines, ceil_div(tokens, tiles.tokens), ceil_div(rows, each))](
        x,
        taps,
        y,
        tokens,
        rows,
        taps.shape[-1],
        ROWS=each,
        T=tiles.tokens,
        S=tiles.step,
        BACK=back,
        num_warps=8,
        num_stages=2,
    )


def _tap_gradient(x: Tensor, dy: Tensor, taps: Tensor, tiles: Tiles) -> Tensor:
    """In the form of the taps."""
    from repflow.mixers.triton.kernels import long_filter as kernels

    lines, rows, tokens = x.shape
    reach, size = taps.shape[-1], tiles.pair
    own = ceil_div(reach, size)
    count = min(own + 1, ceil_div(tokens, size))  # a diagonal goes on in the next tile
    pairs = torch.empty(lines, count, size, size, dtype=torch.float32, device=x.device)
    d_taps = torch.empty(lines, reach, dtype=torch.float32, device=x.device)
    each = min(tiles.rows, power(rows, 16))
    kernels.pair_kernel[(lines, count)](x, dy, pairs, tokens, rows, ROWS=each, B=size, num_warps=4, num_stages=2)
    kernels.diagonal_kernel[(lines, own)](pairs, d_taps, reach, count, B=size, num_warps=4)
    return d_taps.view(taps.shape).to(taps.dtype)


def filter_obstacle(u: Tensor, *others: Tensor | None) -> str | None:
    """Why the kernels do not take a filter over u (row, token, channel); None if they do: in half precision, on a GPU.

    >>> filter_obstacle(torch.zeros(1, 4, 2))
    'float32 was asked for'
    """
    if not torch.is_autocast_enabled(u.device.type):
        return f"{str(u.dtype).removeprefix('torch.')} was asked for"
    if u.shape[-2] > LONGEST:
        return f"more than {LONGEST:,} tokens"
    if not whole_tensors():
        return "a torch.func transform or forward-mode differentiation"
    return obstacle(u, *others)


def long_filter(
    u: Tensor,
    taps: Tensor,
    *,
    skip: Tensor | None = None,
    gelu: bool = False,
    scale: Tensor | None = None,
    kind: torch.dtype | None = None,
    tiles: Tiles = TILES,
) -> Tensor:
    """Causal convolution y_t = Σ_{s ≤ t} taps_{t−s} u_s, differentiable, then scale · gelu(y + skip u) where asked for.

    Args:
        u: (row, token, channel).
        taps: (channel, tap), no more than there are tokens.
        skip: Of each channel (channel,).
        gelu: Whether GELU follows.
        scale: Of each row and channel (row, channel), such as dropout's; it gets no gradient.
        kind: Dtype of the result; that of u if left out.
        tiles: Sizes of the kernels' tiles.
    """
    parts = (part[None] if part is not None else None for part in (u, taps, skip, scale))
    form = _Form(gelu, kind or u.dtype, tiles)
    out: Tensor = _Filter.apply(*parts, form)[0]  # type: ignore[no-untyped-call]
    return out[0]
