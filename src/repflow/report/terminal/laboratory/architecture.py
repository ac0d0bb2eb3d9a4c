"""What the command line shows of a grid of language models: perplexity of each at its best rate, leaks, all rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.intervals import bracketed, student_interval
from repflow.core.results import Result
from repflow.report.data.laboratory import Line, best_lines
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.fitted import FittedTable
from repflow.report.terminal.laboratory.table import finding_lines, rate_table


def view(result: Result) -> list[RenderableType]:
    """Rows at their best rates, all rates, findings."""
    rates = rate_table(result, "perplexity", "Mean perplexity over the texts, by learning rate", named=row_words)
    return [best_table(result), *([] if rates is None else [rates]), *finding_lines(result)]


def row_words(shared: Mapping[str, Any]) -> str:
    """Row, depth and window."""
    layers = f"{shared['layers']} layer{'' if shared['layers'] == 1 else 's'}"
    return f"{shared['row']}, {layers}, {shared['length']} tokens"


def perplexity_words(line: Line, text: int) -> str:
    """Perplexity with an interval: over seeds from three on, else over documents.

    The mean over seeds is that of the losses, so that it is the perplexity of a typical training.
    """
    values = line.result["perplexity"][list(line.cells), text]
    known = values[np.isfinite(values)]
    if not len(known):
        return ABSENT
    if len(known) >= 3:
        band = student_interval(known, log=True)
        return f"{float(band.mean):.2f}{bracketed(float(band.low), float(band.high), '.2f')}"
    low, high = (float(line.mean(name)[text]) for name in ("perplexity_low", "perplexity_high"))
    return f"{float(np.exp(np.log(known).mean())):.2f}{bracketed(low, high, '.2f')}"


def best_table(result: Result) -> FittedTable:
    """A line per row: perplexity on every text, leak, sizes."""
    facts = result.provenance["architecture"]
    lines = best_lines(result, row_words, score="perplexity", lowest=True)
    texts = [name.replace("_", " ") for name in facts["texts"]]
    columns = ["model", *texts, "leak (nats)", "bits/byte", "rate", "seeds", "parameters", "width", "norm ×"]

    def build(kept: Sequence[str], caption: Text) -> Table:
        title = f"Perplexity, each model at its best rate; {facts['cost']}"
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=caption, caption_justify="left")
        for column in kept:
            table.add_column(column, justify="left" if column == "model" else "right")
        for line in lines:
            cells = dict(zip(columns, _cells(line, len(texts)), strict=True))
            table.add_row(*(cells[column] for column in kept))
        return table

    caption = (
        "intervals: 95 % over seeds from three on, else over documents; leak: loss on the prefix alone less loss on "
        "the whole window; norm ×: token norm behind the last block over that of the embedding"
    )
    return FittedTable(columns, 2 + len(texts), build, caption, ("model",))


def _cells(line: Line, texts: int) -> list[str]:
    leak = "" if "leak" not in line.result else _leak(line)
    course = line.mean("token_norm")
    course = course[np.isfinite(course)]
    growth = f"{course[-1] / course[0]:.3g}" if len(course) else ABSENT
    return [
        line.words,
        *(perplexity_words(line, text) for text in range(texts)),
        leak,
        f"{float(line.mean('bits_per_byte')[0]):.3f}",
        f"{line.shared['rate']:g}",
        str(len(line.cells)),
        f"{float(line.mean('parameters')):,.0f}",
        f"{float(line.mean('own_width')):.0f}",
        growth,
    ]


def _leak(line: Line) -> str:
    mean, low, high = (float(line.mean(name)) for name in ("leak", "leak_low", "leak_high"))
    return "" if not np.isfinite(mean) else f"{mean:.3f}{bracketed(low, high, '.3f')}"
