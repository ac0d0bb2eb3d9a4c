"""What the command line shows of a pixels run: accuracy with both ends of images replaced, influence, attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from repflow.core.intervals import bracketed
from repflow.core.results import Result
from repflow.papers.pixels import asymmetry_band, correlation_band, correlations, drops, ends
from repflow.papers.vulnerability import comparisons, end_verdict, variants
from repflow.report.data.laboratory import Line, best_lines
from repflow.report.terminal.cell import ABSENT, number
from repflow.report.terminal.fitted import SplitTable, split_table
from repflow.report.terminal.laboratory.table import finding_lines, rate_table

SHOWN = 2
"""Sizes of regions at both ends that have a table of their own."""


def view(result: Result) -> list[RenderableType]:
    """A table per size of the ends, influence, attacks, all rates, findings."""
    lines = best_lines(result, row_words, score="test_accuracy")
    tables: list[RenderableType] = [end_table(result, lines, size) for size in list(ends(result))[:SHOWN]]
    tables += [verdict_table(result), *change_lines(result)] if ends(result) else []
    tables += [influence_table(result, lines)] if "influence" in result else []
    tables += [attack_table(result, lines)] if "success" in result else []
    title = "Accuracy (%) of test images as they are, by learning rate"
    rates = rate_table(result, "test_accuracy", title, named=row_words, shown=lambda share: 100 * share)
    return [*tables, *([] if rates is None else [rates]), *finding_lines(result)]


def row_words(shared: Mapping[str, Any]) -> str:
    """Row, and what is not usual."""
    words = [shared["row"]]
    words += [f"{shared['token_order']} order"] if shared["token_order"] != "row" else []
    words += [f"{shared['init']} initialisation"] if shared["init"] != "right" else []
    return ", ".join(words)


def end_table(result: Result, lines: Sequence[Line], size: int) -> SplitTable:
    """Drop of accuracy in points at the trailing and the leading end, for each replacement."""
    facts = result.provenance["pixels"]
    first, last = ends(result)[size]
    title = f"Drop of accuracy (points) with the last and the first {size} of {facts['tokens']} tokens replaced"
    caption = (
        f"last / first; {facts['images_replaced']} test images; in brackets the 95 % interval of what the last ones "
        "cost more than the first, for other seeds and images, where there are three seeds"
    )
    lost, rows = drops(result), []
    for line in lines:
        own, band = lost[list(line.cells)], asymmetry_band(result, line.cells, size)
        cells = [
            f"{100 * own[:, place, last].mean():.1f} / {100 * own[:, place, first].mean():.1f}"
            + bracketed(band.low[place], band.high[place], "+.1f", scale=100.0)
            for place in range(len(facts["replacements"]))
        ]
        accuracy = _spread(100 * line.result["test_accuracy"][list(line.cells)])
        rows.append([line.words, str(len(line.cells)), accuracy, *cells])
    return split_table(title, ("model", "seeds", "accuracy (%)"), facts["replacements"], rows, caption)


def verdict_table(result: Result) -> SplitTable:
    """Whether the end costs more than the start, in a word."""
    kinds, sizes = result.provenance["pixels"]["replacements"], ", ".join(map(str, sorted(ends(result))))
    title = f"Do the last tokens cost more than the first? Regions of {sizes} tokens"
    rows = []
    for variant in variants(result):
        verdicts = [end_verdict(result, variant, place) for place in range(len(kinds))]
        cells = [f"{verdict.word} ({verdict.held} of {verdict.parts})" for verdict in verdicts]
        rows.append([variant.words, *cells])
    return split_table(title, ("model",), kinds, rows, "holds: at every size, by intervals for other seeds and images")


def change_lines(result: Result) -> list[Text]:
    """What initialisation and direction change, where it is shown either way."""
    lines = []
    for answer in comparisons(result, next(iter(ends(result)))):
        if answer.holds is not None:
            value, low, high = (float(part) for part in answer.band)
            shown = f"{100 * value:+.1f} points{bracketed(low, high, '+.1f', scale=100.0)}"
            lines.append(Text(f"{answer.question}: {'yes' if answer.holds else 'no'}, {shown}"))
    return lines


def _spread(values: np.ndarray) -> str:
    there = values[np.isfinite(values)]
    if not len(there):
        return ABSENT
    return f"{there.mean():.1f}" + (f" ± {there.std(ddof=1):.1f}" if len(there) > 1 else "")


def influence_table(result: Result, lines: Sequence[Line]) -> SplitTable:
    """Rank correlation of influence and drop over windows."""
    facts, values = result.provenance["pixels"], correlations(result)
    windows = values.windows
    title = (
        f"Rank correlation of a window's influence on the answer and of what its replacement costs, {windows} windows"
    )
    rows = []
    for line in lines:
        own = values.by_cell[list(line.cells)]
        bands = [correlation_band(own[:, place]) for place in range(own.shape[1])]
        cells = [number(float(band.mean), 2) + bracketed(band.low, band.high, ".2f") for band in bands]
        rows.append([line.words, *cells])
    caption = "in brackets 95 % intervals over seeds, where there are three"
    return split_table(title, ("model",), facts["replacements"], rows, caption)


def attack_table(result: Result, lines: Sequence[Line]) -> SplitTable:
    """Success of attacks, mean over targets, above the rate of random pairs."""
    facts = result.provenance["pixels"]
    targets, regions = facts["targets"], facts["attack_regions"]
    words = targets[0] if len(targets) == 1 else f"mean of {len(targets)} targets"
    title = f"How often (%) the target is named once it lends a region, {words}"
    caption = "in brackets what is above the rate with pixels of any other class; base: named without an attack"
    rows = []
    for line in lines:
        success, pair = (100 * line.mean(name).mean(0) for name in ("success", "random_pair"))
        base = number(100 * float(line.mean("base_rate").mean()), 1)
        rows.append([line.words, base, *(f"{a:.1f} ({a - b:+.1f})" for a, b in zip(success, pair, strict=True))])
    return split_table(title, ("model", "base"), regions, rows, caption)
