"""Schedules of the learning rate: linear warm-up, then constant, linear or cosine down to a share of the peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.request import check_least

SHAPES = ("constant", "linear", "cosine")


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step.

    Attributes:
        shape: constant, linear or cosine, after the warm-up.
        warmup: steps up to the peak; the first one has 1 / warmup of it.
        final: last rate by the peak, of linear and cosine.
        hold: steps at the end that stay at the last rate.
        stage: steps during which the rate stays the same, such as those of an epoch; the warm-up moves every step.

    >>> schedule = Schedule("cosine", warmup=10, final=0.1)
    >>> [round(schedule.rate(1.0, step, 100), 3) for step in (0, 9, 55, 99)]
    [0.1, 1.0, 0.55, 0.1]
    >>> [Schedule("cosine", stage=50).rate(1.0, step, 100) for step in (0, 49)], Schedule().rate(0.5, 7, 100)
    ([1.0, 1.0], 0.5)
    """

    shape: str = "constant"
    warmup: int = 0
    final: float = 0.0
    hold: int = 0
    stage: int = 1

    def __post_init__(self) -> None:
        """Refuse what is not a schedule."""
        if self.shape not in SHAPES:
            raise InputError(teach("the shape of a schedule", repr(self.shape), nearest(self.shape, SHAPES)))
        check_least([("warmup", self.warmup, 0), ("hold", self.hold, 0), ("stage", self.stage, 1)])
        if not 0 <= self.final <= 1:
            raise InputError(teach("final from 0 to 1", f"{self.final}", "it is a share of the peak"))

    def rate(self, peak: float, step: int, steps: int) -> float:
        """Rate of a step from 0 in a training of `steps` steps."""
        if step < self.warmup:
            return peak * (step + 1) / self.warmup
        if self.shape == "constant":
            return peak
        past = (step - self.warmup) // self.stage * self.stage
        done = min(1.0, past / max(1, steps - self.warmup - self.hold))
        if self.shape == "linear":
            return peak * (self.final + (1 - self.final) * (1 - done))
        return peak * (self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done)))
