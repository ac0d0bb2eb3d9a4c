"""What the backward passes of one model gave, and what is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from repflow.capture.influence.batches import InfluenceOptions
    from repflow.capture.influence.check import GradientCheck
    from repflow.theory.influence_curve import ExponentialFit

Table = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Axes and array by name."""


@dataclass(frozen=True)
class Measured:
    """What the gradients of one model gave.

    Attributes:
        options: how they were taken.
        records: by sample, as `repflow.capture.influence.batches.run_influence` makes them.
        check: of the gradients.
        hidden: why no transition can be read: None where they are read, "" where the model has none.
        layer_kinds: kind of each block.
    """

    options: InfluenceOptions
    records: Mapping[int, Mapping[str, np.ndarray]]
    check: GradientCheck
    hidden: str | None
    layer_kinds: list[str]


@dataclass(frozen=True)
class Side:
    """Arrays and fits of one model.

    Attributes:
        table: arrays.
        fits: one per target, None where the curve is too short to be fitted.
        underflowed: distances of the first target's curves at which the influence is zero.
        nonfinite: distances at which it is NaN or infinite.
    """

    table: Table
    fits: list[ExponentialFit | None]
    underflowed: int
    nonfinite: int
