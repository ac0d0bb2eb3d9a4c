"""Selective scan of Mamba in chunks of a few tokens, for the CPU and as the fallback on any device.

The state lies as (state, channel), so that one step is a single long vector operation, and only one chunk's decays,
inputs and states exist at a time: memory grows with tokens · channels, not with tokens · channels · states. The
backward pass keeps the states at the chunks' starts and computes the others again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from repflow.mixers.scan.precision import without_autocast
from repflow.mixers.scan.reference import selective_scan_reference

# Elements of a chunk's decays and of its states: 2 · 1.5 MiB in float32, so that both stay in a core's cache.
BUFFER = 400_000
SHORTEST, LONGEST = 4, 64


def selective_scan_chunked(
    x: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    initial: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, channel) and final state (batch, channel, state); arguments as `selective_scan`'s.

    Args:
        x: Inputs.
        delta: Step sizes.
        A: Decay rates.
        B: Input map.
        C: Read-out.
        D: Skip.
        initial: State before the first token.
        chunk: Tokens in a chunk; as many as keep it in a core's cache if left out.

    >>> x = torch.ones(1, 3, 1, dtype=torch.float64)
    >>> y, final = selective_scan_chunked(x, x, -torch.ones(1, 1, dtype=torch.float64).mul(2).log(), x, x, chunk=2)
    >>> y.flatten().tolist(), final.item()
    ([1.0, 1.5, 1.75], 1.75)
    """
    wide = torch.promote_types(torch.promote_types(x.dtype, A.dtype), torch.float32)
    start = x.new_zeros(x.shape[0], *A.shape, dtype=wide) if initial is None else initial.to(wide)
    # Models hand x and delta over as transposed views; reading those in a strided way costs more than one copy.
    dtype, (x, delta, A, B, C) = x.dtype, (part.to(wide).contiguous() for part in (x, delta, A, B, C))
    size = chunk or min(LONGEST, max(SHORTEST, BUFFER // max(1, start.numel())))
    y, final = _ChunkedScan.apply(x, delta, A, B, C, start, size)  # type: ignore[no-untyped-call]
    y = y if D is None else torch.addcmul(y, x, D.to(wide))
    return y.to(dtype), final


class _ChunkedScan(torch.autograd.Function):
    """The scan with its own backward pass; second derivatives go through the sequential form."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, initial: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        marks: list[Tensor] | None = [] if any(ctx.needs_input_grad) else None
        chunks = _Chunks(x, delta, A, B, size)
        h, y = initial.mT.contiguous(), torch.empty_like(x)
        for part in chunks:
            if marks is not None:
                marks.append(h)
            states = chunks.states(part, h)
            torch.matmul(C[:, part, None, :], states, out=y[:, part, None, :])
            h = states[:, -1].clone()  # the next chunk writes over these states
        if marks is not None:
            ctx.save_for_backward(x, delta, A, B, C, initial, torch.stack(marks))
            ctx.size = size
        return y, h.mT.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, starts = ctx.saved_tensors
        with without_autocast(starts.device):  # which would round the products
            if torch.is_grad_enabled():
                return *_differentiable_backward(inputs, grads), None
            return *_backward(inputs, starts, ctx.size, grads), None


def _backward(inputs: list[Tensor], starts: Tensor, size: int, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Gradients of all inputs, from the states at the chunks' starts."""
    x, delta, A, B, C, _ = inputs
    chunks = _Chunks(x, delta, A, B, size)
    adjoint, rate_grad = grads[1].mT, torch.zeros_like(chunks.rate)
    pieces = []
    for part, start in zip(reversed(list(chunks)), starts.flip(0), strict=True):
        x_c, delta_c, B_c = x[:, part], delta[:, part], B[:, part]
        # Under autograd's own vmap (many gradients at once) a gradient knows narrow and select, not slices.
        dy = grads[0].narrow(1, part.start, part.stop - part.start)
        states = chunks.states(part, start)
        decay = chunks.decay[:, : states.shape[1]]
        adjoints, adjoint = _adjoints(C[:, part, :, None] * dy.unsqueeze(2), decay, adjoint)
        before = torch.cat((start[:, None], states[:, :-1]), dim=1)
        # Gradient with respect to delta_t A, the exponent.
        exponent = adjoints * decay * before
        entry = (B_c[:, :, None] @ adjoints).squeeze(2)
        rate_grad = rate_grad + (exponent * delta_c[:, :, None]).sum((0, 1))
        pieces.append(
            (
                entry * delta_c,
                entry * x_c + (exponent * chunks.rate).sum(2),
                (adjoints @ (delta_c * x_c)[..., None]).squeeze(3),
                (states @ dy.unsqueeze(3)).squeeze(3),
            )
        )
    dx, ddelta, dB, dC = (torch.cat(piece[::-1], dim=1) for piece in zip(*pieces, strict=True))
    return dx, ddelta, rate_grad.mT, dB, dC, adjoint.mT


class _Chunks:
    """Slices of the tokens, and one pair of buffers that every chunk's decays and states are written to."""

    def __init__(self, x: Tensor, delta: Tensor, A: Tensor, B: Tensor, size: int) -> None:
        self.tokens, self.size = x.shape[1], min(size, x.shape[1])
        self.delta, self.entry, self.B, self.rate = delta, delta * x, B, A.mT.contiguous()
        self.decay, self._states = x.new_empty(2, x.shape[0], self.size, *self.rate.shape)

    def __iter__(self) -> Iterator[slice]:
        for first in range(0, self.tokens, self.size):
            yield slice(first, min(first + self.size, self.tokens))

    def states(self, part: slice, h: Tensor) -> Tensor:
        """States (batch, token, state, channel) of one chunk that starts from h; its decays are in `decay`."""
        count = part.stop - part.start
        decay, states = self.decay[:, :count], self._states[:, :count]
        torch.mul(self.delta[:, part, None], self.rate, out=decay).exp_()
        torch.mul(self.B[:, part, :, None], self.entry[:, part, None], out=states)
        for here, fade in zip(states.unbind(1), decay.unbind(1), strict=True):
            h = here.addcmul_(fade, h)
        return states


def _adjoints(into: Tensor, decay: Tensor, adjoint: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients with respect to each state of a chunk, and to the state before it; nothing in place, for vmap."""
    adjoints = []
    for token in range(into.shape[1] - 1, -1, -1):
        here = into.select(1, token) + adjoint
        adjoints.append(here)
        adjoint = decay[:, token] * here
    return torch.stack(adjoints[::-1], dim=1), adjoint


def _differentiable_backward(inputs: list[Tensor], grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    with torch.enable_grad():
        leaves = [part if part.requires_grad else part.detach().requires_grad_() for part in inputs]
        x, delta, A, B, C, initial = leaves
        outputs = selective_scan_reference(x, delta, A, B, C, None, initial)
        return torch.autograd.grad(outputs, leaves, grads, create_graph=True)
