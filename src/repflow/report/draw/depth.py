"""Depth on the page: where states and blocks of a run stand, the strip of kinds of a hybrid, numbers of fair length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from repflow.report.data.comparable import basis
from repflow.report.data.labels import page_models
from repflow.report.data.model import Figure, PageModel, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import gaps, joined
from repflow.report.draw.number import short

STRIP = 0.045
"""Height of a strip of kinds, as a share of the chart's."""
STEP = 1.25 * STRIP
"""From one strip to the next."""
ABOVE = 1.01
"""Foot of the first strip: outside the panel, so that it hides no data."""
LABELLED = 0.15
"""Share of the depth from which on a piece of the strip is labelled."""
LETTERS = 46
"""Letters of a label over the whole depth, on a phone; a longer name of a model is left to the caption."""


def depth(run: StoredRun, axis: str, count: int) -> dict[str, list[float]]:
    """Places of a run's states or blocks on the relative and on the absolute depth axis.

    State s of the residual stream stands at s of L, block l at l of L, counted from 1. A branch stands at its block.
    """
    blocks = max(run.layers, 1)
    places: np.ndarray
    if not run.states.startswith("branch"):  # the first entry stands before the first block
        places = np.arange(count) if axis == "state" else np.arange(1, count + 1)
    else:
        own = run.result.provenance.get("branch_layers") or list(range(run.layers))
        numbered = np.asarray(own, dtype=np.float64) + 1
        places = numbered[:count] if axis == "state" else numbered[1 : count + 1]
        if len(places) != count:  # not what the run says about itself: at least in order
            places = np.arange(1, count + 1)
    return {"relative": short(places / blocks), "absolute": short(places)}


def after_last(run: StoredRun) -> dict[str, list[float]]:
    """Place of the final norm's output, behind the last block."""
    return {"relative": [1 + min(0.04, 1 / max(run.layers, 1))], "absolute": [run.layers + 1.0]}


def gap_note(values: np.ndarray, run: StoredRun, axis: str) -> str:
    """A sentence that names the states or blocks where nothing is finite, "" where there are none."""
    places = depth(run, axis, len(values))["absolute"]
    return gaps(run.label, values, "state" if axis == "state" else "layer", places=places)


def hybrids(models: Sequence[PageModel]) -> list[PageModel]:
    """Models that mix kinds of block."""
    return [model for model in models if len(set(model.kinds)) > 1]


def pieces(kinds: Sequence[str]) -> list[tuple[str, int, int]]:
    """Runs of equal blocks: kind, first and last block, counted from 1.

    >>> pieces(["ssm", "ssm", "attention"])
    [('ssm', 1, 2), ('attention', 3, 3)]
    """
    spans, at = [], 0
    for kind, members in groupby(kinds):
        size = len(list(members))
        spans.append((kind, at + 1, at + size))
        at += size
    return spans


def strip(
    model: PageModel,
    *,
    axis: str = "x",
    place: int = 0,
    panel: str = "",
    named: bool = False,
    cells: bool = False,
) -> list[dict[str, Any]]:
    """Shapes that colour the depth axis of a hybrid by the kind of its blocks.

    Args:
        model: the hybrid.
        axis: which axis is depth.
        place: how many strips lie below this one.
        panel: number of the panel's axes, "" for the first.
        named: with the model's label on the widest piece, where several strips lie on one axis.
        cells: the chart has a cell per block, block l around l, and not states with block l between l - 1 and l.
    """
    other = "y" if axis == "x" else "x"
    low = ABOVE + place * STEP
    shapes = []
    for kind, first, last in pieces(model.kinds):
        absolute = [first - 0.5, last + 0.5] if cells else [first - 1.0, float(last)]
        relative = [value / model.layers for value in absolute]
        shape: dict[str, Any] = {
            "type": "rect",
            f"{axis}ref": f"{axis}{panel}",
            f"{other}ref": f"{other}{panel} domain",
            f"{axis}0": relative[0],
            f"{axis}1": relative[1],
            f"{other}0": low,
            f"{other}1": low + STRIP,
            "fillcolor": f"kind:{kind}",
            "line": {"width": 0},
            "layer": "above",
            "meta": {"model": model.label, "axis": axis, "relative": relative, "absolute": absolute},
        }
        if axis == "x" and relative[1] - relative[0] >= LABELLED:
            text = f"{model.label}: {kind}" if named and (first, last) == _widest(model.kinds) else kind
            text = text if len(text) <= LETTERS * (relative[1] - relative[0]) else kind
            shape["label"] = {"text": text, "font": {"size": 10, "color": f"on:{kind}"}}
        shapes.append(shape)
    return shapes


def _widest(kinds: Sequence[str]) -> tuple[int, int]:
    _, first, last = max(pieces(kinds), key=lambda piece: piece[2] - piece[1])
    return first, last


def strips(models: Sequence[PageModel]) -> dict[str, Any]:
    """Layout of one chart with a strip for every hybrid, the first one lowest; {} without hybrids."""
    mixed = hybrids(models)
    differ = len({tuple(model.kinds) for model in mixed}) > 1
    shapes = [s for place, model in enumerate(mixed) for s in strip(model, place=place, named=differ)]
    # above the chart, where they hide no line; the legend stands above them
    return {"shapes": shapes, "legend": {"y": ABOVE + (len(mixed) + 0.5) * STEP}} if shapes else {}


def with_strips(layout: Mapping[str, Any], shapes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What strips change in the layout of panels: the shapes, and headings above them."""
    if not shapes:
        return {}
    return {
        "shapes": list(shapes),
        "annotations": [{**word, "y": ABOVE + STEP} for word in layout["annotations"]],
    }


def kind_keys(models: Sequence[PageModel]) -> list[dict[str, Any]]:
    """Entries of the legend for the colours of the strips."""
    kinds = dict.fromkeys(kind for model in hybrids(models) for kind in model.kinds)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": kind,
            "x": [None],
            "y": [None],
            "hoverinfo": "skip",
            "marker": {"symbol": "square", "size": 10, "color": f"kind:{kind}"},
            "meta": {"model": None},
        }
        for kind in kinds
    ]


def _drawn(models: Sequence[PageModel], variants: Sequence[Variant]) -> list[PageModel]:
    """Models that a figure draws in any of its variants."""
    metas = [trace.get("meta", {}).get("model") for variant in variants for trace in variant.traces]
    labels = {label for meta in metas for label in (meta if isinstance(meta, list | tuple) else [meta])}
    return [model for model in models if model.label in labels]


def strip_note(models: Sequence[PageModel], variants: Sequence[Variant] | None = None) -> str:
    """The strips in words; with variants, of the models that they draw."""
    sentences = []
    for model in hybrids(models if variants is None else _drawn(models, variants)):
        by_kind: dict[str, list[str]] = {}
        for kind, first, last in pieces(model.kinds):
            by_kind.setdefault(kind, []).append(str(first) if first == last else f"{first} to {last}")
        sentences.append(
            f"{model.label}: " + "; ".join(f"{kind} in blocks {', '.join(v)}" for kind, v in by_kind.items())
        )
    return f"Coloured strip: kinds of block. {'. '.join(sentences)}." if sentences else ""


def depth_variant(
    runs: Sequence[StoredRun],
    when: Mapping[str, str],
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    table: tuple[Sequence[str], Sequence[Sequence[Any]]],
    *notes: str,
) -> Variant:
    """A variant over depth, with a strip for each hybrid among the runs.

    Args:
        runs: that are drawn.
        when: controls.
        traces: of Plotly.
        layout: without the strips.
        table: columns and rows of the CSV.
        notes: sentences, empty ones left out.
    """
    models = page_models([(run.label, run.facts) for run in runs])
    whole = {**layout, **strips(models)}
    if "shapes" in layout and "shapes" in whole:
        whole["shapes"] = [*layout["shapes"], *strips(models).get("shapes", [])]
    note = joined(*notes, strip_note(models))
    return Variant(when, [*traces, *kind_keys(models)], whole, *table, note, basis=basis(runs))


def depth_figure(
    id: str, title: str, caption: str, alt: str, variants: Sequence[Variant], *, log: bool = False
) -> list[Figure]:
    """A figure over depth; none where there is nothing to draw."""
    if not variants:
        return []
    return [Figure(id, title, caption, alt, variants, depth_axis=True, log_axis=log)]
