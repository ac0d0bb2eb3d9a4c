"""Colours of every figure, on the page and on paper: colour-blind readers can distinguish them too.

Models take the blue, vermilion, green and purple of Okabe and Ito (https://jfly.uni-koeln.de/color/), then colours far
from them in lightness; darker on white and lighter on dark, so that each has a contrast of at least 3 to 1 with its
ground and no two look alike to readers without red or green cones (tests/report/draw/test_palette.py measures both).
Sequential maps are cividis, diverging ones blue to orange-red. Lines also differ in dash and marker, so that no reader
needs colour alone.

A figure names its colours (`model:0`, `model:0/0.2` with opacity, `kind:ssm`, `on:ssm` for text upon it, `ink` and the
other names of `INK`), so that they follow light and dark. `resolve` is the one place where a name becomes a colour: the
paper asks it while it draws, the notebook too, and the page is given the answers for all names that it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.report.data.model import PageModel

LIGHT = ("#0072b2", "#d55e00", "#00946b", "#c8609b", "#3f1f7a", "#6f4e00", "#5f6b75", "#7d1128")
"""Models on white."""
DARK = ("#4da6e0", "#ff8c42", "#2fc39a", "#f4b6d6", "#8f74f2", "#f2e04a", "#7d8d9a", "#c4736b")
"""Models on dark ground, the same order of hues."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")
MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down")
"""Plotly's names."""

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

Colour = tuple[float, float, float, float]
"""Red, green, blue and opacity, each from 0 to 1."""
CLEAR: Colour = (0.0, 0.0, 0.0, 0.0)
_RGBA = re.compile(r"rgba?\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*(?:,\s*([\d.]+)\s*)?\)")
_HEX = re.compile(r"#[0-9a-fA-F]{6}")
_FADED = re.compile(r"(.*?)(?:/(\d*\.?\d+))?", re.DOTALL)


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


def resolve(colour: str, *, dark: bool = False) -> Colour:
    """Red, green, blue and opacity of a colour as a figure writes it.

    >>> resolve("model:0/0.2") == resolve("rgba(0, 114, 178, 0.2)") == resolve("#0072b2")[:3] + (0.2,)
    True

    Raises:
        InputError: Neither a name of the palette nor a colour.
    """
    name, opacity = _split(colour)
    written = _named(name, dark)
    if written is not None or _HEX.fullmatch(name):
        red, green, blue = _parts(written or name)
        return red / 255, green / 255, blue / 255, float(opacity or 1)
    if name == "transparent":
        return CLEAR
    if match := _RGBA.fullmatch(colour):
        red, green, blue = (int(part) for part in match.groups()[:3])
        return red / 255, green / 255, blue / 255, float(match[4] or 1)
    raise InputError(
        teach("a colour such as model:0, ink, #0072b2 or rgba(...)", repr(colour), "see repflow.report.draw.palette")
    )


def _split(colour: str) -> tuple[str, str]:
    """Name and opacity, "" without one; a kind of block may be called anything."""
    match = _FADED.fullmatch(colour)
    return (match[1], match[2] or "") if match else (colour, "")


def _named(name: str, dark: bool) -> str | None:
    """A name of the palette as #rrggbb, None for what is not one."""
    if name.startswith("model:") and name[6:].isdecimal():
        return model_colour(int(name[6:]), dark=dark)
    if name.startswith("kind:"):
        return kind_colour(name[5:], dark=dark)
    if name.startswith("on:"):
        return readable_on(kind_colour(name[3:], dark=dark))
    return INK[name][int(dark)] if name in INK else None


def is_name(colour: str) -> bool:
    """Whether a colour is a name of the palette, and so differs between light and dark.

    >>> is_name("kind:ssm/0.5"), is_name("#0072b2")
    (True, False)
    """
    return _named(_split(colour)[0], dark=False) is not None


def css(colour: str, *, dark: bool = False) -> str:
    """A colour as browsers and Plotly write it: names of the palette written out, anything else as it is.

    >>> css("model:0"), css("model:0/0.2", dark=True), css("red")
    ('#0072b2', 'rgba(77, 166, 224, 0.2)', 'red')
    """
    if not is_name(colour):
        return colour
    name, opacity = _split(colour)
    written = _named(name, dark) or name
    return written if not opacity else "rgba({}, {}, {}, {:g})".format(*_parts(written), float(opacity))


def _parts(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def between(name: str, share: float) -> str:
    """Colour of a map at a share of it.

    >>> between("sequential", 0.0), between("diverging", 0.5)
    ('#00224e', '#f7f7f7')
    """
    stops = colourmap(name)
    at = min(max(share, 0.0), 1.0)
    place = next(i for i in range(1, len(stops)) if stops[i][0] >= at)
    (low, first), (high, last) = stops[place - 1], stops[place]
    part = (at - low) / (high - low)
    mixed = (round(a + part * (b - a)) for a, b in zip(_parts(first), _parts(last), strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def model_index(trace: Mapping[str, Any], models: Sequence[PageModel]) -> int | None:
    """Colour index of the model that a trace belongs to, None where it belongs to none."""
    label = (trace.get("meta") or {}).get("model")
    first = label[0] if isinstance(label, list | tuple) and label else label
    return next((model.colour for model in models if model.label == first), None)


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
