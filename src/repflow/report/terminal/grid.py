"""Tables of a grid: one row per cell, a dash where a cell could not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.core.studies import row_of
from repflow.report.terminal import view_of
from repflow.report.terminal.cell import ABSENT, number
from repflow.report.terminal.fitted import FittedTable

AXES = ("model", "task", "length", "init", "seed")
VALUES = ("Sm", "St", "sim 50 %", "sim 100 %")
PROBED = ("at peak", "last", "drop", "peak", "corrected", "chance")


def summary(result: Result) -> dict[str, float]:
    """The few numbers that the table shows of a cell; matched Sm and St where the run has a relative-depth grid.

    A study's view says them by `cell(result)`; one that does not has its result in its run alone.
    """
    row = row_of(result.config)
    if row is not None and row.name not in ("measure", "probe"):
        return view_of(row.name).cell(result)
    if "probe" in result.provenance:
        about = result.provenance["probe"]
        numbers = (about["peak_accuracy"], about["last_accuracy"], float(result["probe_drop"]), float(about["peak"]))
        corrected = float(result["probe_corrected"][about["peak"]])
        known = [float("nan") if value is None else value for value in (*numbers, corrected, about["chance"])]
        return dict(zip(PROBED, known, strict=True))
    prefix = "matched/" if result.config.get("grid") is not None else ""
    values = [_scalar(result, f"{prefix}{name}") for name in ("smoothness", "stability")]
    similarity = result.mean("token_similarity") if "token_similarity" in result else np.full(1, np.nan)
    at = np.interp([0.5, 1.0], np.linspace(0, 1, len(similarity)), similarity)
    return dict(zip(VALUES, [*values, *(float(value) for value in at)], strict=True))


def grid_table(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, float] | None]]) -> FittedTable:
    """Table over cells: their configs, and their `summary` or None. What all cells share stands below it."""
    axes = [axis for axis in AXES if axis in rows[0][0]] if "model" in rows[0][0] else _varied(rows) or ["study"]
    shared = {axis: str(rows[0][0][axis]) for axis in axes if len({str(config[axis]) for config, _ in rows}) == 1}
    varied = [axis for axis in axes if axis == "model" or axis not in shared] or axes
    columns, note = _columns(rows)
    parts = [note] if note else []
    parts += [f"{ABSENT}: could not be run"] if any(v is None for _, v in rows) else []
    same = ", ".join(f"{axis} {value}" for axis, value in shared.items() if axis not in ("model", *varied))
    note = "; ".join([*parts, *([f"all cells: {same}"] if same else [])])

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption_justify="left", min_width=None if columns else 60)  # the note on a line
        for name in names:
            left = name in AXES and name not in ("length", "seed")
            table.add_column(name, justify="left" if left else "right", no_wrap=name != "model", overflow="fold")
        for config, values in rows:
            table.add_row(*(_grid_cell(name, config, values) for name in names))
        table.caption = caption
        return table

    return FittedTable([*varied, *columns], len(varied), build, note, folds=("model",))


def _varied(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, float] | None]]) -> list[str]:
    """Options in which cells differ."""
    return [key for key in rows[0][0] if len({str(config[key]) for config, _ in rows}) > 1]


def _columns(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, float] | None]]) -> tuple[list[str], str]:
    """Numbers that a table of cells shows, and what is said of them."""
    row = row_of(rows[0][0])
    if row is None or row.name == "measure":
        return list(VALUES), _flow_note({config.get("grid") for config, _ in rows})
    if row.name == "probe":
        return list(PROBED), PROBE_NOTE
    columns = list(dict.fromkeys(name for _, values in rows for name in values or ()))
    return columns, "" if columns else "`repflow report` and `repflow list` show the runs"


PROBE_NOTE = "test accuracy at the peak that validation chose, and at the last state; compare corrected across lengths"


def _flow_note(grids: set[int | None]) -> str:
    if grids == {None}:
        note = "Sm and St per block"
    else:
        steps = ", ".join(map(str, sorted(g for g in grids if g)))
        note = f"Sm and St on a matched grid of {steps} relative-depth steps"
    return f"{note}; sim: token similarity at relative depth"


def _grid_cell(name: str, config: Mapping[str, Any], values: Mapping[str, float] | None) -> Text:
    if name in config:
        return Text(str(config[name]))
    return Text(ABSENT if values is None else _shown(name, values.get(name, float("nan"))))


def _scalar(result: Result, name: str) -> float:
    return float(result.mean(name)) if name in result else float("nan")


def _shown(name: str, value: float) -> str:
    if name == "peak":
        return f"{value:.0f}" if np.isfinite(value) else ABSENT
    if name in ("Sm", "St"):
        return f"{value:.4g}" if np.isfinite(value) else ABSENT
    return number(value)
