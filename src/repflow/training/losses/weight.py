"""HoldAt: a weight that moves so that a penalty's value stays at a target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


@dataclass(frozen=True)
class HoldAt:
    """Weight of a penalty that grows while its value is above a target and shrinks while it is below.

        weight ← weight · exp(rate · (value - target) / |target|), between least and most

    The integral controller of a constraint: at rest, the value is at the target. It moves once per pass, after its
    weight was used.

    Attributes:
        target: value to hold, above 0.
        rate: how fast; 0.01 doubles the weight in 70 steps while the value is twice its target.
        start: first weight.
        least, most: bounds of the weight.

    >>> rule = HoldAt(target=0.5, rate=0.1)
    >>> weight = torch.tensor(1.0, dtype=torch.float64)
    >>> rule.move(weight, torch.tensor(1.0))
    >>> round(weight.item(), 4)  # exp(0.1)
    1.1052
    """

    target: float
    rate: float = 0.01
    start: float = 0.01
    least: float = 1e-6
    most: float = 1e3

    def __post_init__(self) -> None:
        """Refuse what cannot be held."""
        if not (self.target > 0 and math.isfinite(self.target)):
            remedy = "give the value to hold, such as 0.3 for a token similarity"
            raise InputError(teach("a target above 0", str(self.target), remedy))
        if not (self.rate > 0 and 0 < self.least <= self.start <= self.most < math.inf):
            got = f"rate {self.rate}, least {self.least}, start {self.start}, most {self.most}"
            raise InputError(teach("a rate above 0, and 0 < least <= start <= most", got, "leave them out"))

    @torch.no_grad()
    def move(self, weight: Tensor, value: Tensor) -> None:
        """Move a weight, (), in place; a value that is not finite leaves it as it is."""
        far = (value.to(weight) - self.target) / self.target
        step = torch.nan_to_num(self.rate * far, nan=0.0, posinf=0.0, neginf=0.0).clamp(-1, 1)
        weight.copy_((weight * step.exp()).clamp(self.least, self.most))


def check_weight(weight: float | HoldAt) -> None:
    """Refuse a weight that is negative or not finite."""
    if not isinstance(weight, HoldAt) and not (math.isfinite(weight) and weight >= 0):
        raise InputError(
            teach("a weight of at least 0", str(weight), "give how much the penalty counts beside the loss")
        )
