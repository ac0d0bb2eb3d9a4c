"""The figure of one metric of a result: a line with its 95 % band, lines, bars, dots per prompt, or heat maps.

What `Result.plot(NAME)` shows; described as the page's figures are, and drawn by the same renderers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.results import Band, Result, sample_mean
from repflow.report.data.labels import label
from repflow.report.data.model import Figure, Variant
from repflow.report.draw.axis import axis_values, axis_word, line_names, menu_names
from repflow.report.draw.curve import band_traces
from repflow.report.draw.number import plain

DEPTH = ("state", "layer")
REPEATED = ("sample", "seed")
"""Axes that are averaged over."""
RUNNING = ("state", "layer", "time", "distance", "threshold", "ssm_layer", "grid")
"""Axes that a line runs along."""
LISTED = ("cell", "position", "step", "kind", "window")
"""Axes whose places are lines of their own beside a running one."""
BARS = ("window", "row", "cell")
DEFAULTS = ("probe_accuracy", "token_similarity", "cka_cross_pooled", "cka_to_last_pooled", "gain")
"""What `Result.plot()` draws, the first one that the result has: of a probe, a measurement, a comparison, needles."""
TWINS = "late_minus_early"
MOST_LINES = 12
MARKED = 64
"""Points up to which each of a line is marked."""
MOST_MAPS = 60
"""Entries of a menu of heat maps."""


def metric_figure(result: Result, name: str | None = None) -> Figure:
    """Describe one metric.

    Args:
        result: What was measured.
        name: A metric: (state, sample), (state, seed), (layer, sample, token), (state, state, sample) ...; what has
            more than two axes is a variant for each place on the others. None draws what the result is about. An
            accuracy of probes comes with chance and peak.

    Returns:
        A figure, for `repflow.report.draw.plotly.draw` or `repflow.report.paper.figure.draw`.

    Raises:
        InputError: The metric is one number, which fits in a sentence.
    """
    if name is None and f"raw/{TWINS}_mean" in result:
        return _figure(f"{_title(result)}: late minus early token similarity", [_twins(result)])
    name = default_metric(result) if name is None else name
    if not result[name].ndim:
        raise _undrawable(result, name)
    axes = drawn_axes(result.axes[name])
    if not axes:
        variants = [_samples(result, name)]
    elif len(axes) == 1 or (len(axes) == 2 and _lines_of(axes)):
        variants = [_lines(result, name, axes)]
    else:
        variants = _maps(result, name, axes)
    return _figure(f"{_title(result)}: {name}", variants)


def _figure(title: str, variants: Sequence[Variant]) -> Figure:
    return Figure("metric", title, "", title, variants, models_toggle=False)


def drawn_axes(axes: Sequence[str]) -> tuple[str, ...]:
    """Axes that are not averaged over; prompts stay apart where both ends of a map are tokens.

    >>> drawn_axes(("layer", "sample", "token")), drawn_axes(("sample", "unit", "token", "token"))
    (('layer', 'token'), ('sample', 'unit', 'token', 'token'))
    """
    whole = tuple(axes)
    return whole if whole.count("token") > 1 else tuple(axis for axis in whole if axis not in REPEATED)


def _lines_of(axes: Sequence[str]) -> bool:
    """Whether two axes are lines along one of them, the other naming the lines."""
    return (axes[0] in LISTED and axes[1] in RUNNING) or _across(axes) != axes


def _across(axes: Sequence[str]) -> tuple[str, ...]:
    """Axes with the one that names lines first."""
    swapped = len(axes) == 2 and (axes[0] in RUNNING and axes[1] in LISTED)
    swapped = swapped or tuple(axes) == ("time", "token")
    return (axes[1], axes[0]) if swapped else tuple(axes)


def _twins(result: Result) -> Variant:
    """Late minus early similarity of trained weights and random twins, a dot with its interval for every cell."""
    labels = result.provenance["labels"]
    cells = [(a, w, n) for a, w, n in np.ndindex(*result[f"raw/{TWINS}_mean"].shape)]
    names = [
        f"{labels['weights'][w]}, n = {labels['length'][n]}" + (f", without {labels['ablation'][a]}" if a else "")
        for a, w, n in cells
    ]
    traces = []
    for place, measure in enumerate(("raw", "excess")):
        mean, low, high = (
            np.array([result[f"{measure}/{TWINS}_{part}"][cell] for cell in cells]) for part in ("mean", "low", "high")
        )
        dots = {"type": "scatter", "mode": "markers", "name": measure, "marker": {"color": f"model:{place}"}}
        traces.append({**dots, "x": plain(mean), "y": names, "error_x": _reach(Band(mean, low, high))})
    layout: dict[str, Any] = {"xaxis": {"title": {"text": "late minus early"}}, "yaxis": {"autorange": "reversed"}}
    return Variant({}, traces, {**layout, "shapes": [_mark("x", 0.0, {"dash": "dot"})]})


def _reach(band: Band) -> dict[str, Any]:
    """Bars of Plotly from the ends of an interval."""
    below, above = plain(band.mean - band.low), plain(band.high - band.mean)
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below}


def _mark(side: str, at: float, line: dict[str, Any]) -> dict[str, Any]:
    """A line across the panel at a place on one axis."""
    other = "y" if side == "x" else "x"
    ends = {f"{other}ref": f"{other} domain", f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", f"{side}ref": side, f"{side}0": at, f"{side}1": at, **ends, "line": line}


def _said(side: str, at: float, text: str) -> dict[str, Any]:
    """What stands at the end of such a line."""
    word: dict[str, Any] = {"text": text, "showarrow": False, "xref": "x", "yref": "y", side: at}
    if side == "x":
        return {**word, "yref": "y domain", "y": 1, "xanchor": "left", "yanchor": "top"}
    return {**word, "xref": "x domain", "x": 1, "xanchor": "right", "yanchor": "bottom"}


def default_metric(result: Result) -> str:
    """The metric that a result is about.

    Raises:
        InputError: It has nothing but single numbers.
    """
    metric = next((name for name in DEFAULTS if name in result), None)
    metric = metric or next(iter(drawable(result)), None)
    if metric is None:
        raise InputError(teach("a result with a metric over depth", f"{', '.join(result) or 'none'}", "print(result)"))
    return metric


def drawable(result: Result) -> list[str]:
    """Metrics of more than one number: those over depth first, plain names before variants."""
    names = [name for name in result if result[name].ndim]
    return sorted(names, key=lambda name: (not set(DEPTH) & set(result.axes[name]), name.count("/")))


def _undrawable(result: Result, name: str) -> InputError:
    offered = ", ".join(drawable(result)[:8]) or "another result"
    value = f"the single number {result[name]:.6g}" if result[name].dtype.kind == "f" else f"{result[name]}"
    return InputError(teach("a metric over depth or another axis", f"{name!r}, {value}", f"try {offered}"))


def _title(result: Result) -> str:
    return label(result) or str(result.provenance.get("study", "")) or "Result"


def _mean(values: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """Mean over samples and seeds."""
    seeds = tuple(place for place, axis in enumerate(axes) if axis == "seed")
    left = tuple(axis for axis in axes if axis != "seed")
    return sample_mean(values.mean(axis=seeds) if seeds else values, left)


def _band(result: Result, name: str) -> Band:
    """The stored band, or one over samples; none where there are only seeds, whose prompts the run alone knew."""
    own = result.axes[name]
    stored = result.bands.get(name)
    if stored is not None or ("sample" in own and "seed" not in own):
        return result.band(name)
    mean = _mean(result[name], own)
    return Band(mean, np.full_like(mean, np.nan, dtype=float), np.full_like(mean, np.nan, dtype=float))


def _samples(result: Result, name: str) -> Variant:
    """A dot per prompt, and the mean over them with its interval."""
    values, band = result[name].reshape(-1), _band(result, name)
    axis, mean = result.axes[name][0], float(band.mean)
    dots = {"type": "scatter", "mode": "markers", "name": f"each {axis}", "marker": {"color": "model:0"}}
    shapes: list[dict[str, Any]] = [_mark("y", mean, {"dash": "dash"})]
    if np.isfinite(band.low):
        wide = {"xref": "x domain", "x0": 0, "x1": 1, "yref": "y", "y0": float(band.low), "y1": float(band.high)}
        shapes.append({"type": "rect", **wide, "fillcolor": "model:0", "opacity": 0.2, "line": {"width": 0}})
    layout = {**_titles(axis, name), "shapes": shapes, "annotations": [_said("y", mean, "mean")]}
    return Variant({}, [{**dots, "x": list(range(len(values))), "y": plain(values)}], layout)


def _titles(across: str, up: str) -> dict[str, Any]:
    return {"xaxis": {"title": {"text": across}}, "yaxis": {"title": {"text": up.replace("_", " ")}}}


def _lines(result: Result, name: str, axes: tuple[str, ...]) -> Variant:
    band = _band(result, name)
    running = _across(axes)[-1]
    layout: dict[str, Any] = {**_titles(axis_word(result, running), name), "shapes": [], "annotations": []}
    if len(axes) == 1:
        bands, names = [band], [label(result)]
    else:
        turned = axes != _across(axes)
        parts = [np.asarray(part).T if turned else np.asarray(part) for part in (band.mean, band.low, band.high)]
        names = line_names(result, name, _across(axes)[0], len(parts[0]))
        bands = [Band(*(part[place] for part in parts)) for place in range(min(len(names), MOST_LINES))]
        if len(names) > MOST_LINES:
            note = {"text": f"{MOST_LINES} of {len(names)} lines", "xref": "paper", "yref": "paper", "x": 0, "y": 1.06}
            layout["annotations"].append({**note, "showarrow": False})
    traces: list[dict[str, Any]] = []
    for place, (own, line_name) in enumerate(zip(bands, names, strict=False)):
        traces += _line(axis_values(result, name, running, len(own.mean)), own, running, line_name, f"model:{place}")
    if name.endswith("probe_accuracy"):
        _add_chance(layout, result)
    if running in DEPTH and len(band.mean.T) <= 25:
        layout["xaxis"]["dtick"] = 1
    return Variant({}, traces, {**layout, "showlegend": len(bands) > 1})


def _line(at: Sequence[Any], band: Band, axis: str, line_name: str, colour: str) -> list[dict[str, Any]]:
    if axis in BARS:
        bar = {"type": "bar", "x": [str(value) for value in at], "y": plain(band.mean), "name": line_name}
        known = {"error_y": _reach(band)} if np.isfinite(band.low).any() else {}
        return [{**bar, **known, "marker": {"color": colour}}]
    mode = "lines+markers" if len(at) <= MARKED else "lines"
    return band_traces(at, band, name=line_name, colour=colour, mode=mode)


def _add_chance(layout: dict[str, Any], result: Result) -> None:
    """The accuracy of guessing as a dotted line, and the peak that validation chose."""
    about = result.provenance.get("probe", {})
    if "probe_chance" in result and result["probe_chance"].ndim == 0:
        chance = float(result["probe_chance"])
        layout["shapes"].append(_mark("y", chance, {"dash": "dot"}))
        layout["annotations"].append(_said("y", chance, "chance"))
    if "peak" in about:
        layout["shapes"].append(_mark("x", float(about["peak"]), {"dash": "dash", "width": 1}))
        layout["annotations"].append(_said("x", float(about["peak"]), "peak, by validation"))
    layout["yaxis"]["range"] = [0, 1.02]


def _maps(result: Result, name: str, axes: tuple[str, ...]) -> list[Variant]:
    """Heat maps of the last two axes, one for every place on those before them."""
    values = usual(result[name], result.axes[name]) if "rank" in axes else result[name]
    if "rank" not in axes and axes != result.axes[name]:
        values = _mean(values, result.axes[name])
    names = menu_names(result, name, axes[:-2], values.shape[:-2])
    maps = values.reshape(-1, *values.shape[-2:])[:MOST_MAPS]
    layout: dict[str, Any] = _titles(axis_word(result, axes[-1]), axis_word(result, axes[-2]))
    if axes[-2] == "token":
        layout["yaxis"]["autorange"] = "reversed"
    chosen = " and ".join(axis_word(result, axis) for axis in axes[:-2])
    return [
        Variant({chosen: place} if len(maps) > 1 else {}, [_heat_map(part, result, name, axes[-2:])], layout)
        for place, part in zip(names, maps, strict=False)
    ]


def usual(values: np.ndarray, axes: Sequence[str]) -> np.ndarray:
    """The commonest number over samples and seeds: of indices a mean says nothing. The smallest of equally common.

    >>> usual(np.array([[[7, 1], [7, 2], [3, 2]]]), ("state", "sample", "rank")).tolist()
    [[7, 2]]
    """
    repeated = [place for place, axis in enumerate(axes) if axis in REPEATED]
    moved = np.moveaxis(values, repeated, range(len(repeated)))
    flat = moved.reshape(-1, *moved.shape[len(repeated) :])
    return np.apply_along_axis(commonest, 0, flat)


def commonest(values: np.ndarray) -> Any:
    """The commonest of some numbers, the smallest where several are."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts.argmax()]


def _heat_map(values: np.ndarray, result: Result, name: str, axes: Sequence[str]) -> dict[str, Any]:
    places = [axis_values(result, name, axis, count) for axis, count in zip(axes, values.shape, strict=True)]
    if axes[0] == "length":  # lengths of needles are choices, not a scale
        places[0] = [str(value) for value in places[0]]
    whole = values.dtype.kind in "iu"
    cells = {"text": values.tolist(), "texttemplate": "%{text}"} if whole and values.size <= 400 else {}
    z = values.tolist() if whole else plain(values)
    return {"type": "heatmap", "z": z, "x": places[1], "y": places[0], "colorscale": "sequential", **cells}
