"""Memory statistics on the page: range of the decay, half-lives, contraction, sharpness through depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band, Result
from repflow.report.data.comparable import Group, basis, group_runs
from repflow.report.data.model import Block, Card, Figure, Table, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import percent
from repflow.report.draw.curve import band_of, band_traces, bare, gaps, layer_depth
from repflow.report.draw.depth import depth_figure, depth_variant
from repflow.report.draw.number import plain
from repflow.report.sections.influence import when_of

STUDY = "memory"
SHARP = {
    "block": "block output",
    "mixer": "what the mixer adds",
    "state": "memory state h_t",
    "entry": "entry Δ_t b_t",
    "input": "input b_t",
}
QUARTILES = (0.25, 0.5, 0.75)
HALF = 0.5
"""Range of A under which the paper finds over 60 % of channels."""


def memory_blocks(runs: Sequence[StoredRun], *, allow_mixed: bool = False) -> list[Block]:
    """Figures 5 and 6 of paper 2 and what belongs to them; none where no run looked at memory."""
    mine = [run for run in runs if run.study == STUDY]
    if not mine:
        return []
    groups = group_runs(mine, allow_mixed=allow_mixed)
    return [
        *_range_figure(groups),
        *_life_figure(groups),
        *_line_figure(groups),
        *_sharpness_figure(groups),
        _number_table(mine),
    ]


def _range_figure(groups: Sequence[Group]) -> list[Figure]:
    """Cumulative histogram of A_max - A_min over channels, of the whole model and of each layer."""
    variants = []
    for group in groups:
        runs = [run for run in group.runs if _finite(run.result, "range_cumulative")]
        if not runs:
            continue
        variants.append(_cumulative(group, runs, None))
        most = max(len(run.result["range_cumulative_layer"]) for run in runs)
        variants += [
            _cumulative(group, runs, layer) for layer in range(most)
            if any(_layer_there(run, layer) for run in runs)
        ]  # fmt: skip
    if not variants:
        return []
    return [
        Figure(
            "memory-range",
            "How much the decay varies: A_max − A_min",
            "Share of channels whose decay A varies by no more than the value on the x axis, over tokens, prompts and "
            "states. Paper 2 finds over 60 % of Mamba's channels under 0.5: their memory is nearly fixed, whatever "
            "they read.",
            "Cumulative histogram of the range of the decay over channels.",
            variants,
        )
    ]


def _layer_there(run: StoredRun, layer: int) -> bool:
    values = run.result["range_cumulative_layer"]
    return layer < len(values) and bool(np.isfinite(values[layer]).any())


def _cumulative(group: Group, runs: Sequence[StoredRun], layer: int | None) -> Variant:
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for run in runs:
        at = [float(value) for value in run.result.provenance["thresholds"]]
        if layer is not None:
            if not _layer_there(run, layer):
                continue
            band = bare(run.result["range_cumulative_layer"][layer])
        else:
            band = bare(run.result["range_cumulative"])
        traces += band_traces(at, band, name=run.label, model=run.label, mode="lines")
        rows += [[run.label, *cells] for cells in zip(at, plain(band.mean), strict=True)]
    mark = {"type": "line", "xref": "x", "yref": "y domain", "x0": HALF, "x1": HALF, "y0": 0, "y1": 1}
    layout = {
        "xaxis": {"title": {"text": "A_max − A_min"}, "range": [0, 1]},
        "yaxis": {"title": {"text": "share of channels"}, "tickformat": ".0%", "range": [0, 1.02]},
        "shapes": [{**mark, "line": {"color": "muted", "width": 1, "dash": "dot"}}],
    }
    when = when_of(group) | {"layer": "all" if layer is None else str(layer + 1)}
    columns = ["model", "range", "share of channels"]
    reading, place = _range_reading(runs, layer), basis(group.runs, states=False)
    return Variant(when, traces, layout, columns, rows, group.note, reading, basis=place)


def _fixed(run: StoredRun, layer: int | None) -> float:
    """Share of channels whose decay varies by less than one half."""
    name = "range_cumulative" if layer is None else "range_cumulative_layer"
    values = run.result[name] if layer is None else run.result[name][layer]
    return float(np.interp(HALF, np.asarray(run.result.provenance["thresholds"], dtype=np.float64), values))


def _range_reading(runs: Sequence[StoredRun], layer: int | None) -> str:
    """Which model has most channels whose decay hardly depends on what it reads."""
    here = [run for run in runs if layer is None or _layer_there(run, layer)]
    shares = sorted((_fixed(run, layer), run.label) for run in here)
    where = "" if layer is None else f"block {layer + 1} of "
    (most, first), (least, last) = shares[-1], shares[0]
    text = f"In {where}{first} the decay of {percent(most)} of the channels varies by less than {HALF:g}"
    return f"{text}." if len(shares) == 1 else f"{text}, in {last} that of {percent(least)}."


def memory_facts(runs: Sequence[StoredRun]) -> list[Card]:
    """How fixed the memory of the first model is, and how long it lasts in its middle channel."""
    mine = [run for run in runs if run.study == STUDY and _finite(run.result, "range_cumulative")]
    if not mine:
        return []
    run, place = mine[0], basis(mine[:1], states=False)
    text = f"of the channels of {run.label} have a decay that varies by less than {HALF:g}, whatever they read"
    cards = [Card("Nearly fixed decays", percent(_fixed(run, None)), text, place, "memory-range")]
    if _finite(run.result, "half_life"):
        life = np.asarray(run.result["half_life"], dtype=np.float64)
        middle = float(np.median(life[~np.isnan(life)]))
        text = f"until the slowest state of the median channel of {run.label} has faded to one half"
        value = f"{middle:.3g} tokens" if np.isfinite(middle) else "never"
        cards.append(Card("Half-life", value, text, place, "memory-life"))
    return cards


def _life_figure(groups: Sequence[Group]) -> list[Figure]:
    """Median half-life over the channels of each layer, with the middle half."""
    variants = []
    for group in groups:
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        notes = [group.note]
        runs = [run for run in group.runs if _finite(run.result, "half_life")]
        for run in runs:
            band, endless = quartiles(run.result["half_life"])
            depth = layer_depth(len(band.mean))
            traces += band_traces(depth["absolute"], band, name=run.label, model=run.label, depth=depth)
            rows += _rows(run.label, band)
            notes += [gaps(run.label, run.result["half_life"], "layer", 1)]
            notes += [f"{run.label}: {endless} channels never forget (A = 1)." if endless else ""]
        if runs:
            layout = {"yaxis": {"title": {"text": "half-life, tokens"}, "type": "log"}}
            table = (["model", "layer", "median", "lower quartile", "upper quartile"], rows)
            variants.append(depth_variant(runs, when_of(group), traces, layout, table, *notes))
    return depth_figure(
        "memory-life",
        "Half-life of the memory",
        "Tokens after which the slowest state of a channel has faded to one half: median over the channels of each "
        "layer, with the middle half of them as a band.",
        "Half-life of the channels of each layer.",
        variants,
        log=True,
    )


def quartiles(values: np.ndarray) -> tuple[Band, int]:
    """Median and quartiles over the last axis, and how many entries are infinite; NaN entries are left out.

    >>> band, endless = quartiles(np.array([[1.0, 2.0, 3.0, np.inf, np.nan]]))
    >>> band.mean.tolist(), endless
    ([2.5], 1)
    """
    table = np.asarray(values, dtype=np.float64)
    parts = np.full((3, len(table)), np.nan)
    for row, line in enumerate(table):
        known = np.sort(line[~np.isnan(line)])
        if known.size:
            place = np.array(QUARTILES) * (known.size - 1)
            below, above = known[np.floor(place).astype(int)], known[np.ceil(place).astype(int)]
            with np.errstate(invalid="ignore"):
                between = below + (place - np.floor(place)) * (above - below)
            parts[:, row] = np.where(above == below, below, between)  # an infinite step has no middle
    return Band(parts[1], parts[0], parts[2]), int(np.isinf(table).sum())


def _line_figure(groups: Sequence[Group]) -> list[Figure]:
    """Shares and curves by layer that need no more than a line, chosen by a menu."""
    kinds = {
        "contractive_share": ("share of steps with A + Δ ≤ 1", ".0%"),
        "attention/row_entropy": ("entropy of hidden attention, nats", ""),
        "attention/mean_distance": ("mean distance of hidden attention, tokens", ""),
    }
    variants = []
    for name, (words, form) in kinds.items():
        for group in groups:
            runs = [run for run in group.runs if _finite(run.result, name)]
            variants += _by_layer(group, runs, name, words, form) if runs else []
    return depth_figure(
        "memory-layers",
        "Contraction by layer",
        "Theorem 4.2 needs A + Δ ≤ 1 at every step to promise that the memory smooths its inputs; a state with rate a "
        "= 1 never meets it. Where hidden attention was asked for, its entropy and mean distance stand in the same "
        "menu.",
        "Share of steps that meet the theorem's hypothesis, by layer.",
        variants,
    )


def _by_layer(group: Group, runs: Sequence[StoredRun], name: str, words: str, form: str) -> list[Variant]:
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    notes = [group.note]
    for run in runs:
        band = band_of(run.result, name)
        depth = layer_depth(len(band.mean))
        traces += band_traces(depth["absolute"], band, name=run.label, model=run.label, depth=depth)
        rows += _rows(run.label, band)
        notes.append(gaps(run.label, band.mean, "layer", 1))
    layout = {"yaxis": {"title": {"text": words}, **({"tickformat": form, "range": [0, 1.02]} if form else {})}}
    table = (["model", "layer", words, "low", "high"], rows)
    return [depth_variant(runs, when_of(group) | {"quantity": words}, traces, layout, table, *notes)]


def _rows(label: str, band: Band) -> list[list[Any]]:
    parts = zip(plain(band.mean), plain(band.low), plain(band.high), strict=True)
    return [[label, layer, *part] for layer, part in enumerate(parts, 1)]


def _sharpness_figure(groups: Sequence[Group]) -> list[Figure]:
    """Figure 5: sharpness of inputs, states and outputs through depth."""
    variants = []
    for part, words in SHARP.items():
        name = f"sharpness/{part}"
        for group in groups:
            runs = [run for run in group.runs if _finite(run.result, name)]
            variants += _by_layer(group, runs, name, f"sharpness of {words}", "") if runs else []
    return depth_figure(
        "memory-sharpness",
        "Sharpness through depth",
        "Mean distance between all pairs of tokens relative to their size (paper 2, Figure 5), of what enters a "
        "layer's memory, of the memory itself, and of what comes out. A memory that smooths has a lower value than its "
        "input; the block output shows whether the residual stream loses sharpness.",
        "Sharpness of inputs, memory states and outputs by depth, one line per model.",
        variants,
        log=True,
    )


def _finite(result: Result, name: str) -> bool:
    return name in result and bool(np.isfinite(result[name]).any())


def _number_table(runs: Sequence[StoredRun]) -> Table:
    rows: list[list[Any]] = []
    for run in runs:
        at = np.asarray(run.result.provenance.get("thresholds", []), dtype=np.float64)
        under = None
        if _finite(run.result, "range_cumulative"):
            under = float(run.result["range_cumulative"][int(np.abs(at - HALF).argmin())])
        life = run.result["half_life"] if "half_life" in run.result else np.zeros((0, 0))
        median = float(np.median(life[~np.isnan(life)])) if (~np.isnan(life)).any() else None
        shares = [_share(run.result, name) for name in ("contractive_share", "never_contractive")]
        kinds = [entry.get("kind") for entry in run.result.provenance.get("transitions", [])]
        layers_read = f"{sum(kind is not None for kind in kinds)} of {len(kinds)}"
        rows.append([run.label, run.task, run.length, layers_read, under, median, *shares])
    columns = ["model", "task", "length", "layers with a memory", "channels with range ≤ 0.5", "median half-life"]
    columns += ["steps with A + Δ ≤ 1", "states that never meet it"]
    return Table("memory-numbers", "Memory in numbers", columns, rows)


def _share(result: Result, name: str) -> float | None:
    if not _finite(result, name):
        return None
    values = result[name]
    return float(values[np.isfinite(values)].mean())
