"""Models of a recall run, joined over their seeds: one line per row, depth, width, initialisation and rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.results import Result

SHARED = ("row", "layers", "width", "init", "rate")


@dataclass(frozen=True)
class Line:
    """Models that differ in their seed alone.

    Attributes:
        shared: row, layers, width, init and rate.
        cells: their places.
        result: of the run.
    """

    shared: Mapping[str, Any]
    cells: tuple[int, ...]
    result: Result

    @property
    def words(self) -> str:
        """Row and depth, and the initialisation where it is not the right one."""
        said = f"{self.shared['row']}, {self.shared['layers']} layers"
        return said if self.shared["init"] == "right" else f"{said}, {self.shared['init']} initialisation"

    def mean(self, name: str) -> np.ndarray:
        """Mean over the seeds whose value is finite; NaN where there are none."""
        values = self.result[name][list(self.cells)]
        there = np.isfinite(values)
        total = np.where(there, values, 0).sum(0)
        return np.where(there.any(0), total / np.maximum(there.sum(0), 1), np.nan)

    def spread(self, name: str) -> np.ndarray:
        """Standard deviation over seeds; NaN with fewer than two."""
        values = self.result[name][list(self.cells)]
        few = np.isfinite(values).sum(0) < 2
        with np.errstate(invalid="ignore"):
            mean = self.mean(name)
            square = np.where(np.isfinite(values), (values - mean) ** 2, 0).sum(0)
            spread = np.sqrt(square / np.maximum(np.isfinite(values).sum(0) - 1, 1))
        return np.where(few, np.nan, spread)


def lines_of(result: Result) -> list[Line]:
    """Lines in the order of the grid."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, cell in enumerate(result.provenance["cells"]):
        places.setdefault(tuple(cell[name] for name in SHARED), []).append(place)
    return [Line(dict(zip(SHARED, key, strict=True)), tuple(cells), result) for key, cells in places.items()]


def best_lines(result: Result) -> list[Line]:
    """Of every row, depth, width and initialisation the rate with the greatest mean accuracy."""
    best: dict[tuple[Any, ...], Line] = {}
    for line in lines_of(result):
        key = tuple(line.shared[name] for name in SHARED[:-1])
        if key not in best or _score(line) > _score(best[key]):
            best[key] = line
    return list(best.values())


def _score(line: Line) -> float:
    accuracy = line.mean("accuracy")
    return float(np.nanmean(accuracy)) if np.isfinite(accuracy).any() else -1.0
