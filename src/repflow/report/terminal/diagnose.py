"""The diagnosis as one page of text and as one JSON object; reads a stored Result, computes nothing."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.terminal.cell import number, thinned
from repflow.report.terminal.fitted import FittedTable

WIDTH = 100
BLOCKS = 16
"""Rows of the table of blocks; blocks of which something is said are shown beyond that."""
SECTIONS = {
    "flow": "Flow between tokens",
    "read-out": "What can be decoded",
    "signature": "Published failure signatures",
    "blocks": "Block by block",
    "layout": "Where the kinds of block sit",
}
NAMES = {
    "early_similarity": "high similarity early",
    "late_similarity": "high similarity late",
    "peak_to_last": "loss from peak to last",
}
NOTE = (
    "Decodable means that a linear read-out finds it on prompts it was not trained on. Intervals are 95 % over prompts,"
    " those of probes the wider of test prompts and refits (three seeds or more); a verdict is given only where the"
    " whole interval lies on one side, and a loss or gain only where it survives probes fitted on half the training"
    " prompts. Extreme states of the flow are chosen on every second prompt and their numbers are from the others."
)


def view(result: Result) -> list[RenderableType]:
    """What the command line shows: the page of text, as wide as the terminal."""
    return [_Sheet(result)]


@dataclass(frozen=True)
class _Sheet:
    result: Result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text(diagnosis_text(self.result, options.max_width), no_wrap=True, overflow="ignore")


def diagnosis_text(result: Result, width: int = WIDTH) -> str:
    """One page of plain text, at most `width` columns wide."""
    width = min(width, WIDTH)
    config = result.config
    model = result.provenance.get("model", {})
    kind = f", {model['type']}, {model['layers']} blocks" if model else ""
    title = f"Diagnosis of {label(result)}{kind} on {config.get('task')} at {config.get('length')} tokens"
    lines = [*textwrap.wrap(title, width), ""]
    statements = result.provenance["statements"]
    for section, heading in SECTIONS.items():
        mine = [statement for statement in statements if statement["section"] == section]
        table = block_table(result, width) if section == "blocks" else []
        if mine or table:
            lines_of = _signatures(mine, width) if section == "signature" else _items([s["text"] for s in mine], width)
            lines += [heading, *table, *lines_of, *([""] if lines_of else [])]
    lines += ["Not measured, so not claimed", *_items(result.provenance["not_measured"], width), ""]
    for finding in result.findings:
        lines += _items([f"finding {finding.code}: {finding.message}"], width)
    if result.findings:
        lines.append("")
    return "\n".join([*lines, *textwrap.wrap(NOTE, width)])


def block_table(result: Result, width: int = WIDTH) -> list[str]:
    """Lines of a table of blocks: kind, accuracy before and after, its change, the change of similarity."""
    steps = result.provenance.get("blocks", [])
    if not steps:
        return []
    claimed = {i for i, step in enumerate(steps) if step["verdict"]}
    rows = [_block_row(steps[i]) for i in sorted({*thinned(len(steps), BLOCKS), *claimed})]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=caption, caption_justify="left")
        for name in names:
            left = name in ("kind", "verdict")
            table.add_column("" if name == "verdict" else name, justify="left" if left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(row[name]) for name in names))
        return table

    note = f"{len(rows)} of {len(steps)} blocks shown; " if len(rows) < len(steps) else ""
    if any(step["change"] is not None for step in steps):
        note += "[ ]: 95 %, below chance counts as chance; lost, gained: also widened for all blocks and with half the"
        note += " training prompts"
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(FittedTable(columns, min(3, len(columns)), build, note))
    return [line.rstrip() for line in console.file.getvalue().splitlines()][1:]  # type: ignore[attr-defined]


def _block_row(step: dict[str, Any]) -> dict[str, str]:
    """Cells by heading, in the order in which they matter; "" where nothing is known."""
    change, text = step["change"], ""
    if change is not None and change["value"] is not None:
        text = f"{change['value']:+.3f}"
        if change["low"] is not None:
            text += f" [{change['low']:+.3f}, {change['high']:+.3f}]"
    return {
        "block": str(step["block"]),
        "kind": step["kind"],
        "change": text,
        "verdict": step["verdict"],
        "accuracy before": "" if step["before"] is None else number(step["before"]),
        "after": "" if step["after"] is None else number(step["after"]),
        "similarity change": "" if step["similarity"] is None else f"{step['similarity']:+.3f}",
    }


def _signatures(statements: Sequence[dict[str, Any]], width: int) -> list[str]:
    """Both verdicts in one line, then the sentences with their numbers."""
    lines = []
    for code in dict.fromkeys(statement["code"] for statement in statements):
        mine = [statement for statement in statements if statement["code"] == code]
        verdicts = ", ".join(f"{_basis(s['basis'])}: {_verdict(s['holds'])}" for s in mine)
        lines += _items([f"{NAMES.get(code, code)}: {verdicts}"], width)
        lines += [f"    {line}" for s in mine for line in textwrap.wrap(s["text"], width - 4)]
    return lines


def _basis(basis: str) -> str:
    return "as published" if basis == "published" else "as judged"


def _verdict(holds: bool | None) -> str:
    return "open" if holds is None else "yes" if holds else "no"


def _items(texts: Sequence[str], width: int) -> list[str]:
    return [
        line
        for text in texts
        for line in textwrap.wrap(text, width, initial_indent="- ", subsequent_indent="  ", break_long_words=False)
    ]


def diagnosis_json(result: Result, run: Path | None = None) -> dict[str, Any]:
    """One object with every statement and the numbers behind it; NaN is null."""
    whole = result.to_json()
    provenance = whole["provenance"]
    return {
        "run": None if run is None else str(run),
        "model": whole["config"].get("model"),
        "task": whole["config"].get("task"),
        "statements": provenance["statements"],
        "blocks": provenance.get("blocks", []),
        "not_measured": provenance["not_measured"],
        "thresholds": provenance["thresholds"],
        "runs": provenance.get("runs", {}),
        "metrics": {
            name: {key: entry[key] for key in ("axes", "shape", "values")} for name, entry in whole["metrics"].items()
        },
        "findings": whole["findings"],
        "provenance": {name: provenance[name] for name in ("model", "digests") if name in provenance},
    }
