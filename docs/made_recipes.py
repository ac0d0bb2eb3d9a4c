"""Parts of docs/laboratories/tokens.md on paper 3's recipes: a command for each model, rows that the study lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.made_parts import table

Known = Mapping[str, Any]


def grids(numbers: Known, scales: tuple[str, ...] = ("lab",)) -> dict[str, Known]:
    """Grids of the recipes at some scales, by the name of their run; several recipes read one."""
    known = {name: recipe for name, recipe in numbers.get("recipes", {}).items() if name.endswith(scales)}
    return {recipe["run"].rpartition("/")[2]: recipe for recipe in known.values()}


def commands(numbers: Known) -> str:
    """A command for the models of each grid, which trains one alone: their words differ in row, rate and seed."""
    rows = []
    for run, known in grids(numbers, ("lab", "paper")).items():
        if "command" in known:
            values = [", ".join(f"`{row}`" for row in known["rows"])]
            values += [", ".join(f"{value:g}" for value in known[name]) for name in ("rates", "seeds")]
            rows.append([f"`{run}`", str(known["models"]), f"`{known['command']}`", *values])
    return table(["run", "models", "command", "ROW", "RATE", "SEED"], rows) if rows else "Not run yet."


def missing(lacking: Mapping[str, tuple[str, ...]], steps: int, numbers: Known) -> str:
    """What was not trained for the study's steps, and in which shorter trainings its rows are.

    Args:
        lacking: rows of each part of the study that no seed was trained of, by the part's words.
        steps: of the study.
        numbers: of all runs.
    """
    lines = [f"- {part}: {'; '.join(_found(rows, numbers))}." for part, rows in lacking.items() if rows]
    return "\n".join([f"Not trained for the study's {steps:,} steps:", "", *lines]) if lines else "Nothing is missing."


def _found(rows: tuple[str, ...], numbers: Known) -> Iterator[str]:
    """Runs that have some of the rows, then the rows that none has."""
    left = list(rows)
    for run, known in grids(numbers).items():
        mine = [row for row in left if row in known.get("rows", ())]
        left = [row for row in left if row not in mine]
        if mine:
            words = ", ".join(f"`{row}`" for row in mine)
            yield f"{words} for {known['steps']:,} steps in `{run}`"
    if left:
        yield f"{', '.join(f'`{row}`' for row in left)} in no stored run: open"
