"""All of a Mamba-2 layer between its two projections, in Triton, as one differentiable step.

    z, xBC, dt = split(projected)        x, B, C = split(silu(conv(xBC)))
    out = rms_norm(ssd(x, dt, A, B, C, D) · silu(z)) · weight

One step rather than five: every gradient is written where the projection's gradient lies, so nothing is concatenated,
and the parameters' gradients are columns of one tensor of partial sums, which are added up at once. `mamba2_block`
takes the projections, the block's norm and its residual in as well: a model of many small layers is bound by launches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.mixers.triton import ssd
from repflow.mixers.triton.block import conv_backward, conv_forward, norm_backward, norm_forward
from repflow.mixers.triton.launch import ceil_div, on_device
from repflow.mixers.triton.ssd import Sums, Targets, backward


class Shape(NamedTuple):
    """Sizes of a layer, and the scan's choices."""

    heads: int
    dim: int
    groups: int
    state: int
    eps: float
    setting: ssd.Setting

    @property
    def inner(self) -> int:
        """Channels of x and of the gate."""
        return self.heads * self.dim

    @property
    def maps(self) -> int:
        """Channels of B, and of C."""
        return self.groups * self.state

    def chunk(self, dtype: torch.dtype) -> int:
        """Tokens of a chunk of the scan, which is shorter outside bfloat16."""
        return self.setting.tiles.chunk if dtype == torch.bfloat16 else min(64, self.setting.tiles.chunk)

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, convolved part and step sizes of a projection, as views."""
        end = self.inner + self.inner + 2 * self.maps
        return projected[..., : self.inner], projected[..., self.inner : end], projected[..., end : end + self.heads]

    def heads_of(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """X (batch, token, head, dim), B and C (batch, token, group, state) of the convolved part, as views."""
        x, b, c = mixed.split([self.inner, self.maps, self.maps], -1)  # type: ignore[no-untyped-call]
        return (
            x.unflatten(-1, (self.heads, self.dim)),
            b.unflatten(-1, (self.groups, self.state)),
            c.unflatten(-1, (self.groups, self.state)),
        )


class Weights(NamedTuple):
    """Parameters between the two projections."""

    conv: Tensor
    conv_bias: Tensor | None
    dt_bias: Tensor
    A_log: Tensor
    D: Tensor
    norm: Tensor

    def widths(self) -> list[int]:
        """Numbers of each: convolution, its bias, norm, A, D, step bias, as the columns of their sums lie."""
        bias = 0 if self.conv_bias is None else self.conv_bias.numel()
        heads = self.A_log.numel()
        return [self.conv.numel(), bias, self.norm.numel(), heads, heads, heads]

    def gradients(self, summed: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the order of the fields, from the columns' sums."""
        conv, bias, norm, rate, skip, step = summed.split(self.widths())  # type: ignore[no-untyped-call]
        parts = conv.view(self.conv.shape), None if self.conv_bias is None else bias, step, rate, skip, norm
        return tuple(None if w is None or g is None else g.to(w.dtype) for g, w in zip(parts, self, strict=True))


def _scan_parts(mixed: Tensor, dt: Tensor, weights: Weights, shape: Shape) -> ssd.Parts:
    x, b, c = shape.heads_of(mixed)
    setting = shape.setting._replace(log_rate=True)
    return ssd.Parts.of(x, dt, weights.A_log, b, c, weights.D, weights.dt_bias, setting)


def _inner_forward(projected: Tensor, weights: Weights, shape: Shape) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Normed output, and what the backward pass reads."""
    z, part, dt = shape.split(projected)
    mixed = conv_forward(part, weights.conv.contiguous(), weights.conv_bias)
    y, _, saved = ssd.forward(_scan_parts(mixed, dt, weights, shape), None)
    out = norm_forward(y.flatten(2), weights.norm, shape.eps, projected.dtype, gate=z)
    return out, (mixed, y, *saved)


def _programs(projected: Tensor, shape: Shape) -> int:
    """Parts of the parameters' gradients: one of each chunk of each sample."""
    return projected.shape[0] * ceil_div(projected.shape[1], shape.chunk(projected.dtype))


def _inner_backward(
    projected: Tensor, weights: Weights, shape: Shape, saved: tuple[Tensor, ...], dout: Tensor, sums: Tensor
) -> Tensor:
    """Gradient of the projection; those of the parameters, in parts, go into sums (program, column)."""
    mixed, y, *scan_saved = saved
    whole, dmixed, dy = (torch.empty_like(t) for t in (projected, mixed, y))
    dz, dpart, ddt = shape.split(whole)
    z, part, dt = shape.split(projected)
    widths = weights.widths()
    conv, norm, scan = sums.split([sum(widths[:2]), widths[2], sum(widths[3:])], 1)  # type: ignore[no-untyped-call]
    norm_backward(y.flatten(2), weights.norm, shape.eps, dout, dy.flatten(2), norm, gate=z, dgate=dz)
    parts = _scan_parts(mixed, dt, weights, shape)
    dx, db, dc = shape.heads_of(dmixed)
    backward(parts, ssd.Kept(*scan_saved), dy, None, Targets(dx, ddt, db, dc), Sums.of(parts, scan))
    span = parts.setting.tiles.chunk
    conv_backward(part, weights.conv.contiguous(), weights.conv_bias, dmixed, dpart, conv, span)
    return whole


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, shape: Shape, *weights: Tensor | None) -> Tensor:
        projected = projected.contiguous()
        with on_device(projected):
            out, saved = _inner_forward(projected, Weights(*weights), shape)  # type: ignore[arg-type]
        ctx.save_for_backward(projected, *weights, *saved)
        ctx.shape = shape
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        projected, *rest = ctx.saved_tensors
        weights = Weights(*rest[:6])
        with on_device(projected):
            rows = _programs(projected, ctx.shape)
            sums = torch.empty(rows, sum(weights.widths()), dtype=torch.float32, device=projected.device)
            whole = _inner_backward(projected, weights, ctx.shape, tuple(rest[6:]), dout, sums)
            return whole, None, *weights.gradients(sums.sum(0))


class Outer(NamedTuple):
    """What a block has around the layer.

    Attributes:
        eps: Of its norm.
        kind: Dtype of its products.
        rounded: Whether the norm's input is rounded to the norm's dtype first.
        wide: Whether the stream is carried in float32.
    """

    eps: float
    kind: torch.dtype
    rounded: bool
    wide: bool


class _Block(torch.autograd.Function):
    """A whole block: stream + out(inner(in(norm(stream)))). One node of the graph, and one sum of small gradients."""

    @staticmethod
    def forward(
        ctx: Any, stream: Tensor, gain: Tensor, into: Tensor, out_of: Tensor, shape: Shape, outer: Outer,
        *weights: Tensor | None,
    ) -> Tensor:  # fmt: skip
        with on_device(stream):
            normed = norm_forward(stream, gain, outer.eps, outer.kind, rounded=outer.rounded)
            low_into, low_out_of = into.to(outer.kind), out_of.to(outer.kind)
            projected = (normed.flatten(0, 1) @ low_into.t()).view(*stream.shape[:2], -1)
            out, saved = _inner_forward(projected, Weights(*weights), shape)  # type: ignore[arg-type]
            added = (out.flatten(0, 1) @ low_out_of.t()).view(stream.shape)
            stream_out = (stream.float() if outer.wide else stream) + added
        ctx.save_for_backward(stream, gain, low_into, low_out_of, normed, projected, out, *weights, *saved)
        ctx.shape, ctx.outer, ctx.dtypes = shape, outer, (into.dtype, out_of.dtype)
        return stream_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, passed: Tensor) -> tuple[Tensor | None, ...]:
        stream, gain, into, out_of, normed, projected, out, *rest = ctx.saved_tensors
        weights = Weights(*rest[:6])
        widths = weights.widths()
        with on_device(stream):
            passed = passed.contiguous()
            slope = passed.to(out.dtype).flatten(0, 1)
            dout_of = (slope.t() @ out.flatten(0, 1)).to(ctx.dtypes[1]) if ctx.needs_input_grad[3] else None
            rows = _programs(projected, ctx.shape)
            sums = torch.empty(rows, sum(widths) + gain.numel(), dtype=torch.float32, device=stream.device)
            inner, norm = sums.split([sum(widths), gain.numel()], 1)  # type: ignore[no-untyped-call]
            whole = _inner_backward(projected, weights, ctx.shape, tuple(rest[6:]), slope @ out_of, inner).flatten(0, 1)
            dinto = (whole.t() @ normed.flatten(0, 1)).to(ctx.dtypes[0]) if ctx.needs_input_grad[2] else None
            dstream = torch.empty(stream.shape, dtype=stream.dtype, device=stream.device)
            eps, rounded = ctx.outer.eps, ctx.outer.rounded
            norm_backward(stream, gain, eps, whole @ into, dstream, norm, passed=passed, rounded=rounded)
            small, dgain = sums.sum(0).split([sum(widths), gain.numel()])  # type: ignore[no-untyped-call]
        return (
            dstream, dgain.to(gain.dtype), dinto, dout_of, None, None, *weights.gradients(small),
        )  # fmt: skip


def mamba2_block(
    stream: Tensor, gain: Tensor, into: Tensor, out_of: Tensor, weights: Weights, shape: Shape, outer: Outer
) -> Tensor:
    """The residual stream (batch, token, width) after a whole Mamba-2 block without biases in its projections.

    Args:
        stream: The residual stream before it.
        gain: Weight of the block's norm (width,).
        into: Weight of the projection in (2 inner + 2 groups·state + heads, width).
        out_of: Weight of the projection out (width, inner).
        weights: Parameters between the projections.
        shape: Sizes; its setting must have softplus on.
        outer: Norm and dtypes.
    """
    output: Tensor = _Block.apply(stream, gain, into, out_of, shape, outer, *weights)  # type: ignore[no-untyped-call]
    return output


def mamba2_inner(projected: Tensor, weights: Weights, shape: Shape) -> Tensor:
    """Normed output (batch, token, inner) of a projection (batch, token, 2 inner + 2 groups·state + heads).

    Args:
        projected: Gate, convolved part and step sizes side by side.
        weights: Parameters.
        shape: Sizes; its setting must have softplus on.
    """
    output: Tensor = _Inner.apply(projected, shape, *weights)  # type: ignore[no-untyped-call]
    return output
