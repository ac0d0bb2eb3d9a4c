"""GPU forms of `repflow.metrics.reduce`, in Triton: several states per pass, each read once.

On a GPU the meters' cost is bytes. The running sums over depth (mean and squared deviations, in float32) weigh four
times a bfloat16 state each to read and write, so a group of states is taken into them together; everything else about
a token comes from the same read.
Tested against `reduce` in Triton's interpreter on the CPU, and on a GPU by benchmarks/overhead.py.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from repflow.metrics.reduce import DepthSums, StepNorms, TokenProducts

MAX_WIDTH = 16_384
"""A token's row is held in registers; wider models take the plain path."""
MAX_NEW = 8
"""States one kernel takes in, beside the two before them."""
PRECISIONS = (torch.float32, torch.bfloat16, torch.float16)
EXACT = "tf32x3"
"""How the matrix units multiply float32 numbers: each as two TF32 numbers, three products, right to float32's own
rounding. "ieee" leaves the matrix units idle."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's own switch: kernels then run on CPU tensors, slowly, which is how the tests check them without a GPU."""

_found: Any = None
_hooks = threading.local()
_wait: Callable[..., bool] | None = None


@contextmanager
def noting(note: Callable[..., None]) -> Iterator[None]:
    """In this thread and for a while, hand kernels and arguments to `note` instead of launching them."""
    _hooks.note = note
    try:
        yield
    finally:
        del _hooks.note


def before_launch(wait: Callable[..., bool]) -> None:
    """Call `wait` with the kernel and its arguments before every launch, until it returns True."""
    global _wait
    _wait = wait


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    global _wait
    note = getattr(_hooks, "note", None)
    if note is not None:
        note(kernel, grid, arguments, options)
        return
    if _wait is not None and _wait(kernel, grid, arguments, options):
        _wait = None
    kernel[grid](*arguments, **options)


def usable(*states: Tensor) -> bool:
    """True when the fused kernels can take these tensors together; their dtypes may differ."""
    for state in states:
        if (
            not (state.is_cuda or state.is_meta or INTERPRETED)
            or state.dtype not in PRECISIONS
            or state.shape[-1] > MAX_WIDTH
        ):
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
            _launch(kernels.norm_kernel, (rows,), state, out, width, BLOCK=chunk, CHUNKS=chunks, num_warps=4)
    before = [n.contiguous() for n in norms[-previous:]] if previous else []
    turned = raw if direction is None else direction
    partial = torch.zeros(7 + 2 * new, chunks, *shape, dtype=torch.float32, device=norm.device)
    _launch(
        kernels.depth_kernel,
        (rows, chunks),
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
        num_warps=1,  # sums over a row then stay within a warp: a quarter faster than four on an H200
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


SINGLES = 16
"""Columns of the products that are wanted token by token; the matrix units take no fewer."""


def _runs(states: list[Tensor]) -> list[slice]:
    """Neighbouring states of one dtype, at most MAX_NEW: a kernel chooses among pointers, which must be of one type.

    A model's stream is wide (`residual_in_fp32`) while its embedding is not, so a batch has at most two dtypes.

    >>> half, full = torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1)
    >>> _runs([half, full, full])
    [slice(0, 1, None), slice(1, 3, None)]
    """
    starts = [0]
    for at in range(1, len(states)):
        if states[at].dtype != states[at - 1].dtype or at - starts[-1] == MAX_NEW:
            starts.append(at)
    return [slice(start, end) for start, end in pairwise([*starts, len(states)])]


def _table_dtype(states: list[Tensor]) -> torch.dtype:
    """Dtype in which the matrix units take these states; float16 has too small a range for parts of a float32."""
    return torch.bfloat16 if states[0].dtype == torch.bfloat16 else torch.float32


def column_sums(
    states: list[Tensor], weights: Tensor, probes: Tensor, others: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """As `reduce.column_sums`, on the matrix units, for states of any mixture of dtypes.

    Each float32 weight is three bfloat16 parts, which together carry all its bits, and so is each entry of a state that
    is not bfloat16 itself; products of such numbers are exact in float32, and probes are -1, 0 or 1. TF32 would take as
    many products, each at half the rate, and not from states as they lie in memory.
    """
    parts = [_column_run(states[run], weights[run], probes, others[run], lengths) for run in _runs(states)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat([sums for sums, _ in parts]), torch.cat([energy for _, energy in parts])


def _column_run(
    states: list[Tensor], weights: Tensor, probes: Tensor, others: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    batch, token, width = states[0].shape
    pairs, exact, narrow = len(states) * batch, weights.shape[2], states[0].dtype == torch.bfloat16
    table, count = _weight_table(weights, probes, others), exact + probes.shape[1]
    columns = 128 if width >= 128 else 64
    split = max(1, min(8, token // 512))
    rows = table.shape[2]
    sums = torch.empty(split, len(states), batch, rows, width, dtype=torch.float32, device=weights.device)
    energy = torch.empty(split, len(states), batch, width, dtype=torch.float32, device=weights.device)
    _launch(
        _kernels().column_kernel,
        (pairs, -(-width // columns), split),
        *_pointers(states),
        table,
        sums,
        energy,
        lengths,
        batch,
        token,
        width,
        _span(token, split),
        ROWS=rows,
        COLUMNS=columns,
        TOKENS=64 if narrow else 32,  # as many bytes
        PARTS=1 if narrow else 3,
        num_warps=4,
    )
    total = sums[:, :, :, : 3 * exact + probes.shape[1]].sum(0)
    total[:, :, :exact] += total[:, :, count : count + exact] + total[:, :, count + exact :]
    return total[:, :, :count], energy.sum(0)


def _span(token: int, split: int) -> int:
    """Tokens of one part: whole steps of the kernel, so that what it loads is aligned whatever the length.

    >>> _span(2048, 4), _span(2000, 3), _span(70, 1)
    (512, 704, 128)
    """
    return -(-token // (64 * split)) * 64


def _weight_table(weights: Tensor, probes: Tensor, others: Tensor) -> Tensor:
    """Rows for the matrix units: weights rounded, probes, then twice what rounding left of the weights, then zeros."""
    states, batch, exact, token = weights.shape
    count = exact + probes.shape[1]
    used = count + 2 * exact
    table = torch.zeros(states, batch, _power(used), token, dtype=torch.bfloat16, device=weights.device)
    table[:, :, :exact] = weights
    torch.mul(probes.to(table.dtype), others[:, :, None], out=table[:, :, exact:count])
    rest = weights - table[:, :, :exact]
    table[:, :, count : count + exact] = rest
    table[:, :, count + exact : used] = rest - table[:, :, count : count + exact]
    return table.float() if INTERPRETED else table  # the interpreter multiplies bfloat16 numbers by their bits


def token_products(
    states: list[Tensor], tops: Tensor, probes: Tensor, last: Tensor, mean: Tensor, others: Tensor, lengths: Tensor
) -> TokenProducts:
    """As `reduce.token_products`, for states of any mixture of dtypes.

    bfloat16 states meet each vector as two bfloat16 parts, which carry 16 of its bits between them, so a product is
    right to about 1e-5 of its terms. Other states meet the float32 vector itself.
    """
    groups = [
        _product_run(states[run], tops[run], probes[run], last[run], mean[run], others[run], lengths)
        for run in _runs(states)
    ]
    return groups[0] if len(groups) == 1 else TokenProducts(*(torch.cat(part) for part in zip(*groups, strict=True)))


def _product_run(
    states: list[Tensor], tops: Tensor, probes: Tensor, last: Tensor, mean: Tensor, others: Tensor, lengths: Tensor
) -> TokenProducts:
    dtype, count = _table_dtype(states), len(states)
    batch, token, width = states[0].shape
    top, mixed = tops.shape[2], probes.shape[2]
    few = torch.nn.functional.pad(torch.cat([tops, last[:, :, None]], 2), (0, 0, 0, SINGLES - top - 1))
    few_off = (few @ mean[..., None])[..., 0]
    few_off[:, :, top] = 0
    rows = 128 if token > 64 and dtype == torch.float32 else 64
    blocks = -(-token // rows)
    singles = torch.empty(count, batch, token, SINGLES, dtype=torch.float32, device=mean.device)
    table = torch.empty(count, batch, blocks, mixed, mixed, dtype=torch.float32, device=mean.device)
    whole = dtype == torch.float32
    _launch(
        _kernels().product_kernel,
        (count * batch, blocks),
        *_pointers(states),
        few if whole else _two_parts(few, dtype),
        probes.contiguous() if whole else _two_parts(probes, dtype),
        few_off,
        (probes @ mean[..., None])[..., 0].contiguous(),
        others,
        lengths,
        singles,
        table,
        batch,
        token,
        width,
        SINGLES=SINGLES,
        PROBES=mixed,
        ROWS=rows,
        CHUNK=32 if whole else 64,  # as many bytes
        PARTS=1 if whole else 2,
        PRECISION=EXACT,
        num_warps=4,
    )
    return TokenProducts(singles[..., :top], table.sum(2), singles[..., top])


def _two_parts(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors rounded to half precision, then what rounding left of them (state, batch, 2, vector, width)."""
    states, batch, count, width = vectors.shape
    parts = torch.empty(states, batch, 2, count, width, dtype=dtype, device=vectors.device)
    parts[:, :, 0] = vectors
    torch.sub(vectors, parts[:, :, 0], out=parts[:, :, 1])
    return parts


def _pointers(states: list[Tensor]) -> list[Tensor]:
    """States as the kernels take them: eight; the last may repeat in place of missing ones."""
    whole = [state.contiguous() for state in states]
    return [*whole, *[whole[-1]] * (MAX_NEW - len(whole))]


def _power(rows: int) -> int:
    """The power of two, at least 16, that the matrix units take."""
    return max(16, 1 << (rows - 1).bit_length())


def _chunk(width: int) -> int:
    """Columns one program takes: the power of two up to 512 that leaves the fewest idle."""
    return min((512, 256), key=lambda size: (-(-width // size) * size, -size))
