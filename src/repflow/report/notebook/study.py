"""Figures of studies that have a place on the page: drawn in a notebook from the same data as there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repflow.core.results import Result
from repflow.report.data.context import Context
from repflow.report.data.labels import Labels, page_models
from repflow.report.data.model import Content, Figure, PageModel, Variant
from repflow.report.data.runs import StoredRun, study_of
from repflow.report.draw.palette import INK, colourmap, faded, kind_colour, model_colour, model_dash, model_marker
from repflow.report.notebook.axis import shown
from repflow.report.sections import section_of

FADED = 0.18


def study_figure(result: Result) -> Any:
    """The first figure that the page draws of a result of theory, dynamics or recency; None of another result."""
    row = section_of(study_of(result))
    if row is None:
        return None
    run = StoredRun("", Labels([result]).of(result)[0], study_of(result), result)
    models = page_models([(run.label, run.facts)])
    content = row.content([run], Context(models))
    figure = _first(content) if content is not None else None
    return None if figure is None else page_figure(figure, figure.variants[0], models)


def _first(content: Content) -> Figure | None:
    return next((block for block in content.blocks if isinstance(block, Figure) and block.variants), None)


def page_figure(figure: Figure, variant: Variant, models: Sequence[PageModel]) -> Any:
    """One state of a figure of the page as a plotly figure, on white."""
    import plotly.graph_objects as go

    indices = {model.label: model.colour for model in models}
    layout = _coloured(dict(variant.layout))
    layout |= {"template": "plotly_white", "title": {"text": shown(figure.title)}}
    depth = "absolute" if len(models) <= 1 else "relative"
    made = go.Figure(data=[_trace(trace, indices, depth) for trace in variant.traces])
    made.update_layout(layout)
    for axis in _depth_axes(variant) if figure.depth_axis else []:
        if not made.layout[axis].title.text:
            made.layout[axis].title.text = "state" if depth == "absolute" else "relative depth"
    return made


def _depth_axes(variant: Variant) -> list[str]:
    found: dict[str, None] = {}
    for trace in variant.traces:
        for side in ("x", "y"):
            if (trace.get("meta") or {}).get(side):
                name = str(trace.get(f"{side}axis") or side)
                found[f"{side}axis{name[1:]}"] = None
    return list(found)


def _trace(trace: Mapping[str, Any], indices: Mapping[str, int], depth: str) -> dict[str, Any]:
    made = _coloured({key: value for key, value in trace.items() if key != "meta"})
    meta = trace.get("meta") or {}
    for side in ("x", "y"):
        if meta.get(side):
            made[side] = list(meta[side][depth])
    owner = meta.get("model")
    index = indices.get(owner) if isinstance(owner, str) else None
    if index is not None and trace.get("type", "scatter") != "heatmap":
        colour = model_colour(index)
        if trace.get("type") == "bar":
            made["marker"] = {"color": colour, **made.get("marker", {})}
        else:
            made["line"] = {"color": colour, "dash": model_dash(index), **made.get("line", {})}
            made["marker"] = {"color": colour, "symbol": model_marker(index), **made.get("marker", {})}
            if "fill" in made:
                made.setdefault("fillcolor", faded(colour, FADED))
    return {key: shown(value) if key == "name" else value for key, value in made.items()}


def _coloured(value: Any, key: str = "") -> Any:
    """A copy in which names of the palette are colours and texts hold no markup."""
    if isinstance(value, Mapping):
        return {name: _coloured(part, str(name)) for name, part in value.items() if name != "meta"}
    if isinstance(value, list | tuple) and key not in ("x", "y", "z", "customdata"):
        return [_coloured(part, key) for part in value]
    if isinstance(value, str):
        if key in ("color", "fillcolor"):
            return _colour(value)
        if key == "colorscale":
            return [list(stop) for stop in colourmap(value)]
        if key in ("text", "title"):
            return shown(value).replace("\n", "<br>")
    return value


def _colour(name: str) -> str:
    base, _, opacity = name.partition("/")
    found = None
    if base.startswith("model:"):
        found = model_colour(int(base[6:]))
    elif base.startswith("kind:"):
        found = kind_colour(base[5:])
    elif base in INK:
        found = INK[base][0]
    if found is None:
        return name
    return faded(found, float(opacity)) if opacity else found
