"""Models in training: metrics by depth and step, and by step alone, as `repflow.training.FlowMeter` read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band, sample_band
from repflow.report.data.comparable import task_name
from repflow.report.data.context import Context
from repflow.report.data.model import Card, Content, Figure, Variant
from repflow.report.data.runs import StoredRun, called, colour_of
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
    return Content(lead + "; ".join(steps) + ".", figures, facts=_facts(watched))


def _basis(run: StoredRun) -> str:
    """What the readings of a training rest on."""
    config = run.result.config
    count = int(config["prompts"])
    parts = [task_name(run), f"{config['length']} tokens", f"{count:,} prompt{'' if count == 1 else 's'}"]
    readings = f"{len(run.result['step']):,} readings"
    return ", ".join([*parts, f"{run.states} states", readings])


def _ends(run: StoredRun, name: str) -> tuple[str, list[tuple[int, float]]]:
    """Where a metric is read, and its first and last reading there; none where they are not finite."""
    values = np.asarray(run.result.mean(name), dtype=np.float64)
    deep = values.ndim > 1
    path, steps = (values[:, -1] if deep else values), run.result["step"]
    places = np.flatnonzero(np.isfinite(path))
    chosen = dict.fromkeys([int(places[0]), int(places[-1])]) if len(places) else {}
    return "after the last block" if deep else "", [(int(steps[at]), float(path[at])) for at in chosen]


def _reading(run: StoredRun, name: str) -> str:
    """A metric at the first and at the last reading."""
    where, ends = _ends(run, name)
    if not ends:
        return ""
    what = "The tokens of a prompt are" if name == FIRST else _capital(_words(name))
    alike = " alike" if name == FIRST else ""
    numbers = " and ".join(f"{value:.3g}{alike} at step {step:,}" for step, value in ends)
    return f"{what}{'' if name == FIRST else ':'} {numbers}{f' ({where})' if where else ''}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _facts(runs: Sequence[StoredRun]) -> list[Card]:
    """How alike tokens are at the last reading of the first training."""
    run = runs[0]
    ends = _ends(run, FIRST)[1] if FIRST in run.result else []
    if not ends:
        return []
    step, value = ends[-1]
    before = f"; {ends[0][1]:.2f} at step {ends[0][0]:,}" if len(ends) > 1 else ""
    text = f"mean cosine between tokens of {run.label} after the last block, at step {step:,}{before}"
    return [Card("Alike in training", f"{value:.2f}", text, _basis(run), "training-map")]


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
    note, reading = thin_note(len(values), len(columns), "readings"), _reading(run, name)
    return Variant(when, [trace], layout, MAP_COLUMNS, rows, note, reading, basis=_basis(run))


def _lines(runs: Sequence[StoredRun]) -> Figure | None:
    variants = []
    for name in _metrics(runs):
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for run in (run for run in runs if name in run.result):
            steps, band = run.result["step"], _over_depth(run, name)
            style: dict[str, Any] = {"name": called(run, runs), "model": run.label, "colour": colour_of(run, runs)}
            traces += band_traces(steps, band, mode="lines", **style)
            numbers = zip(steps, band.mean, band.low, band.high, strict=True)
            rows += [[run.name, run.label, name, int(step), *map(exact, three)] for step, *three in numbers]
        layout = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": _words(name)}}}
        basis = "; ".join(dict.fromkeys(_basis(run) for run in runs if name in run.result))
        variants.append(Variant({"metric": _words(name)}, traces, layout, LINE_COLUMNS, rows, basis=basis))
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
