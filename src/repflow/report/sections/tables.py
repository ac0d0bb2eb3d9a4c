"""Tables 1 and 2 of paper 1 with our numbers beside the printed ones, and what `repflow reproduce` stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.papers import values as papers
from repflow.report.data.context import Context, measured_runs
from repflow.report.data.model import Block, Cell, Content, Figure, Table
from repflow.report.data.probed import probe_runs
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import exact
from repflow.report.sections.reproduce import reproduce_figure, statement_tables
from repflow.report.terminal.reproduce import (
    CAPTION,
    DIGITS,
    WORDS,
    lengths_note,
    ours_cell,
    quotations,
    row_model,
    row_words,
)

OURS, PRINTED = "ours", "paper"
COLUMNS = ("model", "whose", "states", "n", "accuracy, last layer, %", "peak − last, points", "Sm", "St", "probed for")
QUANTITIES = ("accuracy", "drop", "smoothness", "stability")


@dataclass(frozen=True)
class OwnCell:
    """Our numbers for one model, task, length and kind of state; None where they were not measured."""

    model: str
    task: str
    length: int
    states: str
    accuracy: float | None = None
    drop: float | None = None
    smoothness: float | None = None
    stability: float | None = None
    label: str = ""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Tables 1 and 2, and every reproduced figure or table; None where no run is of the paper's tasks."""
    cells = own_cells(runs) if context.papers else []
    blocks: list[Block] = []
    if cells:
        blocks = [table_1(cells), table_2(cells)]
        blocks.sort(key=lambda table: all(row[1] != OURS for row in table.rows))  # type: ignore[union-attr]
    figure = reproduce_figure(runs)
    blocks += [figure] if figure else []
    reproduced = [run for run in runs if run.study == "reproduce"]
    for place, run in enumerate(reproduced, 1):
        blocks += [_check_table(run, place) if "checks" in run.result.provenance else _comparison(run, place)]
    blocks += statement_tables(runs, "recency-figure", "recency-reproduced")
    blocks += statement_tables(runs, "reproduce-table", "reproduce-statements")
    if not blocks:
        return None
    lead = (
        "What the paper prints, and what these runs give. Other models, prompts and kinds of state than the paper's "
        "speak neither for nor against its numbers; the column of models says which they are."
    )
    first = [block.id for block in blocks if isinstance(block, Figure)][:1]
    count = sum(isinstance(block, Table) for block in blocks)
    summary = f"{count} table{'' if count == 1 else 's'} of printed values with ours beside them, folded below."
    return Content(lead, blocks, first, summary)


def own_cells(runs: Sequence[StoredRun]) -> list[OwnCell]:
    """Our numbers on the paper's tasks, of trained models, one per model, task, length and kind of state."""
    cells: dict[tuple[str, str, int, str], dict[str, Any]] = {}
    for run in [*measured_runs(runs), *probe_runs(runs)]:
        if run.task not in papers.TASKS or not run.trained or not run.length.isdigit():
            continue
        mine = cells.setdefault((run.label, run.task, int(run.length), run.states), {})
        if run.study == "probe":
            mine |= _probed(run)
        else:
            mine |= _over_depth(run)
    return [OwnCell(*key, **values) for key, values in sorted(cells.items()) if values]


def _over_depth(run: StoredRun) -> dict[str, Any]:
    """Sm and St as the paper prints them where they were measured so; Sm can be had from ours, St cannot."""
    result, blocks = run.result, int(run.result.provenance["model"]["layers"])
    numbers = {name: exact(result.mean(name)) for name in ("smoothness", "stability") if name in result}
    if "smoothness" in numbers and not run.states.startswith("branch") and blocks > 2:
        numbers["smoothness"] = exact(result.mean("smoothness") * (blocks - 1) / (blocks - 2))
    printed = {name: f"paper_{name}" for name in ("smoothness", "stability") if f"paper_{name}" in result}
    return numbers | {name: exact(result.mean(metric)) for name, metric in printed.items()}


def _probed(run: StoredRun) -> dict[str, Any]:
    about = run.result.provenance["probe"]
    if about["last_accuracy"] is None:
        return {}
    drop = float(run.result["probe_drop"])
    return {"accuracy": 100 * about["last_accuracy"], "drop": 100 * drop, "label": str(about["label"])}


def table_2(cells: Sequence[OwnCell]) -> Table:
    """By task: ours above the printed rows."""
    rows: list[list[Cell]] = []
    # tasks of ours first: a long table shows its first rows
    for task in sorted(papers.TASKS, key=lambda name: all(cell.task != name for cell in cells)):
        words = papers.TASKS[task]
        rows += [[f"{words}: {row[0]}", *row[1:]] for row in _rows([c for c in cells if c.task == task], task)]
    caption = (
        "Accuracy of a linear probe on the last layer; peak − last: what it loses against the peak layer (the paper's "
        "↓); Sm and St: smoothness and stability over depth, lower is smoother, Sm as the paper's Eq. 3 has it. St of "
        "ours counts the embedding, unlike the paper's Eq. 4, where paper_stability was not measured. n is in tokens."
    )
    return Table("table-2", "Table 2: by task", COLUMNS, rows, caption)


def table_1(cells: Sequence[OwnCell]) -> Table:
    """The mean over both tasks; ours where both were measured."""
    by_task = {(cell.model, cell.length, cell.states, cell.task): cell for cell in cells}
    means = []
    for model, length, states in dict.fromkeys((cell.model, cell.length, cell.states) for cell in cells):
        both = [by_task.get((model, length, states, task)) for task in papers.TASKS]
        if all(both):
            means.append(_mean_cell([cell for cell in both if cell]))
    caption = (
        "The mean over both tasks. The paper's own Table 1 differs from the mean of its Table 2 in many cells: "
        "`repflow reproduce flow-check` lists them. Ours stand here where both tasks were run."
    )
    return Table("table-1", "Table 1: mean over tasks", COLUMNS, _rows(means, "mean"), caption)


def _mean_cell(cells: Sequence[OwnCell]) -> OwnCell:
    parts: dict[str, float | None] = {}
    for name in QUANTITIES:
        values = [getattr(cell, name) for cell in cells]
        parts[name] = None if None in values else float(np.mean(values))
    first = cells[0]
    return OwnCell(first.model, "mean", first.length, first.states, **parts, label=first.label)


def _rows(cells: Sequence[OwnCell], task: str) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for cell in cells:
        values: list[Cell] = [getattr(cell, name) for name in QUANTITIES]
        rows.append([cell.model, OURS, cell.states, papers.short_length(cell.length), *values, cell.label])
    for model in papers.MODELS:
        for length in papers.LENGTHS:
            printed = papers.printed(task, model, length)
            if printed is not None:
                values = [printed.value(name) for name in QUANTITIES]
                rows.append(
                    [model, PRINTED, "not said", papers.short_length(length), *values, "index of the gold item"]
                )
    return rows


def _comparison(run: StoredRun, place: int) -> Table:
    """One row per printed value of a recipe, with ours for every kind of state."""
    facts, result = run.result.provenance, run.result
    kinds = facts["kinds"]
    rows: list[list[Cell]] = []
    for i, row in enumerate(facts["rows"]):
        ours: list[Cell] = []
        for k in range(len(kinds)):
            known = np.isfinite(result["ours"][i, k])
            ours.append(ours_cell(result, i, k).rstrip() if known else None)
        rows.append([row_model(facts, row), row_words(row), WORDS[row["quantity"]], _printed(row), *ours])
    sentences = " ".join(finding.message + "." for finding in result.findings)
    notes = " ".join(f"{note}." for note in (facts["note"], lengths_note(facts)) if note)
    caption = f"{notes} {CAPTION}. {sentences}".strip()
    columns = ("model", "of", "quantity", "printed", *(f"ours, {kind}" for kind in kinds))
    return Table(f"reproduce-{place}", f"{run.result.config['recipe']}: {facts['title']}", columns, rows, caption)


def _digits(row: Mapping[str, Any]) -> int:
    return DIGITS.get(str(row["quantity"]), 1)


def _printed(row: Mapping[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return f"{low:.{_digits(row)}f}" if low == high else f"{low:.0f} to {high:.0f}"


def _check_table(run: StoredRun, place: int) -> Table:
    """Where the paper's tables, text and summaries disagree."""
    checks = run.result.provenance["checks"]
    rows: list[list[Cell]] = [
        [check["words"], check["citation"], f"{check['against']}: {check['found']}", "yes" if check["holds"] else "no"]
        for check in sorted(checks, key=lambda check: bool(check["holds"]))
    ]
    differ = sum(not row["agrees"] for row in run.result.provenance["rows"])
    caption = f"{differ} of {len(run.result.provenance['rows'])} numbers of Table 1 differ from the mean of Table 2. "
    caption += f"Text and summaries: {quotations(checks)}"
    columns = ("said", "where", "printed elsewhere", "fits")
    return Table(f"reproduce-{place}", "flow-check: the paper against itself", columns, rows, caption)
