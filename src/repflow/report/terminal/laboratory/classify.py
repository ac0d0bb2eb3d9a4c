"""What the command line shows of classifiers of texts: accuracy of each row at its best rate, all rates, findings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table

from repflow.core.intervals import bracketed, proportion_interval
from repflow.core.results import Result
from repflow.report.data.laboratory import Line, best_lines
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.laboratory.table import finding_lines, rate_table


def view(result: Result) -> list[RenderableType]:
    """Rows at their best rates, all rates, findings."""
    title = "Mean accuracy (%) by learning rate"
    rates = rate_table(result, "accuracy", title, named=row_words, shown=lambda share: 100 * share)
    return [best_table(result), *([] if rates is None else [rates]), *finding_lines(result)]


def row_words(shared: Mapping[str, Any]) -> str:
    """Row and depth."""
    return f"{shared['row']}, {shared['layers']} layer{'' if shared['layers'] == 1 else 's'}"


def accuracy_words(line: Line) -> str:
    """Share of all tests that came out right, in percent, with Wilson's interval over texts."""
    right = line.result["right"][list(line.cells)]
    known = np.isfinite(right)
    if not known.any():
        return ABSENT
    band = proportion_interval(float(np.nansum(right)), int(known.sum()))
    return f"{100 * float(band.mean):.1f}{bracketed(float(band.low), float(band.high), '.1f', scale=100.0)}"


def best_table(result: Result) -> Table:
    """A line per row: accuracy, chance, sizes."""
    facts = result.provenance["classify"]
    title = f"Accuracy (%) on {facts['data']['texts']:,} texts, each model at its best rate; {facts['cost']}"
    caption = f"intervals: 95 % over the texts tested; guessing the largest class gives {100 * facts['chance']:.1f} %"
    table = Table(box=box.SIMPLE, title=title, title_justify="left", caption=caption, caption_justify="left")
    for column in ("model", "accuracy (%)", "tests", "rate", "seeds", "parameters"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for line in best_lines(result, row_words):
        tests = int(np.isfinite(result["right"][list(line.cells)]).sum())
        size = f"{float(line.mean('parameters')):,.0f}"
        table.add_row(
            line.words, accuracy_words(line), f"{tests:,}", f"{line.shared['rate']:g}", str(len(line.cells)), size
        )
    return table
