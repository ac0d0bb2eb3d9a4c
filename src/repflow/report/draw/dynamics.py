"""Token dynamics: tokens over time beside the heat map of P, for every system of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.report.data.model import Figure, Variant
from repflow.report.draw import plotly
from repflow.report.draw.curve import joined, thin, thin_note
from repflow.report.draw.number import plain
from repflow.report.draw.palette import between

HEIGHT = 380
"""Pixels of a system in a picture."""
LOG_FROM = 10.0
"""Last time from which the time axis is logarithmic."""
STEEP = 1e3
"""Largest over smallest norm from which the token axis is logarithmic."""
MOST_TOKENS = 16
ROOM = 0.8
"""Share of its row that a colour bar takes."""


def path_figure(result: Result, id: str, title: str) -> Figure:
    """Tokens over time beside P, a variant for every system and moment."""
    panels = [name.removesuffix("tokens") for name in result if name.endswith("tokens")]
    variants = []
    for panel in panels:
        for moment in reversed(range(len(result[f"{panel}moments"]))):  # the page opens with the end of the story
            variant = _moment_variant(result, panel, moment)
            if variant is not None:
                variants.append(variant)
    names = ", ".join(panel.rstrip("/") for panel in panels if panel)
    return Figure(
        id,
        title,
        "Left: each token over time, dark early in the sequence and light late (its norm, where tokens are vectors). "
        "Right: P at the chosen time, row l the token that moves, column j the token that moves it, as its sign times "
        "1 + log₁₀(|P| / smallest |P|), since values lie orders of magnitude apart.",
        f"Trajectories of tokens and the matrix P{f' of the systems {names}' if names else ''}.",
        variants,
        models_toggle=False,
        log_axis=False,
    )


def _moment_variant(result: Result, panel: str, moment: int) -> Variant | None:
    scores = result[f"{panel}attention"][moment]
    scores = scores[0] if scores.ndim == 3 else scores
    if not np.isfinite(scores).all():
        return None
    time, values, label = token_values(result, panel)
    traces, rows, note = _path_traces(time, values)
    at = float(result[f"{panel}moments"][moment])
    scaled, most = signed_scores(scores)
    index = [float(i + 1) for i in range(len(scores))]
    bar = {"title": {"text": "sign · (1 + log₁₀ |P| / least)", "side": "right"}}
    heat: dict[str, Any] = {"type": "heatmap", "z": plain(scaled), "x": index, "y": index, "colorscale": "diverging"}
    heat |= {"zmin": -most, "zmax": most, "xaxis": "x2", "yaxis": "y2", "colorbar": bar, "meta": {"model": None}}
    heat |= {
        "customdata": plain(scores),
        "hovertemplate": "row %{y}, column %{x}<br>P = %{customdata:.4g}<extra></extra>",
    }
    rows += [
        ["P", f"{row + 1},{column + 1}", at, value] for (row, column), value in np.ndenumerate(scores) if column <= row
    ]
    name = panel.rstrip("/") or "simulation"
    layout = {
        "grid": {"rows": 1, "columns": 2, "pattern": "independent"},
        "xaxis": {"title": {"text": "time t"}, "type": "log" if time[-1] > LOG_FROM else "linear"},
        "yaxis": {"title": {"text": label}, "type": "log" if steep(values) else "linear"},
        "xaxis2": {"title": {"text": "column j"}, "dtick": 1},
        "yaxis2": {"title": {"text": "row l"}, "dtick": 1, "autorange": "reversed"},
        "annotations": [_heading("x", name), _heading("x2", f"P at t = {at:.4g}")],
        "showlegend": False,
    }
    when = {"system": name, "time of P": f"{at:.4g}"}
    columns = ["quantity", "token or cell", "time", "value"]
    reading, basis = _reading(result, panel, time, values), f"a simulation of {values.shape[1]} tokens"
    return Variant(when, [*traces, heat], layout, columns, rows, note, reading, basis=basis)


def _reading(result: Result, panel: str, time: np.ndarray, values: np.ndarray) -> str:
    """How many tokens shrink and grow, and which one becomes infinite."""
    sizes = np.abs(values)
    last = [np.flatnonzero(np.isfinite(column))[-1] for column in sizes.T if np.isfinite(column).any()]
    ends = np.array([column[np.isfinite(column)][-1] for column in sizes.T if np.isfinite(column).any()])
    starts = np.array([column[np.isfinite(column)][0] for column in sizes.T if np.isfinite(column).any()])
    if not len(ends):
        return ""
    text = (
        f"By t = {time[max(last)]:.3g}, {int((ends < starts).sum())} of {len(ends)} tokens have shrunk and "
        f"{int((ends > starts).sum())} have grown, the largest to {ends.max():.3g}."
    )
    evidence = (result.provenance.get("classification") or {}).get("evidence", {})
    if not panel and evidence.get("blow_up_time") is not None:
        text += f" Token {int(evidence['blow_up_token']) + 1} becomes infinite at t = {evidence['blow_up_time']:.4g}."
    return text


def _heading(axis: str, text: str) -> dict[str, Any]:
    place = {"xref": f"{axis} domain", "yref": f"{axis.replace('x', 'y')} domain", "x": 0.5, "y": 1.02}
    return {**place, "text": text, "showarrow": False, "xanchor": "center", "yanchor": "bottom"}


def _path_traces(time: np.ndarray, values: np.ndarray) -> tuple[list[dict[str, Any]], list[list[Any]], str]:
    tokens = thin(values.shape[1], MOST_TOKENS)
    at = thin(len(time))
    traces: list[dict[str, Any]] = []
    for place, token in enumerate(tokens):
        share = 0.85 * place / max(len(tokens) - 1, 1)
        traces.append(
            {
                "type": "scatter", "mode": "lines", "x": plain(time[at]), "y": plain(values[at, token]),
                "name": f"x_{token + 1}", "line": {"color": between("sequential", share), "dash": "solid"},
                "meta": {"model": None},
            }
        )  # fmt: skip
    times = plain(time)
    rows = [["token", token + 1, t, v] for token in range(values.shape[1])
            for t, v in zip(times, plain(values[:, token]), strict=True) if v is not None]  # fmt: skip
    note = thin_note(values.shape[1], len(tokens), "tokens")
    return traces, rows, joined(note, thin_note(len(time), len(at), "times"))


def dynamics_figure(result: Result) -> Any:
    """Plotly figure of a simulation or of one of paper 3's figures: every system at its last moment, a row each."""
    title = str(result.provenance.get("title", "Token dynamics"))
    whole = path_figure(result, "dynamics", title)
    last = {variant.when["system"]: variant for variant in reversed(whole.variants)}
    systems = [last[name] for name in dict.fromkeys(variant.when["system"] for variant in whole.variants)]
    stacked = Figure(whole.id, title, whole.caption, whole.alt, [_stacked(systems)], height=HEIGHT * len(systems) + 100)
    return plotly.draw(stacked)


def _stacked(systems: Sequence[Variant]) -> Variant:
    """Systems under each other: their panels with axes of their own, one legend for the tokens of all."""
    # under the panels: beside them stand the colour bars
    legend = {"orientation": "h", "yanchor": "top", "y": -0.35 / len(systems), "x": 0}
    grid = {"rows": len(systems), "columns": 2, "pattern": "independent"}
    layout: dict[str, Any] = {"grid": grid, "legend": legend, "showlegend": True, "annotations": []}
    traces: list[dict[str, Any]] = []
    for row, variant in enumerate(systems):
        for trace in variant.traces:
            own: dict[str, Any] = {axis: _moved(trace.get(axis, axis[0]), row) for axis in ("xaxis", "yaxis")}
            if trace["type"] == "heatmap":
                place = {"y": 1 - (row + 0.5) / len(systems), "len": ROOM / len(systems)}
                own["colorbar"] = {**trace["colorbar"], **place}
            else:
                own |= {"legendgroup": trace["name"], "showlegend": row == 0}
            traces.append({**trace, **own})
        for side in "xy":
            for number in ("", "2"):
                layout[f"{side}axis{_moved(side + number, row)[1:]}"] = variant.layout[f"{side}axis{number}"]
        layout["annotations"] += [_at_row(word, row) for word in variant.layout["annotations"]]
    return Variant({}, traces, layout)


def _moved(axis: str, row: int) -> str:
    """Name of a panel's axis in a row of panels.

    >>> _moved("x", 0), _moved("y2", 0), _moved("x", 1), _moved("y2", 2)
    ('x', 'y2', 'x3', 'y6')
    """
    number = 2 * row + int(axis[1:] or 1)
    return axis[0] + ("" if number == 1 else str(number))


def _at_row(word: Mapping[str, Any], row: int) -> dict[str, Any]:
    places = {ref: f"{_moved(word[ref].removesuffix(' domain'), row)} domain" for ref in ("xref", "yref")}
    return {**word, **places}


def write_picture(result: Result, path: Path) -> Path:
    """Write the figure as one HTML file that needs no network."""
    dynamics_figure(result).write_html(path, include_plotlyjs=True)
    return path


def _dims(result: Result, panel: str) -> bool:
    return result[f"{panel}tokens"].ndim == 3


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
    """Whether values, none negative, span enough orders for a logarithmic axis."""
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
        scaled = np.where(scores != 0, np.sign(scores) * sizes, 0.0)
    most = max(1.0, float(np.abs(scaled[~upper]).max(initial=1.0)))
    return np.where(upper, np.nan, scaled), most
