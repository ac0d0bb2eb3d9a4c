"""Mutual nearest neighbours: do two models put the same tokens next to each other? A second opinion beside CKA.

CKA weighs a token by its distance from the mean, so a few massive tokens can decide it; here every token counts alike
and only the order of its nearest neighbours matters.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.metrics.checks import as_rows

__all__ = ["mutual_neighbours", "neighbour_chance"]

NEIGHBOURS = 10
CHUNK_ENTRIES = 16_777_216
"""Entries of all states' neighbour matrices held at once (64 MB in float32)."""

Rows = Float[Tensor, "token _"]


def mutual_neighbours(
    states_a: Sequence[Tensor], states_b: Sequence[Tensor], *, k: int = NEIGHBOURS
) -> Float[Tensor, "state_a state_b"]:
    """Mean share of a token's k nearest neighbours (by cosine, itself excluded) that two states have in common.

    1 when both states order the tokens alike, `neighbour_chance(k, n)` = k / (n - 1) on average for unrelated states.
    A state with a zero or non-finite token vector has no neighbours: NaN in its row or column.

    Args:
        states_a: states of the first model, each (token, width); widths may differ.
        states_b: states of the second model over the same tokens in the same order.
        k: neighbours per token, less than the number of tokens.

    Returns:
        (state of a, state of b), float64.

    >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> mutual_neighbours([x], [x, x[[0, 2, 1, 3]]], k=1)
    tensor([[1., 0.]], dtype=torch.float64)
    """
    rows_a = [as_rows(rows, "states_a") for rows in states_a]
    rows_b = [as_rows(rows, "states_b") for rows in states_b]
    count = _check(rows_a, rows_b, k)
    near_a = [_nearest(rows, k) for rows in rows_a]
    near_b = [_nearest(rows, k) for rows in rows_b]
    shared = torch.zeros(len(rows_a), len(rows_b), dtype=torch.float64, device=rows_a[0].device)
    step = max(1, CHUNK_ENTRIES // (count * (len(rows_a) + len(rows_b))))
    for start in range(0, count, step):
        part = slice(start, start + step)
        # counts up to step * k are whole numbers that float32 holds exactly, and its matmul is the fast one
        flags_a = torch.stack([_flags(index[part], count) for index in near_a]).flatten(1).float()
        flags_b = torch.stack([_flags(index[part], count) for index in near_b]).flatten(1).float()
        shared += (flags_a @ flags_b.T).double()
    share = shared / (count * k)
    share[[not _has_directions(rows) for rows in rows_a]] = torch.nan
    share[:, [not _has_directions(rows) for rows in rows_b]] = torch.nan
    return share


def neighbour_chance(k: int, count: int) -> float:
    """Expected `mutual_neighbours` of unrelated states over `count` tokens.

    >>> neighbour_chance(10, 201)
    0.05
    """
    return k / (count - 1)


def _check(rows_a: list[Tensor], rows_b: list[Tensor], k: int) -> int:
    if not rows_a or not rows_b:
        raise InputError(teach("at least one state on each side", f"{len(rows_a)} and {len(rows_b)}", "pass states"))
    counts = {rows.shape[0] for rows in (*rows_a, *rows_b)}
    if len(counts) != 1:
        raise InputError(
            teach("states with one row per shared token", f"{sorted(counts)} rows", "match the rows first")
        )
    count = counts.pop()
    if not 1 <= k < count:
        raise InputError(
            teach(f"1 <= k < {count} neighbours for {count} tokens", f"k = {k}", "lower k or pass more tokens")
        )
    return count


def _nearest(rows: Rows, k: int) -> Tensor:
    """Indices (token, k) of each token's nearest others by cosine, in row blocks."""
    unit = rows / rows.norm(dim=1, keepdim=True)
    count = rows.shape[0]
    index = torch.empty(count, k, dtype=torch.long, device=rows.device)
    step = max(1, CHUNK_ENTRIES // count)
    for start in range(0, count, step):
        cosine = unit[start : start + step] @ unit.T
        own = torch.arange(cosine.shape[0], device=rows.device)
        cosine[own, own + start] = -torch.inf
        index[start : start + step] = cosine.topk(k, dim=1).indices
    return index


def _flags(index: Tensor, count: int) -> Bool[Tensor, "token other"]:
    flags = torch.zeros(index.shape[0], count, dtype=torch.bool, device=index.device)
    return flags.scatter_(1, index, True)


def _has_directions(rows: Rows) -> bool:
    norm = rows.norm(dim=1)
    return bool((norm.isfinite() & (norm > 0)).all())
