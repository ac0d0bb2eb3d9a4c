"""The page's part on classifiers of pixels: drops as a window slides over the image, influence, attacks, training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.intervals import student_interval
from repflow.papers.pixels import asymmetry_band, bounds, drops, ends, learned, windows
from repflow.report.data.context import Context
from repflow.report.data.laboratory import Line, best_lines, lines_of
from repflow.report.data.model import Block, Content, Figure, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.sections.images.naming import region_words
from repflow.report.sections.laboratory.curve import Mark, curve_figure, line_trace, marked, trained_words
from repflow.report.terminal.laboratory.pixels import row_words

SAME = "Means over equal spans of steps, on training images."
NOT_LEARNED = "No model is much better than guessing: what it loses says nothing."
NOT_STEERED = "No model is much better than guessing: that it is steered says nothing."
LABELS = 12
"""Regions of attacks that are all written below their axis; of more, some."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of every run of pixels; None where there is none."""
    blocks: list[Block] = []
    for run, mark in marked(runs, "pixels"):
        lines = best_lines(run.result, row_words, score="test_accuracy")
        blocks += [_window_figure(run, lines, mark)] if len(windows(run.result)) > 1 else []
        blocks.append(_end_table(run, mark))
        blocks += [_influence_figure(run, lines, mark)] if "influence" in run.result else []
        blocks += [_attack_figure(run, lines, mark)] if "success" in run.result else []
        curves = (("loss", "loss (nats)"), ("train_accuracy", "accuracy on training images"))
        blocks.append(curve_figure(run, lines, mark, curves=curves, caption=SAME))
        if run.result.findings:
            said = [finding.message for finding in run.result.findings]
            blocks.append(Text(f"pixels-findings{mark.id}", f"What to know{mark.title}", said))
    if not blocks:
        return None
    lead = (
        "Classifiers of images as sequences, trained alike. Parts of test images are replaced: by noise far outside of "
        "the data, as published, and by pixels that a model may have seen. Each row is shown at its best rate."
    )
    return Content(lead, blocks)


def _basis(run: StoredRun, most: int | None = None) -> str:
    """What the numbers of a run rest on; `most` of its images, where the first ones alone were read."""
    facts = run.result.provenance["pixels"]
    images = facts["images_replaced"] if most is None else min(most, facts["images_replaced"])
    return f"{images:,} test images of {facts['tokens']:,} tokens, {trained_words(run)}"


def _reading(run: StoredRun, lines: Sequence[Line], number: int) -> str:
    """What the first and the last window cost models that have learned."""
    known = _learned(run, lines)
    if not known:
        return NOT_LEARNED
    chosen, lost = windows(run.result), drops(run.result)
    kind = run.result.provenance["pixels"]["replacements"][number]
    said = []
    for line in known[:3]:
        first, last = (100 * float(lost[list(line.cells)][:, number, chosen[end]].mean()) for end in (0, -1))
        said.append(
            f"{line.words.replace(', ', ' in ', 1)} {last:.1f} points at the last window and {first:.1f} at the first"
        )
    return f"Replaced by {kind}: {'; '.join(said)}."


def _learned(run: StoredRun, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if learned(run.result)[list(line.cells)].all()]


def _window_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure:
    """Drop of accuracy over the place of the window; a variant per replacement."""
    facts, chosen = run.result.provenance["pixels"], windows(run.result)
    middles = bounds(run.result)[chosen].mean(1)
    lost, variants = drops(run.result), []
    for number, kind in enumerate(facts["replacements"]):
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for place, line in enumerate(lines):
            band = student_interval(100 * lost[list(line.cells)][:, number, chosen])
            traces.append(line_trace(line, place, middles.tolist(), band.mean))
            parts = zip(middles, plain(band.mean), plain(band.low), plain(band.high), strict=True)
            rows += [[line.words, *own] for own in parts]
        layout = {
            "xaxis": {"title": {"text": "middle of the window (token)"}},
            "yaxis": {"title": {"text": "drop of accuracy (points)"}},
        }
        columns = ["model", "middle of the window", "drop (points)", "low", "high"]
        reading = _reading(run, lines, number)
        variants.append(
            Variant({"replaced by": kind}, traces, layout, columns, rows, reading=reading, basis=_basis(run))
        )
    return Figure(
        f"pixels-windows{mark.id}",
        f"How much depends on each part?{mark.title}",
        f"Drop of accuracy with a window replaced, mean over seeds, {facts['images_replaced']} test images.",
        "A line per model over the place of the replaced window.",
        variants,
    )


def _end_table(run: StoredRun, mark: Mark) -> Table:
    """Every model, size of the ends and replacement."""
    facts, result = run.result.provenance["pixels"], run.result
    columns = ["model", "rate", "seeds", "accuracy (%)", "tokens at the end", "replaced by", "drop, last (points)"]
    columns += ["drop, first (points)", "difference", "low", "high"]
    lost, rows = drops(result), []
    for line in lines_of(result, row_words):
        own = list(line.cells)
        for size, (first, last) in ends(result).items():
            band = asymmetry_band(result, own, size)
            for number, kind in enumerate(facts["replacements"]):
                means = [float(lost[own, number, end].mean()) for end in (last, first)]
                values = plain(100 * np.array([*means, band.mean[number], band.low[number], band.high[number]]))
                accuracy = plain(np.array([100 * float(line.mean("test_accuracy"))]))
                rows.append([line.words, line.shared["rate"], len(own), *accuracy, size, kind, *values])
    return Table(f"pixels-ends{mark.id}", f"Both ends of the sequence{mark.title}", columns, rows)


def _influence_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure:
    """Influence of every token on the answer, on average 1."""
    traces, rows, read = [], [], int(run.result.config["influence"])
    for place, line in enumerate(lines):
        value = line.mean("influence")
        value = value / np.nanmean(value)
        traces.append(line_trace(line, place, range(len(value)), value, mode="lines"))
        rows += [[line.words, token, own] for token, own in enumerate(plain(value))]
    layout = {
        "xaxis": {"title": {"text": "token"}},
        "yaxis": {"title": {"text": "influence on the answer, by its mean"}, "type": "log"},
    }
    return Figure(
        f"pixels-influence{mark.id}",
        f"How much does each token count?{mark.title}",
        "Gradient of the answer's log-odds by token, geometric mean over images, mean over seeds.",
        "Influence by token, a line per model.",
        [Variant({}, traces, layout, ["model", "token", "influence"], rows, basis=_basis(run, read))],
    )


def _above_pairs(run: StoredRun, line: Line) -> np.ndarray:
    """Success above random pairs in points, mean over targets (seed, region)."""
    own, result = list(line.cells), run.result
    return np.asarray(100 * (result["success"][own] - result["random_pair"][own]).mean(1))


def _steered(run: StoredRun, lines: Sequence[Line]) -> str:
    """The region by which each model that has learned is steered most."""
    said = []
    for line in _learned(run, lines)[:3]:
        above = _above_pairs(run, line).mean(0)
        region = run.result.provenance["pixels"]["attack_regions"][int(above.argmax())]
        said.append(f"{line.words.replace(', ', ' in ', 1)} {above.max():+.1f} points by {region_words(region)}")
    return f"Steered most, above random pairs: {'; '.join(said)}." if said else NOT_STEERED


def _region_axis(regions: Sequence[str]) -> dict[str, Any]:
    """An axis of regions in the order asked for; of many, some are labelled."""
    axis: dict[str, Any] = {"title": {"text": "region that is lent"}, "type": "category"}
    every = -(-len(regions) // LABELS)
    return axis if every == 1 else axis | {"tickvals": [*range(0, len(regions), every)], "ticktext": regions[::every]}


def _attack_figure(run: StoredRun, lines: Sequence[Line], mark: Mark) -> Figure:
    """Success of attacks above random pairs, mean over targets."""
    facts = run.result.provenance["pixels"]
    traces, rows = [], []
    for place, line in enumerate(lines):
        band = student_interval(_above_pairs(run, line))
        traces.append(line_trace(line, place, facts["attack_regions"], band.mean))
        parts = zip(facts["attack_regions"], plain(band.mean), plain(band.low), plain(band.high), strict=True)
        rows += [[line.words, *part] for part in parts]
    layout = {
        "xaxis": _region_axis(facts["attack_regions"]),
        "yaxis": {"title": {"text": "target named, above random pairs (points)"}},
    }
    columns = ["model", "region", "above random pairs (points)", "low", "high"]
    return Figure(
        f"pixels-attack{mark.id}",
        f"Can pasted pixels steer the answer?{mark.title}",
        f"Mean of {len(facts['targets'])} targets and of seeds; random pairs: pixels of any other class are lent.",
        "Success above random pairs by region, a line per model.",
        [Variant({}, traces, layout, columns, rows, reading=_steered(run, lines), basis=_basis(run))],
    )
