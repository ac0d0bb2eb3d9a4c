"""Figures of all laboratories: a line per model, and its training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from repflow.report.data.laboratory import Line
from repflow.report.data.model import Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain
from repflow.report.draw.palette import model_dash, model_marker

FRESH = "Means over equal spans of steps; every row is new, so accuracy is that of test rows of all lengths."
CURVES = (("loss", "loss (nats)"), ("train_accuracy", "accuracy on fresh rows"))


class Mark(NamedTuple):
    """What distinguishes the blocks of one run from those of another: behind their ids, and behind their titles."""

    id: str = ""
    title: str = ""


NO_MARK = Mark()


def marked(runs: Sequence[StoredRun], study: str) -> list[tuple[StoredRun, Mark]]:
    """Runs of a laboratory, each with its mark; a lone one needs none."""
    own = [run for run in runs if run.study == study]
    alone = len(own) == 1
    return [
        (run, Mark("" if place == 0 else f"-{place + 1}", "" if alone else f" ({run.name})"))
        for place, run in enumerate(own)
    ]


def trained_words(run: StoredRun) -> str:
    """How long the models of a run were trained, and how often: what its numbers rest on."""
    seeds, steps = len({cell["seed"] for cell in run.result.provenance["cells"]}), int(run.result.config["steps"])
    return f"{steps:,} training steps, {seeds} seed{'' if seeds == 1 else 's'}"


def line_trace(line: Line, place: int, x: Sequence[Any], y: np.ndarray, **more: Any) -> dict[str, Any]:
    """A line of a figure; `place` chooses its colour, dash and marker."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": line.words,
        "x": list(x),
        "y": plain(y),
        "line": {"color": f"model:{place}", "dash": model_dash(place)},
        "marker": {"symbol": model_marker(place)},
        **more,
    }


def curve_figure(
    run: StoredRun,
    lines: Sequence[Line],
    mark: Mark = NO_MARK,
    *,
    curves: Sequence[tuple[str, str]] = CURVES,
    caption: str = FRESH,
) -> Figure:
    """Loss and accuracy through training, a line per model.

    Args:
        run: of a laboratory.
        lines: of it.
        mark: of the run, where a page has several.
        curves: arrays (cell, step) and the titles of their axes.
        caption: what the figure's reader should know.
    """
    steps = run.result.provenance[run.study]["steps"]
    variants = []
    for name, words in curves:
        traces = [
            line_trace(line, place, steps, line.mean(name)[: len(steps)], mode="lines")
            for place, line in enumerate(lines)
        ]
        layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": words}}}
        rows = [[line.words, *part] for line in lines for part in zip(steps, plain(line.mean(name)), strict=False)]
        columns, basis = ["model", "step", words], trained_words(run)
        variants.append(Variant({"curve": words}, traces, layout, columns, rows, basis=basis))
    return Figure(
        f"{run.study}-curves{mark.id}",
        f"Loss and accuracy through training{mark.title}",
        caption,
        "Training curves, a line per row and depth.",
        variants,
    )
