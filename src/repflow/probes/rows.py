"""The order in which all seeds' training rows are read, so that one matrix product serves every seed.

Seeds that redraw the split train on different rows of the same features. Rows are sorted by the set of seeds that train
on them and cut into chunks; a chunk is multiplied with the weights of its own seeds only. Nothing is computed for a row
that a seed does not train on, except where small sets are merged to keep products large (those are masked).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from repflow.probes.split import Split

MIN_ROWS = 256
"""Smaller sets of rows are joined to their neighbour: below this, moving weights costs more than multiplying."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of the plan and the seeds that train on some of them.

    Attributes:
        start: First row.
        stop: One past the last.
        seeds: Numbers of the seeds.
        mask: (row, seed) 1 where the seed trains on the row, None where all do.
        targets: (row, seed) class numbers.
    """

    start: int
    stop: int
    seeds: tuple[int, ...]
    mask: Tensor | None
    targets: Tensor


@dataclass(frozen=True)
class RowPlan:
    """Which rows are read, in which order and for which seeds.

    Attributes:
        order: (row,) sample of each row; those that some seed trains on come first.
        n_train_rows: How many those are.
        chunks: The training rows, cut.
        counts: (seed,) training rows of each seed.
        place: (sample,) row of each sample, -1 for those never used.
    """

    order: Tensor
    n_train_rows: int
    chunks: tuple[Chunk, ...]
    counts: Tensor
    place: np.ndarray

    @property
    def n_seeds(self) -> int:
        """Seeds trained together."""
        return len(self.counts)


def plan_rows(
    splits: Sequence[Split], labels: np.ndarray, *, max_rows: int, device: torch.device, dtype: torch.dtype
) -> RowPlan:
    """Sort and cut the rows. `labels` is (seed, sample)."""
    n_samples = labels.shape[1]
    trains = np.zeros((n_samples, len(splits)), bool)
    used = np.zeros(n_samples, bool)
    for seed, split in enumerate(splits):
        trains[split.train, seed] = True
        for part in (split.train, split.valid, split.test):
            used[part] = True
    rows = np.flatnonzero(used)
    # seeds as digits of one key; rows that train nobody go last, and ties keep the samples' order
    order = rows[np.lexsort((*trains[rows].T[::-1], ~trains[rows].any(1)))]
    n_train_rows = int(trains[order].any(1).sum())
    place = np.full(n_samples, -1, np.int64)
    place[order] = np.arange(len(order))
    sorted_trains = trains[order[:n_train_rows]]
    targets = np.ascontiguousarray(labels[:, order].T)
    chunks = []
    for start, stop in _cuts(sorted_trains, max_rows):
        part = sorted_trains[start:stop]
        seeds = np.flatnonzero(part.any(0))
        whole = part[:, seeds].all()
        mask = None if whole else torch.as_tensor(part[:, seeds]).to(device, dtype)
        chosen = torch.as_tensor(targets[start:stop][:, seeds]).to(device)
        chunks.append(Chunk(start, stop, tuple(seeds.tolist()), mask, chosen))
    counts = torch.as_tensor(trains.sum(0)).to(device, dtype)
    return RowPlan(torch.as_tensor(order).to(device), n_train_rows, tuple(chunks), counts, place)


def _cuts(trains: np.ndarray, max_rows: int) -> list[tuple[int, int]]:
    """Ends of the chunks: where the set of seeds changes, small sets joined, large ones cut evenly."""
    changes = np.flatnonzero((trains[1:] != trains[:-1]).any(1)) + 1
    edges = [0, *changes.tolist(), len(trains)]
    joined, start = [], 0
    for edge in edges[1:]:
        if edge - start >= min(MIN_ROWS, max_rows) or edge == len(trains):
            joined.append((start, edge))
            start = edge
    cuts = []
    for first, last in joined:
        pieces = -(-(last - first) // max_rows)
        ends = np.linspace(first, last, pieces + 1).astype(int).tolist()
        cuts += list(pairwise(ends))
    return cuts
