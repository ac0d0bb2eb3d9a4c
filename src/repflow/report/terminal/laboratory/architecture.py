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

NOISE = 7
"""Decimals of an effect beyond which there is rounding alone."""


def view(result: Result) -> list[RenderableType]:
    """Rows at their best rates, all rates, findings."""
    rates = rate_table(result, "perplexity", "Mean perplexity over the texts, by learning rate", named=row_words)
    fitted = fit_table(result)
    tables = [table for table in (rates, fitted) if table is not None]
    return [best_table(result), *tables, *unfitted_lines(result), *finding_lines(result)]


def fit_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """Outcomes that could be fitted, and for each factor its effect on every one of them."""
    fits = result.provenance["architecture"].get("fits", {})
    known = {fit["of"]: fit["effects"] for fit in fits.values() if "effects" in fit}
    names = list(dict.fromkeys(name for effects in known.values() for name in effects))
    return list(known), [[name, *(_effect(effects.get(name)) for effects in known.values())] for name in names]


def unfitted_lines(result: Result) -> list[Text]:
    """Why no effect of a factor is shown, where factors vary and none is."""
    fits = result.provenance["architecture"].get("fits", {})
    reasons = dict.fromkeys(fit["reason"] for fit in fits.values() if fit.get("too_few"))
    return [] if fit_rows(result)[1] else [Text(f"no effect of a factor is shown: {reason}") for reason in reasons]


def _effect(effect: Mapping[str, Any] | None) -> str:
    if effect is None or effect["mean"] is None:
        return ABSENT
    parts = (effect[part] for part in ("mean", "low", "high"))
    mean, low, high = (np.nan if part is None else round(part, NOISE) + 0.0 for part in parts)
    return f"{mean:+.3g}{bracketed(low, high, '+.3g')}"


def fit_table(result: Result) -> FittedTable | None:
    """What each factor does; None where nothing varies."""
    outcomes, rows = fit_rows(result)
    if not rows:
        return None
    columns = ["factor", *outcomes]

    def build(kept: Sequence[str], caption: Text) -> Table:
        title = "What each factor does, all others held"
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=caption, caption_justify="left")
        for column in kept:
            table.add_column(column, justify="left" if column == "factor" else "right")
        for row in rows:
            cells = dict(zip(columns, row, strict=True))
            table.add_row(*(cells[column] for column in kept))
        return table

    return FittedTable(columns, 2, build, FIT_WORDS + _confounded(result), ("factor",))


FIT_WORDS = (
    "linear fits at the best rate of each model; 95 % intervals over seeds from three on, else from the scatter about "
    "the fit; onset: where half of the greatest rise of similarity is reached, of models in which it rises"
)


def _confounded(result: Result) -> str:
    """Factors that cannot be distinguished from those in the table."""
    fits = result.provenance["architecture"]["fits"].values()
    names = list(dict.fromkeys(name for fit in fits for name in fit.get("confounded", [])))
    return f"; varies with others alone, so that these stand for it too: {', '.join(names)}" if names else ""


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
    recall = ["recall (%)"] if "recall" in result else []
    columns = ["model", *texts, *recall, "leak (nats)", "bits/byte", "rate", "seeds", "parameters", "width", "norm ×"]

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
        "the whole window; recall: by number of pairs; norm ×: token norm behind the "
        "last block over that of the embedding"
    )
    return FittedTable(columns, 2 + len(texts), build, caption, ("model",))


def _cells(line: Line, texts: int) -> list[str]:
    leak = "" if "leak" not in line.result else _leak(line)
    course = line.mean("token_norm")
    course = course[np.isfinite(course)]
    growth = f"{course[-1] / course[0]:.3g}" if len(course) else ABSENT
    bits = float(line.mean("bits_per_byte")[0])
    return [
        line.words,
        *(perplexity_words(line, text) for text in range(texts)),
        *([] if "recall" not in line.result else [recall_words(line)]),
        leak,
        f"{bits:.3f}" if np.isfinite(bits) else ABSENT,
        f"{line.shared['rate']:g}",
        str(len(line.cells)),
        f"{float(line.mean('parameters')):,.0f}",
        f"{float(line.mean('own_width')):.0f}",
        growth,
    ]


def recall_words(line: Line) -> str:
    """Right answers by number of pairs, fewest first, means over seeds."""
    return ", ".join(f"{100 * value:.1f}" if np.isfinite(value) else ABSENT for value in line.mean("recall"))


def _leak(line: Line) -> str:
    mean, low, high = (float(line.mean(name)) for name in ("leak", "leak_low", "leak_high"))
    return "" if not np.isfinite(mean) else f"{mean:.3f}{bracketed(low, high, '.3f')}"
