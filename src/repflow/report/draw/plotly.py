"""A figure drawn by Plotly in Python: `Result.plot()` and pictures beside runs. The page does the same in the browser.

Light ground, no switches: the first variant, or all of them with a menu. Every text of a figure is plain, so that what
Plotly would take for markup or mathematics is switched off here.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.visible import visible
from repflow.report.data.model import Figure, PageModel, Variant
from repflow.report.draw.palette import colourmap, css, model_dash, model_index, model_marker

BAND = "/0.18"
TEMPLATES = ("hovertemplate", "texttemplate")
_TAGS = re.compile(r"&lt;(/?(?:b|extra)|br ?/?)>")


def inert(text: object) -> str:
    """Text in which Plotly finds no markup: a model may be called `<b>`.

    >>> inert("a <b> & $x$")
    'a &lt;b> &amp; $x$&#8203;'
    """
    # a text that begins and ends with $ would be set as mathematics; the mark without width behind it prevents that
    plain = html.escape(visible(str(text)), quote=False).replace("&gt;", ">").replace("\n", "<br>")
    return plain + "&#8203;" if "$" in plain else plain


def draw(figure: Figure, models: Sequence[PageModel] = (), *, menu: bool = False) -> Any:
    """A figure as Plotly draws it.

    Args:
        figure: of the page, or of one metric.
        models: whose colours the traces take.
        menu: all variants with a menu, not the first alone.

    Returns:
        A plotly figure that shows itself.
    """
    variants = figure.variants if menu else figure.variants[:1]
    depth = "absolute" if len(models) <= 1 else "relative"
    parts = [[_trace(trace, models, depth) for trace in variant.traces] for variant in variants]
    if len(parts) > 1:
        parts = [[{**trace, "visible": place == 0} for trace in part] for place, part in enumerate(parts)]
    layout = {
        **_ready(variants[0].layout),
        "template": "plotly_white",
        "title": {"text": inert(figure.title)},
        "height": figure.height,
    }
    if len(parts) > 1:
        layout["updatemenus"] = [_menu(variants, [len(part) for part in parts])]
    # at once: Plotly copies its whole template into a figure that is changed or made of another
    plot = _figure_class()(data=[trace for part in parts for trace in part], layout=layout)
    for axis in _depth_axes(variants[0]) if figure.depth_axis else []:
        if not plot.layout[axis].title.text:
            plot.layout[axis].title.text = "state" if depth == "absolute" else "relative depth"
    return plot


def _menu(variants: Sequence[Variant], counts: Sequence[int]) -> dict[str, Any]:
    def shown(place: int) -> list[bool]:
        return [at == place for at, count in enumerate(counts) for _ in range(count)]

    buttons = [
        {"label": inert(", ".join(variant.when.values())), "method": "update", "args": [{"visible": shown(place)}]}
        for place, variant in enumerate(variants)
    ]
    return {"buttons": buttons, "x": 1.0, "xanchor": "right", "y": 1.15}


def _depth_axes(variant: Variant) -> list[str]:
    axes: dict[str, None] = {}
    for trace in variant.traces:
        for side in ("x", "y"):
            if (trace.get("meta") or {}).get(side):
                name = str(trace.get(f"{side}axis") or side)
                axes[f"{side}axis{name[1:]}"] = None
    return list(axes)


def _trace(trace: Mapping[str, Any], models: Sequence[PageModel], depth: str) -> dict[str, Any]:
    plain: dict[str, Any] = _ready(trace)
    meta = trace.get("meta") or {}
    for side in ("x", "y"):
        if meta.get(side):
            plain[side] = list(meta[side][depth])
    index = model_index(trace, models) if isinstance(meta.get("model"), str) else None
    if index is None or trace.get("type", "scatter") == "heatmap":
        return plain
    colour = css(f"model:{index}")
    plain["marker"] = {"color": colour, **plain.get("marker", {})}
    if trace.get("type") != "bar":
        plain["line"] = {"color": colour, "dash": model_dash(index), **plain.get("line", {})}
        plain["marker"] = {"symbol": model_marker(index), **plain["marker"]}
        if "fill" in plain:
            plain.setdefault("fillcolor", css(f"model:{index}{BAND}"))
    return plain


def _array(values: Sequence[Any]) -> Any:
    """Numbers as an array in which gaps are NaN, so that they can be computed with; names as texts."""
    if any(isinstance(value, str) for value in values):
        return [inert(value) if isinstance(value, str) else value for value in values]
    return np.array(values, dtype=np.float64)


def _ready(value: Any, key: str = "") -> Any:
    """A copy in which names of the palette are colours and texts hold no markup."""
    if isinstance(value, Mapping):
        return {name: _ready(part, str(name)) for name, part in value.items() if name != "meta"}
    if isinstance(value, list | tuple):
        return _array(value) if key in ("x", "y", "z") else [_ready(part, key) for part in value]
    if not isinstance(value, str):
        return value
    if key == "colorscale":
        return [list(stop) for stop in colourmap(value)]
    if key.endswith("color"):
        return css(value)
    return _TAGS.sub(r"<\1>", inert(value)) if key in TEMPLATES else inert(value)


_sent = {"plotly.js": False}


@functools.cache
def _figure_class() -> Any:
    """Plotly figures that show themselves as HTML, so that they are there in whatever is made of a notebook.

    Plotly's own way leaves it to the notebook to have plotly.js; nbconvert's pages have none and stay blank. Its script
    comes with the first figure of a session, 4.5 MB, and serves all others.
    """
    import plotly.graph_objects as go

    class NotebookFigure(go.Figure):  # type: ignore[misc]
        """A figure of `Result.plot`."""

        _ipython_display_ = None  # it would come before the bundle below

        def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, str]:
            script, _sent["plotly.js"] = not _sent["plotly.js"], True
            return {"text/html": self.to_html(full_html=False, include_plotlyjs=script)}

    return NotebookFigure
