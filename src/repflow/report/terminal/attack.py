"""What the command line shows of an attack: success rates by target and region beside their base rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from repflow.core.intervals import bracketed
from repflow.core.results import Result


def view(result: Result) -> list[RenderableType]:
    """A line per target, and their mean."""
    facts, regions = result.provenance["attack"], result.provenance["regions"]
    title = f"{result.provenance['model']['name']}: how often (%) the target is named once it lends a region"
    caption = (
        "in square brackets 95 % intervals over images, then what is above the rate with pixels of any other class; "
        f"base: named without an attack; {facts['images']} images, "
        f"accuracy {100 * float(result['clean_accuracy']):.1f} %"
    )
    table = Table(title=title, caption=caption)
    table.add_column("target")
    table.add_column("base", justify="right")
    for region in regions:
        table.add_column(region, justify="right")
    for row, target in enumerate(result.provenance["targets"]):
        cells = [_cell(result, "", (row, place)) for place in range(len(regions))]
        table.add_row(target, _rate(result, "base_rate", row), *cells)
    if len(result.provenance["targets"]) > 1:
        table.add_section()
        cells = [_cell(result, "mean_", place) for place in range(len(regions))]
        table.add_row("mean", _rate(result, "mean_base_rate", ()), *cells)
    return [table]


def _rate(result: Result, name: str, place: Any) -> str:
    value, low, high = (float(result[name + end][place]) for end in ("", "_low", "_high"))
    return f"{100 * value:.1f}{bracketed(low, high, '.0f', scale=100.0)}"


def _cell(result: Result, mean: str, place: Any) -> str:
    """Success with its interval, and what is above the rate of random pairs, with its own."""
    low, high = (float(result[f"{mean}excess{end}"][place]) for end in ("_low", "_high"))
    beyond = f"{100 * float(result[f'{mean}excess'][place]):+.1f}{bracketed(low, high, '+.0f', scale=100.0)}"
    return f"{_rate(result, f'{mean}success', place)} ({beyond})"


def side_by_side(results: Sequence[Result]) -> Table:
    """Models in lines, mean over targets."""
    regions = results[0].provenance["regions"]
    table = Table(title="Success (%) of all targets, and in brackets what is above the rate of random pairs")
    table.add_column("model")
    table.add_column("base", justify="right")
    for region in regions:
        table.add_column(region, justify="right")
    for result in results:
        if result.provenance["regions"] != regions:
            continue
        cells = [_cell(result, "mean_", place) for place in range(len(regions))]
        table.add_row(result.provenance["model"]["name"], _rate(result, "mean_base_rate", ()), *cells)
    return table


def cell(result: Result) -> dict[str, float]:
    """For the table of a grid."""
    return {"success": float(result["success"].mean()), "base": float(result["base_rate"].mean())}
