"""Table of trained weights against random twins: late minus early token similarity, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.intervals import bracketed
from repflow.core.results import Result
from repflow.report.terminal.cell import ABSENT, number
from repflow.report.terminal.fitted import FittedTable


def view(result: Result) -> list[RenderableType]:
    """What the command line shows: one table, then the verdicts and break conditions."""
    findings = [Text.assemble((f"{f.code}: ", "yellow"), f.message) for f in result.findings]
    return [twins_table(result), *findings]


def twins_table(result: Result) -> FittedTable:
    """One row per ablation, weights and length."""
    labels, config = result.provenance["labels"], result.config
    rows = [
        _row(result, labels, (a, w, n))
        for a in range(len(labels["ablation"]))
        for w in range(len(labels["weights"]))
        for n in range(len(labels["length"]))
    ]
    headings = [name for name in rows[0] if name != "without" or len(labels["ablation"]) > 1]
    named = [name for name in headings if name in ("without", "weights")]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=caption, caption_justify="left")
        for name in names:
            text = name in named
            table.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    caption = (
        f"token similarity over the first and the last {config['share']:.0%} of the blocks, "
        f"{config['samples']} prompts, {config['seeds']} seeds of random weights; "
        f"intervals are 95 %, over prompts and seeds; +, −: the interval excludes 0, ?: it does not; "
        f"{ABSENT}: not measured"
    )
    return FittedTable(headings, len(named) + 1, build, caption, folds=named)


def _row(result: Result, labels: dict[str, Any], place: tuple[int, int, int]) -> dict[str, str]:
    """Cells by heading, in the order in which they matter."""
    early, late = (number(_mean(result[f"raw/{part}"][place])) for part in ("early", "late"))
    return {
        "without": labels["ablation"][place[0]],
        "weights": labels["weights"][place[1]],
        "n": str(labels["length"][place[2]]),
        "late − early, excess": _interval(result, "excess", place),
        "late − early, raw": _interval(result, "raw", place),
        "early": early,
        "late": late,
    }


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _interval(result: Result, measure: str, place: tuple[int, int, int]) -> str:
    mean, low, high = (float(result[f"{measure}/late_minus_early_{part}"][place]) for part in ("mean", "low", "high"))
    if not np.isfinite(mean):
        return ABSENT
    sign = "+" if low > 0 else "−" if high < 0 else "?"
    return f"{mean:+.3f}{bracketed(low, high, '+.3f')} {sign}"
