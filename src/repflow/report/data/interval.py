"""A number with its interval over prompts, as the page writes it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import LEAST_VALUES, NO_INTERVAL, Band, student_interval

MOST_DECIMALS = 8
STEPS = 4
"""Least number of steps of the last decimal between the ends of an interval."""


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % interval; NaN ends where there is none.

    >>> str(Interval(0.5, 0.4, 0.62)), str(Interval(0.5, float("nan"), float("nan")))
    ('0.500 [0.400, 0.620]', '0.500')
    """

    value: float
    low: float = float("nan")
    high: float = float("nan")

    def text(self, form: str = ".3f", scale: float = 1.0) -> str:
        """The value, then the interval in brackets; a dash where there is no value."""
        if not np.isfinite(self.value):
            return "–"
        parts = [format(scale * part, form) for part in (self.value, self.low, self.high)]
        return f"{parts[0]} [{parts[1]}, {parts[2]}]" if np.isfinite(self.low) else parts[0]

    @property
    def fitted(self) -> str:
        """The text with as many decimals as distinguish the ends.

        >>> Interval(0.36941, 0.36862, 0.37031).fitted, Interval(1.97, 1.93, 2.011).fitted, Interval(0.4648).fitted
        ('0.3694 [0.3686, 0.3703]', '1.97 [1.93, 2.01]', '0.465')
        >>> Interval(0.5, 0.485, 0.515).fitted
        '0.500 [0.485, 0.515]'
        """
        wide = self.high - self.low
        if not np.isfinite(wide) or wide <= 0:
            return self.text(".3g")
        return self.text(f".{min(max(math.ceil(-math.log10(wide / STEPS)), 0), MOST_DECIMALS)}f")

    def __str__(self) -> str:
        return self.text()

    @property
    def sign(self) -> int:
        """1 or -1 where the interval excludes zero, else 0."""
        return int(self.low > 0) - int(self.high < 0)


def at(band: Band, place: int | tuple[int, ...] = ()) -> Interval:
    """One entry of a band."""
    return Interval(*(float(np.asarray(part)[place]) for part in (band.mean, band.low, band.high)))


def over_samples(values: np.ndarray) -> Interval:
    """Mean of one value per prompt, with Student's 95 % interval over prompts; no interval below three."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    return at(student_interval(known))


def few_prompts(counts: Iterable[int | None]) -> str:
    """A sentence for runs of so few prompts that their numbers stand without intervals; else nothing.

    >>> few_prompts([8, 2]), few_prompts([3, None])
    (' Values of runs of 1 or 2 prompts stand without an interval: no interval below 3 prompts.', '')
    """
    few = any(count is not None and count < LEAST_VALUES for count in counts)
    return f" Values of runs of 1 or 2 prompts stand without an interval: {NO_INTERVAL}." if few else ""
