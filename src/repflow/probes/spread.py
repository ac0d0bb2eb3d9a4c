"""How far a number from test prompts moves: with other test prompts, and with probes fitted on other training prompts.

Every number here is a mean over seeds of a mean over test prompts: an accuracy, or a difference of two on the same
prompts. Two intervals are made of it, and the wider one counts.

- Over test prompts, of the probes at hand. A prompt (or group of prompts) enters with all it has, at every seed that
  tests on it. Made-up prompts are added, two right and two wrong to an accuracy (Agresti and Coull 1998), one each way
  to a difference (Bonett and Price 2012), so that prompts which all agree give no interval without width.
- Over refits. Seeds that resplit the same prompts train and test on much of the same, so that the spread between
  them is too small: Nadeau and Bengio's corrected resampled t adds test/train to 1/seeds. Seeds with prompts of their
  own are independent, and Student's t holds. Fewer than three seeds, or seeds that train on the same prompts, say
  nothing of refitting.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import LEAST_VALUES, LEVEL, corrected_resampled_t, student_interval, student_quantile
from repflow.probes.split import Split

LEAST_UNITS = 10
"""Test prompts, or groups of them, that an interval needs."""
SHARE = (0.0, 0.0, 1.0, 1.0)
"""Made-up prompts of an accuracy: two wrong, two right."""
DIFFERENCE = (-1.0, 1.0)
"""Made-up prompts of a difference: one each way."""

Ends = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Spread:
    """Some numbers and how far they move.

    Attributes:
        mean: (entry,).
        by_seed: (entry, seed).
        centre: The mean with the made-up prompts, (entry,).
        error: Its standard error over test prompts, (entry,).
        units: Test prompts, or groups of them; under LEAST_UNITS there is no interval.
        refits: Test over training prompts, 0 where seeds share none; None where seeds do not cover refitting.
        bounds: Least and greatest value there can be.
        train: Training prompts of a seed, mean.
        test: Test prompts of a seed, mean.
    """

    mean: np.ndarray
    by_seed: np.ndarray
    centre: np.ndarray
    error: np.ndarray
    units: int
    refits: float | None
    bounds: tuple[float, float]
    train: float
    test: float

    @property
    def unbounded(self) -> Spread:
        """The same without bounds, for numbers that may be beyond those of the made-up prompts."""
        return replace(self, bounds=(-np.inf, np.inf))

    @property
    def covers_refits(self) -> bool:
        """Whether the intervals hold for probes fitted on other training prompts too."""
        return self.refits is not None

    def over_prompts(self, level: float = LEVEL) -> Ends:
        """Interval for other test prompts and the same probes."""
        if self.units < LEAST_UNITS:
            return np.full_like(self.mean, np.nan), np.full_like(self.mean, np.nan)
        half = float(student_quantile(self.units - 1, level)) * self.error
        low, high = (self.centre + side * half for side in (-1, 1))
        # the made-up prompts draw the middle towards zero: the number itself never lies outside
        return (np.minimum(low, self.mean).clip(*self.bounds), np.maximum(high, self.mean).clip(*self.bounds))

    def over_refits(self, level: float = LEVEL) -> Ends:
        """Interval for other training and test prompts; NaN where seeds do not cover refitting."""
        if self.refits is None or self.units < LEAST_UNITS:
            return np.full_like(self.mean, np.nan), np.full_like(self.mean, np.nan)
        if self.refits:
            band = corrected_resampled_t(self.by_seed, train=self.train, test=self.test, axis=1, level=level)
        else:
            band = student_interval(self.by_seed, axis=1, level=level)
        return band.low.clip(*self.bounds), band.high.clip(*self.bounds)

    def interval(self, level: float = LEVEL, *, comparisons: int = 1) -> Ends:
        """The wider of the two at each end.

        Args:
            level: Nominal coverage.
            comparisons: The interval over prompts is widened for this many at once (Bonferroni). That over refits is
                not: with a few seeds Student's quantile at a thousandth is beyond any loss.
                `benchmarks/lost_in_block.py` shows that both together, and a fit on half the training prompts, keep
                false claims under 5 %.
        """
        low, high = self.over_prompts(1 - (1 - level) / comparisons)
        other_low, other_high = self.over_refits(level)
        return np.fmin(low, other_low), np.fmax(high, other_high)


def spread(
    values: Sequence[np.ndarray],
    splits: Sequence[Split],
    *,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    made_up: tuple[float, ...] = DIFFERENCE,
) -> Spread:
    """Means over seeds and test prompts, with what their intervals need.

    Args:
        values: Per seed, (entry, test sample): right (1) or wrong (0), or a difference; NaN entries stay NaN.
        splits: One per seed.
        groups: (sample,) prompts of a group count as one; None takes each alone.
        made_up: Values of the prompts that are added, `SHARE` or `DIFFERENCE`.

    >>> split = Split(np.arange(60), np.arange(60, 80), np.arange(80, 100))
    >>> found = spread([np.ones((1, 20))], [split], made_up=SHARE)
    >>> [round(float(end[0]), 2) for end in found.interval()], found.covers_refits
    ([0.8, 1.0], False)
    """
    units, count = unit_numbers([split.test for split in splits], groups)
    by_seed = np.stack([part.mean(1) for part in values], 1)
    mean = by_seed.mean(1)
    added = len(made_up)
    centre = (count * mean + sum(made_up)) / (count + added)
    total, weight = np.zeros((len(mean), count)), np.zeros(count)
    for part, mine in zip(values, units, strict=True):
        share = 1 / (len(mine) * len(values))
        np.add.at(weight, mine, share)
        # rows of one unit are summed by a product with its indicator: few columns, any number of entries
        order = np.argsort(mine, kind="stable")
        starts = np.flatnonzero(np.diff(mine[order], prepend=-1))
        total[:, mine[order][starts]] += share * np.add.reduceat(part[:, order].astype(np.float64), starts, axis=1)
    squares = np.square(total - weight * centre[:, None]).sum(1)
    squares += sum(np.square((value - centre) / count) for value in made_up)
    error = np.sqrt(squares) * count / (count + added)
    return Spread(
        mean,
        by_seed,
        centre,
        error,
        count,
        refits_of(splits),
        (min(made_up), max(made_up)),
        float(np.mean([len(split.train) for split in splits])),
        float(np.mean([len(split.test) for split in splits])),
    )


def refits_of(splits: Sequence[Split]) -> float | None:
    """Test over training prompts where seeds resplit the same prompts, 0 where each seed has prompts of its own.

    None where they say nothing of refitting: fewer than three, or some that train on the same prompts.

    >>> rows = np.arange(10)
    >>> one = Split(rows[:6], rows[6:8], rows[8:])
    >>> refits_of([one] * 3), refits_of([Split(one.train + k, one.valid + k, one.test + k) for k in (0, 10, 20)])
    (None, 0.0)
    """
    if len(splits) < LEAST_VALUES:
        return None
    trained = {tuple(split.train.tolist()) for split in splits}
    if len(trained) < len(splits):
        return None
    rows = [np.concatenate([split.train, split.test]) for split in splits]
    if len(np.unique(np.concatenate(rows))) == sum(map(len, rows)):
        return 0.0
    return float(np.mean([len(split.test) / len(split.train) for split in splits]))


def unit_numbers(
    samples: Sequence[np.ndarray], groups: Sequence[Hashable] | np.ndarray | None = None
) -> tuple[list[np.ndarray], int]:
    """Number of the prompt, or group of prompts, that each seed's test samples belong to; and how many there are.

    >>> unit_numbers([np.arange(4), np.arange(2, 6)], groups=["a", "a", "b", "b", "c", "c"])[1]
    3
    """
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
