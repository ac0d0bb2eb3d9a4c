"""Table of the built-in models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from repflow.report.terminal.demo import longest_kvpr
from repflow.report.terminal.fitted import FittedTable
from repflow.spec.zoo import SHAPES, model_folder, record, shown_models

HEADINGS = ("name", "parameters", "prose", "retrieval", "what")


def zoo_rows() -> list[dict[str, Any]]:
    """What is known of each model; a number that was not measured is None."""
    rows = []
    for name in shown_models():
        training, evaluation = record(name), record(name, "evaluation")
        longest = longest_kvpr(evaluation.get("retrieval", {}))
        rows.append(
            {
                "name": name,
                "spec": f"zoo:{name}",
                "what": SHAPES[name],
                "parameters": training.get("parameters"),
                "steps": training.get("steps"),
                "seed": training.get("config", {}).get("seed"),
                "nats_per_token": evaluation.get("prose", {}).get("nats_per_token"),
                "retrieval_set": None if longest is None else longest[0],
                "retrieval": None if longest is None else longest[1]["exact"] / longest[1]["of"],
                "folder": str(model_folder(name)),
            }
        )
    return rows


def zoo_table() -> FittedTable:
    """The models one under the other."""
    models = zoo_rows()
    rows = [dict(zip(HEADINGS, _cells(row), strict=True)) for row in models]
    sets = next((row["retrieval_set"] for row in models if row["retrieval_set"]), None)

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title="Built-in models", min_width=60, caption=caption, caption_justify="left")
        for name in names:
            text = name in ("name", "what")
            table.add_column(name, justify="left" if text else "right", no_wrap=name != "what", overflow="fold")
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    note = "prose: nats per token of held-out text; retrieval: whole values right, greedy"
    return FittedTable(list(HEADINGS), 1, build, f"{note}, {sets}" if sets else note, folds=("what",))


def _cells(row: dict[str, Any]) -> list[str]:
    def shown(name: str, form: str) -> str:
        return "–" if row[name] is None else format(row[name], form)

    return [
        row["name"],
        shown("parameters", ","),
        shown("nats_per_token", ".3f"),
        shown("retrieval", ".1%"),
        row["what"],
    ]
