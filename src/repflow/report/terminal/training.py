"""The history of a training in the terminal: each metric by step, or two trainings at the steps that both have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.terminal.cell import ABSENT, number, thinned
from repflow.report.terminal.fitted import FittedTable

DIFFERENCE = "difference/"


def view(result: Result) -> list[RenderableType]:
    """A row per step; of two histories both and their difference. Findings below."""
    names = [name.removeprefix(DIFFERENCE) for name in result if name.startswith(DIFFERENCE)]
    table = _pair_table(result, names) if names else _table(result)
    return [table, *(Text.assemble((f"finding {f.code}: ", "yellow"), f.message) for f in result.findings)]


def cell(result: Result) -> dict[str, float]:
    """The last reading, for the table of a grid."""
    return {name: float(np.mean(result.mean(name)[-1])) for name in result if name != "step"}


def _table(result: Result) -> FittedTable:
    steps = result["step"]
    columns: dict[str, np.ndarray] = {}
    for name in (name for name in result if name != "step"):
        values = result.mean(name).reshape(len(steps), -1)
        columns[name] = values.mean(1)
        if values.shape[1] > 1:
            columns[f"{name}, last"] = values[:, -1]
    rows = [[str(steps[at]), *(number(float(values[at])) for values in columns.values())] for at in thinned(len(steps))]
    model = result.provenance.get("model", {}).get("name", "")
    title = f"{model}: {len(steps)} readings on {result.config['prompts']} prompts of {result.config['task']}"
    caption = f"{len(rows)} of {len(steps)} readings shown; " if len(rows) < len(steps) else ""
    return _fitted(title, ["step", *columns], rows, f"{caption}mean over prompts and depth; last: of the last state")


def _pair_table(result: Result, names: Sequence[str]) -> FittedTable:
    steps = result["step"]
    headings, rows = ["step"], [[str(steps[at])] for at in thinned(len(steps))]
    for name in names:
        headings += [f"{name} A", "B", "A − B"]
        a, b = (result[f"{side}/{name}"].reshape(len(steps), -1).mean(1) for side in ("a", "b"))
        for row, at in zip(rows, thinned(len(steps)), strict=True):
            row += [number(float(a[at])), number(float(b[at])), _difference(result, name, at)]
    title = f"A = {result.provenance['runs'][0]}, B = {result.provenance['runs'][1]} on task {result.config['task']}"
    caption = "mean over prompts and depth; * where the 95 % interval over prompts excludes 0 at every depth"
    return _fitted(title, headings, rows, caption)


def _difference(result: Result, name: str, at: int) -> str:
    key = DIFFERENCE + name
    mean = float(np.mean(result.mean(key)[at]))
    band = result.bands.get(key)
    if not np.isfinite(mean):
        return ABSENT
    clear = band is not None and bool(((band.low[at] > 0) | (band.high[at] < 0)).all())
    return f"{mean:+.3f}{'*' if clear else ''}"


def _fitted(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> FittedTable:
    def build(names: Sequence[str], below: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=below, caption_justify="left")
        for name in names:
            table.add_column(name, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row[: len(names)]))
        return table

    return FittedTable(headings, 2, build, caption)
