"""Parts that many sections share: curves with bands, depth axes, small multiples, thinning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band
from repflow.report.draw.number import DIGITS, plain

MOST_POINTS = 400
"""Points of a curve on the page; longer ones are thinned and say so."""
MOST_CELLS = 128
"""Rows or columns of a heat map."""


def band_traces(
    x: Sequence[Any] | np.ndarray,
    band: Band,
    *,
    name: str,
    model: str | None = None,
    colour: str | None = None,
    dash: str | None = None,
    depth: Mapping[str, Sequence[float]] | None = None,
    axes: tuple[str, str] = ("x", "y"),
    legend: bool = True,
    mode: str = "lines+markers",
    group: str | None = None,
    digits: int = DIGITS,
) -> list[dict[str, Any]]:
    """A line with its 95 % band, as Plotly traces; no band where its ends are not finite.

    Args:
        x: places.
        band: mean, low and high, each as long as x.
        name: in the legend.
        model: label of the page's model, whose colour the traces take.
        colour: of the palette, instead of the model's.
        dash: instead of the model's.
        depth: relative and absolute places, where x is depth.
        axes: of the panel.
        legend: whether the line is in the legend.
        mode: Plotly's.
        group: what the legend shows and hides together; by default the line with its band.
        digits: significant ones of what is drawn.
    """
    places = {"xaxis": axes[0], "yaxis": axes[1], "x": [_word(value) for value in x]}
    meta: dict[str, Any] = {"model": model} | ({} if depth is None else {"x": dict(depth)})
    line: dict[str, Any] = {} if colour is None else {"color": colour}
    line |= {} if dash is None else {"dash": dash}
    shared = {"legendgroup": group or f"{model or ''}/{name}", "type": "scatter", "meta": meta, **places}
    traces: list[dict[str, Any]] = []
    if np.isfinite(band.low).any() and np.isfinite(band.high).any():
        edge = {**shared, "mode": "lines", "line": {**line, "width": 0}, "showlegend": False, "hoverinfo": "skip"}
        filled = {"fill": "tonexty"} | ({} if colour is None else {"fillcolor": f"{colour}/0.2"})
        traces = [{**edge, "y": plain(band.low, digits)}, {**edge, "y": plain(band.high, digits), **filled}]
    own = {**shared, "mode": mode, "line": line, "name": name, "showlegend": legend, "y": plain(band.mean, digits)}
    if colour is not None:
        own["marker"] = {"color": colour}
    return [*traces, own]


def _word(value: Any) -> Any:
    return value if isinstance(value, str) else float(value)


def band_of(result: Any, name: str) -> Band:
    """Stored band of a metric, or Student's over its samples."""
    band: Band = result.band(name)
    return band


def bare(values: Any) -> Band:
    """Values without an interval."""
    mean = np.asarray(values, dtype=np.float64)
    return Band(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))


def state_depth(count: int) -> dict[str, list[float]]:
    """Places of `count` states: 0 is the embedding, 1 (or the last index) the last block's output.

    >>> state_depth(3)
    {'relative': [0.0, 0.5, 1.0], 'absolute': [0.0, 1.0, 2.0]}
    """
    last = max(count - 1, 1)
    return {"relative": [i / last for i in range(count)], "absolute": [float(i) for i in range(count)]}


def layer_depth(count: int) -> dict[str, list[float]]:
    """Places of `count` blocks: block l stands where its output is, at state l + 1.

    >>> layer_depth(2)
    {'relative': [0.5, 1.0], 'absolute': [1.0, 2.0]}
    """
    return {"relative": [(i + 1) / count for i in range(count)], "absolute": [i + 1.0 for i in range(count)]}


def axis_names(place: int) -> tuple[str, str]:
    """Plotly's axes of a panel, counted from 0.

    >>> axis_names(0), axis_names(2)
    (('x', 'y'), ('x3', 'y3'))
    """
    number = "" if place == 0 else str(place + 1)
    return f"x{number}", f"y{number}"


def columns_for(panels: int) -> int:
    """Panels side by side: two where few can be large, three where many should fit on a screen.

    >>> columns_for(4), columns_for(6)
    (2, 3)
    """
    return 2 if panels <= 4 else 3


def small_multiples(
    headings: Sequence[str],
    across: Mapping[str, Any],
    up: Mapping[str, Any],
    *,
    columns: int = 3,
    models: Sequence[str | None] = (),
) -> dict[str, Any]:
    """Layout of panels of equal axes with headings; the first column names the y axis, the last row the x axis."""
    count = len(headings)
    columns = min(columns, count)
    layout: dict[str, Any] = {"grid": {"rows": -(-count // columns), "columns": columns, "pattern": "independent"}}
    words = []
    for place, heading in enumerate(headings):
        x, y = axis_names(place)
        silent = {"title": {"text": ""}}
        layout[f"xaxis{x[1:]}"] = {**across, **({} if place + columns >= count else silent)}
        layout[f"yaxis{y[1:]}"] = {**up, **({} if place % columns == 0 else silent)}
        word: dict[str, Any] = {"text": heading, "xref": f"{x} domain", "yref": f"{y} domain", "x": 0.5, "y": 1.02}
        word |= {"showarrow": False, "xanchor": "center", "yanchor": "bottom"}
        if models and models[place] is not None:
            word["meta"] = {"model": models[place]}
        words.append(word)
    return {**layout, "annotations": words} if count > 1 else {**layout, "annotations": []}


def thin(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Indices of at most `most` of `count` points, first and last among them.

    >>> thin(5, 3).tolist()
    [0, 2, 4]
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def thin_note(count: int, kept: int, what: str) -> str:
    """What the page says of thinned data; empty where nothing was left out.

    >>> thin_note(1000, 400, "distances"), thin_note(10, 10, "distances")
    ('400 of 1000 distances drawn; the CSV has all.', '')
    """
    return f"{kept} of {count} {what} drawn; the CSV has all." if kept < count else ""


def spans(numbers: Sequence[float | int]) -> str:
    """Numbers in a few words: three or more in a row become a span.

    >>> spans([1, 2, 4, 5, 6]), spans([0.5])
    ('1, 2, 4 to 6', '0.5')
    """
    parts: list[str] = []
    rows: list[list[float | int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    for row in rows:
        parts += [f"{row[0]:g} to {row[-1]:g}"] if len(row) > 2 else [f"{number:g}" for number in row]
    return ", ".join(parts)


def gaps(label: str, values: np.ndarray, what: str, first: int = 0, *, places: Sequence[float] | None = None) -> str:
    """A sentence that names the rows of which nothing is finite; empty where every row has something.

    >>> gaps("gpt2", np.array([[1.0], [np.nan]]), "layer", 1)
    'gpt2: no finite value at layer 2, drawn as a gap.'
    """
    rows = np.asarray(values, dtype=np.float64).reshape(len(values), -1)
    names = range(first, first + len(rows)) if places is None else places
    empty = [names[i] for i in range(len(rows)) if not np.isfinite(rows[i]).any()]
    return f"{label}: no finite value at {what} {spans(empty)}, drawn as a gap." if empty else ""


def joined(*notes: str) -> str:
    """Notes that say something, as one text."""
    return " ".join(note for note in notes if note)
