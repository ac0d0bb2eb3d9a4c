"""Figure 1 of paper 1: the cosine of every token between one state and the next, positions by layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.comparable import Group, basis
from repflow.report.data.model import Figure, PageModel, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import axis_names, columns_for, joined, small_multiples
from repflow.report.draw.depth import depth, gap_note, hybrids, strip, strip_note, with_strips
from repflow.report.draw.lines import nan_mean
from repflow.report.draw.number import plain, short

METRIC = "layer_cosine"
MOST_BINS = 128
"""Positions of a heat map."""
LEAST_BINS = 16
MOST_CELLS = 100_000
"""Cells of all heat maps of the figure together: at most about 1.1 MB of the page."""
DIGITS = 4


def figure_1(groups: Sequence[Group], models: Sequence[PageModel]) -> Figure | None:
    """Heat maps of the cosine between neighbouring states, one per model; None where no run has it."""
    with_metric = [run for group in groups for run in group.runs if METRIC in run.result]
    if not with_metric:
        return None
    layers = sum(len(run.result[METRIC]) for run in with_metric)
    most = int(np.clip(MOST_CELLS // max(layers, 1), LEAST_BINS, MOST_BINS))
    variants = [variant for group in groups if (variant := _variant(group, models, most))]
    caption = (
        "Cosine of a token with itself one layer earlier, mean over prompts: 1 where the layer leaves its direction as "
        "it is, 0 where it turns it by a right angle. Depth runs to the right, position in the prompt upwards."
    )
    alt = "Heat maps of the cosine between neighbouring layers over depth and position, one panel per model."
    title = "How far each token turns at each layer"
    note = strip_note(models, variants)
    return Figure("figure-1", title, joined(caption, note), alt, variants, depth_axis=True)


def _variant(group: Group, models: Sequence[PageModel], most: int) -> Variant | None:
    runs = [run for run in group.runs if METRIC in run.result]
    if not runs:
        return None
    maps = [token_map(run, most) for run in runs]
    finite = [values[np.isfinite(values)] for values, _ in maps]
    low = min((float(part.min()) for part in finite if part.size), default=0.0)
    traces, rows, notes, shapes = [], [], [group.note], []
    thinned: dict[str, list[str]] = {}
    for place, (run, (values, positions)) in enumerate(zip(runs, maps, strict=True)):
        traces.append(_trace(run, values, positions, place, min(low, 0.9)))
        rows += _rows(run, values, positions)
        thinned.setdefault(_thin_note(run, positions), []).append(run.label)
        notes.append(gap_note(values, run, "layer"))
        panel = axis_names(place)[0][1:]
        own = [model for model in hybrids(models) if model.label == run.label]
        shapes += [shape for model in own for shape in strip(model, panel=panel, cells=True)]
    notes += [f"{', '.join(labels)}: {text}" for text, labels in thinned.items() if text]
    layout = small_multiples(
        [run.label for run in runs],
        {"title": {"text": ""}},
        {"title": {"text": "position"}},
        columns=columns_for(len(runs)),
        models=[run.label for run in runs],
    )
    layout |= with_strips(layout, shapes)
    columns = ("model", "run", "layer", "relative depth", "first position", "cosine")
    return Variant(group.when, traces, layout, columns, rows, joined(*notes), _turns(runs, maps), basis=basis(runs))


def _turns(runs: Sequence[StoredRun], maps: Sequence[tuple[np.ndarray, list[int]]]) -> str:
    """The layer that turns tokens most, the first left out, which turns every model's embedding; "" without one."""
    means = [(run, nan_mean(values[1:], 1)) for run, (values, _) in zip(runs, maps, strict=True) if len(values) > 1]
    turns = [
        (float(np.nanmin(mean)), 2 + int(np.nanargmin(mean)), run) for run, mean in means if np.isfinite(mean).any()
    ]
    if not turns:
        return ""
    cosine, layer, run = min(turns, key=lambda turn: turn[0])
    text = (
        f"After the first layer, tokens turn most at layer {layer} of {run.layers} in {run.label} (cosine {cosine:.2f})"
    )
    calm, at, other = max(turns, key=lambda turn: turn[0])
    rest = f"; in {other.label} no later layer turns them below {calm:.2f} (layer {at})" if len(turns) > 1 else ""
    return f"{text}{rest}."


def token_map(run: StoredRun, most: int) -> tuple[np.ndarray, list[int]]:
    """Mean cosine over prompts (layer, position), and the first position of each column.

    Args:
        run: with `layer_cosine` (layer, sample, token).
        most: columns at most; neighbouring ones are averaged.
    """
    values, tokens = np.asarray(run.result[METRIC], dtype=np.float64), run.result.token_counts(METRIC)
    total, count = (np.where(tokens > 0, values, 0.0) * tokens).sum(1), tokens.sum(1)
    starts = list(run.result.provenance.get("positions") or range(values.shape[2]))[: values.shape[2]]
    merged = -(-values.shape[2] // most)
    edges = np.arange(0, values.shape[2], merged)
    total, count = np.add.reduceat(total, edges, axis=1), np.add.reduceat(count, edges, axis=1)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean, [int(starts[edge]) for edge in edges]


def _trace(run: StoredRun, values: np.ndarray, positions: list[int], place: int, low: float) -> dict[str, Any]:
    where = depth(run, "layer", len(values))
    x, y = axis_names(place)
    return {
        "type": "heatmap",
        "name": run.label,
        "xaxis": x,
        "yaxis": y,
        "x": where["relative"],
        "y": positions,
        "z": plain(values.T, DIGITS),
        "zmin": short([low])[0],
        "zmax": 1,
        "colorscale": "sequential",
        "showscale": place == 0,
        "colorbar": {"title": {"text": "cosine"}},
        "hovertemplate": "depth %{x}<br>position %{y}<br>cosine %{z}<extra></extra>",
        "meta": {"model": run.label, "x": where},
    }


def _rows(run: StoredRun, values: np.ndarray, positions: list[int]) -> list[list[Any]]:
    where = depth(run, "layer", len(values))
    values_short = short(values)
    return [
        [run.label, run.name, where["absolute"][i], where["relative"][i], positions[j], values_short[i][j]]
        for i in range(values.shape[0])
        for j in range(values.shape[1])
    ]


def _thin_note(run: StoredRun, positions: list[int]) -> str:
    longest = max(run.result.provenance.get("lengths") or [0])
    if longest <= len(positions):
        return ""
    return f"{longest} positions are drawn as {len(positions)} rows of neighbouring positions, each their mean."
