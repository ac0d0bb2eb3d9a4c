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

from repflow.errors import InputError, teach
from repflow.mixers.triton_launch import ceil_div, obstacle, on_device, power, rowwise

MAX_STATE = 64
"""A (state, channel) tile is held in registers."""
BACKWARD_SPAN = 64
"""Tokens whose states the backward pass recomputes together."""
SCRATCH = 1 << 30
"""Bytes of recomputed states the backward pass holds at once."""


class Tiles(NamedTuple):
    """How the forward scan is cut: channels of a program, programs wanted to fill the GPU, fewest tokens of a chunk."""

    block: int = 64
    programs: int = 2112
    least: int = 64


NARROW, WIDE = Tiles(), Tiles(block=128, programs=1056)
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
    """As `repflow.mixers.scan.selective_scan`, with the layer's neighbours of the scan taken in where they are given.

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
    y, final = _Scan.apply(
        x, delta, A, B, C, D, z, delta_bias, initial, delta_softplus, tiles or default_tiles(x.shape[0], x.shape[2])
    )  # type: ignore[no-untyped-call]
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
) -> _Part:
    rate = (A.float().t() * math.log2(math.e)).contiguous()
    gate = None if z is None else rowwise(z)
    skip = None if D is None else D.contiguous()
    shift = None if bias is None else bias.contiguous()
    return _Part(rowwise(x), rowwise(dt), rowwise(B), rowwise(C), gate, shift, rate, skip, soft)


def _strides(tensor: Tensor) -> tuple[int, int]:
    return tensor.stride(0), tensor.stride(1)


def _chunk_states(
    part: _Part, span: int, block: int, first: Tensor | None, slope: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """States that enter the chunks (batch, chunk, state, channel), and the last; with `slope` their adjoints."""
    from repflow.mixers import triton_s6_kernels as kernels

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


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A tensor to point at: an argument whose flag is off is never read."""
    return other if tensor is None else tensor


def _forward(part: _Part, initial: Tensor | None, tiles: Tiles) -> tuple[Tensor, Tensor]:
    from repflow.mixers import triton_s6_kernels as kernels

    batch, tokens, channels = part.x.shape
    state = part.A2.shape[0]
    block = min(tiles.block, 2048 // power(state), power(channels, 16))
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
    z = _or(part.z, part.x)
    kernels.scan_kernel[(batch * chunks, columns)](
        part.x, part.dt, part.B, part.C, z, _or(part.bias, part.A2), part.A2, _or(part.D, part.A2),
        _or(entering, part.A2), final, y, tokens, channels, span, chunks, *_strides(part.x), *_strides(part.dt),
        *_strides(part.B), *_strides(part.C), *_strides(z),
        **part.flags(), BLOCK=block, GATED=part.z is not None, SKIP=part.D is not None, ENTER=entering is not None,
        FINAL=chunks == 1, num_warps=1,
    )  # fmt: skip
    return y, final.transpose(1, 2)


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


def _backward(part: _Part, entering: Tensor, leaving: Tensor, slope: Tensor) -> _Gradient:
    """Gradients of one slice of the batch, all of whose states are kept at once."""
    from repflow.mixers import triton_s6_kernels as kernels

    batch, tokens, channels = part.x.shape
    state = part.A2.shape[0]
    block = min(32, 2048 // power(state), power(channels, 16))
    columns, chunks = ceil_div(channels, block), ceil_div(tokens, BACKWARD_SPAN)
    new: dict[str, Any] = {"dtype": torch.float32, "device": part.x.device}
    kept = torch.empty(batch, tokens, state, channels, **new)
    dx, ddt = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (part.x, part.dt))
    dz = None if part.z is None else torch.empty(part.z.shape, dtype=part.z.dtype, device=part.z.device)
    dB, dC = (torch.empty(columns, batch, tokens, state, **new) for _ in range(2))
    dA = torch.empty(batch * chunks, state, channels, **new)
    dD, dbias = (torch.zeros(batch * chunks, channels, **new) for _ in range(2))
    z = _or(part.z, part.x)
    kernels.backward_kernel[(batch * chunks, columns)](
        part.x, part.dt, part.B, part.C, z, _or(part.bias, part.A2), part.A2, _or(part.D, part.A2), entering, leaving,
        slope,
        kept, dx, ddt, _or(dz, dx), dB, dC, dA, dD, dbias, tokens, channels, BACKWARD_SPAN, chunks, batch,
        *_strides(part.x), *_strides(part.dt), *_strides(part.B), *_strides(part.C), *_strides(z), *_strides(slope),
        **part.flags(), BLOCK=block, GATED=part.z is not None, SKIP=part.D is not None, num_warps=1,
    )  # fmt: skip
    return _Gradient(dx, ddt, dz, dB.sum(0), dC.sum(0), dA.sum(0), dD.sum(0), dbias.sum(0))


def _gradients(part: _Part, initial: Tensor | None, slope: Tensor, d_final: Tensor | None) -> tuple[_Gradient, Tensor]:
    """Gradients of a whole batch, in slices whose states fit the scratch; and the initial state's adjoint."""
    batch, tokens, channels = part.x.shape
    state = part.A2.shape[0]
    block = min(32, 2048 // power(state), power(channels, 16))
    last = None if d_final is None else d_final.float().transpose(1, 2).contiguous()
    entering, _ = _chunk_states(part, BACKWARD_SPAN, block, initial)
    leaving, d_initial = _chunk_states(part, BACKWARD_SPAN, block, last, slope)
    size = max(1, SCRATCH // (4 * tokens * state * channels))
    made = []
    for at in range(0, batch, size):
        cut = slice(at, at + size)
        z = None if part.z is None else part.z[cut]
        piece = part._replace(x=part.x[cut], dt=part.dt[cut], B=part.B[cut], C=part.C[cut], z=z)
        made.append(_backward(piece, entering[cut], leaving[cut], slope[cut]))
    if len(made) == 1:
        return made[0], d_initial
    z = None if part.z is None else torch.cat([m.z for m in made if m.z is not None])
    tokenwise = [torch.cat([getattr(m, name) for m in made]) for name in ("x", "dt", "B", "C")]
    summed = [sum(getattr(m, name) for m in made) for name in ("A", "D", "bias")]
    return _Gradient(tokenwise[0], tokenwise[1], z, tokenwise[2], tokenwise[3], *summed), d_initial


class _Scan(torch.autograd.Function):
    """The scan with its gradient; final is (batch, channel, state) in float32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
        bias: Tensor | None, initial: Tensor | None, softplus: bool, tiles: Tiles,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.save_for_backward(x, dt, A, B, C, D, z, bias, initial)
        ctx.softplus = softplus
        ctx.set_materialize_grads(False)
        with on_device(x):
            return _forward(_prepare(x, dt, A, B, C, D, z, bias, softplus), initial, tiles)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, d_final: Tensor | None) -> tuple[Tensor | None, ...]:
        x, dt, A, B, C, D, z, bias, initial = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x)
        first = None if initial is None else initial.float().transpose(1, 2).contiguous()
        with on_device(x):
            part = _prepare(x, dt, A, B, C, D, z, bias, ctx.softplus)
            made, d_initial = _gradients(part, first, rowwise(dy), d_final)
        return (
            made.x,
            made.dt,
            made.A.t().to(A.dtype),
            made.B.to(B.dtype),
            made.C.to(C.dtype),
            None if D is None else made.D.to(D.dtype),
            made.z,
            None if bias is None else made.bias.to(bias.dtype),
            None if initial is None else d_initial.transpose(1, 2).to(initial.dtype),
            None,
            None,
        )
