"""Tables of `repflow reproduce`: ours beside the printed values, and where the paper disagrees with itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.recipes import RecipeRow
from repflow.core.results import Result
from repflow.papers.values import short_length
from repflow.report.terminal.cell import ABSENT
from repflow.report.terminal.fitted import FittedTable
from repflow.report.terminal.paper_figure import figure_view

DIGITS = {"smoothness": 3, "stability": 3}
WORDS = {
    "layer_cosine": "layer cosine %",
    "token_similarity": "token similarity %",
    "cka": "CKA %",
    "accuracy": "accuracy %",
    "drop": "peak − last, points",
    "peak_layer": "peak layer",
    "smoothness": "Sm",
    "stability": "St",
}


def recipe_tables(rows: Sequence[RecipeRow]) -> list[RenderableType]:
    """What `repflow reproduce --list` prints: recipes with what they show, then those that are not reproduced yet."""
    ready, planned = ([row for row in rows if bool(row.module) is there] for there in (True, False))
    tables: list[RenderableType] = []
    for title, mine, last in (("", ready, "scales"), ("not reproduced yet", planned, "needs")):
        if not mine:
            continue
        last_text = ""
        table = Table("recipe", "paper", "shows", last, box=box.SIMPLE, title=title or None, title_justify="left")
        for row in mine:
            more = row.needs if last == "needs" else ", ".join(row.scales) or "no model"
            table.add_row(row.name, str(row.paper), row.shows, more if last == "scales" or more != last_text else "")
            last_text = more
        tables.append(table)
    return tables


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of a recipe: statements, the paper's numbers held together, or ours beside them."""
    if result.config.get("study") == "reproduce-table":
        return figure_view(result)
    return check_view(result) if result.config["recipe"] == "flow-check" else comparison_view(result)


def comparison_view(result: Result) -> list[RenderableType]:
    """What `repflow reproduce` prints of a figure or table."""
    facts = result.provenance
    parts: list[RenderableType] = [Text(f"{result.config['recipe']}: {facts['title']}")]
    parts += [Text(text) for text in (facts["note"], lengths_note(facts)) if text]
    parts.append(_comparison(result))
    parts += [Text.assemble((f"{finding.code}: ", "yellow"), finding.message) for finding in result.findings]
    return parts


def lengths_note(facts: Mapping[str, Any]) -> str:
    """Which tokens ran for the paper's lengths, where they are others.

    >>> lengths_note({"lengths": {"2000": 440}})
    'prompts of up to 440 tokens for n = 2K'
    """
    other = {int(printed): int(ran) for printed, ran in facts.get("lengths", {}).items() if int(printed) != int(ran)}
    parts = [f"{ran} tokens for n = {short_length(printed)}" for printed, ran in other.items()]
    return f"prompts of up to {', '.join(parts)}" if parts else ""


CAPTION = (
    "* shown within the tolerance by its 95 % interval, x shown outside, ? neither; tolerance: 10 points (probes 5), a "
    "factor of 1.1 (Sm, St as printed), a tenth of the depth (peak)"
)


def _comparison(result: Result) -> FittedTable:
    """One line per printed value, and whether ours is shown to be within the tolerance of it."""
    kinds = result.provenance["kinds"]
    rows, last = [], None
    for i, row in enumerate(result.provenance["rows"]):
        cells = [ours_cell(result, i, k) for k in range(len(kinds))]
        name = row_model(result.provenance, row) if row["model"] != last else ""
        last = row["model"]
        rows.append([name, row_words(row), WORDS[row["quantity"]], _printed(row), *cells])
    below = any(row["quantity"] == "drop" for row in result.provenance["rows"])
    caption = CAPTION + ("; peak − last below 0: the last state beats the peak that validation chose" if below else "")
    return _fitted(["model", "of", "quantity", "printed", *kinds], 5, rows, caption)


def row_model(facts: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The paper's model and what ran for it; runs of earlier versions name the first alone."""
    return str(facts.get("labels", {}).get(row["model"], row["model"]))


def row_words(row: Mapping[str, Any]) -> str:
    """What a printed value is of, with the chance level of an accuracy."""
    chance = row.get("chance")
    return str(row["what"]) if chance is None else f"{row['what']}, chance {chance:.0f} %"


def ours_cell(result: Result, row: int, kind: int) -> str:
    """Our value and whether it is shown to be within the tolerance; a dash where there is none."""
    value = float(result["ours"][row, kind])
    if not math.isfinite(value):
        return ABSENT
    if "within" in result:
        within = float(result["within"][row, kind])
        mark = "?" if math.isnan(within) else "*" if within else "x"
    else:  # stored before intervals decided
        mark = "*" if result["score"][row, kind] <= 1 else " "
    return f"{value:.{_digits(result.provenance['rows'][row])}f} {mark}"


TEXTS = ("model", "of", "quantity")


def _fitted(headings: Sequence[str], needed: int, rows: Sequence[Sequence[str]], caption: str) -> FittedTable:
    def build(names: Sequence[str], below: Text) -> Table:
        table = Table(box=box.SIMPLE, caption=below, caption_justify="left")
        for name in names:
            text = name in TEXTS
            table.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row[: len(names)]))
        return table

    return FittedTable(headings, needed, build, caption, folds=TEXTS)


def _digits(row: Mapping[str, Any]) -> int:
    return DIGITS.get(row["quantity"], 1)


def _printed(row: Mapping[str, Any]) -> str:
    low, high, digits = row["low"], row["high"], _digits(row)
    if low == high:
        return f"{low:.{digits}f}"
    if row["quantity"] == "layer_cosine" and low <= -100:
        return f"{high:.0f} or less"
    return f"{low:.0f} to {high:.0f}"


def check_view(result: Result) -> list[RenderableType]:
    """What `repflow reproduce flow-check` prints."""
    facts = result.provenance
    rows, checks = facts["rows"], facts["checks"]
    differ = [row for row in rows if not row["agrees"]]
    beyond = [row for row in differ if row["outside"]]
    failed = [check for check in checks if not check["holds"]]
    return [
        Text(
            f"Table 1 against the mean of Table 2: {len(differ)} of {len(rows)} numbers differ by more than rounding; "
            f"{len(beyond)} lie outside both tasks' values, so that no weighted mean gives them."
        ),
        _recomputed(differ),
        Text(f"Text and summaries: {quotations(checks)}"),
        _claims(failed),
        Text(f"The other {len(checks) - len(failed)} checks hold; --json lists them."),
    ]


def quotations(checks: list[dict[str, Any]]) -> str:
    """How many quotations hold in all, in some and in none of the numbers they are compared with.

    >>> one = {"words": "up to 3", "citation": "here"}
    >>> quotations([{**one, "holds": True}, {**one, "holds": False}])
    'of 1 quotation 0 hold, 1 partly holds and 0 do not hold (1 of 2 checks against what is printed elsewhere fails).'
    """
    by_source: dict[tuple[str, str], list[bool]] = {}
    for check in checks:
        by_source.setdefault((check["words"], check["citation"]), []).append(bool(check["holds"]))
    whole, none = (sum(test(holds) for holds in by_source.values()) for test in (all, lambda holds: not any(holds)))
    partly, failed = len(by_source) - whole - none, sum(not check["holds"] for check in checks)
    return (
        f"of {len(by_source)} quotation{'s' if len(by_source) != 1 else ''} {whole} hold{'s' if whole == 1 else ''}, "
        f"{partly} partly hold{'s' if partly == 1 else ''} and {none} do{'es' if none == 1 else ''} not hold "
        f"({failed} of {len(checks)} checks against what is printed elsewhere fail{'s' if failed == 1 else ''})."
    )


def _recomputed(rows: list[dict[str, Any]]) -> FittedTable:
    rows_out, last = [], None
    for row in rows:
        digits = DIGITS.get(row["quantity"], 1)
        name, last = "" if row["model"] == last else row["model"], row["model"]
        weight = ABSENT if row["weight"] is None else f"{row['weight']:.2f}"
        numbers = (f"{row['printed']:.{digits}f}", f"{row['mean']:.{digits + 1}f}", f"{row['gap']:+.{digits + 1}f}")
        rows_out.append([name, str(row["length"]), WORDS[row["quantity"]], *numbers, weight])
    headings = ["model", "n", "quantity", "Table 1", "mean of Table 2", "gap", "weight of kvpr"]
    caption = "weight w of kvpr with Table 1 = (1 - w) mdqa + w kvpr; the mean has 0.50"
    return _fitted(headings, 5, rows_out, caption)


def _claims(checks: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE, show_lines=False)
    table.add_column("said", overflow="fold", ratio=5)
    table.add_column("where", overflow="fold", ratio=3)
    table.add_column("printed elsewhere", overflow="fold", ratio=6)
    last = None
    for check in checks:
        quote = (check["words"], check["citation"])
        words, where = ("", "") if quote == last else (f"“{check['words']}”", check["citation"])
        last = quote
        table.add_row(Text(words), Text(where), Text(f"{check['against']}: {check['found']}"))
    return table
