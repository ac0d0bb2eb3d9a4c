"""GPU forms of `repflow.metrics.reduce`, in Triton: several states per pass, each read once.

On a GPU the meters' cost is bytes. The running sums over depth (mean and squared deviations, in float32) weigh four
times a bfloat16 state each to read and write, so a group of states is taken into them together; everything else about
a token comes from the same read.
Tested against `reduce` in Triton's interpreter on the CPU, and on a GPU by benchmarks/overhead.py.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

from repflow.metrics import reduce
from repflow.metrics.reduce import DepthSums, StepNorms

MAX_WIDTH = 16_384
"""A token's row is held in registers; wider models take the plain path."""
MAX_NEW = 8
"""States one kernel takes in, beside the two before them."""
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch: kernels then run on CPU tensors, slowly, which is how the tests check them without a GPU."""

_found: Any = None


def usable(state: Tensor) -> bool:
    """True when the fused kernels can take this tensor."""
    if not (state.is_cuda or INTERPRETED) or state.dtype not in PRECISIONS or state.shape[-1] > MAX_WIDTH:
        return False
    return importlib.util.find_spec("triton") is not None


def _kernels() -> Any:
    """Import the kernels on first use: Triton is absent on machines without a GPU."""
    global _found
    if _found is None:
        from repflow.metrics import kernels

        _found = kernels
    return _found


def add_states(
    window: list[Tensor], new: int, norms: list[Tensor], raw: DepthSums, direction: DepthSums | None, *, last: bool
) -> list[StepNorms]:
    """As `reduce.add_states`, up to four states in one pass over the running sums."""
    steps: list[StepNorms] = []
    for start in range(len(window) - new, len(window), MAX_NEW):
        end = min(start + MAX_NEW, len(window))
        known = [*norms, *(step.norm for step in steps)]
        final = last and end == len(window)
        steps += _add_group(window[max(0, start - 2) : end], end - start, known, raw, direction, final)
    return steps


def _add_group(
    window: list[Tensor], new: int, norms: list[Tensor], raw: DepthSums, direction: DepthSums | None, last: bool
) -> list[StepNorms]:
    kernels = _kernels()
    previous = len(window) - new
    states = [state.contiguous() for state in window]
    shape, width = states[0].shape[:2], states[0].shape[-1]
    rows, chunk = shape[0] * shape[1], _chunk(width)
    chunks = -(-width // chunk)
    norm = torch.empty(new, *shape, dtype=torch.float32, device=states[0].device)
    if direction is not None:  # directions need the norms first; otherwise they come out of the same pass
        for state, out in zip(states[previous:], norm, strict=True):
            kernels.norm_kernel[(rows,)](state, out, width, BLOCK=chunk, CHUNKS=chunks, num_warps=4)
    before = [n.contiguous() for n in norms[-previous:]] if previous else []
    turned = raw if direction is None else direction
    partial = torch.zeros(7 + 2 * new, chunks, *shape, dtype=torch.float32, device=norm.device)
    kernels.depth_kernel[(rows, chunks)](
        *[*states, *[states[-1]] * (2 + MAX_NEW - len(states))],
        *[*before, *[norm] * (2 - previous)],
        norm,
        partial,
        raw.mean,
        raw.squares,
        turned.mean,
        turned.squares,
        rows,
        float(raw.count),
        width,
        float(width) ** 0.5,
        PREVIOUS=previous,
        NEW=new,
        DIRECTION=direction is not None,
        FIRST=raw.count == 0,
        LAST=last,
        BLOCK=chunk,
        num_warps=4,
    )
    sums = partial.sum(1)
    _take(sums, raw, direction, new, last)
    squares, inner = sums[7::2].sqrt(), sums[8::2]
    first = 1 if previous == 0 else 0
    return [StepNorms(squares[i], None if i < first else inner[i]) for i in range(new)]


def _take(sums: Tensor, raw: DepthSums, direction: DepthSums | None, new: int, last: bool) -> None:
    """Add a group's per-token sums, in the order the kernel wrote them."""
    size, step, bend, bend_d, spread, variance, spread_d = sums[:7]
    raw.size += size
    raw.step += step
    raw.bend += bend
    raw.count += new
    if direction is not None:
        direction.bend += bend_d
        direction.count += new
    if last:
        raw.spread, raw.variance = spread, variance
        if direction is not None:
            direction.spread = spread_d


def column_sums(state: Tensor, weights: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """As `reduce.column_sums`, on the matrix units.

    Half-precision states meet each float32 weight as three half-precision parts, which together carry all its bits;
    products of half-precision numbers are exact in float32.
    """
    state = state.contiguous()
    batch, token, width = state.shape
    parts = _parts(weights, state.dtype)
    used = parts.shape[1]
    rows = max(16, 1 << (used - 1).bit_length())
    padded = torch.zeros(batch, rows, token, dtype=state.dtype, device=state.device)
    padded[:, :used] = parts
    columns = 128 if width >= 128 else 64
    split = max(1, min(8, token // 512))
    sums = torch.empty(split, batch, rows, width, dtype=torch.float32, device=state.device)
    energy = torch.empty(split, batch, width, dtype=torch.float32, device=state.device)
    _kernels().column_kernel[(batch, -(-width // columns), split)](
        state,
        padded,
        sums,
        energy,
        lengths,
        token,
        width,
        -(-token // split),
        ROWS=rows,
        COLUMNS=columns,
        TOKENS=64,
        num_warps=8,
    )
    total = sums.sum(0)
    count = weights.shape[1]
    if state.dtype != torch.float32:
        exact = total[:, :EXACT] + total[:, count : count + EXACT] + total[:, count + EXACT : count + 2 * EXACT]
        total = torch.cat([exact, total[:, EXACT:count]], 1)
    return total[:, :count], energy.sum(0)


EXACT = 4
"""Leading weight rows that need all bits of float32; the probes behind them are -1, 0 or 1."""


def _parts(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights as half-precision rows: all rows rounded, then twice what rounding left of the exact ones."""
    if dtype == torch.float32:
        return weights
    rounded = weights.to(dtype)
    rest = weights[:, :EXACT] - rounded[:, :EXACT].float()
    second = rest.to(dtype)
    return torch.cat([rounded, second, (rest - second.float()).to(dtype)], 1)


def row_products(state: Tensor, columns: Tensor) -> Tensor:
    """As `reduce.row_products`; for half-precision states each column is taken as two half-precision parts.

    The parts carry 16 bits of a bfloat16 column between them, so a product is right to about 1e-5 of its terms.
    """
    if state.dtype == torch.float32:
        return reduce.row_products(state, columns)
    state = state.contiguous()
    batch, token, width = state.shape
    high = columns.to(state.dtype)
    parts = torch.cat([high, (columns - high.float()).to(state.dtype)], 1)
    count, used = columns.shape[1], parts.shape[1]
    size = max(16, 1 << (used - 1).bit_length())
    padded = torch.nn.functional.pad(parts, (0, 0, 0, size - used)).contiguous()
    products = torch.empty(batch, token, used, dtype=torch.float32, device=state.device)
    rows = 64
    _kernels().row_kernel[(batch, -(-token // rows))](
        state, padded, products, token, width, used, SIZE=size, ROWS=rows, CHUNK=64, num_warps=4
    )
    return products[..., :count] + products[..., count:]


def _chunk(width: int) -> int:
    """Columns one program takes: the power of two up to 1024 that leaves the fewest idle."""
    return min((1024, 512, 256), key=lambda size: (-(-width // size) * size, -size))
