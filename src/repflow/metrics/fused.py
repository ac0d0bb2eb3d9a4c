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
PRECISIONS = (torch.float32, torch.bfloat16)
"""float16 takes the plain path: its range cannot hold the parts that a float32 weight is split into."""
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
    """As `reduce.add_states`, up to MAX_NEW states in one pass over the running sums."""
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


EXACT = 4
"""Leading weight rows that need all bits of float32; the probes behind them are -1, 0 or 1."""


def column_sums(states: list[Tensor], weights: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """As `reduce.column_sums`, on the matrix units.

    Half-precision states meet each of the first EXACT float32 weights as three half-precision parts, which together
    carry all its bits; products of half-precision numbers are exact in float32.
    """
    batch, token, width = states[0].shape
    group, count, dtype = len(states), weights.shape[2], states[0].dtype
    parts = _padded(_three_parts(weights, dtype))
    rows = parts.shape[2]
    columns = 128 if width >= 128 else 64
    split = max(1, min(8, token // 512))
    sums = torch.empty(group, split, batch, rows, width, dtype=torch.float32, device=weights.device)
    energy = torch.empty(group, split, batch, width, dtype=torch.float32, device=weights.device)
    kernels = _kernels()
    for index, state in enumerate(states):
        kernels.column_kernel[(batch, -(-width // columns), split)](
            state.contiguous(),
            parts[index],
            sums[index],
            energy[index],
            lengths,
            token,
            width,
            -(-token // split),
            ROWS=rows,
            COLUMNS=columns,
            TOKENS=64,
            num_warps=4,
        )
    total = sums.sum(1)
    if dtype != torch.float32:
        first, second, third = total[:, :, :EXACT], total[:, :, count:], total[:, :, count + EXACT :]
        total[:, :, :EXACT] = first + second[:, :, :EXACT] + third[:, :, :EXACT]
    return total[:, :, :count], energy.sum(1)


def row_products(states: list[Tensor], columns: Tensor) -> Tensor:
    """As `reduce.row_products`; for half-precision states each column is taken as two half-precision parts.

    The parts carry 16 bits of a bfloat16 column between them, so a product is right to about 1e-5 of its terms.
    """
    if states[0].dtype == torch.float32:
        return reduce.row_products(states, columns)
    batch, token, width = states[0].shape
    count = columns.shape[2]
    high = columns.to(states[0].dtype)
    parts = _padded(torch.cat([high, (columns - high.float()).to(high.dtype)], 2))
    products = torch.empty(len(states), batch, token, 2 * count, dtype=torch.float32, device=columns.device)
    kernels = _kernels()
    rows = 64
    for index, state in enumerate(states):
        kernels.row_kernel[(batch, -(-token // rows))](
            state.contiguous(),
            parts[index],
            products[index],
            token,
            width,
            2 * count,
            SIZE=parts.shape[2],
            ROWS=rows,
            CHUNK=64,
            num_warps=4,
        )
    return products[..., :count] + products[..., count:]


def _three_parts(weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Weights as half-precision rows: all rows rounded, then twice what rounding left of the exact ones."""
    if dtype == torch.float32:
        return weights
    rounded = weights.to(dtype)
    rest = weights[:, :, :EXACT] - rounded[:, :, :EXACT].float()
    second = rest.to(dtype)
    return torch.cat([rounded, second, (rest - second.float()).to(dtype)], 2)


def _padded(rows: Tensor) -> Tensor:
    """Fill the row axis up to the power of two, at least 16, that the matrix units take."""
    used = rows.shape[2]
    return torch.nn.functional.pad(rows, (0, 0, 0, max(16, 1 << (used - 1).bit_length()) - used)).contiguous()


def _chunk(width: int) -> int:
    """Columns one program takes: the power of two up to 1024 that leaves the fewest idle."""
    return min((1024, 512, 256), key=lambda size: (-(-width // size) * size, -size))
