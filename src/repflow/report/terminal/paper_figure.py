"""Paper 2's figures in the terminal: the paper's statements, what was measured, and whether it bears them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.core.verdict import DOES_NOT, HOLDS, OPEN
from repflow.report.terminal.fitted import FittedTable

COLUMNS = ("of", "verdict", "ours", "the paper")


def figure_view(result: Result) -> list[RenderableType]:
    """What `repflow reproduce recency-*` prints."""
    facts = result.provenance
    parts: list[RenderableType] = [Text(f"{result.config['recipe']}: {facts['title']}")]
    parts += [Text(facts["note"])] if facts.get("note") else []
    parts.append(lines_table(facts["lines"]))
    parts.append(Text(counts(facts["lines"])))
    return parts + [Text.assemble((f"{finding.code}: ", "yellow"), finding.message) for finding in result.findings]


def counts(lines: Sequence[Mapping[str, Any]]) -> str:
    """How many statements hold; lines that stand there to be looked at are not statements.

    >>> counts([{"holds": True}, {"holds": None}, {"holds": None}, {"holds": None, "judged": False}])
    '3 statements: 1 holds, 0 do not hold, 2 open'
    """
    lines = [line for line in lines if line.get("judged", True)]
    holding, failed = (sum(line["holds"] is answer for line in lines) for answer in (True, False))
    verbs = ("holds" if holding == 1 else "hold", "does not hold" if failed == 1 else "do not hold")
    noun = "statement" if len(lines) == 1 else "statements"
    return f"{len(lines)} {noun}: {holding} {verbs[0]}, {failed} {verbs[1]}, {len(lines) - holding - failed} open"


def lines_table(lines: Sequence[Mapping[str, Any]]) -> FittedTable:
    """One row per statement."""
    words = {True: HOLDS, False: DOES_NOT, None: OPEN}

    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=caption, caption_justify="left", show_lines=True)
        for name in names:
            table.add_column(name, no_wrap=name == "verdict", overflow="fold")
        for line in lines:
            row = {
                "of": line.get("of", line["what"]),
                "verdict": words[line["holds"]] if line.get("judged", True) else "",
                "ours": line["ours"],
                "the paper": line["stated"],
            }
            table.add_row(*(Text(row[name]) for name in names))
        return table

    return FittedTable(COLUMNS, len(COLUMNS), build, folds=("of", "ours", "the paper"))
