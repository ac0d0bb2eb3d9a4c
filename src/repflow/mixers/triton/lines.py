"""Any diagonal recurrence in Triton: h_t = a_t h_{t−1} + e_t along many lines at once, with gradients.

Recurrences of one decay for every entry of the state (RWKV-4, RG-LRU, gated RNNs) have no matrix product to gain from:
their chunked form is hundreds of small operations, whose gradients fill and add whole tensors. Here each number is read
and written once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from repflow.mixers.triton.launch import ceil_div, on_device, power
from repflow.mixers.triton.transforms import batch_first

TILE, LINES = 32, 32
"""Of a program: tokens that are scanned at once, and lines."""


class _Lines(torch.autograd.Function):
    """States (row, token, line), in float32; torch.vmap takes its axis for more rows."""

    @staticmethod
    def forward(decay: Tensor, entry: Tensor) -> Tensor:
        from repflow.mixers.triton.kernels import lines as kernels

        decay, entry = decay.contiguous(), entry.contiguous()
        states = torch.empty(entry.shape, dtype=torch.float32, device=entry.device)
        grid, constants = _launch(states)
        with on_device(entry):
            kernels.line_kernel[grid](decay, entry, states, *entry.shape[1:], **constants)
        return states

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.kind = inputs[1].dtype

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor]:
        from repflow.mixers.triton.kernels import lines as kernels

        decay, states = ctx.saved_tensors
        d_decay = torch.empty(states.shape, dtype=decay.dtype, device=states.device)
        d_entry = torch.empty(states.shape, dtype=ctx.kind, device=states.device)
        grid, constants = _launch(states)
        with on_device(states):
            kernels.line_gradient_kernel[grid](
                decay.contiguous(), states, slope.contiguous(), d_decay, d_entry, *states.shape[1:], **constants
            )
        return d_decay, d_entry

    @staticmethod
    def vmap(info: Any, axes: tuple[int | None, int | None], decay: Tensor, entry: Tensor) -> tuple[Tensor, int]:
        rows = [part.flatten(0, 1) for part in batch_first(info, axes, decay, entry)]
        states: Tensor = _Lines.apply(*rows)  # type: ignore[no-untyped-call]
        return torch.unflatten(states, 0, (info.batch_size, -1)), 0


def _launch(states: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    rows, _, lines = states.shape
    block = min(LINES, power(lines))
    return (rows, ceil_div(lines, block)), {"T": TILE, "BLOCK": block, "num_warps": 4}


def line_scan(decay: Tensor, entry: Tensor) -> Tensor:
    """States h_t = decay_t h_{t−1} + entry_t, h_0 = 0, differentiable: (row, token, line) in float32.

    Args:
        decay: (row, token, line), real, of any size and sign.
        entry: The same.
    """
    states: Tensor = _Lines.apply(decay, entry)  # type: ignore[no-untyped-call]
    return states
