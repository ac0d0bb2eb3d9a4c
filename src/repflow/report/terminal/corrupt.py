"""What the command line shows of a corruption run: accuracy or log-odds by region and replacement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.intervals import bracketed
from repflow.core.results import Result
from repflow.report.terminal.cell import number, thinned
from repflow.report.terminal.fitted import FittedTable, SplitTable, split_table
from repflow.report.terminal.laboratory.table import finding_lines

ROWS = 16
LEAST_WINDOWS = 8
"""Windows that are shown, however many regions stand beside them."""


def view(result: Result) -> list[RenderableType]:
    """One table, of many windows some; findings."""
    return [image_table(result) if "accuracy" in result else text_table(result), *finding_lines(result)]


def image_table(result: Result) -> SplitTable:
    """Accuracy with half the interval of its drop; in brackets the relative drop and that by what can be lost."""
    facts, kinds = result.provenance["corrupt"], result.provenance["replacements"]
    mean, low, high = facts["clean"]
    clean = f"{100 * mean:.1f}{bracketed(low, high, '.1f', scale=100.0)}"
    title = f"{result.provenance['model']['name']}: accuracy (%) with a region replaced; as they are {clean}"
    caption = (
        f"{facts['images']} images of {facts['tokens']} tokens, {facts['layout']['order']} order; ±: 95 % interval "
        "of the drop, image by image; in brackets: drop (%) relative to images as they are, and to what is above "
        f"chance ({100 * facts['chance']:.1f} %)"
    )
    rows = []
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
        rows.append([result.provenance["regions"][row], *cells])
    return split_table(title, ["region"], kinds, rows, f"{caption}{_left_out(result, rows)}")


def _percent(value: float) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.0f}"


def _shown(result: Result) -> list[int]:
    """All regions but windows side by side, and of these some: the first and the last, and as many as there is room."""
    regions = result.provenance["regions"]
    if len(regions) <= ROWS:
        return list(range(len(regions)))
    sizes = [int(end) - int(start) for start, end in (word.split(":") for word in regions)]
    windows = [place for place, size in enumerate(sizes) if size == max(sizes, key=sizes.count)]
    named = [place for place in range(len(regions)) if place not in windows]
    some = thinned(len(windows), max(LEAST_WINDOWS, ROWS - len(named)))
    return sorted([*named, *(windows[place] for place in some)])


def _left_out(result: Result, rows: Sequence[Sequence[str]]) -> str:
    count = len(result.provenance["regions"])
    return f"; {len(rows)} of {count} regions shown" if len(rows) < count else ""


def text_table(result: Result) -> SplitTable:
    """Change of the answer's log-odds, with its interval."""
    facts, kinds = result.provenance["corrupt"], result.provenance["replacements"]
    mean, low, high = facts["clean"]
    title = (
        f"{result.provenance['model']['name']}: change of the log-odds of {facts['answer']} with a region replaced; as "
        f"they are {mean:.2f}{bracketed(low, high, '.2f')}"
    )
    band = result.band("log_odds_change")
    rows = [
        [
            result.provenance["regions"][row],
            *(
                number(float(band.mean[at, row]), 2) + bracketed(band.low[at, row], band.high[at, row], ".2f")
                for at in range(len(kinds))
            ),
        ]
        for row in _shown(result)
    ]
    caption = f"{facts['prompts']} prompts of {facts['tokens']} tokens; [ ]: Student's 95 % over prompts"
    return split_table(title, ["region"], kinds, rows, f"{caption}{_left_out(result, rows)}")


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> FittedTable:
    def build(names: Sequence[str], below: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=below, caption_justify="left")
        for name in names:
            table.add_column(name, justify="left" if name == headings[0] else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row[: len(names)]))
        return table

    return FittedTable(headings, 2, build, caption)


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Models in lines: as they are, and with the region and the replacement that leave least."""
    rows = []
    for result in results:
        name = "accuracy" if "accuracy" in result else "log_odds_change"
        unit, digits = (100, 1) if name == "accuracy" else (1, 3)
        values = result[name] if name == "accuracy" else result.mean(name)
        place = np.unravel_index(np.nanargmin(values), values.shape)
        rows.append(
            [
                result.provenance["model"]["name"],
                number(unit * result.provenance["corrupt"]["clean"][0], digits),
                number(unit * float(values[place]), digits),
                result.provenance["regions"][place[1]],
                result.provenance["replacements"][place[0]],
            ]
        )
    what = "accuracy (%)" if "accuracy" in results[0] else "log-odds as they are, and their change"
    headings = ["model", "as they are", "worst", "region", "replacement"]
    return _table("Models side by side", headings, rows, what)


def cell(result: Result) -> dict[str, float]:
    """For the table of a grid."""
    values = result["accuracy"] if "accuracy" in result else result.mean("log_odds_change")
    return {"as they are": float(result.provenance["corrupt"]["clean"][0]), "worst": float(np.nanmin(values))}
