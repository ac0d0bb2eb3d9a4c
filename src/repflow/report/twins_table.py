"""Table of trained weights against random twins: late minus early token similarity, cell by cell."""

from __future__ import annotations

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.report.tables import ABSENT, number
from repflow.results import Result


def twins_view(result: Result) -> list[RenderableType]:
    """What the command line shows: one table, then the verdicts and break conditions."""
    found = [Text.assemble((f"{f.code}: ", "yellow"), f.message) for f in result.findings]
    return [twins_table(result), *found]


def twins_table(result: Result) -> Table:
    """One row per ablation, weights and length."""
    labels = result.provenance["labels"]
    ablated = len(labels["ablation"]) > 1
    table = Table(box=box.SIMPLE, caption_justify="left")
    for heading in ("without",) if ablated else ():
        table.add_column(heading)
    table.add_column("weights")
    for heading in ("n", "early", "late", "late − early, raw", "late − early, excess"):
        table.add_column(heading, justify="right")
    for a, ablation in enumerate(labels["ablation"]):
        for w, weights in enumerate(labels["weights"]):
            for n, length in enumerate(labels["length"]):
                ends = [number(_mean(result[f"raw/{part}"][a, w, n])) for part in ("early", "late")]
                shown = [_interval(result, measure, (a, w, n)) for measure in ("raw", "excess")]
                first = [Text(ablation)] if ablated else []
                table.add_row(*first, Text(weights), str(length), *ends, *shown)
    config = result.config
    table.caption = Text(
        f"token similarity over the first and the last {config['share']:.0%} of the blocks, "
        f"{config['samples']} prompts, {config['seeds']} seeds of random weights; "
        f"intervals are 95 %, over prompts and seeds; +, −: the interval excludes 0; {ABSENT}: not measured"
    )
    return table


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def _interval(result: Result, measure: str, place: tuple[int, int, int]) -> str:
    mean, low, high = (float(result[f"{measure}/late_minus_early_{part}"][place]) for part in ("mean", "low", "high"))
    if not np.isfinite(mean):
        return ABSENT
    sign = "+" if low > 0 else "−" if high < 0 else "?"
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}] {sign}"
