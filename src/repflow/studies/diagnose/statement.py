"""Statements of a diagnosis and the thresholds they are compared with.

Every statement holds the numbers behind it. Published signatures are judged twice: as published, on raw point values,
and as we judge, on excess similarity and chance-corrected points whose whole 95 % interval lies on one side. A linear
probe shows that something can be decoded; it does not show that the model uses it, so no statement says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.studies.diagnose.evidence import Interval


@dataclass(frozen=True)
class Thresholds:
    """Where a signature begins.

    Attributes:
        early_similarity: similarity between tokens in the early states, published for Transformers.
        late_similarity: similarity between tokens in the last states, published for state-space models.
        loss_points: points of accuracy from the peak to the last state.
        early_depth: states up to this relative depth are early.
        late_depth: states from this relative depth on are late.
    """

    early_similarity: float = 0.8
    late_similarity: float = 0.7
    loss_points: float = 15.0
    early_depth: float = 0.5
    late_depth: float = 0.75

    def __post_init__(self) -> None:
        """Refuse thresholds that no model could be on both sides of."""
        for entry in fields(self):
            value, high = getattr(self, entry.name), 100.0 if entry.name == "loss_points" else 1.0
            if not 0 <= value <= high:
                option = f"--{entry.name.replace('_', '-')}"
                raise InputError(teach(f"{option} from 0 to {high:g}", f"{value:g}", "see repflow diagnose --help"))


@dataclass(frozen=True)
class Statement:
    """One sentence of the diagnosis.

    Attributes:
        code: short name of what it is about.
        section: flow, read-out, signature or layout.
        holds: whether what the code names is there: True, False, None where the numbers do not decide.
        text: the sentence, with its numbers.
        numbers: the numbers it cites, by name.
        basis: `published` (raw point values), `judged` (corrected values with intervals) or `measured`.
    """

    code: str
    section: str
    holds: bool | None
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)
    basis: str = "measured"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"numbers": {name: plain(value) for name, value in self.numbers.items()}}


def plain(value: Any) -> Any:
    """JSON value of a cited number."""
    if isinstance(value, Interval):
        return value.to_json()
    if isinstance(value, bool):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def verdict(holds: bool | None) -> str:
    """Yes, no, or open.

    >>> verdict(None)
    'open'
    """
    return {True: "yes", False: "no", None: "open"}[holds]
