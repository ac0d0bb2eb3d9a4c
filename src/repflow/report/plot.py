"""Figures of a result's metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.errors import InputError, teach
from repflow.report.tables import label
from repflow.results import Band, Result, sample_mean

LINES = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf", "#7f7f7f")
FADED = 0.2
DEPTH = ("state", "layer")
REPEATED = ("sample", "seed")
"""Axes that are averaged over."""
DEFAULTS = ("probe_accuracy", "token_similarity", "cka_cross_pooled", "cka_to_last_pooled")
"""What `Result.plot()` draws, the first one that the result has: of a probe, a measurement, a comparison."""
TWINS = "late_minus_early"
MOST_LINES = 12


def plot(result: Result, name: str | None = None) -> Any:
    """Draw one metric: a line with its 95 % band over depth, one per cell or position, or a heat map.

    Args:
        result: What was measured.
        name: A metric over depth: (state, sample), (state, seed), (layer, sample, token), (state, state, sample) ...;
            None draws what the result is about. An accuracy of probes comes with chance and peak.

    Returns:
        A plotly figure.

    Raises:
        InputError: The metric has no depth axis; its values fit in a sentence.
    """
    import plotly.graph_objects as go

    if name is None and f"raw/{TWINS}_mean" in result:
        return _twins(result)
    name = default_metric(result) if name is None else name
    values, own = result[name], result.axes[name]
    axes = tuple(axis for axis in own if axis not in REPEATED)
    figure = go.Figure()
    if axes and axes[-1] in DEPTH and (len(axes) == 1 or (len(axes) == 2 and axes[0] not in DEPTH)):
        _add_lines(figure, result, name, axes)
        figure.update_layout(xaxis_title=axes[-1], yaxis_title=name.replace("_", " "))
        figure.update_xaxes(dtick=1 if values.shape[own.index(axes[-1])] <= 25 else None)
    elif len(axes) == 2 and "rank" not in axes:
        figure.add_trace(_heat_map(_mean(values, own), result, axes))
        figure.update_layout(xaxis_title=axes[1], yaxis_title=axes[0])
    else:
        raise _undrawable(result, name)
    figure.update_layout(title=f"{_title(result)}: {name}", template="plotly_white")
    return figure


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
    for measure, color in zip(("raw", "excess"), LINES, strict=False):
        mean, low, high = (
            np.array([result[f"{measure}/{TWINS}_{part}"][cell] for cell in cells]) for part in ("mean", "low", "high")
        )
        bars = {"type": "data", "symmetric": False, "array": high - mean, "arrayminus": mean - low}
        dots = {"mode": "markers", "name": measure, "marker": {"color": color}}
        figure.add_trace(go.Scatter(x=mean, y=said, error_x=bars, **dots))
    figure.add_vline(x=0, line_dash="dot")
    title = f"{_title(result)}: late minus early token similarity"
    figure.update_layout(title=title, template="plotly_white", xaxis_title="late minus early")
    figure.update_yaxes(autorange="reversed")
    return figure


def default_metric(result: Result) -> str:
    """The metric that a result is about.

    Raises:
        InputError: It has none over depth.
    """
    found = next((name for name in DEFAULTS if name in result), None)
    found = found or next(iter(drawable(result)), None)
    if found is None:
        raise InputError(teach("a result with a metric over depth", f"{', '.join(result) or 'none'}", "print(result)"))
    return found


def drawable(result: Result) -> list[str]:
    """Metrics over depth, plain names first."""
    return sorted((n for n in result if set(DEPTH) & set(result.axes[n])), key=lambda name: name.count("/"))


def _undrawable(result: Result, name: str) -> InputError:
    shown = ", ".join(drawable(result)[:8]) or "another result"
    return InputError(teach("a metric over depth", f"{name!r} with axes {result.axes[name]}", f"try {shown}"))


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
    if name in result.bands or "sample" in own:
        return result.band(name)
    mean = _mean(result[name], own)
    return Band(mean, np.full_like(mean, np.nan, dtype=float), np.full_like(mean, np.nan, dtype=float))


def _add_lines(figure: Any, result: Result, name: str, axes: tuple[str, ...]) -> None:
    band = _band(result, name)
    if len(axes) == 1:
        _add_line(figure, band, label(result), LINES[0])
        if name.endswith("probe_accuracy"):
            _add_chance(figure, result)
        return
    names = _line_names(result, axes[0], len(band.mean))
    for place, said in enumerate(names[:MOST_LINES]):
        part = Band(*(np.asarray(getattr(band, key))[place] for key in ("mean", "low", "high")))
        _add_line(figure, part, said, LINES[place % len(LINES)])
    if name.endswith("probe_accuracy"):
        _add_chance(figure, result)


def _line_names(result: Result, axis: str, count: int) -> list[str]:
    about = result.provenance
    if axis == "cell":
        own = [cell["config"] for cell in about.get("cells", [])]
        hidden = ("match_with",)
        return [", ".join(str(value) for key, value in cell.items() if key not in hidden) for cell in own]
    if axis == "position":
        return [f"at {place}" for place in about.get("probe", {}).get("sweep", range(count))]
    if axis == "step":
        return [str(step) for step in about.get("steps", range(count))]
    return [f"{axis} {place}" for place in range(count)]


def _add_line(figure: Any, band: Band, name: str, color: str) -> None:
    import plotly.graph_objects as go

    depth = np.arange(len(band.mean))
    if np.isfinite(band.low).any():
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
        fill = f"rgba({red}, {green}, {blue}, {FADED})"
        figure.add_trace(go.Scatter(x=depth, y=band.low, **edge))
        figure.add_trace(go.Scatter(x=depth, y=band.high, fill="tonexty", fillcolor=fill, **edge))
    figure.add_trace(go.Scatter(x=depth, y=band.mean, mode="lines+markers", name=name, line={"color": color}))


def _add_chance(figure: Any, result: Result) -> None:
    """The accuracy of guessing as a dotted line, and the peak that validation chose."""
    about = result.provenance.get("probe", {})
    if "probe_chance" in result and result["probe_chance"].ndim == 0:
        figure.add_hline(y=float(result["probe_chance"]), line_dash="dot", annotation_text="chance")
    if "peak" in about:
        figure.add_vline(x=about["peak"], line_dash="dash", line_width=1, annotation_text="peak, by validation")
    figure.update_yaxes(range=[0, 1.02])


def _heat_map(mean: np.ndarray, result: Result, axes: tuple[str, ...]) -> Any:
    import plotly.graph_objects as go

    positions = result.provenance.get("positions")
    across = np.arange(mean.shape[1])
    if axes[1] == "token" and positions is not None and len(positions) == mean.shape[1]:
        across = np.asarray(positions)  # first position of each pooled bin
    return go.Heatmap(z=mean, x=across, y=np.arange(mean.shape[0]), colorscale="Viridis")
