"""Tables of a grid: one row per cell, a dash where a cell could not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from repflow.report.tables import ABSENT, number
from repflow.results import Result

AXES = ("model", "task", "length", "init", "seed")
VALUES = ("Sm", "St", "sim 50 %", "sim 100 %")
MODEL_WIDTH = 40


def summary(result: Result) -> dict[str, float]:
    """The few numbers that the table shows of a cell; matched Sm and St where the run has a relative-depth grid."""
    prefix = "matched/" if result.config.get("grid") is not None else ""
    values = [_scalar(result, f"{prefix}{name}") for name in ("smoothness", "stability")]
    similarity = result.mean("token_similarity") if "token_similarity" in result else np.full(1, np.nan)
    at = np.interp([0.5, 1.0], np.linspace(0, 1, len(similarity)), similarity)
    return dict(zip(VALUES, [*values, *(float(value) for value in at)], strict=True))


def grid_table(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, float] | None]]) -> Table:
    """Table over cells: their configs, and their `summary` or None."""
    table = Table(box=box.SIMPLE, caption_justify="left")
    longest = max((len(str(config["model"])) for config, _ in rows), default=0)
    for axis in AXES:
        table.add_column(
            axis,
            justify="right" if axis in ("length", "seed") else "left",
            min_width=min(longest, MODEL_WIDTH) if axis == "model" else None,
            overflow="fold",
        )
    for value in VALUES:
        table.add_column(value, justify="right")
    for config, values in rows:
        cells = [ABSENT] * len(VALUES) if values is None else [_shown(name, values[name]) for name in VALUES]
        table.add_row(*(Text(str(config[axis])) for axis in AXES), *cells)
    grids = {config.get("grid") for config, _ in rows}
    if grids == {None}:
        note = "Sm and St per block"
    else:
        note = (
            f"Sm and St on a matched grid of {', '.join(map(str, sorted(g for g in grids if g)))} relative-depth steps"
        )
    note += "; sim: token similarity at relative depth"
    table.caption = Text(note + (f"; {ABSENT}: could not be run" if any(v is None for _, v in rows) else ""))
    return table


def _scalar(result: Result, name: str) -> float:
    return float(result.mean(name)) if name in result else float("nan")


def _shown(name: str, value: float) -> str:
    if name in ("Sm", "St"):
        return f"{value:.4g}" if np.isfinite(value) else ABSENT
    return number(value)
