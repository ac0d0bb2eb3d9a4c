"""The Result of a grid: arrays over all cells, what is known of each, what a reader should know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from repflow.core.results import Finding
from repflow.studies.laboratory.config import LaboratoryConfig
from repflow.studies.laboratory.curve import FALLING

WATCHED = "watched/"
"""In front of the names of a shard's arrays that were read on the way: (point, step and value)."""
Arrays = dict[str, np.ndarray]
MEASURED = ("seconds", "graph", "beside", "tokens")
"""What a shard says of a model's training."""


def padded(values: Sequence[np.ndarray | None]) -> np.ndarray:
    """Arrays of unlike sizes as one, NaN where one has nothing.

    >>> padded([np.array([1.0]), None, np.array([2.0, 3.0])]).tolist()
    [[1.0, nan], [nan, nan], [2.0, 3.0]]
    """
    there = [np.asarray(value, dtype=np.float64) for value in values if value is not None]
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in there), strict=True)) if there else (1, 1)
    whole = np.full((len(values), *shape), np.nan)
    for place, value in enumerate(values):
        if value is not None:
            array = np.asarray(value, dtype=np.float64)
            part: Any = (place, *(slice(size) for size in array.shape))
            whole[part] = array
    return whole


def gathered(
    cells: Sequence[Mapping[str, np.ndarray]],
    axes: Mapping[str, tuple[str, ...]],
    always: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[Arrays, dict[str, tuple[str, ...]]]:
    """Arrays of all cells and their axes, `cell` first.

    Args:
        cells: arrays of each.
        axes: of the arrays of one cell; () for a number, which is NaN where a cell has none. Other arrays are left out
            where no cell has them.
        always: names and shapes of those that every trained model has, so that they are NaN where all diverged.
    """
    arrays: Arrays = {}
    named: dict[str, tuple[str, ...]] = {}
    for name, own in axes.items():
        values = [cell.get(name) for cell in cells]
        if own and all(value is None for value in values):
            if name in always:
                arrays[name], named[name] = np.full((len(cells), *always[name]), np.nan), ("cell", *own)
            continue
        arrays[name] = padded(values) if own else np.array([np.nan if v is None else float(v) for v in values])
        named[name] = ("cell", *own)
    return arrays, named


def watched_arrays(cells: Sequence[Mapping[str, np.ndarray]]) -> tuple[Arrays, list[int]]:
    """What was read on the way, (cell, point) as NAME_on_the_way, and the steps of the points."""
    names = sorted({name for cell in cells for name in cell if name.startswith(WATCHED)})
    steps = sorted({int(step) for cell in cells for name in names if name in cell for step in cell[name][:, 0]})
    arrays: Arrays = {}
    for name in names:
        values = np.full((len(cells), len(steps)), np.nan)
        for place, cell in enumerate(cells):
            for step, value in cell.get(name, np.empty((0, 2))):
                values[place, steps.index(int(step))] = value
        arrays[f"{name.removeprefix(WATCHED)}_on_the_way"] = values
    return arrays, steps


def described(config: LaboratoryConfig, place: int, meta: Mapping[str, Any], group: Sequence[int]) -> dict[str, Any]:
    """What is known of a cell: its fields, its training, the command that repeats it.

    The command trains all models of the cell's group: matrix libraries round otherwise for another number of
    matrices, so that only the same group gives the same numbers. `alone` trains the cell by itself, in less time.

    Args:
        config: what was asked for.
        place: of the cell in the grid.
        meta: of its training.
        group: places of the cells that are trained together.
    """
    grid = config.grid()
    cell = grid[place]
    kept = {key: meta[key] for key in MEASURED if key in meta}
    row = {"cell": str(cell), **cell.values(), **kept, "command": config.command(*(grid[own] for own in group))}
    return row | ({"alone": config.command(cell)} if len(group) > 1 else {})


def training_findings(config: LaboratoryConfig, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
    """Models that diverged, and those that were still learning."""
    findings = []
    cells = config.grid()
    others = "the others went on; " if np.isnan(arrays["diverged_at"]).any() else ""
    for place, step in enumerate(arrays["diverged_at"]):
        if np.isfinite(step):
            text = f"{cells[place]}: the loss of step {step:.0f} is not finite; {others}lower its rate"
            findings.append(Finding("diverged", None, text))
    falling = [place for place, drop in enumerate(arrays["loss_drop"]) if drop > FALLING]
    if falling:
        text = f"the loss of {len(falling)} of {len(cells)} models was still falling: more steps may change their order"
        findings.append(Finding("still_falling", None, text))
    return findings
