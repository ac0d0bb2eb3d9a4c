"""Tables of all laboratories: the sweep of rates, findings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.data.laboratory import Named, lines_of
from repflow.report.terminal.cell import number


def rate_table(
    result: Result, score: str, title: str, *, named: Named | None = None, shown: Callable[[float], float] | None = None
) -> Table | None:
    """Mean of an array at every rate, a line per cell without rate and seed; None where there is one rate alone.

    Args:
        result: of a laboratory.
        score: the array.
        title: of the table.
        named: what a line is called.
        shown: what a mean is turned into, such as percent.
    """
    rates = sorted({float(cell["rate"]) for cell in result.provenance["cells"]})
    if len(rates) < 2:
        return None
    table = Table(box=box.SIMPLE, title=title, title_justify="left")
    table.add_column("model")
    for rate in rates:
        table.add_column(f"{rate:g}", justify="right")
    rows: dict[str, dict[float, float]] = {}
    for line in lines_of(result, named):
        mean = float(np.mean(line.mean(score)))
        rows.setdefault(line.words, {})[float(line.shared["rate"])] = mean if shown is None else shown(mean)
    for words, by_rate in rows.items():
        table.add_row(words, *(number(by_rate.get(rate), 1) for rate in rates))
    return table


def finding_lines(result: Result) -> list[Text]:
    """Findings, a line each."""
    return [Text.assemble((f"finding {finding.code}: ", "yellow"), finding.message) for finding in result.findings]
