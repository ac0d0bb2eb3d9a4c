"""Pictures of token dynamics: tokens over time beside the heat map of P, one row per system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.results import Result

HEIGHT = 380
LOG_FROM = 10.0
"""Last time from which the time axis is logarithmic."""
STEEP = 1e3
"""Largest over smallest norm from which the token axis is logarithmic."""


def dynamics_figure(result: Result) -> Any:
    """Plotly figure of a simulation or of one of paper 3's figures.

    Left, each token (its norm in more than one dimension) over time; right, P at the last moment kept, as its sign
    times 1 + log10(|P| / smallest |P|): values lie orders of magnitude apart, and the sign tells growth from decay.
    """
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    panels = [name.removesuffix("tokens") for name in result if name.endswith("tokens")]
    titles = [text for panel in panels for text in _titles(result, panel)]
    figure = make_subplots(rows=len(panels), cols=2, subplot_titles=titles, column_widths=[0.62, 0.38])
    for row, panel in enumerate(panels, start=1):
        time, values, label = token_values(result, panel)
        for token, colour in enumerate(_colours(values.shape[1])):
            line = go.Scatter(x=time, y=values[:, token], mode="lines", name=f"x_{token + 1}", legendgroup=f"{token}")
            line.update(showlegend=row == 1, line={"color": colour})
            figure.add_trace(line, row=row, col=1)
        figure.update_yaxes(title_text=label, row=row, col=1, type="log" if steep(values) else "linear")
        logarithmic = time[-1] > LOG_FROM
        figure.update_xaxes(title_text="t", row=row, col=1, type="log" if logarithmic else "linear")
        figure.add_trace(_scores(result, panel, figure.get_subplot(row, 2).yaxis.domain), row=row, col=2)
        figure.update_yaxes(autorange="reversed", dtick=1, row=row, col=2)
        figure.update_xaxes(dtick=1, row=row, col=2)
    title = result.provenance.get("title", "Token dynamics")
    # under the panels: beside them stand the colour bars
    legend = {"orientation": "h", "yanchor": "top", "y": -0.35 / len(panels), "x": 0}
    figure.update_layout(title=title, template="plotly_white", height=HEIGHT * len(panels) + 100, legend=legend)
    return figure


def _colours(tokens: int) -> list[str]:
    """One colour per token, the same in every panel, from early (dark) to late (light)."""
    from plotly.colors import sample_colorscale

    return list(sample_colorscale("Viridis", np.linspace(0, 0.9, tokens).tolist()))


def write_picture(result: Result, path: Path) -> Path:
    """Write the figure as one HTML file that needs no network."""
    dynamics_figure(result).write_html(path, include_plotlyjs=True)
    return path


def _titles(result: Result, panel: str) -> tuple[str, str]:
    name = panel.rstrip("/") or str(result.provenance.get("classification", {}).get("scenario", ""))
    moment = float(result[f"{panel}moments"][_moment(result, panel)])
    return name, f"P at t = {moment:.4g}" + (", channel 1" if _dims(result, panel) else "")


def _dims(result: Result, panel: str) -> bool:
    return result[f"{panel}tokens"].ndim == 3


def _moment(result: Result, panel: str) -> int:
    """Last moment at which P is finite."""
    scores = result[f"{panel}attention"]
    alive = np.flatnonzero(np.isfinite(scores.reshape(len(scores), -1)).all(axis=1))
    return int(alive[-1]) if alive.size else 0


def token_values(result: Result, panel: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Times, one column per token, and what it is."""
    time = result[f"{panel}t"]
    norms = np.exp(np.clip(result[f"{panel}log_norms"], -690, 690))
    values = norms if _dims(result, panel) else result[f"{panel}tokens"]
    label = "‖x‖" if _dims(result, panel) else "x"
    if steep(norms) and label == "x":
        values, label = np.abs(values), "|x|"
    return time, values, label


def steep(values: np.ndarray) -> bool:
    """Whether values, none negative, span so many orders that their axis is logarithmic."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    return bool(sizes.size and sizes.max() > STEEP * sizes.min() and (values[np.isfinite(values)] >= 0).all())


def signed_scores(scores: np.ndarray) -> tuple[np.ndarray, float]:
    """Sign of P times 1 + log10(|P| / smallest |P|), NaN above the diagonal, and its largest size, at least 1.

    >>> shown, most = signed_scores(np.array([[1.0, 0.0], [-10.0, 100.0]]))
    >>> shown[1].tolist(), most
    ([-2.0, 3.0], 3.0)
    """
    upper = np.triu(np.ones_like(scores, dtype=bool), 1)
    sizes = np.abs(scores[~upper & (scores != 0)])
    least = sizes.min() if sizes.size else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = 1 + np.log10(np.abs(scores)) - np.log10(least)  # a quotient could overflow
        shown = np.where(scores != 0, np.sign(scores) * sizes, 0.0)
    most = max(1.0, float(np.abs(shown[~upper]).max(initial=1.0)))
    return np.where(upper, np.nan, shown), most


def _scores(result: Result, panel: str, domain: tuple[float, float]) -> Any:
    import plotly.graph_objects as go

    scores = result[f"{panel}attention"][_moment(result, panel)]
    scores = scores[0] if scores.ndim == 3 else scores
    shown, most = signed_scores(scores)
    text = np.vectorize(lambda value: f"{value:.3e}")(scores)
    index = np.arange(1, len(scores) + 1)
    bar: dict[str, Any] = {"title": {"text": "sign · (1 + log₁₀ |P| / least |P|)", "side": "right"}}
    bar |= {"y": sum(domain) / 2, "len": domain[1] - domain[0]}
    return go.Heatmap(
        z=shown, x=index, y=index, text=text, hovertemplate="l %{y}, j %{x}: P = %{text}<extra></extra>",
        colorscale="RdBu", zmid=0, zmin=-most, zmax=most, colorbar=bar,
    )  # fmt: skip
