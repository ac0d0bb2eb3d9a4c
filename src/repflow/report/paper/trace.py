"""One Plotly trace of a page drawn on matplotlib axes: lines, bands, points with intervals, bars, heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach
from repflow.report.data.model import PageModel
from repflow.report.draw.palette import Colour, model_dash, model_index, model_marker, resolve
from repflow.report.paper.colour import GAP, colour_map, trace_colour
from repflow.report.paper.panel import Panel, title_text
from repflow.report.paper.text import literal, shortened

DASHES: dict[str, Any] = {
    "solid": "-",
    "dash": (0, (4, 1.8)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (4, 1.4, 1, 1.4)),
    "longdash": (0, (7, 2)),
    "longdashdot": (0, (7, 2, 1.5, 2)),
}
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P", "x": "X",
    "star": "*", "x-thin": "x", "circle-open": "o", "square-open": "s", "diamond-open": "D", "line-ns": "|",
    "line-ew": "_", "hexagon": "h", "pentagon": "p", "triangle-up-open": "^", "triangle-down-open": "v",
}  # fmt: skip
STEPS = {"hv": "steps-post", "vh": "steps-pre", "hvh": "steps-mid"}
POINT = 0.5
"""Points on paper for a pixel of the page's markers."""
MOST_MARKERS = 40
"""Points of a line up to which each is marked; beyond, markers would hide it."""


@dataclass
class Drawing:
    """What is shared between the traces of one panel.

    Attributes:
        axes: matplotlib's.
        panel: scales and words of the axes.
        models: of the page, whose colours traces take.
        depth: which depth axis to take from `meta["x"]`, None for the trace's own x.
        along: sides, x or y, on which a trace had depth.
        handles: what the legend shows, by name.
        last: x and y of the last line, to which a band is filled.
        bars: how many bars were drawn at each place, and how many there are.
        stack: height reached at each place where bars stand on each other, None where they stand beside.
        image: the heat map, where the panel has one.
        colour_title: what its colours mean.
        show_scale: whether it has a colour bar of its own.
    """

    axes: Any
    panel: Panel
    models: Sequence[PageModel]
    depth: str | None = None
    handles: dict[str, Any] = field(default_factory=dict)
    last: tuple[np.ndarray, np.ndarray] | None = None
    bars: tuple[int, int] = (0, 1)
    stack: dict[float, float] | None = None
    image: Any = None
    colour_title: str = ""
    show_scale: bool = True
    along: set[str] = field(default_factory=set)


def draw_trace(drawing: Drawing, trace: Mapping[str, Any], place: int) -> None:
    """Draw one trace.

    Raises:
        InputError: A kind of trace that has no counterpart here.
    """
    kinds: dict[str, Callable[[Drawing, Mapping[str, Any], int], None]] = {
        "scatter": _scatter, "scattergl": _scatter, "heatmap": _heat_map, "bar": _bar, "image": _picture,
    }  # fmt: skip
    kind = str(trace.get("type") or "scatter")
    if kind not in kinds:
        raise InputError(teach(f"a trace of {', '.join(kinds)}", repr(kind), nearest(kind, kinds)))
    if trace.get("visible") in (False, "legendonly"):
        return
    kinds[kind](drawing, trace, place)


def numbers(values: Any) -> np.ndarray:
    """Floats with NaN for what is missing; any nesting."""
    return np.asarray(
        [[_number(v) for v in row] if isinstance(row, list | tuple | np.ndarray) else _number(row) for row in values],
        dtype=np.float64,
    )


def _number(value: Any) -> float:
    return float("nan") if value is None or isinstance(value, str) else float(value)


def _positions(drawing: Drawing, trace: Mapping[str, Any], side: str, length: int) -> np.ndarray:
    meta = (trace.get("meta") or {}).get(side) or {}
    own = trace.get(side)
    values = own
    if drawing.depth and drawing.depth in meta:
        values = meta[drawing.depth]
        drawing.along.add(side)
    if values is None:
        values = list(range(length))
    placed = drawing.panel.place_x if side == "x" else drawing.panel.place_y
    return np.asarray(placed(list(values)), dtype=np.float64)


def _scatter(drawing: Drawing, trace: Mapping[str, Any], place: int) -> None:
    count = max(len(trace.get(side) or []) for side in "yx")
    x, y = (_positions(drawing, trace, side, count) for side in "xy")
    colour = trace_colour(trace, drawing.models, place)
    mode = str(trace.get("mode") or ("lines+markers" if count < 20 else "lines"))
    _fill(drawing, trace, x, y, colour)
    drawing.last = (x, y)
    line, width = trace.get("line") or {}, (trace.get("line") or {}).get("width")
    _error_bars(drawing, trace, x, y, colour)
    if "text" in mode:
        for at, up, text in zip(x, y, trace.get("text") or [], strict=False):
            drawing.axes.text(at, up, literal(str(text or "")), fontsize="x-small", ha="center", va="bottom")
    if "lines" not in mode and "markers" not in mode:
        return
    if width == 0 and "markers" not in mode:
        if trace.get("name") and trace.get("showlegend") is True and trace.get("fill"):
            from matplotlib.patches import Patch

            _name(drawing, trace, Patch(facecolor=_band_colour(trace, colour), edgecolor="none"))
        return
    line_drawn = drawing.axes.plot(x, y, **_line_style(drawing, trace, mode, count, colour, line))[0]
    if line_drawn.get_marker() == "none":
        lone = _lone(y)
        drawing.axes.plot(x[lone], y[lone], linestyle="none", marker=".", color=colour, zorder=3)
    _name(drawing, trace, line_drawn)


def _lone(values: np.ndarray) -> np.ndarray:
    """Where a value stands between two gaps: a line would not show it."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _line_style(
    drawing: Drawing, trace: Mapping[str, Any], mode: str, count: int, colour: Colour, line: Mapping[str, Any]
) -> dict[str, Any]:
    index = model_index(trace, drawing.models)
    marker = trace.get("marker") or {}
    symbol = marker.get("symbol")
    shape = MARKERS.get(str(symbol or model_marker(index or 0)), "o")
    marked = "markers" in mode and ("lines" not in mode or count <= MOST_MARKERS)
    style: dict[str, Any] = {
        "color": colour,
        "linestyle": DASHES.get(str(line.get("dash") or model_dash(index or 0)), "-") if "lines" in mode else "none",
        "marker": shape if marked else "none",
        "drawstyle": STEPS.get(str(line.get("shape")), "default"),
        "alpha": trace.get("opacity"),
        "zorder": 3,
    }
    if str(symbol).endswith("-open"):
        style["markerfacecolor"] = "none"
    if marker.get("size") and "lines" not in mode:  # a lone point is as large as on the page, beside its lines of 2
        style["markersize"] = POINT * float(marker["size"])
    edge = (marker.get("line") or {}).get("color")
    if edge:
        style |= {"markeredgecolor": resolve(str(edge)), "markeredgewidth": 0.5}
    if line.get("width") is not None and line["width"] < 2:  # the page's lines are 2 wide: thinner ones are meant so
        style["linewidth"] = 0.4 * float(line["width"]) + 0.3
    return style


def _fill(drawing: Drawing, trace: Mapping[str, Any], x: np.ndarray, y: np.ndarray, colour: Colour) -> None:
    fill = trace.get("fill")
    if not fill or fill == "none":
        return
    style = {"color": _band_colour(trace, colour), "linewidth": 0, "zorder": 1.5}
    step = "post" if (trace.get("line") or {}).get("shape") == "hv" else None
    if fill == "tozeroy":
        drawing.axes.fill_between(x, 0, y, step=step, **style)
    elif fill == "toself":
        _polygons(drawing.axes, x, y, style)
    elif fill == "tonexty" and drawing.last is not None:
        before, low = drawing.last
        if len(before) == len(x) and np.array_equal(before, x, equal_nan=True):
            drawing.axes.fill_between(x, low, y, step=step, **style)
        else:
            around = np.concatenate([before, x[::-1]]), np.concatenate([low, y[::-1]])
            _polygons(drawing.axes, *around, style)


def _polygons(axes: Any, x: np.ndarray, y: np.ndarray, style: Mapping[str, Any]) -> None:
    """Closed areas, one between any two gaps."""
    gaps = np.flatnonzero(~(np.isfinite(x) & np.isfinite(y)))
    for part in np.split(np.arange(len(x)), gaps):
        finite = [i for i in part if np.isfinite(x[i]) and np.isfinite(y[i])]
        if len(finite) > 2:
            axes.fill(x[finite], y[finite], **style)


def _band_colour(trace: Mapping[str, Any], colour: Colour) -> Colour:
    own = trace.get("fillcolor")
    return resolve(own) if isinstance(own, str) else (*colour[:3], 0.2)


def _name(drawing: Drawing, trace: Mapping[str, Any], handle: Any) -> None:
    name = str(trace.get("name") or "")
    if name and trace.get("showlegend") is not False:
        drawing.handles.setdefault(shortened(name), handle)


def _error_bars(drawing: Drawing, trace: Mapping[str, Any], x: np.ndarray, y: np.ndarray, colour: Colour) -> None:
    for side in "xy":
        bar = trace.get(f"error_{side}") or {}
        if bar.get("array") is None or bar.get("visible") is False:
            continue
        above = numbers(bar["array"])
        below = numbers(bar["arrayminus"]) if bar.get("arrayminus") is not None else above
        sizes = np.clip(np.stack([below, above]), 0, None)
        present = np.isfinite(sizes).all(axis=0) & np.isfinite(x) & np.isfinite(y)
        if present.any():
            drawing.axes.errorbar(
                x[present], y[present], **{f"{side}err": sizes[:, present]},
                fmt="none", ecolor=colour, elinewidth=0.8, capsize=1.5, zorder=2.5,
            )  # fmt: skip


def _bar(drawing: Drawing, trace: Mapping[str, Any], place: int) -> None:
    lying = trace.get("orientation") == "h"
    sides = ("y", "x") if lying else ("x", "y")
    along = _positions(drawing, trace, sides[0], len(trace.get(sides[1]) or []))
    height = numbers(trace.get(sides[1]) or [])
    own = (trace.get("marker") or {}).get("color")
    several = [resolve(str(one)) for one in own] if isinstance(own, list | tuple) else None
    colour = several or trace_colour(trace, drawing.models, place)
    number, count = drawing.bars
    whole = float(trace["width"]) if isinstance(trace.get("width"), int | float) else 0.8
    base = numbers(trace["base"]) if isinstance(trace.get("base"), list | tuple) else np.zeros(len(height))
    if drawing.stack is not None:
        base = np.array([drawing.stack.get(float(at), 0.0) for at in along])
        drawing.stack.update({float(at): b + np.nan_to_num(h) for at, b, h in zip(along, base, height, strict=True)})
        thick, shifted = whole, along
    else:
        thick = whole / count
        shifted = along + (number - (count - 1) / 2) * thick
    draw = drawing.axes.barh if lying else drawing.axes.bar
    first = {"left" if lying else "bottom": base}
    bars = draw(shifted, height, thick * 0.94, color=colour, zorder=2, alpha=trace.get("opacity"), **first)
    drawing.bars = (number + 1, count)
    x, y = (base + height, shifted) if lying else (shifted, base + height)
    _error_bars(drawing, trace, x, y, resolve("ink"))
    _name(drawing, trace, bars[0] if len(bars) else bars)


def _heat_map(drawing: Drawing, trace: Mapping[str, Any], place: int) -> None:
    del place
    values = numbers(trace["z"])
    if values.ndim != 2:
        raise InputError(teach("a heat map of rows of equal length", f"shape {values.shape}", "fill up with None"))
    x = _edges(_positions(drawing, trace, "x", values.shape[1]), values.shape[1])
    y = _edges(_positions(drawing, trace, "y", values.shape[0]), values.shape[0])
    low, high = _limits(trace, values)
    drawing.axes.set_facecolor(GAP)
    # cells as pictures inside a PDF stay small and have no white seams between them
    drawing.image = drawing.axes.pcolormesh(
        x, y, np.ma.masked_invalid(values), cmap=colour_map(trace.get("colorscale")), vmin=low, vmax=high,
        shading="flat", rasterized=True, linewidth=0,
    )  # fmt: skip
    bar = trace.get("colorbar") or {}
    drawing.colour_title = title_text(bar)
    drawing.show_scale = trace.get("showscale") is not False
    drawing.axes.spines[["top", "right"]].set_visible(True)


def _picture(drawing: Drawing, trace: Mapping[str, Any], place: int) -> None:
    """An image in its own colours, its first row at the top."""
    del place
    pixels = np.asarray(trace["z"], dtype=np.uint8)
    drawing.axes.imshow(pixels, interpolation="nearest", origin="upper")


def _limits(trace: Mapping[str, Any], values: np.ndarray) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low = float(finite.min()) if finite.size else 0.0
    high = float(finite.max()) if finite.size else 1.0
    if trace.get("zmid") is not None:
        middle = float(trace["zmid"])
        reach = max(high - middle, middle - low)
        low, high = middle - reach, middle + reach
    low = low if trace.get("zmin") is None else float(trace["zmin"])
    high = high if trace.get("zmax") is None else float(trace["zmax"])
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _edges(centres: np.ndarray, count: int) -> np.ndarray:
    """Edges of cells around their centres; as given where there is one more of them than cells."""
    if len(centres) == count + 1:
        return centres
    if count == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    between = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - between[0]], between, [2 * centres[-1] - between[-1]]])
