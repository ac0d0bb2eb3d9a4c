"""The table of `repflow list`: runs and studies, how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from repflow.core.visible import one_line
from repflow.report.terminal.fitted import FittedTable

if TYPE_CHECKING:
    from repflow.store import RunSummary

COLUMNS = ("run", "prompts", "state", "task", "model")
LONGEST = {"run": 60, "state": 12, "model": 0}
"""Longest entries that are never folded: names stay in one piece, to be copied, and other columns give way."""


def list_table(runs: Sequence[RunSummary]) -> FittedTable:
    """One row per run or study; names are never cut."""
    rows = [
        {"run": run.name, "prompts": _prompts(run), "state": _state(run), "task": run.task, "model": run.model}
        for run in runs
    ]
    rows = [{name: one_line(text) for name, text in row.items()} for row in rows]

    folds = [name for name, most in LONGEST.items() if max(len(row[name]) for row in rows) > most]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=caption, caption_justify="left")
        for name in names:
            right = name == "prompts"
            table.add_column(name, justify="right" if right else "left", no_wrap=name not in folds, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    notes = ["list RUN shows what a folder of several runs holds"] * any(run.cells or run.failed for run in runs)
    notes += ["--json says why a cell has no run"] * any(run.reason for run in runs)
    return FittedTable(COLUMNS, 3, build, "; ".join(notes), folds=folds)


def _prompts(run: RunSummary) -> str:
    if run.cells or run.failed:
        return f"{run.cells} runs"
    if run.study == "training":
        return f"{run.done or 0} readings"
    if run.finished and not run.done and run.total is None:
        return "–"  # a simulation, a closed form: it read none
    return f"{'?' if run.done is None else run.done}/{'?' if run.total is None else run.total}"


def _state(run: RunSummary) -> str:
    if run.damaged:
        return f"damaged: {run.damaged}"
    if run.finished:
        return "finished"
    if run.reason:
        return run.reason.partition(":")[0]
    if not run.cells and not run.failed:
        return "unfinished"
    return f"{run.done} of {run.total} finished" + (f", {run.failed} could not run" if run.failed else "")
