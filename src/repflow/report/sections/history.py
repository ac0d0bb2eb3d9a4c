"""Models in training: metrics by depth and step, and by step alone, as `repflow.training.FlowMeter` read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band, sample_band
from repflow.report.data.comparable import task_name
from repflow.report.data.context import Context
from repflow.report.data.model import Content, Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import MOST_CELLS, axis_names, band_traces, joined, small_multiples, thin, thin_note
from repflow.report.draw.depth import depth, hybrids, strip, strip_note
from repflow.report.draw.number import exact, plain

STUDY = "training"
FIRST = "token_similarity"
MAP_COLUMNS = ("run", "model", "metric", "step", "place", "value")
LINE_COLUMNS = ("run", "model", "metric", "step", "mean", "low", "high")


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Heat map of depth by step, and each metric over steps."""
    watched = [run for run in runs if run.study == STUDY]
    figures = [figure for figure in (_maps(watched, context), _lines(watched)) if figure is not None]
    if not figures:
        return None
    steps = [f"{run.name}: {len(run.result['step'])} readings up to step {run.result['step'][-1]}" for run in watched]
    lead = "Read while the model trained, on the same prompts each time, without any effect on the training. "
    return Content(lead + "; ".join(steps) + ".", figures)


def _metrics(runs: Sequence[StoredRun]) -> list[str]:
    names = dict.fromkeys(name for run in runs for name in run.result if name != "step")
    return sorted(names, key=lambda name: name != FIRST)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _maps(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    variants = [
        _map(run, name, context)
        for name in _metrics(runs)
        for run in runs
        if name in run.result and {"state", "layer"} & set(run.result.axes[name])
    ]
    if not variants:
        return None
    caption = "Depth upwards, steps of the training to the right; mean over prompts."
    alt = "Heat map of a metric over training steps and depth."
    full_caption = joined(caption, strip_note(context.of(runs)))
    return Figure("training-map", "Depth by training step", full_caption, alt, variants, depth_axis=True)


def _map(run: StoredRun, name: str, context: Context) -> Variant:
    values = run.result.mean(name)
    axis = "layer" if "layer" in run.result.axes[name] else "state"
    columns = thin(len(values), MOST_CELLS)
    where = depth(run, axis, values.shape[1])
    x, y = axis_names(0)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "name": run.label,
        "xaxis": x,
        "yaxis": y,
        "x": [str(step) for step in run.result["step"][columns]],
        "y": where["relative"],
        "z": plain(values[columns].T, 4),
        "colorscale": "sequential",
        "colorbar": {"title": {"text": _words(name)}},
        "hovertemplate": "step %{x}<br>depth %{y}<br>%{z}<extra></extra>",
        "meta": {"model": run.label, "y": where},
    }
    layout = small_multiples([run.label], {"title": {"text": "step"}, "type": "category"}, {"title": {"text": ""}})
    mixed = hybrids(context.of([run]))
    layout |= {"shapes": [shape for model in mixed for shape in strip(model, axis="y")]} if mixed else {}
    cells = (run.name, run.label, name)
    steps = run.result["step"]
    rows = [[*cells, int(steps[i]), j, exact(values[i, j])] for i, j in np.ndindex(*values.shape)]
    when = {"run": run.name, "metric": _words(name), "task": task_name(run)}
    return Variant(when, [trace], layout, MAP_COLUMNS, rows, thin_note(len(values), len(columns), "readings"))


def _lines(runs: Sequence[StoredRun]) -> Figure | None:
    variants = []
    for name in _metrics(runs):
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for run in (run for run in runs if name in run.result):
            steps, band = run.result["step"], _over_depth(run, name)
            traces += band_traces(steps, band, name=run.name, model=run.label, mode="lines")
            numbers = zip(steps, band.mean, band.low, band.high, strict=True)
            rows += [[run.name, run.label, name, int(step), *map(exact, three)] for step, *three in numbers]
        layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": _words(name)}}}
        variants.append(Variant({"metric": _words(name)}, traces, layout, LINE_COLUMNS, rows))
    if not variants:
        return None
    caption = "Mean over depth and prompts by training step; band: 95 % over prompts, of the mean over depth."
    alt = "Lines of a metric over training steps, one per run."
    return Figure("training-lines", "By training step", caption, alt, variants)


def _over_depth(run: StoredRun, name: str) -> Band:
    """Mean over depth of each prompt, then over prompts with its interval."""
    values, axes = run.result[name].astype(np.float64), run.result.axes[name]
    for axis in ("state", "layer"):
        if axis in axes:
            values = values.mean(axes.index(axis))
            axes = tuple(other for other in axes if other != axis)
    return sample_band(values, axes)
