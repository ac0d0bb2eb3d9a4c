"""The page's part on classifiers of texts: accuracy on the way and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from repflow.report.data.context import Context
from repflow.report.data.laboratory import best_lines, lines_of
from repflow.report.data.model import Block, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.sections.laboratory.curve import Mark, line_trace, marked, trained_words
from repflow.report.terminal.laboratory.classify import accuracy_words, row_words


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of every grid of classifiers of texts; None where there is none."""
    blocks: list[Block] = []
    for run, mark in marked(runs, "classify"):
        blocks += [_way_figure(run, mark), _table(run, mark)]
        said = [finding.message for finding in run.result.findings]
        blocks.append(Text(f"classify-findings{mark.id}", f"What to know{mark.title}", said))
    lead = "Classifiers of texts, each tested on texts that it was not trained on; with as many seeds as folds, on all."
    return Content(lead, blocks) if blocks else None


def _way_figure(run: StoredRun, mark: Mark) -> Figure:
    """Accuracy while the models train."""
    facts = run.result.provenance["classify"]
    steps, traces, rows = facts["watched"], [], []
    for place, line in enumerate(best_lines(run.result, row_words)):
        values = 100 * line.mean("accuracy_on_the_way")
        traces.append(line_trace(line, place, steps, values))
        rows += [[line.words, *part] for part in zip(steps, plain(values), strict=True)]
    layout: dict[str, Any] = {"xaxis": {"title": {"text": "steps"}}, "yaxis": {"title": {"text": "accuracy (%)"}}}
    basis = f"{facts['data']['texts']:,} texts in {facts['data']['folds']} folds, {trained_words(run)}"
    return Figure(
        f"classify-training{mark.id}",
        f"Accuracy while they train{mark.title}",
        "Share of test texts that are named rightly, mean over seeds.",
        "Accuracy by training step, a line per row.",
        [Variant({}, traces, layout, ["model", "step", "accuracy (%)"], rows, basis=basis)],
    )


def _table(run: StoredRun, mark: Mark) -> Table:
    """All rates."""
    columns = ["model", "rate", "seeds", "accuracy (%)", "parameters"]
    rows = [
        [line.words, line.shared["rate"], len(line.cells), accuracy_words(line), int(line.mean("parameters"))]
        for line in lines_of(run.result, row_words)
    ]
    return Table(f"classify-rows{mark.id}", f"All rows and rates{mark.title}", columns, rows)
