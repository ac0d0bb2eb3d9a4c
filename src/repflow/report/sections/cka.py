"""Figure 4 of paper 1: CKA of every pair of layers, models side by side and one against the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.report.data.comparable import Group, basis, group_runs, task_name
from repflow.report.data.context import Context, measured_runs
from repflow.report.data.model import Block, Card, Content, Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import place_words
from repflow.report.draw.curve import axis_names, columns_for, joined, small_multiples
from repflow.report.draw.depth import depth, hybrids, strip, strip_note, with_strips
from repflow.report.draw.number import plain, short
from repflow.report.sections.steps import step_figure
from repflow.report.terminal.compare import CHANCE_SD

FORMS = {"unbiased": "unbiased", "paper": "as published (biased)"}
CROSS = {"CKA": "cka_cross_pooled", "shared nearest neighbours": "neighbours_cross"}
COLUMNS = ("model", "run", "state", "other state", "CKA", "highest by chance", "above chance")
MOST_CELLS = 130_000
"""Cells of all matrices of a figure together: at most about 2 MB of the page."""
DIGITS = 4
MOST_STEP = 16

Places = dict[str, list[float]]


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """CKA within models, between models, and of checkpoints; None where none was computed."""
    figures = (figure_4(runs, context), figure_4_cross(runs, context), step_figure(runs, context))
    blocks: list[Block] = [figure for figure in figures if figure]
    if not blocks:
        return None
    lead = (
        "CKA compares two layers by the geometry of all their tokens: 1 where one is a rotated and scaled copy of the "
        "other. Hatched cells cannot be distinguished from what shuffled tokens give."
    )
    return Content(lead, blocks, facts=_facts(runs))


def figure_4(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """Every state against every other one of the same model, a panel per model."""
    measured = [run for run in measured_runs(runs) if "cka_pooled" in run.result]
    panels: list[tuple[Group, dict[str, str]]] = []
    for form, words in FORMS.items():
        mine = [run for run in measured if run.result.config.get("cka_form", "unbiased") == form]
        groups = group_runs(mine, allow_mixed=context.allow_mixed)
        panels += [(group, group.when | {"form": words}) for group in groups]
    if not panels:
        return None
    step = stride([run.result["cka_pooled"].shape for group, _ in panels for run in group.runs])
    variants = [_within(group, when, context, step) for group, when in panels]
    caption = (
        "Linear CKA of every pair of states, pooled over prompts. Unbiased: the estimator whose mean under shuffled "
        f"tokens is zero; hatched where it is not more than {CHANCE_SD} standard deviations above that. As published: "
        "the paper's biased form, which is high for short prompts whatever the states are."
    )
    alt = "Square heat maps of CKA between all pairs of states, one panel per model; hatched where not above chance."
    title = "CKA of every pair of layers"
    return Figure(
        "figure-4",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
    )


def stride(shapes: Sequence[tuple[int, ...]]) -> int:
    """Every how many states are drawn, so that all matrices together stay small.

    >>> stride([(5, 5)]), stride([(65, 65)] * 64)
    (1, 2)
    """
    step = 1
    while step < max(MOST_STEP, 1) and sum(-(-a // step) * -(-b // step) for a, b in shapes) > MOST_CELLS:
        step += 1
    return step


@dataclass(frozen=True)
class Matrix:
    """A matrix of states by states as drawn: thinned, with its places and what is above chance."""

    values: np.ndarray
    above: np.ndarray
    chance: np.ndarray | None
    places: tuple[Places, Places]
    note: str

    @classmethod
    def of(
        cls, values: np.ndarray, above: np.ndarray, chance: np.ndarray | None, places: tuple[Places, Places], step: int
    ) -> Matrix:
        """Keep every `step`-th state, and the last one."""
        rows = [_kept(count, step) for count in values.shape]
        note = ""
        if step > 1:
            counts = " by ".join(f"{len(own)} of {count}" for own, count in zip(rows, values.shape, strict=True))
            note = f"{counts} states drawn, one in {step} and the last one; the run folder has all."
        cell = np.ix_(*rows)
        thinned = tuple(
            {kind: [where[kind][i] for i in own] for kind in where} for where, own in zip(places, rows, strict=True)
        )
        return cls(values[cell], above[cell], None if chance is None else chance[cell], thinned, note)  # type: ignore[arg-type]


def _kept(count: int, step: int) -> list[int]:
    indices = list(range(0, count, step))
    return indices if indices[-1] == count - 1 else [*indices, count - 1]


def _within(group: Group, when: dict[str, str], context: Context, step: int) -> Variant:
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    shapes: list[dict[str, Any]] = []
    notes = [group.note]
    for place, run in enumerate(group.runs):
        values = run.result["cka_pooled"]
        where = depth(run, "state", len(values))
        chance = highest_by_chance(run.result, "cka_pooled")
        matrix = Matrix.of(values, is_above(values, chance), chance, (where, where), step)
        traces += heat_map(matrix, place, run.label, run.label)
        rows += matrix_rows(run.label, run, matrix)
        notes += [gap_cells(values, run.label), matrix.note and f"{run.label}: {matrix.note}"]
        panel = axis_names(place)[0][1:]
        for model in (model for model in hybrids(context.models) if model.label == run.label):
            shapes += [s for axis in ("x", "y") for s in strip(model, axis=axis, panel=panel)]
    labels = [run.label for run in group.runs]
    layout = small_multiples(
        labels, {"title": {"text": ""}}, {"title": {"text": ""}}, columns=columns_for(len(group.runs)), models=labels
    )
    layout |= with_strips(layout, shapes)
    return Variant(when, traces, layout, COLUMNS, rows, joined(*notes), _ends(group.runs), basis=basis(group.runs))


def _ends(runs: Sequence[StoredRun]) -> str:
    """How alike the first and the last state are; "" where no value is finite."""
    ends = [(float(run.result["cka_pooled"][0, -1]), run.label) for run in runs]
    ends = sorted(end for end in ends if np.isfinite(end[0]))
    if not ends:
        return ""
    (low, least), (high, most) = ends[0], ends[-1]
    if len(ends) == 1:
        return f"The embedding and the last state of {most} agree to CKA {high:.2f}."
    return f"The embedding and the last state agree most in {most} (CKA {high:.2f}) and least in {least} ({low:.2f})."


def figure_4_cross(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """Every state of one model against every state of another, by pair."""
    pairs = [
        (run, words, metric)
        for run in runs
        if run.study == "compare" and "cka_cross_pooled" in run.result
        for words, metric in CROSS.items()
        if metric in run.result
    ]
    if not pairs:
        return None
    step = stride([run.result[metric].shape[:2] for run, _, metric in pairs])
    variants = [_cross(run, words, metric, context, step) for run, words, metric in pairs]
    caption = (
        "States of the second model run upwards, those of the first to the right, on the same text. CKA: hatched where "
        f"not more than {CHANCE_SD} standard deviations above shuffled tokens. Shared nearest neighbours: the share of "
        "each token's nearest tokens that both states agree on; hatched where it is not above chance."
    )
    alt = "Heat map of the similarity of every state of one model to every state of another."
    title = "CKA of one model against the other"
    return Figure(
        "figure-4-cross",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
        height=560,
    )


def _cross(run: StoredRun, words: str, metric: str, context: Context, step: int) -> Variant:
    result = run.result
    if metric == "cka_cross_pooled":
        values, chance = result[metric], highest_by_chance(result, metric)
        above = is_above(values, chance)
    else:
        values, above = _shared_neighbours(result)
        chance = np.full(values.shape, float(np.mean(result["neighbours_chance"])))
    places = (_side_depth(run, "a", values.shape[0]), _side_depth(run, "b", values.shape[1]))
    matrix = Matrix.of(values, above, chance, places, step)
    traces = heat_map(matrix, 0, words, [run.label, run.other])
    rows = matrix_rows(f"{run.label} | {run.other}", run, matrix)
    shapes = []
    for axis, label in (("x", run.label), ("y", run.other)):
        for model in (model for model in hybrids(context.models) if model.label == label):
            shapes += strip(model, axis=axis)
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": f"{run.label}, depth"}},
        "yaxis": {"title": {"text": f"{run.other}, depth"}},
    } | ({"shapes": shapes} if shapes else {})
    pair = f"{run.label} against {run.other}"
    when = {"pair": pair, "task": task_name(run), "length": run.length, "states": run.states, "metric": words}
    columns = (*COLUMNS[:4], words, *COLUMNS[5:])
    note = joined(_matched(result), gap_cells(values, pair), matrix.note)
    return Variant(when, traces, layout, columns, rows, note, _cross_reading(run, values, words), basis=basis([run]))


def _cross_reading(run: StoredRun, values: np.ndarray, words: str) -> str:
    """How alike the last states of two models are, and which states are most alike."""
    if not np.isfinite(values).any():
        return ""
    ends = [size - 1 for size in values.shape]
    top = [int(place) for place in np.unravel_index(int(np.nanargmax(values)), values.shape)]
    places = [place_words(at, end) for at, end in zip(top, ends, strict=True)]
    last = float(values[ends[0], ends[1]])
    most = (
        f"{run.label} {places[0]} and {run.other} {places[1]} are most alike ({words} {float(values[tuple(top)]):.2f})"
    )
    return f"{most}; after their last blocks they have {last:.2f}." if np.isfinite(last) else f"{most}."


def _facts(runs: Sequence[StoredRun]) -> list[Card]:
    """The first comparison of two models: their last states."""
    pairs = [run for run in runs if run.study == "compare" and "cka_cross_pooled" in run.result]
    pairs = [run for run in pairs if np.isfinite(run.result["cka_cross_pooled"][-1, -1])]
    return [
        Card(
            "Last states",
            f"{float(run.result['cka_cross_pooled'][-1, -1]):.2f}",
            f"CKA of {run.label} and {run.other} after their last blocks",
            basis([run]),
            "figure-4-cross",
        )
        for run in pairs[:1]
    ]


def _matched(result: Result) -> str:
    """How many tokens were compared, and by which estimator."""
    form = FORMS.get(str(result.config.get("cka_form")), "")
    by = " or ".join(result.provenance["matched_by"])
    return f"CKA {form}; {float(np.mean(result['kept_share'])):.0%} of the tokens matched by {by}."


def _side_depth(run: StoredRun, side: str, count: int) -> Places:
    layers = max(int(run.result.provenance["models"][side].get("layers", count - 1)), 1)
    start = 0 if count == layers + 1 else 1
    places = np.arange(start, start + count, dtype=np.float64)
    return {"relative": short(places / layers), "absolute": short(places)}


def highest_by_chance(result: Result, name: str) -> np.ndarray | None:
    """Mean of the permutation null plus `CHANCE_SD` standard deviations; None where there is no null."""
    if f"{name}_null_mean" not in result:
        return None
    return np.asarray(result[f"{name}_null_mean"] + CHANCE_SD * result[f"{name}_null_sd"])


def is_above(values: np.ndarray, chance: np.ndarray | None) -> np.ndarray:
    """Where a value lies over chance; everywhere, where chance is not known."""
    return np.ones(values.shape, dtype=bool) if chance is None else np.asarray(values > chance)


def _shared_neighbours(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Mean share of common neighbours, and where its stored interval lies above their chance level."""
    mean, band = result.mean("neighbours_cross"), result.bands.get("neighbours_cross")
    low = mean if band is None else np.where(np.isfinite(band.low), band.low, mean)
    return mean, np.asarray(low > float(np.mean(result["neighbours_chance"])))


def heat_map(matrix: Matrix, place: int, name: str, model: str | list[str]) -> list[dict[str, Any]]:
    """A heat map, rows of the matrix to the right and columns upwards, with strokes over cells not above chance."""
    across, up = matrix.places
    x, y = axis_names(place)
    z = matrix.values.T
    low = min(0.0, float(np.nanmin(z)) if np.isfinite(z).any() else 0.0)
    trace: dict[str, Any] = {
        "type": "heatmap",
        "name": name,
        "xaxis": x,
        "yaxis": y,
        "x": across["relative"],
        "y": up["relative"],
        "z": plain(z, DIGITS),
        "zmin": short([low])[0],
        "zmax": 1,
        "colorscale": "sequential",
        "showscale": place == 0,
        "colorbar": {"title": {"text": "share" if "neighbours" in name else "CKA"}},
        "hovertemplate": "%{x} with %{y}: %{z}<extra></extra>",
        "meta": {"model": model, "x": across, "y": up},
    }
    return [trace, *hatching(~matrix.above.T & np.isfinite(z), matrix.places, place, model)]


def hatching(
    cells: np.ndarray, places: tuple[Places, Places], place: int, model: str | list[str]
) -> list[dict[str, Any]]:
    """One line of diagonal strokes through the cells (row, column) that are marked, broken in between."""
    strokes = _strokes(cells)
    if not strokes:
        return []
    x, y = axis_names(place)
    ends_of: dict[str, dict[str, list[float | None]]] = {"x": {}, "y": {}}
    for axis, where, at in (("x", places[0], 0), ("y", places[1], 1)):
        for kind in ("relative", "absolute"):
            edges = _edges(where[kind])
            ends = [(edges[stroke[at]], edges[stroke[at] + stroke[2]]) for stroke in strokes]
            ends_of[axis][kind] = [value for pair in ends for value in (*pair, None)]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "not above chance",
            "xaxis": x,
            "yaxis": y,
            "x": ends_of["x"]["relative"],
            "y": ends_of["y"]["relative"],
            "line": {"color": "paper", "width": 1, "dash": "solid"},
            "opacity": 0.8,
            "hoverinfo": "skip",
            "showlegend": False,
            "meta": {"model": model, **ends_of},
        }
    ]


def _edges(places: Sequence[float]) -> list[float]:
    """Borders of cells whose middles are given.

    >>> _edges([0.0, 1.0, 3.0])
    [-0.5, 0.5, 2.0, 4.0]
    """
    if len(places) < 2:
        return [places[0] - 0.5, places[0] + 0.5]
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    ends = (2 * places[0] - middles[0], 2 * places[-1] - middles[-1])
    return short([ends[0], *middles, ends[1]])


def _strokes(cells: np.ndarray) -> list[tuple[int, int, int]]:
    """Diagonal runs of marked cells: column and row of the first, and their number.

    >>> _strokes(np.array([[True, False], [False, True]]))
    [(0, 0, 2)]
    """
    strokes = []
    rows, columns = cells.shape
    for offset in range(-(rows - 1), columns):
        diagonal = np.diagonal(cells, offset)
        edges = np.flatnonzero(np.diff(np.concatenate([[0], diagonal.astype(int), [0]])))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            strokes.append((int(start + max(offset, 0)), int(start + max(-offset, 0)), int(end - start)))
    return strokes


def matrix_rows(name: str, run: StoredRun, matrix: Matrix) -> list[list[Any]]:
    """Rows of the CSV: every drawn pair of states with its chance level."""
    values = short(matrix.values)
    chance = None if matrix.chance is None else short(matrix.chance)
    first, second = (where["absolute"] for where in matrix.places)
    return [
        [
            name,
            run.name,
            first[i],
            second[j],
            values[i][j],
            chance and chance[i][j],
            "yes" if matrix.above[i, j] else "no",
        ]
        for i, j in np.ndindex(*matrix.values.shape)
    ]


def gap_cells(matrix: np.ndarray, label: str) -> str:
    """A sentence that names the states of which no pair is finite."""
    empty = [str(i) for i in range(len(matrix)) if not np.isfinite(matrix[i]).any()]
    return f"{label}: no finite value for state {', '.join(empty)}, drawn as a gap." if empty else ""
