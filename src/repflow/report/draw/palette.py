"""Colours of every figure, on the page and on paper: told apart by colour-blind readers too.

Models take the blue, vermilion, green and purple of Okabe and Ito (https://jfly.uni-koeln.de/color/), then colours far
from them in lightness; darker on white and lighter on dark, so that each has a contrast of at least 3 to 1 with its
ground and no two look alike to readers without red or green cones (tests/report/test_page_render.py measures both).
Sequential maps are cividis, diverging ones blue to orange-red. Lines also differ in dash and marker, so that no reader
needs colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from repflow.core.errors import InputError, teach

LIGHT = ("#0072b2", "#d55e00", "#00946b", "#c8609b", "#3f1f7a", "#6f4e00", "#5f6b75", "#7d1128")
"""Models on white."""
DARK = ("#4da6e0", "#ff8c42", "#2fc39a", "#f4b6d6", "#8f74f2", "#f2e04a", "#7d8d9a", "#c4736b")
"""Models on dark ground, the same order of hues."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
"""Plotly's names; `matplotlib_style` gives the same for matplotlib."""

KINDS = {
    "attention": ("#0072b2", "#4da6e0"),
    "ssm": ("#e69f00", "#e6a817"),
    "attention+ssm": ("#b35a8a", "#e08fb8"),
    "recurrent": ("#008a66", "#2fc39a"),
    "attention+recurrent": ("#7a3b00", "#d9a066"),
    "conv": ("#2a86b8", "#9ad6f5"),
    "moe": ("#5c5c5c", "#b0b0b0"),
    "mlp": ("#9a9a9a", "#7d868e"),
    "other": ("#9a9a9a", "#7d868e"),
}
"""Kind of layer, as `repflow.models` names them, to its colour on white and on dark."""

INK = {
    "ink": ("#1d2329", "#e6e9ec"),
    "muted": ("#5b6670", "#a3adb6"),
    "grid": ("#e3e7ea", "#343c44"),
    "edge": ("#8b96a0", "#6b7681"),
    "paper": ("#ffffff", "#171c21"),
    "ground": ("#f6f8f9", "#0f1317"),
    "accent": ("#005a8c", "#6cb8ea"),
    "good": ("#00694e", "#3fcfa6"),
    "bad": ("#a84300", "#ff9a5c"),
}

SEQUENTIAL = (
    (0.0, "#00224e"),
    (0.125, "#1a386f"),
    (0.25, "#434e6c"),
    (0.375, "#61656f"),
    (0.5, "#7d7c78"),
    (0.625, "#9b9476"),
    (0.75, "#bcae6c"),
    (0.875, "#dec958"),
    (1.0, "#fee838"),
)
"""cividis."""
DIVERGING = (
    (0.0, "#053061"),
    (0.125, "#2166ac"),
    (0.25, "#4393c3"),
    (0.375, "#a6cee3"),
    (0.5, "#f7f7f7"),
    (0.625, "#fdcba6"),
    (0.75, "#ef8a4a"),
    (0.875, "#c4501b"),
    (1.0, "#7f2704"),
)
"""Blue to orange-red over white: no red against green."""

_MATPLOTLIB_DASH = {
    "solid": "-",
    "dash": "--",
    "dot": ":",
    "dashdot": "-.",
    "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 2, 3)),
}
_MATPLOTLIB_MARKER = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
    "triangle-down": "v",
}


def model_colour(index: int, *, dark: bool = False) -> str:
    """Colour of the model with this index; they repeat after eight, with other dashes.

    >>> model_colour(0), model_colour(8), model_colour(0, dark=True)
    ('#0072b2', '#0072b2', '#4da6e0')
    """
    colours = DARK if dark else LIGHT
    return colours[index % len(colours)]


def model_dash(index: int) -> str:
    """Dash of the model with this index, a name of Plotly.

    >>> model_dash(1), model_dash(0) == model_dash(8)
    ('dash', False)
    """
    return DASHES[(index + index // len(DASHES)) % len(DASHES)]


def model_marker(index: int) -> str:
    """Marker of the model with this index, a name of Plotly.

    >>> model_marker(2)
    'diamond'
    """
    return MARKERS[(index + index // len(MARKERS)) % len(MARKERS)]


def matplotlib_style(index: int) -> dict[str, object]:
    """Keywords of `Axes.plot` for the model with this index.

    >>> matplotlib_style(0)
    {'color': '#0072b2', 'linestyle': '-', 'marker': 'o'}
    """
    return {
        "color": model_colour(index),
        "linestyle": _MATPLOTLIB_DASH[model_dash(index)],
        "marker": _MATPLOTLIB_MARKER[model_marker(index)],
    }


def kind_colour(kind: str, *, dark: bool = False) -> str:
    """Colour of a kind of layer; unknown kinds share one grey.

    >>> kind_colour("attention"), kind_colour("something new") == kind_colour("other")
    ('#0072b2', True)
    """
    return KINDS.get(kind, KINDS["other"])[int(dark)]


def readable_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour: the luminance of equal contrast is about 0.18.

    >>> readable_on("#0072b2"), readable_on("#e69f00")
    ('#ffffff', '#000000')
    """
    red, green, blue = ((int(colour[at : at + 2], 16) / 255) ** 2.2 for at in (1, 3, 5))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 else "#ffffff"


def faded(colour: str, opacity: float) -> str:
    """A colour with opacity, for bands.

    >>> faded("#0072b2", 0.2)
    'rgba(0, 114, 178, 0.2)'

    Raises:
        InputError: Not a colour of the form #rrggbb.
    """
    if len(colour) != 7 or colour[0] != "#":
        raise InputError(teach("a colour of the form #rrggbb", repr(colour), "take one of repflow.report.draw.palette"))
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity:g})"


def colourmap(name: str) -> Sequence[tuple[float, str]]:
    """Stops of `sequential` or `diverging`, for Plotly and for matplotlib's LinearSegmentedColormap.

    >>> colourmap("diverging")[4]
    (0.5, '#f7f7f7')

    Raises:
        InputError: Another name.
    """
    maps = {"sequential": SEQUENTIAL, "diverging": DIVERGING}
    if name not in maps:
        raise InputError(teach("sequential or diverging", repr(name), "choose one of the two"))
    return maps[name]
