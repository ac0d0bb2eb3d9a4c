"""Lines over depth: a curve with its band per model, the final norm behind it, the rows of its CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.catalogue import span_of
from repflow.core.results import Band, Result, sample_band
from repflow.report.data.comparable import MIXED, Group, basis
from repflow.report.data.context import Context
from repflow.report.data.model import Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import band_traces, joined
from repflow.report.draw.depth import after_last, depth, gap_note, kind_keys, strips
from repflow.report.draw.number import SHORT, exact, short

COLUMNS = ("model", "run", "task", "length", "states", "place", "state", "relative depth", "mean", "low", "high")


Depth = dict[str, list[float]]
"""Places on the relative and on the absolute depth axis."""
Drawn = tuple[list[dict[str, Any]], list[list[Any]]]
"""Traces, and rows of the CSV."""


def mean_band(result: Result, name: str) -> Band:
    """Mean over samples with its interval; over tokens first, where it is per token."""
    if "token" not in result.axes[name]:
        return result.band(name)
    rest = tuple(axis for axis in result.axes[name] if axis != "token")
    return sample_band(result.token_mean(name), rest, span=span_of(name))


@dataclass(frozen=True)
class Curve:
    """What a line over depth shows.

    Attributes:
        title: of the axis; by default the metric in words.
        read: band of an array of a result.
        place: what the CSV calls its points; by default `state` or `layer`.
        beside: what else a run shows at these places.
        shapes: of the layout, below the strips of hybrids.
        columns: of the CSV.
        reading: what the lines show, in one sentence; by default the page makes one.
    """

    title: str = ""
    read: Callable[[Result, str], Band] = mean_band
    place: str = ""
    beside: Callable[[StoredRun, Depth], Drawn] | None = None
    shapes: Sequence[dict[str, Any]] = ()
    columns: Sequence[str] = COLUMNS
    reading: Callable[[Sequence[StoredRun]], str] | None = None


def curves(
    group: Group, context: Context, name: str, when: dict[str, str], curve: Curve | None = None
) -> Variant | None:
    """One line with its band per model over depth, final norm behind; None where no run has the metric."""
    runs = [run for run in group.runs if name in run.result]
    if not runs:
        return None
    curve = curve or Curve()
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    notes = []
    for run in runs:
        axis = "layer" if "layer" in run.result.axes[name] else "state"
        band = curve.read(run.result, name)
        where = depth(run, axis, len(band.mean))
        label = run.label if group.states != MIXED else f"{run.label}, {run.states} states"
        traces += line(label, run.label, where, band)
        rows += band_rows(run, curve.place or axis, where, band)
        notes.append(gap_note(band.mean, run, axis))
        for more in (curve.beside, _final_norm(name, curve.read)):
            extra, table = more(run, where) if more else ([], [])
            traces += extra
            rows += table
    if any(f"final_norm/{name}" in run.result for run in runs):
        traces.append(_key("final norm", "circle-open"))
    models = context.of(runs)
    layout: dict[str, Any] = {"yaxis": {"title": {"text": curve.title or words_of(name)}}} | strips(models)
    if curve.shapes:
        layout["shapes"] = [*layout.get("shapes", []), *curve.shapes]
    return Variant(
        when,
        traces + kind_keys(models),
        layout,
        curve.columns,
        rows,
        joined(group.note, *notes),
        curve.reading(runs) if curve.reading else "",
        basis=basis(runs),
    )


def _final_norm(name: str, band_of: Callable[[Result, str], Band]) -> Callable[[StoredRun, Depth], Drawn]:
    """The final norm's output as a marker behind the last layer."""

    def drawn(run: StoredRun, _: Depth) -> Drawn:
        if f"final_norm/{name}" not in run.result:
            return [], []
        last, where = band_of(run.result, f"final_norm/{name}"), after_last(run)
        return [marker(run, "final norm", where, last.mean, "circle-open", 10)], band_rows(
            run, "final norm", where, last
        )

    return drawn


def _key(words: str, symbol: str) -> dict[str, Any]:
    """An entry of the legend that stands for markers of every model."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": words,
        "x": [None],
        "y": [None],
        "hoverinfo": "skip",
        "marker": {"symbol": symbol, "size": 9, "color": "muted", "line": {"width": 2}},
        "meta": {"model": None},
    }


def marker(run: StoredRun, words: str, where: Depth, value: np.ndarray, symbol: str, size: int) -> dict[str, Any]:
    """One point of a run beside its line."""
    edge = {"width": 2, **({"color": "ink"} if symbol == "star" else {})}
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{run.label}, {words}",
        "legendgroup": run.label,
        "showlegend": False,
        "x": where["relative"],
        "y": short(value),
        "marker": {"symbol": symbol, "size": size, "line": edge},
        "meta": {"model": run.label, "x": where},
    }


def median_band(result: Result, name: str) -> Band:
    """Median over tokens, then the mean over samples with its interval."""
    values, axes = np.asarray(result[name], dtype=np.float64), result.axes[name]
    place = axes.index("token")
    moved = np.moveaxis(values, place, -1)
    flat = moved.reshape(-1, moved.shape[-1])
    middle = np.array([np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan for row in flat])
    rest = tuple(axis for axis in axes if axis != "token")
    return sample_band(middle.reshape(moved.shape[:-1]), rest, span=span_of(name))


def nan_mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Mean without NaN; NaN where nothing else is left.

    >>> nan_mean(np.array([[1.0, np.nan], [np.nan, np.nan]]), 1)
    array([ 1., nan])
    """
    array = np.asarray(values, dtype=np.float64)
    present = np.isfinite(array)
    count = present.sum(axis)
    total = np.where(present, array, 0.0).sum(axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def line(name: str, label: str, where: Depth, band: Band, **more: Any) -> list[dict[str, Any]]:
    """A line over depth with its band, in the model's colour."""
    style: dict[str, Any] = {"name": name, "group": name, "model": label, "depth": where, "digits": SHORT}
    *edges, own = band_traces(where["relative"], band, **style)
    return [*edges, {**own, **more}]


def band_rows(run: StoredRun, place: str, where: dict[str, list[float]], band: Band) -> list[list[Any]]:
    """Rows of the CSV: one per state, the numbers in full."""
    about = [run.label, run.name, run.task, run.length, run.states, place]
    return [
        [
            *about,
            where["absolute"][i],
            where["relative"][i],
            exact(band.mean[i]),
            exact(band.low[i]),
            exact(band.high[i]),
        ]
        for i in range(len(band.mean))
    ]


def words_of(metric: str) -> str:
    """A metric's name in words, whatever tokens it left out.

    >>> words_of("token_norm"), words_of("sink/token_similarity_excess")
    ('token norm (median)', 'token similarity, excess')
    """
    metric = metric.rpartition("/")[2]
    known = {"token_norm": "token norm (median)", "token_similarity_excess": "token similarity, excess"}
    return known.get(metric, metric.replace("_", " "))
