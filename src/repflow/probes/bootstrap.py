"""Paired bootstrap over prompts: how far test accuracies would move with other prompts of the same kind.

A prompt is drawn with all it has: its answers at every state and under every seed that tests on it. Differences between
states are therefore compared on the same prompts, and prompts of one group can be drawn together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from repflow.errors import InputError, teach

DRAWS = 2000
SEED = 20251006
BLOCK = 100
"""Draws made at once."""


def bootstrap_accuracy(
    correct: Sequence[np.ndarray],
    samples: Sequence[np.ndarray],
    *,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    draws: int = DRAWS,
    seed: int = SEED,
) -> np.ndarray:
    """Test accuracy of every state and seed on prompts drawn with replacement: (draw, state, seed).

    Args:
        correct: Per seed, (state, test sample).
        samples: Per seed, (test sample,) number of each sample: equal numbers are the same prompt.
        groups: (sample,) prompts of a group are drawn together; None draws them one by one.
        draws: Number of draws.
        seed: Of the draws.

    >>> right = np.array([[True] * 50 + [False] * 50])
    >>> drawn = bootstrap_accuracy([right], [np.arange(100)])
    >>> drawn.shape, round(float(drawn.std()), 2)
    ((2000, 1, 1), 0.05)
    """
    if draws < 1:
        raise InputError(teach("at least one draw", f"{draws}", "leave draws out for 2000"))
    units, n_units = _units(samples, groups)
    generator = np.random.default_rng(seed)
    out = np.empty((draws, correct[0].shape[0], len(correct)))
    for start in range(0, draws, BLOCK):
        size = min(BLOCK, draws - start)
        picks = generator.integers(0, n_units, (size, n_units)) + np.arange(size)[:, None] * n_units
        times = np.bincount(picks.ravel(), minlength=size * n_units).reshape(size, n_units).astype(np.float64)
        for k, (right, mine) in enumerate(zip(correct, units, strict=True)):
            weight = times[:, mine]
            with np.errstate(invalid="ignore"):  # a seed none of whose prompts was drawn says nothing in this draw
                out[start : start + size, :, k] = weight @ right.T.astype(np.float64) / weight.sum(1, keepdims=True)
    return out


def _units(
    samples: Sequence[np.ndarray], groups: Sequence[Hashable] | np.ndarray | None
) -> tuple[list[np.ndarray], int]:
    """Number of the unit that each seed's test samples belong to, from 0 without gaps."""
    every = np.concatenate(list(samples))
    if groups is None:
        numbers = np.unique(every, return_inverse=True)[1]
    else:
        names = list(groups)
        if len(names) <= every.max():
            raise InputError(teach(f"a group for each of {every.max() + 1} samples", f"{len(names)}", "pass them all"))
        seen: dict[Hashable, int] = {}
        numbers = np.array([seen.setdefault(names[sample], len(seen)) for sample in every.tolist()])
    ends = np.cumsum([len(part) for part in samples])[:-1]
    return np.split(numbers, ends), int(numbers.max()) + 1


def count_units(samples: Sequence[np.ndarray], groups: Sequence[Hashable] | np.ndarray | None = None) -> int:
    """Prompts, or groups of prompts, that the bootstrap draws from.

    >>> count_units([np.arange(4), np.arange(2, 6)], groups=["a", "a", "b", "b", "c", "c"])
    3
    """
    return _units(samples, groups)[1]


def interval(draws: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile interval over the first axis."""
    tail = 100 * (1 - level) / 2
    percentile = np.percentile if np.isnan(draws).all() else np.nanpercentile
    low, high = percentile(draws, (tail, 100 - tail), axis=0)
    return np.asarray(low), np.asarray(high)
