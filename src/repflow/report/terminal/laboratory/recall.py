"""What the command line shows of a recall run: accuracy of each row at its best rate, the sweep of rates, findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.data.laboratory import Line, best_lines
from repflow.report.terminal.cell import ABSENT, number
from repflow.report.terminal.fitted import FittedTable
from repflow.report.terminal.laboratory.table import finding_lines, rate_table


def view(result: Result) -> list[RenderableType]:
    """Rows at their best rates, all rates, findings."""
    title = "Mean accuracy (%) by learning rate"
    rates = rate_table(result, "accuracy", title, named=row_words, shown=lambda share: 100 * share)
    return [best_table(result), *([] if rates is None else [rates]), *finding_lines(result)]


def row_words(shared: Mapping[str, Any]) -> str:
    """Row and depth, and the initialisation where it is not the right one."""
    said = f"{shared['row']}, {shared['layers']} layer{'' if shared['layers'] == 1 else 's'}"
    return said if shared["init"] == "right" else f"{said}, {shared['init']} initialisation"


def best_table(result: Result) -> FittedTable:
    """A line per row and depth: accuracy by pairs, and what may explain it."""
    facts, lines = result.provenance["recall"], best_lines(result, row_words)
    columns = ["model", *(f"{pairs} pairs" for pairs in facts["pairs"]), "rate", "seeds", "parameters", "state bytes"]
    columns += ["steps to 50 %", "half reach", "similarity"]

    def build(kept: Sequence[str], caption: Text) -> Table:
        title = f"Accuracy (%) on rows of {facts['length']} tokens, each model at its best rate; {facts['cost']}"
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=caption, caption_justify="left")
        for column in kept:
            table.add_column(column, justify="left" if column == "model" else "right")
        for line in lines:
            cells = dict(zip(columns, _cells(line), strict=True))
            table.add_row(*(cells[column] for column in kept))
        return table

    caption = (
        "half reach: tokens with half of the influence on the last one; similarity: of tokens after the last block"
    )
    return FittedTable(columns, 1 + len(facts["pairs"]), build, caption, ("model",))


def _cells(line: Line) -> list[str]:
    accuracy, spread = line.mean("accuracy"), line.spread("accuracy")
    shown = [
        ABSENT if not np.isfinite(mean) else f"{100 * mean:.1f}" + (f" ± {100 * sd:.1f}" if np.isfinite(sd) else "")
        for mean, sd in zip(accuracy, spread, strict=True)
    ]
    similar = line.mean("token_similarity") if "token_similarity" in line.result else np.array([np.nan])
    last = similar[np.isfinite(similar)][-1] if np.isfinite(similar).any() else None
    sizes = [f"{float(line.mean(name)):,.0f}" for name in ("parameters", "state_bytes")]
    steps = float(line.mean("half_step"))
    return [
        line.words,
        *shown,
        f"{line.shared['rate']:g}",
        str(len(line.cells)),
        *sizes,
        ABSENT if not np.isfinite(steps) else f"{steps:,.0f}",
        number(float(line.mean("half_reach")), 1),
        number(last),
    ]
