"""Colours of a page's traces for matplotlib: names of the palette, hex, rgba, and colour maps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.report.data.model import PageModel
from repflow.report.draw.palette import INK, colourmap, kind_colour, model_colour, readable_on

RGBA = re.compile(r"rgba?\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(?:,\s*([\d.]+)\s*)?\)")
HEX = re.compile(r"#[0-9a-fA-F]{6}")
CLEAR = (0.0, 0.0, 0.0, 0.0)
GAP = "#e3e7ea"
"""Ground of a heat map, seen where a value is missing; neither of the maps holds it."""

Colour = tuple[float, float, float, float]


def resolve(colour: str) -> Colour:
    """Red, green, blue and opacity of a colour as a page writes it, on white ground.

    >>> resolve("model:0/0.2") == resolve("rgba(0, 114, 178, 0.2)") == resolve("#0072b2")[:3] + (0.2,)
    True

    Raises:
        InputError: Neither a name of the palette nor a colour.
    """
    name, _, opacity = colour.partition("/")
    if name.startswith("model:") and name[6:].isdecimal():
        return _hex(model_colour(int(name[6:])), opacity)
    if name.startswith("kind:"):
        return _hex(kind_colour(name[5:]), opacity)
    if name.startswith("on:"):
        return _hex(readable_on(kind_colour(name[3:])), opacity)
    if name in INK:
        return _hex(INK[name][0], opacity)
    if name == "transparent":
        return CLEAR
    if match := RGBA.fullmatch(colour):
        red, green, blue = (int(part) / 255 for part in match.groups()[:3])
        return (red, green, blue, float(match[4] or 1))
    if HEX.fullmatch(name):
        return _hex(name, opacity)
    raise InputError(
        teach("a colour such as model:0, ink, #0072b2 or rgba(...)", repr(colour), "see repflow.report.draw.palette")
    )


def _hex(colour: str, opacity: str) -> Colour:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return (red, green, blue, float(opacity or 1))


def trace_colour(trace: Mapping[str, Any], models: Sequence[PageModel], place: int = 0) -> Colour:
    """Colour of a trace: its own, else its model's, else that of its place among the traces."""
    for part in ("line", "marker"):
        own = (trace.get(part) or {}).get("color")
        if isinstance(own, str):
            return resolve(own)
    index = model_index(trace, models)
    return resolve(f"model:{place if index is None else index}")


def model_index(trace: Mapping[str, Any], models: Sequence[PageModel]) -> int | None:
    """Colour index of the model that a trace belongs to, None where it belongs to none."""
    label = (trace.get("meta") or {}).get("model")
    first = label[0] if isinstance(label, list | tuple) and label else label
    return next((model.colour for model in models if model.label == first), None)


def colour_map(scale: Any) -> Any:
    """A matplotlib colour map of `sequential`, `diverging` or of Plotly stops; missing values are clear."""
    from matplotlib.colors import LinearSegmentedColormap

    stops = colourmap(scale or "sequential") if isinstance(scale, str | None) else scale
    made = LinearSegmentedColormap.from_list("page", [(float(at), resolve(colour)) for at, colour in stops], N=512)
    return made.with_extremes(bad=CLEAR)
