"""Shapes and words of a page's layout on matplotlib axes: strips of layer kinds, hatching, lines, notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repflow.report.draw.palette import CLEAR, resolve
from repflow.report.paper.panel import Panel
from repflow.report.paper.text import literal
from repflow.report.paper.trace import DASHES

NEAR = 0.12
"""Share of the figure within which a text above a panel is taken for its title."""
ANCHORS = {"auto": "center", "middle": "center"}


def draw_shapes(
    shapes: Sequence[Mapping[str, Any]], panels: Sequence[tuple[Panel, Any]], depth: str | None
) -> dict[int, float]:
    """Draw rectangles and lines on the panels whose axes they name; those of the whole figure on every panel.

    Returns:
        By identity of the axes, how high shapes over the panel reach, as a share of its height.
    """
    tops: dict[int, float] = {}
    for shape in shapes:
        for panel, axes in panels:
            if _belongs(shape, panel):
                _shape(axes, shape, depth)
                if str(shape.get("yref")).endswith("domain"):
                    tops[id(axes)] = max(tops.get(id(axes), 0.0), float(shape["y0"]), float(shape["y1"]))
    return tops


def _belongs(holder: Mapping[str, Any], panel: Panel) -> bool:
    for side, own in (("x", panel.x), ("y", panel.y)):
        name = str(holder.get(f"{side}ref") or side).removesuffix(" domain")
        if name not in ("paper", own):
            return False
    return True


def _shape(axes: Any, shape: Mapping[str, Any], depth: str | None) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle

    x, y = (_span(shape, side, depth) for side in "xy")
    transform = _transform(axes, shape)
    line = shape.get("line") or {}
    below = 0.8 if shape.get("layer") == "below" else 2.2
    edge = resolve(str(line.get("color") or "ink")) if line.get("width", 1) else CLEAR
    if shape.get("type") == "line":
        width = 0.5 * float(line.get("width", 2))
        dash = DASHES.get(str(line.get("dash") or "solid"), "-")
        axes.add_artist(
            Line2D(x, y, color=edge, linewidth=width, linestyle=dash, transform=transform, zorder=below, clip_on=False)
        )
        return
    hatch = str((shape.get("meta") or {}).get("hatch") or "")
    fill = resolve(str(shape["fillcolor"])) if shape.get("fillcolor") else CLEAR
    if shape.get("opacity") is not None:
        fill = (*fill[:3], fill[3] * float(shape["opacity"]))
    outside = any("domain" in str(shape.get(f"{s}ref")) or shape.get(f"{s}ref") == "paper" for s in "xy")
    axes.add_artist(
        Rectangle(
            (min(x), min(y)), abs(x[1] - x[0]), abs(y[1] - y[0]), facecolor=fill, edgecolor=edge,
            linewidth=0.5 * float(line.get("width", 1)), hatch=hatch or None, transform=transform, zorder=below,
            clip_on=not outside,
        )
    )  # fmt: skip
    label = shape.get("label") or {}
    if label.get("text") and min(y) >= 1:  # inside a panel a label would hide data; the legend names the colours
        tall = 72 * axes.figure.get_size_inches()[1] * axes.get_position().height * (max(y) - min(y))
        colour = resolve(str((label.get("font") or {}).get("color") or "ink"))
        middle = (sum(x) / 2, sum(y) / 2)
        style = {
            "ha": "center",
            "va": "center",
            "fontsize": min(4.5, 0.95 * tall),
            "color": colour,
            "zorder": below + 0.1,
        }
        axes.text(*middle, literal(str(label["text"])), transform=transform, **style)


def _span(shape: Mapping[str, Any], side: str, depth: str | None) -> tuple[float, float]:
    meta = shape.get("meta") or {}
    moved = meta.get(depth) if depth and side == meta.get("axis", "x") else None
    first, last = moved if moved is not None else (shape[f"{side}0"], shape[f"{side}1"])
    return float(first), float(last)


def _transform(axes: Any, holder: Mapping[str, Any]) -> Any:
    """Coordinates of the data, or of the panel where an axis is named `paper` or `x domain`."""
    from matplotlib.transforms import blended_transform_factory

    parts = []
    for side in "xy":
        name = str(holder.get(f"{side}ref") or side)
        parts.append(axes.transAxes if name == "paper" or name.endswith("domain") else axes.transData)
    return parts[0] if parts[0] is parts[1] else blended_transform_factory(*parts)


def draw_words(
    words: Sequence[Mapping[str, Any]], panels: Sequence[tuple[Panel, Any]], tops: Mapping[int, float]
) -> None:
    """Write annotations; a text over the top of a panel becomes its title.

    Args:
        words: annotations of Plotly.
        panels: with their axes.
        tops: by identity of the axes, how high shapes over the panel reach, as a share of its height.
    """
    for word in words:
        text = literal(str(word.get("text") or ""))
        titled = _titled(word, panels)
        if titled is not None:
            strip = tops.get(id(titled), 0.0)
            titled.set_title(text, **({"y": strip + 0.01, "pad": 2} if strip > 1 else {}))
            continue
        for panel, axes in panels:
            if _belongs(word, panel) or _whole(word):
                _write(axes, word, text)
                break


def _whole(word: Mapping[str, Any]) -> bool:
    return word.get("xref") == "paper" and word.get("yref") == "paper"


def _titled(word: Mapping[str, Any], panels: Sequence[tuple[Panel, Any]]) -> Any:
    """Axes of the panel over which a text stands, None where it stands elsewhere."""
    across, up = str(word.get("xref") or "x"), str(word.get("yref") or "y")
    x, y = word.get("x"), word.get("y")
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        return None
    if across.endswith("domain") and up.endswith("domain"):
        return next((axes for panel, axes in panels if _belongs(word, panel) and y >= 1), None)
    if not _whole(word):
        return None
    for panel, axes in panels:
        left, right = panel.across.get("domain") or (0, 1)
        top = (panel.up.get("domain") or (0, 1))[1]
        if left <= x <= right and top <= y <= top + NEAR:
            return axes
    return None


def _write(axes: Any, word: Mapping[str, Any], text: str) -> None:
    colour = (word.get("font") or {}).get("color") or "muted"
    anchors = [str(word.get(name) or "auto") for name in ("xanchor", "yanchor")]
    across, up = (ANCHORS.get(anchor, anchor) for anchor in anchors)
    x, y = (_moved(axes, word, side) for side in "xy")
    axes.text(
        x, y, text, transform=_transform(axes, word), ha=across, va=up, fontsize="x-small",
        color=resolve(str(colour)), rotation=-float(word.get("textangle") or 0), zorder=4,
    )  # fmt: skip


def _moved(axes: Any, word: Mapping[str, Any], side: str) -> float:
    """Place of a text; Plotly gives that on a logarithmic axis as a power of ten."""
    value = float(word[side])
    name = str(word.get(f"{side}ref") or side)
    logarithmic = getattr(axes, f"get_{side}scale")() == "log"
    return 10**value if logarithmic and name != "paper" and not name.endswith("domain") else value
