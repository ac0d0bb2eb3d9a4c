"""Tables of memory statistics: one model's layers, and several models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.results import Result
from repflow.report.data.labels import label
from repflow.report.terminal.cell import DEPTHS, number, thinned
from repflow.report.terminal.fitted import FittedTable

HALF = 0.5
COLUMNS = {
    "E(b)": "sharpness/input",
    "E(h)": "sharpness/state",
    "E(mixer)": "sharpness/mixer",
    "E(block)": "sharpness/block",
    "A + Δ ≤ 1": "contractive_share",
}
"""Heading → array (layer, sample)."""
CURVES = {"entropy": "attention/row_entropy", "distance": "attention/mean_distance"}


def view(result: Result) -> list[RenderableType]:
    """What the command line shows of one model: its layers, the cumulative histogram, findings."""
    parts: list[RenderableType] = [layer_table(result)]
    if "range_cumulative" in result:
        parts.append(histogram_line(result))
    return parts + [Text.assemble((f"{finding.code}: ", "yellow"), finding.message) for finding in result.findings]


def layer_table(result: Result) -> FittedTable:
    """Decays, hypothesis and sharpness by layer."""
    transitions = result.provenance["transitions"]
    layers = thinned(len(transitions))
    means = {heading: result.mean(name) for heading, name in (COLUMNS | CURVES).items() if name in result}
    rows = []
    for layer in layers:
        row = {"layer": str(layer + 1), "kind": transitions[layer]["kind"] or _kind(result, layer)}
        row |= {heading: number(float(values[layer])) for heading, values in means.items()}
        if "A_range" in result:
            row |= {"range": number(_median(result["A_range"][layer]))}
            row |= {"range ≤ ½": number(_at_half(result["range_cumulative_layer"][layer], result))}
            row |= {"half-life": _tokens(_median(result["half_life"][layer]))}
        if "write_strength" in result:
            row |= {"β": number(_median(result["write_strength"][layer]))}
            row |= {"trace": _tokens(_median(result["trace_half_life"][layer]))}
        rows.append(row)
    order = ["layer", "kind", "range ≤ ½", "half-life", "trace", "β", *COLUMNS, "range", *CURVES]
    headings = [name for name in order if any(name in row for row in rows)]
    notes = [f"{len(layers)} of {len(transitions)} layers shown"] if len(layers) < len(transitions) else []
    notes += ["range: A_max − A_min of a unit, half-life in tokens (medians)"] if "A_range" in result else []
    notes += ["E: sharpness, mean over prompts"]
    if "write_strength" in result:
        notes += ["delta rule: half-life of its decay, trace that of entries, β write strength (medians)"]
    title = f"{label(result)}: memory by layer"
    return FittedTable(headings, 2, _builder(rows, title), "; ".join(notes), folds=("kind",))


def histogram_line(result: Result) -> Text:
    """Figure 6 in one line."""
    at = result.provenance["thresholds"]
    shares = [f"{np.interp(t, at, result['range_cumulative']):.0%} ≤ {t:g}" for t in (0.1, 0.25, HALF, 0.75, 0.9)]
    return Text(f"share of units with A_max − A_min: {', '.join(shares)}")


def cell(result: Result) -> dict[str, float]:
    """Share of units whose decay hardly varies, half-life, and steps that contract; none without a transition."""
    if "range_cumulative" not in result:
        return {}
    met = result.mean("contractive_share")
    shares = {"range ≤ ½": _at_half(result["range_cumulative"], result), "half-life": _median(result["half_life"])}
    return shares | {"A + Δ ≤ 1": float(np.nanmean(met)) if np.isfinite(met).any() else float("nan")}


def side_by_side(results: Sequence[Result]) -> FittedTable:
    """Several models: block sharpness at equal relative depth, and their memories in numbers."""
    headings = ["model", *(f"{depth} %" for depth in DEPTHS), "range ≤ ½", "half-life", "A + Δ ≤ 1"]
    rows = []
    for result in results:
        block = np.concatenate([[float(result.mean("sharpness/embedding"))], result.mean("sharpness/block")])
        places = [depth / 100 * (len(block) - 1) for depth in DEPTHS]
        values = [number(float(np.interp(place, np.arange(len(block)), block))) for place in places]
        share = life = float("nan")
        if "range_cumulative" in result:
            share, life = _at_half(result["range_cumulative"], result), _median(result["half_life"])
        met = result.mean("contractive_share")
        values += [
            number(share),
            _tokens(life),
            number(float(np.mean(met[np.isfinite(met)])) if np.isfinite(met).any() else None),
        ]
        rows.append(dict(zip(headings, [label(result), *values], strict=True)))
    caption = "sharpness of the residual stream at relative depth, 0 % the embedding; – where no layer has a transition"
    return FittedTable(headings, 1, _builder(rows, "Sharpness through depth, and memory"), caption, folds=("model",))


def _builder(rows: Sequence[dict[str, str]], title: str) -> Callable[[Sequence[str], Text], Table]:
    def build(names: Sequence[str], caption: Text) -> Table:
        table = Table(box=box.SIMPLE, title=Text(title), title_justify="left", caption=caption, caption_justify="left")
        for name in names:
            words = name in ("model", "kind")
            table.add_column(name, justify="left" if words else "right", no_wrap=not words, overflow="fold")
        for row in rows:
            table.add_row(*(Text(row.get(name, "")) for name in names))
        return table

    return build


def _kind(result: Result, layer: int) -> str:
    kinds = result.provenance["model"]["layer_kinds"]
    return str(kinds[layer])


def _at_half(values: np.ndarray, result: Result) -> float:
    return float(np.interp(HALF, result.provenance["thresholds"], values))


def _median(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def _tokens(value: float) -> str:
    """Tokens of a half-life.

    >>> _tokens(12.345), _tokens(float("inf"))
    ('12.3', '∞')
    """
    return "∞" if np.isposinf(value) else number(value, 1)
