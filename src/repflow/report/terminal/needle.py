"""What the command line shows of the needle test: length × position heat maps, slopes, models side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Band, Result
from repflow.report.data.labels import label
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.fitted import FittedTable

SHARES = {
    "answer_correct": "Greedy answer holds the planted word",
    "first": "Planted word ranks first among its candidates",
}
NATS = {"gain": "Log-odds of the planted word, nats over the same document without the needle"}
SHADES = ("#2b2b2b", "#3f4a5a", "#5a6b7d", "#8f8a6a", "#c9b458")
"""Grounds of heat map cells from none to all, readable behind white and black letters."""
SMALL = 1.0
"""Nats below which numbers get a second digit."""
INKS = ("#ffffff", "#ffffff", "#ffffff", "#000000", "#000000")


def view(result: Result) -> list[RenderableType]:
    """Heat maps of one model, then findings."""
    parts: list[RenderableType] = [Text(_heading(result))]
    parts += [heat_map(result, name, title) for name, title in {**SHARES, **NATS}.items() if name in result]
    parts.append(Text(_totals(result)))
    parts += [Text.assemble((f"finding {finding.code}: ", "yellow"), finding.message) for finding in result.findings]
    return parts


def _heading(result: Result) -> str:
    facts = result.provenance
    count = len(facts["needles"])
    words = round(1 / facts["chance"][0])
    places, lengths = (len(facts[name]) for name in ("positions", "lengths"))
    return (
        f"{label(result)}: {count} needles in {facts['haystack']}, each at {places} position{'s' * (places > 1)} and "
        f"{lengths} length{'s' * (lengths > 1)}, ranked among {words} words (chance {100 / words:.3g} %)"
    )


def _totals(result: Result) -> str:
    """Means over all cells."""
    means = {name: float(np.mean(result[name])) for name in ("rank", "gain_first", "answer_true") if name in result}
    words = round(1 / result.provenance["chance"][0])
    parts = [f"mean rank {means['rank']:.1f} of {words}", f"gains most of all candidates in {means['gain_first']:.0%}"]
    if "answer_true" in means:
        parts.append(f"greedy answer holds the true word in {means['answer_true']:.0%}")
    return f"over all cells: {', '.join(parts)}"


def heat_map(result: Result, name: str, title: str) -> FittedTable:
    """One score: a row per length, a column per position, means over intervals, then the slope over position."""
    facts, band, slopes = result.provenance, result.band(name), result.band(f"slope/{name}")
    shares = name in SHARES
    headings = ["tokens", "slope over position", *(f"at {position:g}" for position in facts["positions"])]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title=title, title_justify="left", caption=caption, caption_justify="left")
        for heading in names:
            table.add_column(heading, justify="right", no_wrap=True)
        for row, length in enumerate(facts["lengths"]):
            cells = [Text(str(length)), Text(slope_text(slopes, (row,), shares))]
            cells += [_cell(band, (row, place), shares) for place in range(len(facts["positions"]))]
            table.add_row(*cells[: len(names)])
        return table

    unit = "percentage points" if shares else "nats"
    note = f"mean over needles, below it its 95 % interval; slope in {unit} from the start to the end of the document"
    return FittedTable(headings, 2, build, note)


def _cell(band: Band, where: tuple[int, ...], shares: bool) -> Text:
    """A cell, shaded by its value."""
    text = Text(_interval(band, where, shares))
    value = float(band.mean[where])
    span = (0.0, 1.0) if shares else (float(np.nanmin(band.mean)), float(np.nanmax(band.mean)))
    if np.isfinite(value) and span[1] > span[0]:
        shade = min(len(SHADES) - 1, int((value - span[0]) / (span[1] - span[0]) * len(SHADES)))
        text.stylize(f"{INKS[shade]} on {SHADES[shade]}")
    return text


def _interval(band: Band, where: tuple[int, ...], shares: bool, *, signed: bool = False) -> str:
    """Mean, and on a second line its interval."""
    values = [float(np.asarray(part)[where]) for part in (band.mean, band.low, band.high)]
    if not np.isfinite(values[0]):
        return ABSENT
    small = float(np.nanmax(np.abs(band.mean))) < SMALL
    form = "{:+.0f}" if shares and signed else "{:.0f}" if shares else "{:+.2f}" if small else "{:+.1f}"
    mean, low, high = (form.format(100 * value if shares else value) for value in values)
    mean += " %" if shares and not signed else ""
    return mean if not np.isfinite(values[1]) else f"{mean}\n{low} to {high}"


def slope_text(band: Band, where: tuple[int, ...], shares: bool) -> str:
    """A slope with its interval; a dash where the score is the same in every cell, which says nothing of a slope."""
    if np.asarray(band.low)[where] == np.asarray(band.high)[where]:
        return ABSENT
    return _interval(band, where, shares, signed=True)


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Several models: what they find over all cells, and how that changes over position."""
    rows = [_comparison_row(result) for result in results]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(
            box=box.SIMPLE, title="Needles side by side", min_width=60, caption=caption, caption_justify="left"
        )
        for name in names:
            model = name == "model"
            table.add_column(name, justify="left" if model else "right", no_wrap=not model, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    same = len({result.provenance["digests"]["prompts"] for result in results}) == 1
    note = "All models read the same token sequences." if same else "The token sequences differ (other tokenizers)."
    return FittedTable(list(rows[0]), 1, build, f"{note} Slopes from a document's start to its end.", folds=("model",))


def cell(result: Result) -> dict[str, float]:
    """Over all lengths and positions: answers that are right, needles that rank first, log-odds gained."""
    named = (("answer_correct", "answers"), ("first", "first"), ("gain", "gain"))
    return {heading: float(np.nanmean(result[name])) for name, heading in named if name in result}


def _comparison_row(result: Result) -> dict[str, str]:
    """Cells by heading, in the order in which they matter."""
    row = {"model": label(result)}
    for name, heading in (("answer_correct", "answers"), ("first", "first"), ("gain", "gain")):
        if name not in result:
            row |= {heading: ABSENT, f"{heading} slope": ABSENT}
            continue
        shares = name in SHARES
        mean = float(np.nanmean(result[name])) if np.isfinite(result[name]).any() else float("nan")
        row[heading] = ABSENT if not np.isfinite(mean) else f"{mean:.0%}" if shares else f"{mean:+.2f}"
        slope = slope_text(result.band(f"slope_all/{name}"), (), shares)
        row[f"{heading} slope"] = slope.replace("\n", " [") + ("]" if "\n" in slope else "")
    return row
