"""Selective scan of Mamba (S6) in Triton, forward and backward, with float32 states whatever the inputs' dtype.

Glossary: h state, A decay rate, B input map, C read-out, D skip, z gate, delta step size.

Three passes, so that one sequence fills a GPU: each chunk's own state, the states handed from chunk to chunk, the
outputs. With enough samples the first two are left out. Tested against the sequential reference in Triton's
interpreter, and on a GPU by benchmarks/scan_gpu.py.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.triton.launch import aligned, ceil_div, obstacle, on_device, power, rowwise

MAX_STATE = 64
"""A (state, channel) tile is held in registers."""


class Tiles(NamedTuple):
    """How the forward scan is cut: channels of a program, programs wanted to fill the GPU, fewest tokens of a chunk."""

    block: int = 64
    programs: int = 2112
    least: int = 64


class Back(NamedTuple):
    """How the gradient is cut: channels of a program, neighbours among them in a thread, tokens of a chunk, programs.

    A forward pass with a gradient to come keeps the state before each chunk, which is state / span float32 numbers a
    token and channel. The scratch of the backward pass is programs · span tiles of at most 4 KiB.
    """

    block: int = 64
    each: int = 2
    span: int = 64
    programs: int = 1056


NARROW, WIDE = Tiles(), Tiles(block=128, programs=1056)
BACK = Back()
FILL = 264
"""Programs that fill a GPU of 132 multiprocessors."""


def default_tiles(batch: int, channels: int) -> Tiles:
    """Wide programs where uncut sequences fill the GPU with them, else narrow ones, which cut a sequence less often.

    On an H200 in bfloat16 with 5,120 channels, 2,048 tokens and 64 layers: 8 samples 0.241 s wide, 0.256 s narrow;
    1 sample 0.067 s wide, 0.045 s narrow.

    >>> default_tiles(8, 5120).block, default_tiles(1, 5120).block
    (128, 64)
    """
    return WIDE if batch * ceil_div(channels, WIDE.block) >= FILL else NARROW


def supported(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, initial: Tensor | None = None
) -> str | None:
    """Why the kernel cannot run on these tensors; None if it can.

    >>> supported(torch.ones(1, 3, 2), torch.ones(1, 3, 2), -torch.ones(2, 4), torch.ones(1, 3, 4), torch.ones(1, 3, 4))
    'tensors on the cpu'
    """
    if A.shape[-1] > MAX_STATE:
        return f"state size {A.shape[-1]} is above {MAX_STATE}"
    return obstacle(x, delta, A, B, C, D, initial)


def selective_scan_triton(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    return_final: bool = False,
    *,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    tiles: Tiles | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """As `repflow.mixers.scan.forms.selective_scan`, with its neighbours in the layer taken in where given.

        delta = softplus(delta + delta_bias)        y_t = (C_t · h_t + D x_t) · silu(z_t)

    Args:
        x: Inputs (batch, token, channel), in any strides; dense channels are read without a copy.
        delta: Step sizes (batch, token, channel).
        A: Decay rates (channel, state), negative.
        B: Input map (batch, token, state).
        C: Read-out (batch, token, state).
        D: Skip (channel,).
        initial: State before the first token (batch, channel, state); zero if left out.
        return_final: Also return the state after the last token (batch, channel, state), float32.
        z: Gate (batch, token, channel).
        delta_bias: Added to delta (channel,).
        delta_softplus: Whether delta comes before its softplus.
        tiles: How the work is cut; `default_tiles` if left out.
    """
    why_not = supported(x, delta, A, B, C, D, initial)
    if why_not is not None:
        raise InputError(
            teach("tensors that the Triton scan takes", why_not, 'use selective_scan with path="auto"')
        )  # fmt: skip
    inputs = (x, delta, A, B, C, D, z, delta_bias, initial)
    back = BACK if torch.is_grad_enabled() and any(v is not None and v.requires_grad for v in inputs) else None
    tiles = tiles or default_tiles(x.shape[0], x.shape[2])
    y, final = _Scan.apply(*inputs, delta_softplus, tiles, back)  # type: ignore[no-untyped-call]
    return (y, final) if return_final else y


class _Part(NamedTuple):
    """Tensors of one scan as the kernels read them: dense last axes, A2 (state, channel) with log2(e) in it."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None
    bias: Tensor | None
    A2: Tensor
    D: Tensor | None
    softplus: bool

    def flags(self) -> dict[str, Any]:
        state = self.A2.shape[0]
        return {"STATE": state, "N": power(state), "BIAS": self.bias is not None, "SOFTPLUS": self.softplus}


def _prepare(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    soft: bool,
    gradient: bool,
) -> _Part:
    # the gradient's threads read whole rows of B and C; the forward pass is no faster for a copy of them
    place = aligned if gradient else rowwise
    rate = (A.float().t() * math.log2(math.e)).contiguous()
    gate = None if z is None else rowwise(z)
    skip = None if D is None else D.contiguous()
    shift = None if bias is None else bias.contiguous()
    return _Part(rowwise(x), rowwise(dt), place(B), place(C), gate, shift, rate, skip, soft)


def _strides(tensor: Tensor) -> tuple[int, int]:
    return tensor.stride(0), tensor.stride(1)


def _chunk_states(
    part: _Part, span: int, block: int, first: Tensor | None, slope: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """States that enter the chunks (batch, chunk, state, channel), and the last; with `slope` their adjoints."""
    from repflow.mixers.triton.kernels import s6 as kernels

    batch, tokens, channels = part.x.shape
    state, chunks = part.A2.shape[0], ceil_div(tokens, span)
    new: dict[str, Any] = {"dtype": torch.float32, "device": part.x.device}
    local = torch.empty(batch, chunks, state, channels, **new)
    total = torch.empty(batch, chunks, channels, **new)
    last = torch.empty(batch, state, channels, **new)
    v, w = (part.x, part.B) if slope is None else (slope, part.C)
    z = part.z if slope is not None and part.z is not None else v
    gated = slope is not None and part.z is not None
    kernels.chunk_kernel[(batch * chunks, ceil_div(channels, block))](
        v, part.dt, w, z, _or(part.bias, part.A2), part.A2, local, total, tokens, channels, span, chunks,
        *_strides(v), *_strides(part.dt), *_strides(w), *_strides(z),
        **part.flags(), BLOCK=block, GATED=gated, REVERSE=slope is not None, num_warps=1,
    )  # fmt: skip
    kernels.pass_kernel[(batch, ceil_div(channels, 64))](
        part.A2, local, total, _or(first, part.A2), last, channels, chunks,
        STATE=state, N=power(state), BLOCK=64, FIRST=first is not None, REVERSE=slope is not None, num_warps=2,
    )  # fmt: skip
    return local, last


def _block(part: _Part, tiles: Tiles) -> int:
    """Channels of a program: a (state, channel) tile of at most 2,048 numbers in one warp."""
    return min(tiles.block, 2048 // power(part.A2.shape[0]), power(part.x.shape[2], 16))


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A tensor to point at: an argument whose flag is off is never read."""
    return other if tensor is None else tensor


def _forward(
    part: _Part, initial: Tensor | None, tiles: Tiles, back: Back | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs, last state (batch, channel, state), and for the gradient the states before every `back.span` tokens."""
    from repflow.mixers.triton.kernels import s6 as kernels

    batch, tokens, channels = part.x.shape
    state = part.A2.shape[0]
    block = _block(part, tiles)
    columns = ceil_div(channels, block)
    chunks = max(1, min(ceil_div(tiles.programs, batch * columns), tokens // tiles.least))
    span = ceil_div(tokens, chunks)
    chunks = ceil_div(tokens, span)
    first = None if initial is None else initial.float().transpose(1, 2).contiguous()
    y = torch.empty(batch, tokens, channels, dtype=part.x.dtype, device=part.x.device)
    entering = None if first is None else first[:, None]
    if chunks > 1:
        entering, final = _chunk_states(part, span, block, first)
    else:
        final = torch.empty(batch, state, channels, dtype=torch.float32, device=part.x.device)
    marks = None
    if back is not None:
        marks = torch.empty(batch, ceil_div(tokens, back.span), state, channels, dtype=torch.float32, device=y.device)
    z = _or(part.z, part.x)
    kernels.scan_kernel[(batch * chunks, columns)](
        part.x, part.dt, part.B, part.C, z, _or(part.bias, part.A2), part.A2, _or(part.D, part.A2),
        _or(entering, part.A2), final, _or(marks, final), y, tokens, channels, span, chunks, *_strides(part.x),
        *_strides(part.dt), *_strides(part.B), *_strides(part.C), *_strides(z),
        **part.flags(), BLOCK=block, GATED=part.z is not None, SKIP=part.D is not None, ENTER=entering is not None,
        FINAL=chunks == 1, MARK=0 if back is None else back.span, num_warps=1,
    )  # fmt: skip
    return y, final.transpose(1, 2), marks


class _Gradient(NamedTuple):
    """Gradients of the tokens' tensors, and the float32 sums of the parameters'."""

    x: Tensor
    dt: Tensor
    z: Tensor | None
    B: Tensor
    C: Tensor
    A: Tensor
    D: Tensor
    bias: Tensor


def _gradients(
    part: _Part, entering: Tensor, slope: Tensor, d_final: Tensor | None, tiles: Tiles, back: Back
) -> tuple[_Gradient, Tensor]:
    """Gradients from the states that enter the chunks, and the initial state's adjoint."""
    from repflow.mixers.triton.kernels import s6 as kernels

    batch, tokens, channels = part.x.shape
    state = part.A2.shape[0]
    last = None if d_final is None else d_final.float().transpose(1, 2).contiguous()
    leaving, d_initial = _chunk_states(part, back.span, _block(part, tiles), last, slope)
    block = min(back.block, 1024 // power(state), power(channels, 16))
    columns, chunks = ceil_div(channels, block), ceil_div(tokens, back.span)
    workers = min(batch * chunks, max(1, back.programs // columns))
    new: dict[str, Any] = {"dtype": torch.float32, "device": part.x.device}
    room = torch.empty(workers * columns * back.span * power(state) * block, **new)
    dx, ddt = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (part.x, part.dt))
    dz = None if part.z is None else torch.empty(part.z.shape, dtype=part.z.dtype, device=part.z.device)
    pairs = torch.empty(2, columns, batch, tokens, state, **new)
    sums = torch.empty(workers, state + 2, channels, **new)
    z = _or(part.z, part.x)
    kernels.gradient_kernel[(workers, columns)](
        part.x, part.dt, part.B, part.C, z, _or(part.bias, part.A2), part.A2, _or(part.D, part.A2), entering, leaving,
        slope, room, dx, ddt, _or(dz, dx), pairs[0], pairs[1], sums, tokens, back.span, chunks, batch,
        *_strides(part.x), *_strides(part.dt), *_strides(part.B), *_strides(part.C), *_strides(z), *_strides(slope),
        **part.flags(), channels=channels, BLOCK=block, EACH=back.each, GATED=part.z is not None,
        SKIP=part.D is not None, num_warps=1,
    )  # fmt: skip
    (dB, dC), total = pairs.sum(1), sums.sum(0)
    return _Gradient(dx, ddt, dz, dB, dC, total[:state], total[state], total[state + 1]), d_initial


class _Scan(torch.autograd.Function):
    """The scan with its gradient; final is (batch, channel, state) in float32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, initial: Tensor | None, softplus: bool, tiles: Tiles, back: Back | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        with on_device(x):
            part = _prepare(x, dt, A, B, C, D, z, bias, softplus, gradient=False)
            y, final, marks = _forward(part, initial, tiles, back)
        ctx.save_for_backward(x, dt, A, B, C, D, z, bias, initial, marks)
        ctx.softplus, ctx.tiles, ctx.back = softplus, tiles, back
        ctx.set_materialize_grads(False)
        return y, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, z, bias, initial, marks = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x)
        with on_device(x):
            part = _prepare(x, dt, A, B, C, D, z, bias, ctx.softplus, gradient=True)
            gradients, d_initial = _gradients(part, marks, rowwise(dy), d_final, ctx.tiles, ctx.back)
        return (
            gradients.x,
            gradients.dt,
            gradients.A.t().to(A.dtype),
            gradients.B.to(B.dtype),
            gradients.C.to(C.dtype),
            None if D is None else gradients.D.to(D.dtype),
            gradients.z,
            None if bias is None else gradients.bias.to(bias.dtype),
            None if initial is None else d_initial.transpose(1, 2).to(initial.dtype),
            None,
            None,
            None,
        )
