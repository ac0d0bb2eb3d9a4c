"""What the command line shows of an attack: success rates by target and region beside their base rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import RenderableType

from repflow.core.intervals import LEAST_VALUES, bracketed
from repflow.core.results import Result
from repflow.report.terminal.fitted import SplitTable, split_table
from repflow.report.terminal.laboratory.table import finding_lines

BASE = "no attack"
BEYOND = "( ): what is above the rate with pixels of any other class"


def view(result: Result) -> list[RenderableType]:
    """A line per target, and their mean; findings."""
    facts, regions = result.provenance["attack"], result.provenance["regions"]
    title = f"{result.provenance['model']['name']}: how often (%) the target is named once it lends a region"
    order = f", {facts['layout']['order']} order" if "layout" in facts else ""  # not in runs of before
    caption = (
        f"{facts['images']} images of {facts['tokens']} tokens{order}, accuracy "
        f"{100 * float(result['clean_accuracy']):.1f} %; [ ]: 95 % intervals over images; {BEYOND}"
    )
    if not np.isfinite(result["success_low"]).all():
        caption += f"; no interval below {LEAST_VALUES} images that lend"
    targets, places = result.provenance["targets"], range(len(regions))
    rows = [
        [target, _rate(result, "base_rate", row), *(_cell(result, "", (row, place)) for place in places)]
        for row, target in enumerate(targets)
    ]
    rows += [_means("mean", result)] if len(targets) > 1 else []
    return [split_table(title, ("target", BASE), regions, rows, caption), *finding_lines(result)]


def _means(name: str, result: Result) -> list[str]:
    """A line of means over targets."""
    cells = [_cell(result, "mean_", place) for place in range(len(result.provenance["regions"]))]
    return [name, _rate(result, "mean_base_rate", ()), *cells]


def _rate(result: Result, name: str, place: Any) -> str:
    value, low, high = (float(result[name + end][place]) for end in ("", "_low", "_high"))
    return f"{100 * value:.1f}{bracketed(low, high, '.0f', scale=100.0)}"


def _cell(result: Result, mean: str, place: Any) -> str:
    """Success with its interval, and what is above the rate of random pairs, with its own."""
    low, high = (float(result[f"{mean}excess{end}"][place]) for end in ("_low", "_high"))
    beyond = f"{100 * float(result[f'{mean}excess'][place]):+.1f}{bracketed(low, high, '+.0f', scale=100.0)}"
    return f"{_rate(result, f'{mean}success', place)} ({beyond})"


def side_by_side(results: Sequence[Result]) -> SplitTable:
    """Models in lines, mean over targets."""
    regions = results[0].provenance["regions"]
    alike = [result for result in results if result.provenance["regions"] == regions]
    rows = [_means(result.provenance["model"]["name"], result) for result in alike]
    title = "How often (%) the target is named, mean over targets"
    return split_table(title, ("model", BASE), regions, rows, BEYOND)


def cell(result: Result) -> dict[str, float]:
    """For the table of a grid."""
    return {"success": float(result["success"].mean()), "base": float(result["base_rate"].mean())}
