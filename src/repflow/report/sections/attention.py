"""Hidden attention on the page: the maps of chosen layers, and how wide and how far each layer looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.intervals import positive_interval
from repflow.report.data.comparable import basis
from repflow.report.data.model import Block, Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import band_traces, gaps, joined, layer_depth, thin
from repflow.report.draw.depth import depth_figure, depth_variant
from repflow.report.draw.number import plain

STUDY = "hidden_attention"
FORMS = {"normalised": "share of the row", "signed": "weight"}
CELL_DIGITS = 5
MOST = 64
"""Tokens of a map on the page; longer ones are drawn as blocks of neighbouring tokens."""
SHOWN, FEW = 0.99, 200
"""Share of a large map's cells that the colours cover; small maps are covered whole."""
MOST_MAPS = 24
"""Maps on the page, shared by its runs."""
CURVES = {"row_entropy": "entropy of a row, nats", "mean_distance": "mean distance, tokens"}


def attention_blocks(runs: Sequence[StoredRun]) -> list[Block]:
    """Maps and depth curves; none where no run has hidden attention."""
    mine = [run for run in runs if run.study == STUDY]
    if not mine:
        return []
    return [*_map_figure(mine), *_curve_figure(mine)]


def _map_figure(runs: Sequence[StoredRun]) -> list[Figure]:
    most = max(1, MOST_MAPS // len(runs))
    variants = [variant for run in runs for variant in _run_maps(run, most)]
    if not variants:
        return []
    return [
        Figure(
            "hidden-attention",
            "Hidden attention",
            "Row t, column s: how much the token at s goes into the output at t, as the layer's own transition "
            "computes it (for a Transformer its attention weights). Normalised: sizes as shares of their row; signed: "
            "the weights themselves. Nothing lies above the diagonal, since the layer is causal.",
            "Heat map of a layer's hidden attention over output and input positions.",
            variants,
            models_toggle=False,
        )
    ]


def _run_maps(run: StoredRun, most: int) -> list[Variant]:
    """A variant per form, layer, unit and prompt, as many as the page can hold."""
    stored = [(layer, form) for layer in run.result.provenance.get("maps", []) for form in FORMS
              if f"{layer}/{form}" in run.result]  # fmt: skip
    places = [
        (layer, form, sample, unit)
        for layer, form in stored
        for sample in range(run.result[f"{layer}/{form}"].shape[0])
        for unit in range(run.result[f"{layer}/{form}"].shape[1])
    ]
    note = f"{most} of {len(places)} maps of {run.name} are on the page." if len(places) > most else ""
    chosen = [places[i] for i in thin(len(places), most)] if places else []
    return [_map_variant(run, layer, form, sample, unit, note) for layer, form, sample, unit in chosen]


def _map_variant(run: StoredRun, layer: int | str, form: str, sample: int, unit: int, more: str) -> Variant:
    whole = np.asarray(run.result[f"{layer}/{form}"][sample, unit], dtype=np.float64)
    size = int(np.isfinite(whole).any(axis=1).sum())
    whole = whole[:size, :size]
    image, merged = pooled(whole, form)
    masked = np.where(np.triu(np.ones_like(image, dtype=bool), 1), np.nan, image)
    most, clipped = top_colour(masked)
    cells = plain(masked, CELL_DIGITS)
    at = [float(i * merged) for i in range(len(image))]
    units = (run.result.provenance.get("units") or {}).get(str(layer)) or {}
    kind, indices = str(units.get("kind", "unit")), list(units.get("indices", []))
    number = indices[unit] if unit < len(indices) else unit
    trace: dict[str, Any] = {"type": "heatmap", "z": cells, "x": at, "y": at, "meta": {"model": run.label}}
    trace |= {"colorscale": "diverging" if form == "signed" else "sequential", "zmax": most}
    trace |= {"zmin": -most if form == "signed" else 0.0, "colorbar": {"title": {"text": FORMS[form]}}}
    layout = {
        "xaxis": {"title": {"text": "input position s"}, "constrain": "domain"},
        "yaxis": {"title": {"text": "output position t"}, "autorange": "reversed", "scaleanchor": "x"},
    }
    note = f"Blocks of {merged} by {merged} positions are one cell, in the CSV too." if merged > 1 else ""
    note = joined(note, f"Colours end at {most:.3g}; {clipped} cells lie beyond." if clipped else "")
    rows = [[at[t], at[s], value] for t, row in enumerate(cells) for s, value in enumerate(row[: t + 1])]
    when = {
        "model": run.label,
        "layer": str(int(layer) + 1),
        kind: str(number),
        "form": form,
        "prompt": str(sample + 1),
    }
    columns, place = ["output position", "input position", form], basis([run], states=False)
    words = (
        f"In block {int(layer) + 1} of {run.label}, {kind} {number}, an output takes its inputs from {_back(whole)}."
    )
    return Variant(when, [trace], layout, columns, rows, joined(note, more), words, basis=place)


def _back(weights: np.ndarray) -> str:
    """Mean distance of the inputs that a row weighs, the mean over rows.

    >>> _back(np.array([[1.0, 0.0], [0.5, -0.5]]))
    '0.2 tokens back on average'
    """
    sizes = np.abs(np.nan_to_num(np.tril(weights)))
    total, places = sizes.sum(1), np.arange(len(sizes))
    distance = (sizes * (places[:, None] - places)).sum(1)
    back = distance[total > 0] / total[total > 0]
    return f"{float(back.mean()) if len(back) else 0.0:.1f} tokens back on average"


def top_colour(values: np.ndarray) -> tuple[float, int]:
    """Size at which colours end, and how many values lie beyond: a few near 1, as in first rows, would hide the rest.

    >>> top_colour(np.array([[1.0, np.nan], [0.25, 0.75]]))
    (1.0, 0)
    """
    sizes = np.abs(values[np.isfinite(values)])
    if not sizes.any():
        return 1.0, 0
    most = float(np.quantile(sizes, SHOWN)) if sizes.size > FEW else float(sizes.max())
    most = most if most > 0 else float(sizes.max())
    return most, int((sizes > most).sum())


def pooled(values: np.ndarray, form: str, most: int = MOST) -> tuple[np.ndarray, int]:
    """A map in blocks of neighbouring tokens, and how many make one: shares are summed along a row, then averaged.

    >>> pooled(np.full((4, 4), 0.25), "normalised", 2)[0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    merged = -(-len(values) // most)
    if merged <= 1:
        return values, 1
    edges = np.arange(0, len(values), merged)
    sizes = np.diff(np.append(edges, len(values)))
    summed = np.add.reduceat(np.add.reduceat(np.nan_to_num(values), edges, axis=0), edges, axis=1) / sizes[:, None]
    return (summed if form == "normalised" else summed / sizes[None]), merged


def _curve_figure(runs: Sequence[StoredRun]) -> list[Figure]:
    """Entropy and mean distance by depth, mean over units."""
    variants = []
    for name, words in CURVES.items():
        with_curve = [run for run in runs if name in run.result and np.isfinite(run.result[name]).any()]
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        notes = []
        for run in with_curve:
            values = run.result[name]
            with np.errstate(invalid="ignore"):
                count = np.isfinite(values).sum(axis=2)
                mean = np.where(count > 0, np.nansum(values, axis=2) / np.maximum(count, 1), np.nan)
            band = positive_interval(mean, axis=1)  # an entropy, a distance
            depth = layer_depth(len(band.mean))
            traces += band_traces(depth["absolute"], band, name=run.label, model=run.label, depth=depth)
            parts = zip(plain(band.mean), plain(band.low), plain(band.high), strict=True)
            rows += [[run.label, layer, *part] for layer, part in enumerate(parts, 1)]
            notes.append(gaps(run.label, band.mean, "layer", 1))
        if with_curve:
            layout = {"yaxis": {"title": {"text": words}}}
            table = (["model", "layer", words, "low", "high"], rows)
            variants.append(depth_variant(with_curve, {"quantity": words}, traces, layout, table, *notes))
    return depth_figure(
        "hidden-attention-depth",
        "How wide and how far each layer looks",
        "Entropy of the normalised rows (0: one token decides; ln n: all count alike) and their mean distance, mean "
        "over rows and over the channels or heads that were read.",
        "Entropy and mean distance of hidden attention by depth.",
        variants,
    )
