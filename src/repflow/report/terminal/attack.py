"""What the command line shows of an attack: success rates by target and region beside their base rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from repflow.core.intervals import bracketed
from repflow.core.results import Result
from repflow.report.terminal.cell import number


def view(result: Result) -> list[RenderableType]:
    """A line per target, and their mean."""
    facts, regions = result.provenance["attack"], result.provenance["regions"]
    title = f"{result.provenance['model']['name']}: how often (%) the target is named once it lends a region"
    caption = (
        "in brackets: 95 % interval, then the rate with pixels of any other class; base: named without an attack; "
        f"{facts['images']} images, accuracy {100 * float(result['clean_accuracy']):.1f} %"
    )
    table = Table(title=title, caption=caption)
    table.add_column("target")
    table.add_column("base", justify="right")
    for region in regions:
        table.add_column(region, justify="right")
    for row, target in enumerate(result.provenance["targets"]):
        cells = []
        for place in range(len(regions)):
            low, high, other = (
                float(result[name][row, place]) for name in ("success_low", "success_high", "random_pair")
            )
            shown = f"{100 * float(result['success'][row, place]):.1f}{bracketed(low, high, '.0f', scale=100.0)}"
            cells.append(f"{shown} ({100 * other:.1f})")
        table.add_row(target, f"{100 * float(result['base_rate'][row]):.1f}", *cells)
    if len(result.provenance["targets"]) > 1:
        mean, other = result["success"].mean(0), result["random_pair"].mean(0)
        cells = [f"{100 * a:.1f} ({100 * b:.1f})" for a, b in zip(mean, other, strict=True)]
        table.add_section()
        table.add_row("mean", f"{100 * float(np.mean(result['base_rate'])):.1f}", *cells)
    return [table]


def side_by_side(results: Sequence[Result]) -> Table:
    """Models in lines, mean over targets."""
    regions = results[0].provenance["regions"]
    table = Table(title="Success (%) of all targets, and that of random pairs in brackets")
    table.add_column("model")
    table.add_column("base", justify="right")
    for region in regions:
        table.add_column(region, justify="right")
    for result in results:
        if result.provenance["regions"] != regions:
            continue
        pairs = zip(result["success"].mean(0), result["random_pair"].mean(0), strict=True)
        cells = [f"{number(100 * float(a), 1)} ({number(100 * float(b), 1)})" for a, b in pairs]
        table.add_row(result.provenance["model"]["name"], number(100 * float(result["base_rate"].mean()), 1), *cells)
    return table


def cell(result: Result) -> dict[str, float]:
    """For the table of a grid."""
    return {"success": float(result["success"].mean()), "base": float(result["base_rate"].mean())}
