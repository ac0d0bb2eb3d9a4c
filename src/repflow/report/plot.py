"""Figures of a result's metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from repflow.catalogue import METRICS
from repflow.errors import InputError, teach
from repflow.report.tables import label
from repflow.results import Result, sample_mean

FILL = "rgba(31, 119, 180, 0.2)"


def plot(result: Result, name: str = "token_similarity") -> Any:
    """Draw one metric: a line with its 95 % band over depth, or a heat map of layers by tokens.

    Args:
        result: What was measured.
        name: Metric with axes (state, sample), (layer, sample, token) or the like, or (state, state, sample).

    Returns:
        A plotly figure.

    Raises:
        InputError: The metric has no depth axis; its values fit in a sentence.
    """
    import plotly.graph_objects as go

    values, axes = result[name], tuple(axis for axis in result.axes[name] if axis != "sample")
    figure = go.Figure()
    if axes in (("state",), ("layer",)):
        _add_band(figure, result, name)
        figure.update_layout(xaxis_title=axes[0], yaxis_title=name)
    elif len(axes) == 2 and "rank" not in axes:
        mean = sample_mean(values, result.axes[name])
        figure.add_trace(_heat_map(mean, result, axes))
        figure.update_layout(xaxis_title=axes[1], yaxis_title=axes[0])
    else:
        drawable = [n for n in result if n in METRICS and {"state", "layer"} & set(result.axes[n])]
        raise InputError(
            teach("a metric over depth", f"{name!r} with axes {result.axes[name]}", f"try {', '.join(drawable)}")
        )
    figure.update_layout(title=f"{label(result)}: {name}", template="plotly_white")
    return figure


def _add_band(figure: Any, result: Result, name: str) -> None:
    import plotly.graph_objects as go

    band = result.band(name)
    depth = np.arange(len(band.mean))
    if np.isfinite(band.low).any():
        edge = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(x=depth, y=band.low, **edge))
        figure.add_trace(go.Scatter(x=depth, y=band.high, fill="tonexty", fillcolor=FILL, **edge))
    figure.add_trace(go.Scatter(x=depth, y=band.mean, mode="lines+markers", name=label(result)))


def _heat_map(mean: np.ndarray, result: Result, axes: tuple[str, ...]) -> Any:
    import plotly.graph_objects as go

    positions = result.provenance.get("positions")
    across = np.arange(mean.shape[1])
    if axes[1] == "token" and positions is not None and len(positions) == mean.shape[1]:
        across = np.asarray(positions)  # first position of each pooled bin
    return go.Heatmap(z=mean, x=across, y=np.arange(mean.shape[0]), colorscale="Viridis")
