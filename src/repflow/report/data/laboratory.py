"""Models of a laboratory's run, joined over their seeds: one line per cell without its seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.results import Result

FACTS = ("cell", "seed", "seconds", "graph", "beside", "tokens", "command", "alone")
"""What `provenance["cells"]` says of a cell beside the fields that a line shares."""
Named = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Line:
    """Models that differ in their seed alone.

    Attributes:
        shared: fields of the cell, without the seed.
        cells: their places.
        result: of the run.
        words: what it is called, without its rate.
    """

    shared: Mapping[str, Any]
    cells: tuple[int, ...]
    result: Result
    words: str

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


def lines_of(result: Result, named: Named | None = None) -> list[Line]:
    """Lines in the order of the grid.

    Args:
        result: of a laboratory.
        named: what a line is called; by default by the fields that differ.
    """
    cells = result.provenance["cells"]
    fields = [name for name in cells[0] if name not in FACTS]
    varied = [name for name in fields if name != "rate" and len({str(cell[name]) for cell in cells}) > 1]
    places: dict[tuple[Any, ...], list[int]] = {}
    for place, cell in enumerate(cells):
        places.setdefault(tuple(cell[name] for name in fields), []).append(place)
    lines = []
    for key, own in places.items():
        shared = dict(zip(fields, key, strict=True))
        plain = ", ".join(str(shared[name]) for name in varied) or str(key[0])
        lines.append(Line(shared, tuple(own), result, plain if named is None else named(shared)))
    return lines


def best_lines(
    result: Result, named: Named | None = None, *, score: str = "accuracy", lowest: bool = False
) -> list[Line]:
    """Of every cell without rate and seed the rate that served it best.

    Args:
        result: of a laboratory.
        named: what a line is called.
        score: array whose mean is compared.
        lowest: whether the least is the best, as of a loss.
    """
    best: dict[tuple[Any, ...], Line] = {}
    for line in lines_of(result, named):
        key = tuple(value for name, value in line.shared.items() if name != "rate")
        if key not in best or _score(line, score, lowest) > _score(best[key], score, lowest):
            best[key] = line
    return list(best.values())


def _score(line: Line, name: str, lowest: bool) -> float:
    values = line.mean(name)
    if not np.isfinite(values).any():
        return -np.inf
    return float(np.nanmean(values)) * (-1 if lowest else 1)
