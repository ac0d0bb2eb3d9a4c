"""A Mamba block's other parts in Triton, with gradients: causal convolution with SiLU, RMS norm, gated RMS norm.

Tensors are (batch, token, channel) throughout, as projections write them, and parts of a projection are taken where
they lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.triton.launch import ceil_div, on_device, power, rowwise

MAX_WIDTH = 16_384
"""A token's row is held in registers by the norms."""
MAX_TAPS = 4
"""Tokens a convolution reaches over: its gradient keeps that many in registers."""
PROGRAMS = 2112
"""Programs that fill a GPU of 132 multiprocessors several times over."""
SPAN = 64
"""Tokens over which a program sums a parameter's gradient."""


def _aligned(*strides: int) -> bool:
    return all(stride % 8 == 0 for stride in strides)


def conv_forward(x: Tensor, weight: Tensor, bias: Tensor | None, *, silu: bool = True, replicas: int = 1) -> Tensor:
    """Causal depthwise convolution of x (batch, token, channel) with weight (channel, 1, K), then SiLU.

    With several replicas x holds the samples of one after those of another, and weight and bias have them in front.
    """
    from repflow.mixers.triton.kernels import block as kernels

    batch, tokens, channels = x.shape
    y = torch.empty(batch, tokens, channels, dtype=x.dtype, device=x.device)
    rows, block = 32, min(128, power(channels, 16))
    blocks = ceil_div(tokens, rows)
    kernels.conv_kernel[(batch * blocks, ceil_div(channels, block))](
        x, weight, weight if bias is None else bias, y, tokens, channels, blocks, batch // replicas,
        x.stride(0), x.stride(1),
        K=weight.shape[-1], T=rows, BLOCK=block, BIAS=bias is not None, SILU=silu,
        ALIGNED=_aligned(x.stride(0), x.stride(1)), num_warps=4,
    )  # fmt: skip
    return y


def conv_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, dy: Tensor, dx: Tensor, sums: Tensor, span: int,
    *, silu: bool = True, replicas: int = 1,
) -> None:  # fmt: skip
    """Write dx where it lies, and each span's part of the gradients of weight and bias. dy is contiguous.

    `sums` is (batch · spans, channels · (taps + 1)): the weight's part as it lies, then the bias's.
    """
    from repflow.mixers.triton.kernels import block as kernels

    batch, tokens, channels = x.shape
    taps, block = weight.shape[-1], min(128, power(channels, 16))
    blocks = ceil_div(tokens, span)
    kernels.conv_gradient_kernel[(batch * blocks, ceil_div(channels, block))](
        x, weight, weight if bias is None else bias, dy, dx, sums, sums[:, channels * taps :], tokens, channels, blocks,
        span, batch // replicas, sums.stride(0), x.stride(0), x.stride(1), dx.stride(0), dx.stride(1),
        K=taps, BLOCK=block, BIAS=bias is not None, SILU=silu,
        ALIGNED=_aligned(x.stride(0), x.stride(1), dx.stride(0), dx.stride(1)), num_warps=1,
    )  # fmt: skip


def _by_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """A tensor whose rows (all but its last axis) have one stride, and that stride; a copy only where they have not.

    >>> wide = torch.zeros(2, 3, 8)
    >>> _by_rows(wide[..., :4])[1], _by_rows(wide[:, :2, :4])[1]
    (8, 4)
    """
    shape, strides = tensor.shape, tensor.stride()
    even = len(shape) == 3 and (strides[0] == shape[1] * strides[1] or shape[0] == 1)
    if len(shape) == 2 or (even and (strides[2] == 1 or shape[2] == 1)):
        tensor = rowwise(tensor)
        return tensor, tensor.stride(-2)
    tensor = tensor.contiguous()
    return tensor, shape[-1]


def _rows(width: int) -> tuple[int, int, int]:
    """Rows of a tile, its padded width, warps."""
    block = power(width)
    return max(1, 2048 // block), block, 4 if block <= 4096 else 8


def _gradient_rows(width: int) -> tuple[int, int, int]:
    """As `_rows`, for the backward pass: a row within one warp where it fits, whose sums then need no other warp."""
    block = power(width)
    return 1, block, 1 if block <= 512 else 4 if block <= 4096 else 8


def norm_forward(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, *, gate: Tensor | None = None, rounded: bool = False,
    replicas: int = 1,
) -> Tensor:  # fmt: skip
    """RMS norm of x, or of x · silu(gate), over the last axis: x / rms(x) · weight, in the given dtype.

    With `rounded`, x is rounded to the weight's dtype first. With several replicas x holds the rows of one after those
    of another, equally many of each, and weight is (replica, width).
    """
    from repflow.mixers.triton.kernels import block as kernels

    width = x.shape[-1]
    count, (v, v_row), (z, z_row) = x.numel() // width, _by_rows(x), (x, 0) if gate is None else _by_rows(gate)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    rows, block, warps = _rows(width)
    each = count // replicas
    while replicas > 1 and each % rows:  # a tile has rows of one replica
        rows //= 2
    kernels.norm_kernel[(ceil_div(count, rows),)](
        v, z, weight, y, count, width, each, v_row, z_row, eps,
        ROWS=rows, BLOCK=block, GATED=gate is not None, ROUND=rounded, ALIGNED=_aligned(v_row, z_row), num_warps=warps,
    )  # fmt: skip
    return y


def norm_backward(
    x: Tensor, weight: Tensor, eps: float, dy: Tensor, dx: Tensor, sums: Tensor, *, passed: Tensor | None = None,
    gate: Tensor | None = None, dgate: Tensor | None = None, rounded: bool = False, replicas: int = 1,
) -> None:  # fmt: skip
    """Write dx (plus `passed`, the gradient that went around the norm), dgate, and each program's part of dweight.

    There are as many programs as rows of `sums` (program, width); with several replicas, a whole number for each, with
    equally many rows.
    """
    from repflow.mixers.triton.kernels import block as kernels

    width, programs = x.shape[-1], sums.shape[0]
    count, (v, v_row), (z, z_row) = x.numel() // width, _by_rows(x), (x, 0) if gate is None else _by_rows(gate)
    (out, out_row), (out_z, out_z_row) = _by_rows(dx), (dx, 0) if dgate is None else _by_rows(dgate)
    rows, block, warps = _gradient_rows(width)
    kernels.norm_gradient_kernel[(programs,)](
        v, z, weight, dy.contiguous(), v if passed is None else passed.contiguous(), out, out_z, sums,
        count, width, ceil_div(count, programs), count // replicas, sums.stride(0), v_row, z_row, out_row,
        out_z_row, eps,
        ROWS=rows, BLOCK=block, GATED=gate is not None, ROUND=rounded, PASSED=passed is not None,
        ALIGNED=_aligned(v_row, z_row, out_row, out_z_row), AHEAD=block <= 512 * warps, num_warps=warps,
    )  # fmt: skip


def norm_sums(x: Tensor) -> Tensor:
    """Room for the parts of a norm's weight gradient: enough programs to fill a GPU, each with rows to sum over."""
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    return torch.empty(min(PROGRAMS, rows), width, dtype=torch.float32, device=x.device)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x = rowwise(x)
        ctx.save_for_backward(x, weight, bias)
        with on_device(x):
            return conv_forward(x, weight.contiguous(), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with on_device(x):
            cells = weight.numel()
            spans = x.shape[0] * ceil_div(x.shape[1], SPAN)
            columns = cells if bias is None else cells + bias.numel()
            sums = torch.empty(spans, columns, dtype=torch.float32, device=x.device)
            conv_backward(x, weight.contiguous(), bias, dy.contiguous(), dx, sums, SPAN)
            totals = sums.sum(0)
        dbias = None if bias is None else totals[cells:].to(bias.dtype)
        return dx, totals[:cells].view(weight.shape).to(weight.dtype), dbias


def causal_conv_silu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """silu(causal depthwise convolution) of x (batch, token, channel) with weight (channel, 1, K), differentiable.

    K is at most MAX_TAPS.
    """
    if weight.shape[-1] > MAX_TAPS:
        expected, got = f"a convolution of at most {MAX_TAPS} taps", f"{weight.shape[-1]}"
        raise InputError(teach(expected, got, "use torch.nn.functional.conv1d"))
    output: Tensor = _Conv.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, rounded: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.rounded = eps, rounded
        ctx.set_materialize_grads(False)
        with on_device(x):
            return norm_forward(x, weight, eps, dtype, rounded=rounded), x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, passed: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if dy is None:
            return passed, None, None, None, None
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with on_device(x):
            sums = norm_sums(x)
            norm_backward(x, weight, ctx.eps, dy, dx, sums, passed=passed, rounded=ctx.rounded)
        return dx, sums.sum(0).to(weight.dtype), None, None, None


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype | None = None, *, rounded: bool = False
) -> tuple[Tensor, Tensor]:
    """RMS norm of the residual stream, and the stream itself, whose gradient is then added in the norm's own pass.

    Args:
        x: Stream (batch, token, width).
        weight: Of the norm (width,).
        eps: Added to the mean square.
        dtype: Of the result; that of x · weight if left out.
        rounded: Round the stream to the weight's dtype first, as transformers' Mamba blocks do.
    """
    normed, stream = _Norm.apply(x, weight, eps, dtype or torch.promote_types(x.dtype, weight.dtype), rounded)  # type: ignore[no-untyped-call]
    return normed, stream
