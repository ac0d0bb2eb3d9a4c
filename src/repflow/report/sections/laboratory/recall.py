"""The page's part on recall: accuracy by pairs and by distance, training curves, the sweep of rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.context import Context
from repflow.report.data.laboratory import Line, best_lines, lines_of
from repflow.report.data.model import Block, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.sections.laboratory.curve import curve_figure, line_trace
from repflow.report.terminal.laboratory.recall import row_words


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of every run of recall; None where there is none."""
    blocks: list[Block] = []
    for place, run in enumerate(run for run in runs if run.study == "recall"):
        mark = "" if place == 0 else f"-{place + 1}"
        blocks += [
            _distance_figure(run, mark),
            _pairs_figure(run, mark),
            curve_figure(run, best_lines(run.result, row_words), mark),
            _table(run, mark),
        ]
        if run.result.findings:
            said = [finding.message for finding in run.result.findings]
            blocks.append(Text(f"recall-findings{mark}", f"{run.name}: what to know", said))
    if not blocks:
        return None
    lead = (
        "Stacks trained on multi-query associative recall: pairs of keys and values, then every key once more. Each "
        "row is shown at the learning rate that served it best; the table has all rates."
    )
    return Content(lead, blocks)


def _distance_figure(run: StoredRun, mark: str) -> Figure:
    """Accuracy against the distance between pair and query; one variant per number of pairs."""
    facts, lines = run.result.provenance["recall"], best_lines(run.result, row_words)
    places = [f"{low}–{high - 1}" for low, high in zip(facts["gaps"][:-1], facts["gaps"][1:], strict=True)]
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
        variants.append(Variant({"pairs": str(pairs)}, traces, layout, ["model", "distance", "accuracy (%)"], rows))
    return Figure(
        f"recall-distance{mark}",
        f"How far back do they look up? ({run.name})",
        f"Share of right answers by the distance between a pair and its query, at length {facts['length']}.",
        "Accuracy by distance, a line per row and depth.",
        variants,
    )


def _pairs_figure(run: StoredRun, mark: str) -> Figure:
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
    return Figure(
        f"recall-pairs{mark}",
        f"How much do they hold? ({run.name})",
        f"Share of right answers by the number of pairs, at length {facts['length']}; bars are standard deviations.",
        "Accuracy by number of pairs, a line per row and depth.",
        [Variant({}, traces, layout, columns, rows)],
    )


def _table(run: StoredRun, mark: str) -> Table:
    """All rates, with sizes and what was found inside the models."""
    facts, result = run.result.provenance["recall"], run.result
    columns = ["model", "width", "rate", "seeds", *(f"{pairs} pairs (%)" for pairs in facts["pairs"])]
    columns += ["parameters", "bytes of state", "steps to 50 %", "last drop of the loss (%)"]
    columns += ["half reach", "similarity behind the last block", "median half-life, last layer"]
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
    return Table(f"recall-rows{mark}", f"All rows and rates ({run.name})", columns, rows)


def _last(line: Line, name: str) -> float | None:
    """Value behind a model's last block; models of a run may have unlike depths."""
    if name not in line.result:
        return None
    values = line.mean(name)
    there = values[np.isfinite(values)]
    return float(there[-1]) if len(there) else None
