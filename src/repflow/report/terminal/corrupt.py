"""What the command line shows of a corruption run: accuracy or log-odds by region and replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from repflow.core.intervals import bracketed
from repflow.core.results import Result
from repflow.report.terminal.cell import number, thinned

ROWS = 16


def view(result: Result) -> list[RenderableType]:
    """One table; of many windows some."""
    return [image_table(result) if "accuracy" in result else text_table(result)]


def image_table(result: Result) -> Table:
    """Accuracy with half the interval of its drop; in brackets the relative drop and that by what can be lost."""
    facts, kinds = result.provenance["corrupt"], result.provenance["replacements"]
    mean, low, high = facts["clean"]
    title = (
        f"{result.provenance['model']['name']}: accuracy (%) with a region replaced; "
        f"{100 * mean:.1f}{bracketed(low, high, '.1f', scale=100.0)} on {facts['images']} images as they are"
    )
    caption = (
        "±: 95 % interval of the drop, image by image; in brackets: drop (%) relative to images as they are, and "
        f"relative to what is above chance ({100 * facts['chance']:.1f} %); "
        f"{facts['tokens']} tokens, {facts['layout']['order']} order; all regions with --json"
    )
    table = Table(title=title, caption=caption)
    table.add_column("region")
    for kind in kinds:
        table.add_column(kind, justify="right")
    for row in _shown(result):
        cells = []
        for place in range(len(kinds)):
            accuracy, relative, corrected = (
                float(result[name][place, row]) for name in ("accuracy", "relative_drop", "corrected_drop")
            )
            drop, low, high = (float(result[f"drop{end}"][place, row]) for end in ("", "_low", "_high"))
            half = max(high - drop, drop - low)
            spread = f" ±{100 * half:.1f}" if np.isfinite(half) else ""
            cells.append(f"{100 * accuracy:.1f}{spread} ({_percent(relative)}, {_percent(corrected)})")
        table.add_row(result.provenance["regions"][row], *cells)
    return table


def _percent(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.0f}"


def _shown(result: Result) -> list[int]:
    """Named regions all, and of windows side by side some."""
    regions = result.provenance["regions"]
    return list(range(len(regions))) if len(regions) <= ROWS else thinned(len(regions), ROWS)


def text_table(result: Result) -> Table:
    """Change of the answer's log-odds, with its interval."""
    facts, kinds = result.provenance["corrupt"], result.provenance["replacements"]
    mean, low, high = facts["clean"]
    title = (
        f"{result.provenance['model']['name']}: change of the log-odds of {facts['answer']} with a region replaced; "
        f"{mean:.2f}{bracketed(low, high, '.2f')} on {facts['prompts']} prompts as they are"
    )
    table = Table(title=title, caption=f"{facts['tokens']} tokens; in brackets 95 % intervals; all regions with --json")
    table.add_column("region")
    for kind in kinds:
        table.add_column(kind, justify="right")
    band = result.band("log_odds_change")
    for row in _shown(result):
        cells = [
            number(float(band.mean[at, row]), 2) + bracketed(band.low[at, row], band.high[at, row], ".2f")
            for at in range(len(kinds))
        ]
        table.add_row(result.provenance["regions"][row], *cells)
    return table


def side_by_side(results: Sequence[Result]) -> Table:
    """Models in lines: as they are, and with the first and the last region replaced."""
    table = Table(title="Models side by side")
    for column in ("model", "as they are", "worst region", "worst replacement", "with it"):
        table.add_column(column, justify="left" if column in ("model", "worst replacement") else "right")
    for result in results:
        name = "accuracy" if "accuracy" in result else "log_odds_change"
        values = result[name] if name == "accuracy" else result.mean(name)
        place = np.unravel_index(np.nanargmin(values), values.shape)
        clean = result.provenance["corrupt"]["clean"][0]
        table.add_row(
            result.provenance["model"]["name"],
            number(clean),
            result.provenance["regions"][place[1]],
            result.provenance["replacements"][place[0]],
            number(float(values[place])),
        )
    return table


def cell(result: Result) -> dict[str, float]:
    """For the table of a grid."""
    values = result["accuracy"] if "accuracy" in result else result.mean("log_odds_change")
    return {"as they are": float(result.provenance["corrupt"]["clean"][0]), "worst": float(np.nanmin(values))}
