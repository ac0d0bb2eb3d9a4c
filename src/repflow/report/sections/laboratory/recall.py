"""The page's part on recall: accuracy by pairs and by distance, training curves, the sweep of rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.context import Context
from repflow.report.data.laboratory import Line, best_lines, lines_of
from repflow.report.data.model import Block, Card, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.sections.laboratory.curve import Mark, curve_figure, line_trace, marked, trained_words
from repflow.report.terminal.laboratory.recall import row_words


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of every run of recall; None where there is none."""
    blocks: list[Block] = []
    trained = marked(runs, "recall")
    for run, mark in trained:
        blocks += [
            _distance_figure(run, mark),
            _pairs_figure(run, mark),
            curve_figure(run, best_lines(run.result, row_words), mark),
            _table(run, mark),
        ]
        if run.result.findings:
            said = [finding.message for finding in run.result.findings]
            blocks.append(Text(f"recall-findings{mark.id}", f"What to know{mark.title}", said))
    if not blocks:
        return None
    lead = (
        "Stacks trained on multi-query associative recall: pairs of keys and values, then every key once more. Each "
        "row is shown at the learning rate that served it best; the table has all rates."
    )
    return Content(lead, blocks, facts=_facts(trained[0][0]))


def _basis(run: StoredRun) -> str:
    """What the numbers of a run rest on."""
    length, rows = run.result.provenance["recall"]["length"], int(run.result.config["test_rows"])
    return f"{rows:,} test rows of {length:,} tokens for each number of pairs, {trained_words(run)}"


def _ranked(run: StoredRun, number: int) -> list[tuple[float, str]]:
    """Accuracy in percent and words of every model with one number of pairs, worst first."""
    lines = [(100 * float(line.mean("accuracy")[number]), line.words) for line in best_lines(run.result, row_words)]
    return sorted(pair for pair in lines if np.isfinite(pair[0]))


def _reading(run: StoredRun, number: int) -> str:
    """Who answers most and who least with one number of pairs."""
    ranked, pairs = _ranked(run, number), run.result.provenance["recall"]["pairs"][number]
    if not ranked:
        return ""
    best, worst = ranked[-1], ranked[0]
    text = f"With {pairs} pairs, {_inline(best[1])} answers {best[0]:.1f} % of the queries rightly"
    return f"{text}." if len(ranked) == 1 else f"{text} and {_inline(worst[1])} {worst[0]:.1f} %."


def _inline(words: str) -> str:
    """The words of a line inside a sentence.

    >>> _inline("both/16, 2 layers")
    'both/16 (2 layers)'
    """
    row, _, rest = words.partition(", ")
    return f"{row} ({rest})"


def _facts(run: StoredRun) -> list[Card]:
    """The best and the worst model with most pairs."""
    number = len(run.result.provenance["recall"]["pairs"]) - 1
    ranked, pairs = _ranked(run, number), run.result.provenance["recall"]["pairs"][number]
    ends = list(zip(("Best recall", "Worst recall"), [*ranked[-1:], *ranked[:-1][:1]], strict=False))
    return [
        Card(title, f"{value:.0f} %", f"{words}, with {pairs} pairs", _basis(run), "recall-pairs")
        for title, (value, words) in ends
    ]


def _distance_figure(run: StoredRun, mark: Mark) -> Figure:
    """Accuracy against the distance between pair and query; one variant per number of pairs."""
    facts, lines = run.result.provenance["recall"], best_lines(run.result, row_words)
    gaps = zip(facts["gaps"][:-1], facts["gaps"][1:], strict=True)
    places = [f"{low}" if high - low == 1 else f"{low}–{high - 1}" for low, high in gaps]
    variants = []
    for number, pairs in reversed(list(enumerate(facts["pairs"]))):
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for place, line in enumerate(lines):
            values = 100 * line.mean("accuracy_by_distance")[number]
            traces.append(line_trace(line, place, places, values))
            rows += [[line.words, where, value] for where, value in zip(places, plain(values), strict=True)]
        layout: dict[str, Any] = {
            "xaxis": {"title": {"text": "tokens from the value to its query"}, "type": "category"}
        }
        layout["yaxis"] = {"title": {"text": "accuracy (%)"}, "range": [0, 102]}
        columns, when, reading = ["model", "distance", "accuracy (%)"], {"pairs": str(pairs)}, _reading(run, number)
        variants.append(Variant(when, traces, layout, columns, rows, reading=reading, basis=_basis(run)))
    return Figure(
        f"recall-distance{mark.id}",
        f"How far back do they look up?{mark.title}",
        f"Share of right answers by the distance between a pair and its query, at length {facts['length']}.",
        "Accuracy by distance, a line per row and depth.",
        variants,
    )


def _pairs_figure(run: StoredRun, mark: Mark) -> Figure:
    """Accuracy against the number of pairs."""
    facts = run.result.provenance["recall"]
    traces, rows = [], []
    for place, line in enumerate(best_lines(run.result, row_words)):
        mean, spread = 100 * line.mean("accuracy"), 100 * line.spread("accuracy")
        bars = {"error_y": {"type": "data", "array": plain(spread)}} if np.isfinite(spread).any() else {}
        traces.append(line_trace(line, place, facts["pairs"], mean, **bars))
        rows += [[line.words, *part] for part in zip(facts["pairs"], plain(mean), plain(spread), strict=True)]
    layout: dict[str, Any] = {"xaxis": {"title": {"text": "pairs in a row"}, "type": "log", "tickvals": facts["pairs"]}}
    layout["yaxis"] = {"title": {"text": "accuracy (%)"}, "range": [0, 102]}
    columns = ["model", "pairs", "accuracy (%)", "standard deviation over seeds"]
    reading = _reading(run, len(facts["pairs"]) - 1)
    return Figure(
        f"recall-pairs{mark.id}",
        f"How much do they hold?{mark.title}",
        f"Share of right answers by the number of pairs, at length {facts['length']}; bars are standard deviations.",
        "Accuracy by number of pairs, a line per row and depth.",
        [Variant({}, traces, layout, columns, rows, reading=reading, basis=_basis(run))],
    )


def _table(run: StoredRun, mark: Mark) -> Table:
    """All rates, with sizes and what was found inside the models."""
    facts, result = run.result.provenance["recall"], run.result
    columns = ["model", "width", "rate", "seeds", *(f"{pairs} pairs (%)" for pairs in facts["pairs"])]
    columns += ["parameters", "bytes of state", "steps to 50 %", "last drop of the loss (%)"]
    columns += ["half reach", "similarity after the last block", "median half-life, last layer"]
    rows = []
    for line in lines_of(result, row_words):
        similar, life = (_last(line, name) for name in ("token_similarity", "half_life"))
        rows.append(
            [
                line.words,
                line.shared["width"],
                line.shared["rate"],
                len(line.cells),
                *plain(100 * line.mean("accuracy")),
                int(line.mean("parameters")),
                int(line.mean("state_bytes")),
                *plain(np.array([line.mean("half_step"), 100 * line.mean("loss_drop"), line.mean("half_reach")])),
                similar,
                life,
            ]
        )
    return Table(f"recall-rows{mark.id}", f"All rows and rates{mark.title}", columns, rows)


def _last(line: Line, name: str) -> float | None:
    """Value after a model's last block; models of a run may have unlike depths."""
    if name not in line.result:
        return None
    values = line.mean(name)
    there = values[np.isfinite(values)]
    return float(there[-1]) if len(there) else None
