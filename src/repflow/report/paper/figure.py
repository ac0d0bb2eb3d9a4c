"""A figure of the page drawn for a paper: the same data, on matplotlib axes of a column's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.report.data.model import Figure, PageModel, Variant
from repflow.report.paper.panel import Panel, find_panels, scale, shares
from repflow.report.paper.shape import draw_shapes, draw_words
from repflow.report.paper.style import WIDTHS, need_matplotlib
from repflow.report.paper.text import literal
from repflow.report.paper.trace import Drawing, draw_trace

DEPTHS = ("auto", "relative", "absolute")
PANEL = 0.66
"""Height of a panel over its width."""
ROW = 1.45
"""Inches of a row where a figure has several columns."""
TALLEST = 8.5
"""Inches: figures higher than a page do not fit one."""
WORD = 0.16
"""Inches of a line of bars' names."""
LEGEND_ROW = 0.15
LONG = 28
"""Characters of a name on the left that leave too little of a column for the figure."""


def choose_width(variant: Variant, width: str = "auto") -> str:
    """Column or page: one panel fits a column, several beside each other need the page.

    Raises:
        InputError: No such width.
    """
    if width != "auto":
        if width not in WIDTHS:
            known = ("auto", *WIDTHS)
            raise InputError(teach(f"a width of {', '.join(known)}", repr(width), nearest(width, known)))
        return width
    beside = max(panel.column for panel in find_panels(variant)) > 0
    words = [str(word) for trace in variant.traces if _lies(trace) for word in trace["y"]]
    return "page" if beside or any(len(word) > LONG for word in words) else "column"


def draw(
    figure: Figure,
    variant: Variant,
    models: Sequence[PageModel] = (),
    *,
    width: str = "auto",
    depth: str = "auto",
) -> Any:
    """Draw one state of a figure.

    Args:
        figure: of the page.
        variant: which of its states.
        models: of the page, whose colours the traces take.
        width: `column` (3.25 inches), `page` (6.75 inches) or `auto`.
        depth: `relative` or `absolute` depth, or `auto`: absolute for one model, as on the page.

    Returns:
        A matplotlib figure; call within `matplotlib.rc_context(style("paper"))`.

    Raises:
        InputError: An unknown width or depth axis, or a trace that has no counterpart here.
    """
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if depth not in DEPTHS:
        raise InputError(teach(f"a depth axis of {', '.join(DEPTHS)}", repr(depth), nearest(depth, DEPTHS)))
    chosen_width = choose_width(variant, width)
    panels, inches = find_panels(variant, 3 if chosen_width == "page" else 2), WIDTHS[chosen_width]
    engine = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.04, hspace=0.05)
    canvas = Canvas(figsize=(inches, _height(variant, panels, inches)), layout=engine)
    FigureCanvasAgg(canvas)
    chosen = ("absolute" if len(models) == 1 else "relative") if depth == "auto" else depth
    along = chosen if figure.depth_axis else None
    drawings = [Drawing(axes, panel, models, along) for panel, axes in _place(canvas, panels)]
    _fill(variant, drawings, along)
    _colour_bars(canvas, drawings)
    if variant.layout.get("showlegend") is not False:
        _legend(canvas, drawings, inches)
    return canvas


def _height(variant: Variant, panels: Sequence[Panel], inches: float) -> float:
    """Inches: a fixed share of a panel's width for every row, more where bars lie below each other."""
    columns, rows = 1 + max(p.column for p in panels), 1 + max(p.row for p in panels)
    lying = [len(t.get("y") or []) for t in variant.traces if _lies(t)]
    if lying:
        stacked = variant.layout.get("barmode") in ("stack", "relative", "overlay")
        lines = max(lying) if stacked else max(max(lying), sum(lying) * 0.6)
        return min(TALLEST, max(1.2, WORD * lines + 0.7))
    each = PANEL * inches if columns == 1 else max(ROW, PANEL * inches / columns + 0.35)
    if any({"x", "y"} <= (t.get("meta") or {}).keys() for t in variant.traces):  # depth by depth is square
        each = 0.82 * inches / columns + 0.35
    names = {str(t.get("name")) for t in variant.traces if t.get("name") and t.get("showlegend") is not False}
    longest = sum(len(name) + 6 for name in names) * 0.055
    extra = LEGEND_ROW * (longest // inches) if len(names) > 1 else 0.0
    return min(TALLEST, rows * each + extra)


def _lies(trace: Mapping[str, Any]) -> bool:
    """Whether a trace is of bars or points whose names stand on the left."""
    words = bool(trace.get("y")) and all(isinstance(value, str) for value in trace["y"])
    return trace.get("type") in ("bar", "scatter", None) and words


def _place(canvas: Any, panels: Sequence[Panel]) -> list[tuple[Panel, Any]]:
    columns, rows = shares(panels)
    grid = canvas.add_gridspec(len(rows), len(columns), width_ratios=columns, height_ratios=rows)
    grid_axes: dict[tuple[int, int], Any] = {}
    placed = []
    for panel in panels:
        spot = (panel.row, panel.column)
        if spot in grid_axes:  # a second y axis over the first
            axes = grid_axes[spot].twinx()
            axes.spines["right"].set_visible(True)
        else:
            axes = grid_axes[spot] = canvas.add_subplot(grid[spot])
        placed.append((panel, axes))
    return placed


def _fill(variant: Variant, drawings: Sequence[Drawing], depth: str | None) -> None:
    """Draw traces, scales, shapes and words into the panels."""
    _draw_traces(variant, drawings)
    for drawing in drawings:
        scale(drawing.axes, drawing.panel)
        if depth:
            _depth_title(drawing, depth)
    _match(drawings)
    _outer_titles(drawings)
    placed = [(drawing.panel, drawing.axes) for drawing in drawings]
    tops = draw_shapes(list(variant.layout.get("shapes") or []), placed, depth)
    draw_words(list(variant.layout.get("annotations") or []), placed, tops)


def _draw_traces(variant: Variant, drawings: Sequence[Drawing]) -> None:
    by_axes = {(drawing.panel.x, drawing.panel.y): drawing for drawing in drawings}
    stacked = variant.layout.get("barmode") in ("stack", "relative")
    for (x, y), drawing in by_axes.items():
        bars = sum(t.get("type") == "bar" and _axes_of(t) == (x, y) for t in variant.traces)
        drawing.bars = (0, 1 if variant.layout.get("barmode") == "overlay" else max(bars, 1))
        drawing.stack = {} if stacked else None
    for place, trace in enumerate(variant.traces):
        draw_trace(by_axes[_axes_of(trace)], trace, place)


def _depth_title(drawing: Drawing, depth: str) -> None:
    """Name a depth axis that has no name, and give the lines of relative depth the whole of it and what lies behind."""
    for side in drawing.along:
        if not getattr(drawing.axes, f"get_{side}label")():
            getattr(drawing.axes, f"set_{side}label")("relative depth" if depth == "relative" else "state")
    if drawing.along == {"x"} and depth == "relative" and drawing.image is None:
        drawing.axes.set_xlim(-0.02, max(1.0, float(drawing.axes.dataLim.x1)) + 0.02)
    if drawing.along == {"x", "y"}:
        drawing.axes.set_box_aspect(1)


def _match(drawings: Sequence[Drawing]) -> None:
    """Panels whose axes match one another get one range that holds all of them."""
    for side, attribute in (("x", "across"), ("y", "up")):
        groups: dict[str, list[Drawing]] = {}
        for drawing in drawings:
            root = getattr(drawing.panel, attribute).get("matches") or getattr(drawing.panel, side)
            groups.setdefault(str(root), []).append(drawing)
        for members in groups.values():
            spans = [getattr(member.axes, f"get_{side}lim")() for member in members]
            if len(members) > 1 and all(low < high for low, high in spans):
                for member in members:
                    getattr(member.axes, f"set_{side}lim")(min(s[0] for s in spans), max(s[1] for s in spans))


def _outer_titles(drawings: Sequence[Drawing]) -> None:
    """Where panels share the name of an axis, only those at the edge carry it."""
    for side in "xy":
        names = {getattr(drawing.axes, f"get_{side}label")() for drawing in drawings} - {""}
        if len(names) != 1 or len(drawings) == 1:
            continue
        for drawing in drawings:
            panel = drawing.panel
            last = max(other.panel.row for other in drawings if other.panel.column == panel.column)
            edge = panel.row == last if side == "x" else panel.column == 0
            getattr(drawing.axes, f"set_{side}label")(next(iter(names)) if edge else "")


def _axes_of(trace: Mapping[str, Any]) -> tuple[str, str]:
    return str(trace.get("xaxis") or "x"), str(trace.get("yaxis") or "y")


def _colour_bars(canvas: Any, drawings: Sequence[Drawing]) -> None:
    """One bar for panels of the same limits and map, else one each."""
    scaled = [drawing for drawing in drawings if drawing.image is not None and drawing.show_scale]
    silent = [drawing for drawing in drawings if drawing.image is not None and not drawing.show_scale]
    limits = {(d.image.norm.vmin, d.image.norm.vmax) for d in (*scaled, *silent)}
    if len(limits) == 1 and len(scaled) <= 1 and scaled:
        groups = [(scaled[0], [drawing.axes for drawing in (*scaled, *silent)])]
    else:
        groups = [(drawing, [drawing.axes]) for drawing in scaled]
    for drawing, axes in groups:
        bar = canvas.colorbar(drawing.image, ax=axes, fraction=0.05, pad=0.02, aspect=22)
        bar.outline.set_linewidth(0.5)
        if drawing.colour_title:
            bar.set_label(literal(drawing.colour_title))


def _legend(canvas: Any, drawings: Sequence[Drawing], inches: float) -> None:
    """One legend under the panels, in as many columns as fit; none for a single name."""
    handles: dict[str, Any] = {}
    for drawing in drawings:
        for name, handle in drawing.handles.items():
            handles.setdefault(name, handle)
    if len(handles) < 2:
        return
    names = [literal(name) for name in handles]
    for columns in range(min(len(names), 6), 0, -1):
        legend = canvas.legend(list(handles.values()), names, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= (inches - 0.06) * canvas.dpi:
            return
        legend.remove()
