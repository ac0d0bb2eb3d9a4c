"""Panels of a figure: which axes its traces use, how they lie in rows and columns, and how each is scaled."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from repflow.report.data.model import Variant
from repflow.report.paper.text import literal

WHOLE = (0.0, 1.0)
CROWDED = 36
"""Characters of all names along an x axis from which on they are written aslant."""
HIGH = 28
"""Characters that the title of a y axis has room for."""
THOUSAND = 1000


@dataclass
class Panel:
    """A pair of axes.

    Attributes:
        x: Plotly's name of its x axis in traces: x, x2 ...
        y: that of its y axis.
        across: x axis of the layout.
        up: y axis of the layout.
        row: place from the top.
        column: place from the left.
        names: words of a categorical x axis, in order; empty for numbers.
        sides: words of a categorical y axis.
    """

    x: str
    y: str
    across: Mapping[str, Any]
    up: Mapping[str, Any]
    row: int = 0
    column: int = 0
    names: list[str] = field(default_factory=list)
    sides: list[str] = field(default_factory=list)

    def place_x(self, values: Sequence[Any]) -> list[float]:
        """Numbers of x values; words become their place."""
        return _placed(values, self.names)

    def place_y(self, values: Sequence[Any]) -> list[float]:
        """Numbers of y values; words become their place."""
        return _placed(values, self.sides)


def _placed(values: Sequence[Any], words: list[str]) -> list[float]:
    placed = []
    for value in values:
        if isinstance(value, str):
            if value not in words:
                words.append(value)
            placed.append(float(words.index(value)))
        else:
            placed.append(float("nan") if value is None else float(value))
    return placed


def find_panels(variant: Variant, most: int = 3) -> list[Panel]:
    """Panels in the order in which traces first use them, with rows and columns from the axes' domains or the grid.

    Args:
        variant: whose traces name the axes.
        most: panels beside each other where the page leaves their number open.
    """
    layout, by_axes = variant.layout, dict[tuple[str, str], Panel]()
    for trace in variant.traces:
        key = (str(trace.get("xaxis") or "x"), str(trace.get("yaxis") or "y"))
        if key not in by_axes:
            by_axes[key] = Panel(*key, axis_of(layout, key[0]), axis_of(layout, key[1]))
    panels = list(by_axes.values())
    if not panels:
        return [Panel("x", "y", axis_of(layout, "x"), axis_of(layout, "y"))]
    grid = layout.get("grid") or {}
    if grid.get("columns") and not any("domain" in panel.across for panel in panels):
        columns = int(grid["columns"])
        if int(grid.get("rows") or 1) > 1:  # small multiples, whose rows the page itself fits to its width
            columns = 2 if len(panels) == 4 else min(most, len(panels))
        for place, panel in enumerate(panels):
            panel.row, panel.column = divmod(place, columns)
        return panels
    lefts = sorted({_domain(panel.across)[0] for panel in panels})
    tops = sorted({_domain(panel.up)[1] for panel in panels}, reverse=True)
    for panel in panels:
        panel.row, panel.column = tops.index(_domain(panel.up)[1]), lefts.index(_domain(panel.across)[0])
    return panels


def axis_of(layout: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The layout of an axis that traces call x, y2 ...; an axis that matches another takes what it lacks from it."""
    own = dict(layout.get(f"{name[0]}axis{name[1:]}") or {})
    other = own.get("matches")
    if isinstance(other, str) and other != name:
        keys = ("type", "range", "autorange")
        own = {key: value for key, value in axis_of(layout, other).items() if key in keys} | own
    return own


def _domain(axis: Mapping[str, Any]) -> tuple[float, float]:
    low, high = axis.get("domain") or WHOLE
    return round(float(low), 6), round(float(high), 6)


def shares(panels: Sequence[Panel]) -> tuple[list[float], list[float]]:
    """Relative widths of the columns and heights of the rows."""
    columns = [max(_size(p.across) for p in panels if p.column == c) for c in range(1 + max(p.column for p in panels))]
    rows = [max(_size(p.up) for p in panels if p.row == r) for r in range(1 + max(p.row for p in panels))]
    return columns, rows


def _size(axis: Mapping[str, Any]) -> float:
    low, high = _domain(axis)
    return max(high - low, 1e-3)


def scale(axes: Any, panel: Panel) -> None:
    """Give matplotlib axes the titles, types, ranges and ticks of a panel."""
    for side, axis, words in (("x", panel.across, panel.names), ("y", panel.up, panel.sides)):
        text = title_text(axis)
        if text:
            getattr(axes, f"set_{side}label")(literal(_wrapped(text) if side == "y" else text))
        if axis.get("type") == "log":
            getattr(axes, f"set_{side}scale")("log", nonpositive="mask")
        _ticks(axes, side, axis, words)
        _range(axes, side, axis)
        if axis.get("type") == "log" and axis.get("tickvals") is None:
            _log_ticks(axes, side)
        if axis.get("visible") is False:
            getattr(axes, f"get_{side}axis")().set_visible(False)
        elif axis.get("showticklabels") is False:
            axes.tick_params(axis=side, **{"labelbottom" if side == "x" else "labelleft": False})
    if panel.up.get("scaleanchor") or panel.across.get("scaleanchor"):
        axes.set_aspect("equal", adjustable="box")


def _wrapped(text: str) -> str:
    r"""A title in lines that a panel is high enough for.

    >>> _wrapped("ln influence of a long name\nover that of b")
    'ln influence of a long name\nover that of b'
    >>> _wrapped("token similarity of every single pair")
    'token similarity of every\nsingle pair'
    """
    return "\n".join(textwrap.fill(line, HIGH, break_on_hyphens=False) for line in text.split("\n"))


def title_text(holder: Mapping[str, Any]) -> str:
    """Text of a title, which Plotly takes as a string or as {"text": ...}."""
    title = holder.get("title") or ""
    return str(title.get("text") or "") if isinstance(title, Mapping) else str(title)


def _ticks(axes: Any, side: str, axis: Mapping[str, Any], words: Sequence[str]) -> None:
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator, PercentFormatter

    own = getattr(axes, f"get_{side}axis")()
    if axis.get("tickvals") is not None:
        values = [float(value) for value in axis["tickvals"]]
        texts = [literal(str(text)) for text in axis.get("ticktext") or [f"{value:g}" for value in values]]
        own.set_ticks(values, labels=texts, minor=False)
        own.set_ticks([], minor=True)
        return
    if words:
        long = side == "x" and sum(len(word) for word in words) > CROWDED
        turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {}
        own.set_ticks(range(len(words)), labels=[literal(word.replace("\n", " ")) for word in words], **turned)
        return
    if axis.get("type") == "log":
        return  # the last range decides, see `_log_ticks`
    if axis.get("dtick") == 1:
        own.set_major_locator(MaxNLocator(nbins=8, integer=True))
    form = str(axis.get("tickformat") or "")
    if form.endswith("%"):
        own.set_major_formatter(PercentFormatter(1.0, decimals=int(form.strip(".%") or 0)))
    elif form.startswith(".") and form.endswith("f"):
        own.set_major_formatter(FormatStrFormatter(f"%{form}"))


def _log_ticks(axes: Any, side: str) -> None:
    """Few labels on a logarithmic axis: powers of ten, or where it spans less than two of them round numbers."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    own = getattr(axes, f"get_{side}axis")()
    low, high = sorted(getattr(axes, f"get_{side}lim")())
    own.set_minor_formatter(NullFormatter())
    if low > 0 and high < 100 * low:
        subs = (1.0, 2.0, 5.0) if high > 4 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
        own.set_major_locator(LogLocator(subs=subs, numticks=6))
        large = EngFormatter(sep="")  # 4.7M, but 0.1 and not 100m
        own.set_major_formatter(FuncFormatter(lambda value, _: large(value) if value >= THOUSAND else f"{value:g}"))


def _range(axes: Any, side: str, axis: Mapping[str, Any]) -> None:
    span = axis.get("range")
    if span is not None and None not in span:
        low, high = (float(value) for value in span)
        if axis.get("type") == "log":  # Plotly writes the ends of a logarithmic axis as powers of ten
            low, high = 10**low, 10**high
        getattr(axes, f"set_{side}lim")(low, high)
    elif axis.get("rangemode") == "tozero" and axis.get("type") != "log":
        getattr(axes, f"set_{side}lim")(**{"bottom" if side == "y" else "left": 0})
    if axis.get("autorange") == "reversed":
        low, high = getattr(axes, f"get_{side}lim")()
        getattr(axes, f"set_{side}lim")(max(low, high), min(low, high))
