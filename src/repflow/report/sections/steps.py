"""Checkpoints of one model: how each state approaches its last form during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.comparable import basis, task_name
from repflow.report.data.context import Context
from repflow.report.data.model import Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import axis_names, joined, small_multiples
from repflow.report.draw.depth import hybrids, strip, strip_note
from repflow.report.draw.number import exact, plain, short

METRICS = {"CKA with the last checkpoint": "cka_to_last_pooled", "token similarity": "token_similarity"}
COLUMNS = ("model", "run", "checkpoint", "state", "value")


def step_figure(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """Heat map of depth by checkpoint, a panel per model; None where no checkpoints were compared."""
    stepped = [run for run in runs if run.study == "compare" and "cka_to_last_pooled" in run.result]
    variants = []
    for run in stepped:
        for words, metric in METRICS.items():
            if metric in run.result:
                variants.append(_variant(run, words, metric, context))
    if not variants:
        return None
    caption = "Depth upwards, checkpoints in the order of training to the right; mean over prompts."
    alt = "Heat map of a metric over checkpoints and depth."
    note = strip_note(context.of(stepped))
    return Figure("steps", "Checkpoints by depth", joined(caption, note), alt, variants, depth_axis=True)


def _variant(run: StoredRun, words: str, metric: str, context: Context) -> Variant:
    values = np.asarray(run.result[metric] if "pooled" in metric else run.result.mean(metric), dtype=np.float64)
    steps = [str(step) for step in run.result.provenance["steps"]]
    states = np.arange(values.shape[1], dtype=np.float64)
    where = {"relative": short(states / max(len(states) - 1, 1)), "absolute": short(states)}
    x, y = axis_names(0)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "name": run.label,
        "xaxis": x,
        "yaxis": y,
        "x": steps,
        "y": where["relative"],
        "z": plain(values.T, 4),
        "colorscale": "sequential",
        "colorbar": {"title": {"text": words}},
        "hovertemplate": "checkpoint %{x}<br>depth %{y}<br>%{z}<extra></extra>",
        "meta": {"model": run.label, "y": where},
    }
    layout = small_multiples(
        [run.label], {"title": {"text": "checkpoint"}, "type": "category"}, {"title": {"text": ""}}
    )
    mixed = hybrids(context.of([run]))
    layout |= {"shapes": [s for model in mixed for s in strip(model, axis="y")]} if mixed else {}
    rows = [[run.label, run.name, steps[i], j, exact(values[i, j])] for i, j in np.ndindex(*values.shape)]
    when = {"model": run.label, "task": task_name(run), "length": run.length, "states": run.states, "metric": words}
    return Variant(when, [trace], layout, COLUMNS, rows, reading=_reading(steps, values, words), basis=basis([run]))


def _reading(steps: Sequence[str], values: np.ndarray, words: str) -> str:
    """The last state at the first checkpoint and at the one before the last, or at the last."""
    path = values[:, -1]
    places = [at for at in dict.fromkeys([0, len(path) - 1]) if np.isfinite(path[at])]
    numbers = " and ".join(f"{path[at]:.2f} at {steps[at]}" for at in places)
    return f"After the last block: {words} {numbers}." if numbers else ""
