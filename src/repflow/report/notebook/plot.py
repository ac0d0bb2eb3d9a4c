"""Figures of a result's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.results import Band, Result, sample_mean
from repflow.report.data.labels import label
from repflow.report.draw.palette import SEQUENTIAL, faded, model_colour
from repflow.report.notebook.axis import axis_values, axis_word, line_names, menu_names, shown
from repflow.report.notebook.study import study_figure

FADED = 0.2
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
MOST_MAPS = 60
"""Entries of a menu of heat maps."""


def plot(result: Result, name: str | None = None) -> Any:
    """Draw one metric: a line with its 95 % band, a line per cell or position, dots per prompt, or a heat map.

    Args:
        result: What was measured.
        name: A metric: (state, sample), (state, seed), (layer, sample, token), (state, state, sample) ...; what has
            more than two axes is a heat map with a menu. None draws what the result is about. An accuracy of probes
            comes with chance and peak.

    Returns:
        A plotly figure.

    Raises:
        InputError: The metric is one number, which fits in a sentence.
    """
    import plotly.graph_objects as go

    if name is None:
        told = _twins(result) if f"raw/{TWINS}_mean" in result else study_figure(result)
        if told is not None:
            return told
    name = default_metric(result) if name is None else name
    if not result[name].ndim:
        raise _undrawable(result, name)
    figure = go.Figure()
    axes = drawn_axes(result.axes[name])
    if not axes:
        _add_samples(figure, result, name)
    elif len(axes) == 1 or (len(axes) == 2 and _lines_of(axes)):
        _add_lines(figure, result, name, axes)
    else:
        _add_maps(figure, result, name, axes)
    figure.update_layout(title=shown(f"{_title(result)}: {name}"), template="plotly_white")
    return figure


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


def _twins(result: Result) -> Any:
    """Late minus early similarity of trained weights and random twins, a dot with its interval for every cell."""
    import plotly.graph_objects as go

    labels = result.provenance["labels"]
    cells = [(a, w, n) for a, w, n in np.ndindex(*result[f"raw/{TWINS}_mean"].shape)]
    said = [
        f"{labels['weights'][w]}, n = {labels['length'][n]}" + (f", without {labels['ablation'][a]}" if a else "")
        for a, w, n in cells
    ]
    figure = go.Figure()
    for place, measure in enumerate(("raw", "excess")):
        mean, low, high = (
            np.array([result[f"{measure}/{TWINS}_{part}"][cell] for cell in cells]) for part in ("mean", "low", "high")
        )
        bars = {"type": "data", "symmetric": False, "array": high - mean, "arrayminus": mean - low}
        dots = {"mode": "markers", "name": measure, "marker": {"color": model_colour(place)}}
        figure.add_trace(go.Scatter(x=mean, y=[shown(text) for text in said], error_x=bars, **dots))
    figure.add_vline(x=0, line_dash="dot")
    title = shown(f"{_title(result)}: late minus early token similarity")
    figure.update_layout(title=title, template="plotly_white", xaxis_title="late minus early")
    figure.update_yaxes(autorange="reversed")
    return figure


def default_metric(result: Result) -> str:
    """The metric that a result is about.

    Raises:
        InputError: It has nothing but single numbers.
    """
    found = next((name for name in DEFAULTS if name in result), None)
    found = found or next(iter(drawable(result)), None)
    if found is None:
        raise InputError(teach("a result with a metric over depth", f"{', '.join(result) or 'none'}", "print(result)"))
    return found


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


def _add_samples(figure: Any, result: Result, name: str) -> None:
    """A dot per prompt, and the mean over them with its interval."""
    import plotly.graph_objects as go

    values, band = result[name].reshape(-1), _band(result, name)
    axis = result.axes[name][0]
    figure.add_trace(go.Scatter(x=np.arange(len(values)), y=values, mode="markers", name=f"each {axis}"))
    figure.add_hline(y=float(band.mean), line_dash="dash", annotation_text="mean")
    if np.isfinite(band.low):
        fill = {"fillcolor": model_colour(0), "opacity": FADED, "line_width": 0}
        figure.add_hrect(y0=float(band.low), y1=float(band.high), **fill)
    figure.update_layout(xaxis_title=axis, yaxis_title=name.replace("_", " "))
    figure.update_traces(marker={"color": model_colour(0)})


def _add_lines(figure: Any, result: Result, name: str, axes: tuple[str, ...]) -> None:
    band = _band(result, name)
    running = _across(axes)[-1]
    if len(axes) == 1:
        _add_line(figure, result, name, running, band, shown(label(result)), 0)
    else:
        turned = axes != _across(axes)
        parts = [np.asarray(part).T if turned else np.asarray(part) for part in (band.mean, band.low, band.high)]
        names = line_names(result, name, _across(axes)[0], len(parts[0]))
        for place, said in enumerate(names[:MOST_LINES]):
            _add_line(figure, result, name, running, Band(*(part[place] for part in parts)), said, place)
        if len(names) > MOST_LINES:
            note = f"{MOST_LINES} of {len(names)} lines"
            figure.add_annotation(text=note, xref="paper", yref="paper", x=0, y=1.06, showarrow=False)
    if name.endswith("probe_accuracy"):
        _add_chance(figure, result)
    figure.update_layout(xaxis_title=axis_word(result, running), yaxis_title=name.replace("_", " "))
    if running in DEPTH and len(band.mean.T) <= 25:
        figure.update_xaxes(dtick=1)


def _add_line(figure: Any, result: Result, name: str, axis: str, band: Band, said: str, place: int) -> None:
    import plotly.graph_objects as go

    at, colour = axis_values(result, name, axis, len(band.mean)), model_colour(place)
    known = np.isfinite(band.low).any()
    if axis in BARS:
        reach = {"array": band.high - band.mean, "arrayminus": band.mean - band.low, "symmetric": False}
        figure.add_trace(
            go.Bar(x=[str(value) for value in at], y=band.mean, name=said, error_y=reach if known else None,
                   marker_color=colour)
        )  # fmt: skip
        return
    if known:
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(x=at, y=band.low, **edge))
        figure.add_trace(go.Scatter(x=at, y=band.high, fill="tonexty", fillcolor=faded(colour, FADED), **edge))
    mode = "lines+markers" if len(at) <= 64 else "lines"
    figure.add_trace(go.Scatter(x=at, y=band.mean, mode=mode, name=said, line={"color": colour}))


def _add_chance(figure: Any, result: Result) -> None:
    """The accuracy of guessing as a dotted line, and the peak that validation chose."""
    about = result.provenance.get("probe", {})
    if "probe_chance" in result and result["probe_chance"].ndim == 0:
        figure.add_hline(y=float(result["probe_chance"]), line_dash="dot", annotation_text="chance")
    if "peak" in about:
        figure.add_vline(x=about["peak"], line_dash="dash", line_width=1, annotation_text="peak, by validation")
    figure.update_yaxes(range=[0, 1.02])


def _add_maps(figure: Any, result: Result, name: str, axes: tuple[str, ...]) -> None:
    """A heat map of the last two axes; what stands before them is a menu."""
    values = usual(result[name], result.axes[name]) if "rank" in axes else result[name]
    if "rank" not in axes and axes != result.axes[name]:
        values = _mean(values, result.axes[name])
    names = menu_names(result, name, axes[:-2], values.shape[:-2])
    maps = values.reshape(-1, *values.shape[-2:])[:MOST_MAPS]
    for place, part in enumerate(maps):
        figure.add_trace(_heat_map(part, result, name, axes[-2:]).update(visible=place == 0))
    across, up = axes[-1], axes[-2]
    figure.update_layout(xaxis_title=axis_word(result, across), yaxis_title=axis_word(result, up))
    if up == "token":
        figure.update_yaxes(autorange="reversed")
    if len(maps) > 1:
        buttons = [
            {"label": said, "method": "update", "args": [{"visible": [i == place for i in range(len(maps))]}]}
            for place, said in enumerate(names[: len(maps)])
        ]
        figure.update_layout(updatemenus=[{"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.15}])


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
    found, counts = np.unique(values, return_counts=True)
    return found[counts.argmax()]


def _heat_map(values: np.ndarray, result: Result, name: str, axes: Sequence[str]) -> Any:
    import plotly.graph_objects as go

    places = [axis_values(result, name, axis, count) for axis, count in zip(axes, values.shape, strict=True)]
    if axes[0] == "length":  # lengths of needles are choices, not a scale
        places[0] = [str(value) for value in places[0]]
    whole = values.dtype.kind in "iu"
    return go.Heatmap(
        z=values,
        x=places[1],
        y=places[0],
        colorscale=[list(stop) for stop in SEQUENTIAL],
        text=values if whole and values.size <= 400 else None,
        texttemplate="%{text}" if whole and values.size <= 400 else None,
    )
