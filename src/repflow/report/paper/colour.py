"""Colours of a figure's traces on paper, and colour maps of matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repflow.report.data.model import PageModel
from repflow.report.draw.palette import CLEAR, Colour, colourmap, model_index, resolve

GAP = "#e3e7ea"
"""Ground of a heat map, seen where a value is missing; neither of the maps holds it."""


def trace_colour(trace: Mapping[str, Any], models: Sequence[PageModel], place: int = 0) -> Colour:
    """Colour of a trace: its own, else its model's, else that of its place among the traces."""
    for part in ("line", "marker"):
        own = (trace.get(part) or {}).get("color")
        if isinstance(own, str):
            return resolve(own)
    index = model_index(trace, models)
    return resolve(f"model:{place if index is None else index}")


def colour_map(scale: Any) -> Any:
    """A matplotlib colour map of `sequential`, `diverging` or of Plotly stops; missing values are clear."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = colourmap(scale or "sequential") if isinstance(scale, str | None) else scale
    colours = LinearSegmentedColormap.from_list("page", [(float(at), resolve(colour)) for at, colour in stops], N=512)
    return colours.with_extremes(bad=CLEAR)
