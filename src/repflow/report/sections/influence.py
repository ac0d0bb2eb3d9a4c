"""Influence on the page: how much a token far back still counts, the fit, the theorem's slope, twins and ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from repflow.core.catalogue import EXPONENTIAL_R2, is_exponential
from repflow.core.intervals import bracketed
from repflow.core.results import Band
from repflow.report.data.comparable import Group, basis, group_runs
from repflow.report.data.interval import few_prompts
from repflow.report.data.model import Block, Figure, PageModel, Table, Text, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import Summary, reach_sentence
from repflow.report.draw.curve import (
    MOST_CELLS,
    axis_names,
    band_of,
    band_traces,
    bare,
    gaps,
    joined,
    layer_depth,
    small_multiples,
    state_depth,
    thin,
    thin_note,
)
from repflow.report.draw.depth import depth_figure, depth_variant
from repflow.report.draw.number import plain

STUDY, RATIO = "recency", "recency-ratio"
CURVE = "log_influence"
Y = "influence, ln ‖∂y_t / ∂x_s‖"
BESIDE = ("random twin", "nothing", "fit and bound")
"""What may stand beside a curve, what is shown first at the front; the twin only where it was measured."""
TWIN = "twin/"


def influence_blocks(runs: Sequence[StoredRun], *, allow_mixed: bool = False) -> list[Block]:
    """Figures and tables of influence; none where no run measured it."""
    measured = [run for run in runs if run.study == STUDY and CURVE in run.result]
    ratios = [run for run in runs if run.study == RATIO and "log_ratio" in run.result]
    blocks: list[Block] = []
    if measured:
        groups = group_runs(measured, allow_mixed=allow_mixed)
        blocks += [_curve_figure(groups), *_kappa_figure(groups), *_map_figure(groups), _share_figure(groups)]
        blocks += [_number_table(measured), _said(measured)]
    if ratios:
        blocks.append(_ratio_figure(ratios))
    return blocks


def when_of(group: Group) -> dict[str, str]:
    """Controls of a group without the kind of state, which these studies do not choose."""
    return {key: value for key, value in group.when.items() if key != "states"}


def _curve_figure(groups: Sequence[Group]) -> Figure:
    variants = []
    for group in groups:
        for beside in BESIDE:
            if beside != "random twin" or any(f"{TWIN}{CURVE}" in run.result for run in group.runs):
                variants += [_curves(group, beside, scale) for scale in ("linear", "logarithmic")]
    return Figure(
        "recency-influence",
        "How far back a token reaches",
        "Mean over prompts, in log space, of the influence of the input at each distance on the output at the last "
        "position, with its 95 % band. A straight line on the linear axis is exponential forgetting, one on the "
        "logarithmic axis a power law. Theorem 3.1 is an upper bound: its slope, from the largest measured A of any "
        "layer, is laid on the curve from above.",
        "Influence by distance, one curve per model, with exponential fit and the slope of Theorem 3.1.",
        variants,
    )


def _curves(group: Group, beside: str, scale: str) -> Variant:
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    notes = [group.note]
    keys: dict[str, str] = {}
    for run in group.runs:
        band = band_of(run.result, CURVE)
        at = _places(len(band.mean), scale)
        traces += band_traces(at, _at(band, at), name=run.label, model=run.label, mode="lines", dash="solid")
        rows += _rows(run.label, "measured", band)
        notes.append(thin_note(len(band.mean), len(at), f"distances of {run.label}"))
        if beside == "fit and bound":
            for name, dash, line in _lines(run, band):
                keys[name] = dash
                traces += band_traces(
                    at, bare(line[at]), name=f"{run.label}: {name}", model=run.label, dash=dash, mode="lines",
                    legend=False,
                )  # fmt: skip
                rows += [[run.label, name, i, value, None, None] for i, value in enumerate(plain(line))]
        elif beside == "random twin" and f"{TWIN}{CURVE}" in run.result:
            keys["random twin"] = "dot"
            twin = band_of(run.result, f"{TWIN}{CURVE}")
            near = _places(len(twin.mean), scale)
            style: dict[str, Any] = {"name": f"{run.label}: random twin", "model": run.label, "dash": "dot"}
            traces += band_traces(near, _at(twin, near), mode="lines", legend=False, **style)
            rows += _rows(run.label, "random twin", twin)
    traces += [_key(name, dash) for name, dash in keys.items()]
    layout = {
        "xaxis": {"title": {"text": "distance t − s, tokens"}, "type": "log" if scale == "logarithmic" else "linear"},
        "yaxis": {"title": {"text": Y}},
    }
    when = when_of(group) | {"beside the curve": beside, "distance": scale}
    columns = ["model", "curve", "distance", "ln influence", "low", "high"]
    entries = [Summary(PageModel(run.label, 0, run.layers), reach=run) for run in group.runs]
    reading, place = reach_sentence(entries), basis(group.runs, states=False)
    return Variant(when, traces, layout, columns, rows, joined(*notes), reading, basis=place)


def _places(count: int, scale: str) -> np.ndarray:
    """Distances that are drawn; a logarithmic axis has no zero and wants its points evenly on it."""
    if scale == "linear":
        return thin(count)
    return np.unique(np.geomspace(1, max(count - 1, 1), 200).round().astype(int))[: max(count - 1, 1)]


def _at(band: Band, at: np.ndarray) -> Band:
    return Band(*(np.asarray(part)[at] for part in (band.mean, band.low, band.high)))


def _rows(label: str, what: str, band: Band, first: int = 0) -> list[list[Any]]:
    parts = zip(plain(band.mean), plain(band.low), plain(band.high), strict=True)
    return [[label, what, place, *part] for place, part in enumerate(parts, first)]


def _lines(run: StoredRun, band: Band) -> list[tuple[str, str, np.ndarray]]:
    """Name, dash and values of the lines beside a curve."""
    lines = []
    distances = np.arange(len(band.mean), dtype=np.float64)
    fit = (run.result.provenance.get("recency") or {}).get("fit")
    if fit and fit.get("kappa") is not None:
        line = fit["intercept"] - fit["kappa"] * distances
        inside = (distances >= fit["first"]) & (distances <= fit["last"])
        lines.append(("exponential fit", "dash", np.where(inside, line, np.nan)))
    kappa = theorem_kappa(run)
    if kappa is not None:
        lines.append(("slope of Theorem 3.1", "dot", touching(band.mean, kappa)))
    return lines


def theorem_kappa(run: StoredRun) -> float | None:
    """Least κ over layers and prompts that the theorem promises, None where no layer has a transition."""
    if "theorem_kappa" not in run.result:
        return None
    values = run.result["theorem_kappa"]
    finite = values[np.isfinite(values)]
    return float(finite.min()) + 0.0 if finite.size else None  # −0 of an A of one


def touching(curve: np.ndarray, kappa: float) -> np.ndarray:
    """Line of slope −κ laid on a curve from above, distance 0 left out, of which the theorem does not speak.

    >>> touching(np.array([9.0, 1.0, 0.5]), 1.0).tolist()
    [nan, 1.5, 0.5]
    """
    distances = np.arange(len(curve), dtype=np.float64)
    raised = (curve + kappa * distances)[1:]
    if not np.isfinite(raised).any():
        return np.full(len(curve), np.nan)
    line = float(np.nanmax(raised)) - kappa * distances
    line[0] = np.nan
    return line


def _key(name: str, dash: str) -> dict[str, Any]:
    """An entry of the legend that stands for lines of every model."""
    line = {"color": "muted", "dash": dash}
    return {"type": "scatter", "mode": "lines", "x": [None], "y": [None], "name": name, "line": line,
            "meta": {"model": None}}  # fmt: skip


def _kappa_figure(groups: Sequence[Group]) -> list[Figure]:
    """Decay from each state to the output, with what the theorem promises of each layer."""
    variants = []
    for group in groups:
        runs = [run for run in group.runs if "depth/kappa" in run.result]
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        notes = [group.note]
        for run in runs:
            band = band_of(run.result, "depth/kappa")
            depth = state_depth(len(band.mean))
            traces += band_traces(depth["absolute"], band, name=run.label, model=run.label, depth=depth, dash="solid")
            rows += _rows(run.label, "fitted, from state", band)
            notes.append(gaps(run.label, band.mean, "state"))
            if "theorem_kappa" in run.result:
                bound = band_of(run.result, "theorem_kappa")
                places = layer_depth(len(bound.mean))
                style: dict[str, Any] = {
                    "name": f"{run.label}: Theorem 3.1",
                    "model": run.label,
                    "depth": places,
                    "dash": "dot",
                }
                traces += band_traces(places["absolute"], bound, **style)
                rows += _rows(run.label, "Theorem 3.1, layer", bound, first=1)
        if runs:
            layout = {"yaxis": {"title": {"text": "κ per token"}}}
            table = (["model", "what", "state or layer", "kappa", "low", "high"], rows)
            variants.append(depth_variant(runs, when_of(group), traces, layout, table, *notes))
    return depth_figure(
        "recency-depth",
        "Where in depth the reach is lost",
        "Decay κ of the influence of each state on the output: small values reach far. Dotted: the κ that Theorem 3.1 "
        "promises for each layer from its largest A; a stack can decay much faster than any of its layers must.",
        "Fitted decay by depth with the decay that the theorem promises for each layer.",
        variants,
        log=True,
    )


def _map_figure(groups: Sequence[Group]) -> list[Figure]:
    """Influence by state and distance, a panel per model, each row against its largest."""
    variants = []
    for group in groups:
        runs = [run for run in group.runs if "depth/log_influence" in run.result]
        if not runs:
            continue
        across = {"title": {"text": "distance t − s, tokens"}}
        layout = small_multiples([run.label for run in runs], across, {}, models=[run.label for run in runs])
        traces, rows, notes = [], [], [group.note]
        finite = np.concatenate([_finite(relative_rows(run.result["depth/log_influence"])) for run in runs])
        low = float(np.quantile(finite, 0.02)) if finite.size else -1.0
        for place, run in enumerate(runs):
            whole = np.asarray(run.result["depth/log_influence"], dtype=np.float64)
            at = thin(whole.shape[1], MOST_CELLS)
            depth = state_depth(len(whole))
            traces.append(_map_trace(relative_rows(whole)[:, at], at, depth, run.label, place, low))
            by_state = [(state, plain(row[at])) for state, row in enumerate(whole)]
            rows += [[run.label, state, int(d), v] for state, row in by_state for d, v in zip(at, row, strict=True)]
            note = f"{run.label}: {len(at)} of {whole.shape[1]} distances, in the CSV too; the run has all."
            notes += [note if len(at) < whole.shape[1] else "", gaps(run.label, whole, "state")]
        columns = ["model", "state", "distance", "ln influence"]
        place_words = basis(runs, states=False)
        variants.append(Variant(when_of(group), traces, layout, columns, rows, joined(*notes), basis=place_words))
    return depth_figure(
        "recency-map",
        "Influence by depth and distance",
        "How much each state at each distance counts for the output; every row is relative to its own largest value, "
        "so that the colours show reach and not size.",
        "Heat maps of influence over depth and distance, one per model.",
        variants,
    )


def relative_rows(values: np.ndarray) -> np.ndarray:
    """Logarithms less the largest of their row.

    >>> relative_rows(np.array([[1.0, 3.0], [np.nan, np.nan]])).tolist()
    [[-2.0, 0.0], [nan, nan]]
    """
    largest = np.where(np.isfinite(values), values, -np.inf).max(axis=1, keepdims=True)
    return np.where(np.isfinite(largest), values - np.where(np.isfinite(largest), largest, 0.0), np.nan)


def _finite(values: np.ndarray) -> np.ndarray:
    return np.asarray(values[np.isfinite(values)])


def _map_trace(
    values: np.ndarray, at: np.ndarray, depth: Mapping[str, Sequence[float]], label: str, place: int, low: float
) -> dict[str, Any]:
    x, y = axis_names(place)
    bar = {"title": {"text": "ln influence, relative", "side": "right"}}
    return {
        "type": "heatmap", "z": plain(values), "x": [float(v) for v in at], "y": list(depth["absolute"]), "xaxis": x,
        "yaxis": y, "zmin": low, "zmax": 0.0,
        "colorscale": "sequential", "colorbar": bar, "showscale": place == 0,
        "meta": {"model": label, "y": dict(depth)},
    }  # fmt: skip


def _share_figure(groups: Sequence[Group]) -> Figure:
    variants = []
    for group in groups:
        traces, rows = [], []
        known = np.any([np.isfinite(run.result["recent_share"]).any(axis=0) for run in group.runs], axis=0)
        for run in group.runs:
            windows = [f"last {w}" for w in np.asarray(run.result.provenance["recency"]["windows"])[known]]
            whole = band_of(run.result, "recent_share")
            band = Band(*(np.asarray(part)[known] for part in (whole.mean, whole.low, whole.high)))
            bars = {"type": "data", "symmetric": False, "array": plain(band.high - band.mean)}
            bars |= {"arrayminus": plain(band.mean - band.low)}
            traces.append(
                {"type": "bar", "x": windows, "y": plain(band.mean), "error_y": bars, "name": run.label,
                 "meta": {"model": run.label}}
            )  # fmt: skip
            parts = zip(windows, plain(band.mean), plain(band.low), plain(band.high), strict=True)
            rows += [[run.label, *part] for part in parts]
        layout = {
            "barmode": "group",
            "xaxis": {"title": {"text": "tokens before the output"}},
            "yaxis": {"title": {"text": "share of influence"}, "tickformat": ".0%", "range": [0, 1]},
        }
        columns = ["model", "window", "share", "low", "high"]
        basis_text = basis(group.runs, states=False)
        variants.append(Variant(when_of(group), traces, layout, columns, rows, group.note, basis=basis_text))
    return Figure(
        "recency-shares",
        "Share of influence within the last tokens",
        "The part of all influence that the last 1, 16, 64 and 256 tokens hold, with its 95 % interval; a window is "
        "left out where the prompts are no longer than it.",
        "Bars of the share of influence within the last tokens, by model.",
        variants,
    )


COLUMNS = (
    "model", "task", "length", "half reach", "R²", "R² of a power law", "κ", "κ low", "κ high", "half-life", "peak",
    "lost in the middle", "Theorem 3.1 κ", "twin κ",
)  # fmt: skip


def _number_table(runs: Sequence[StoredRun]) -> Table:
    rows: list[list[Any]] = []
    for run in runs:
        about = run.result.provenance
        fit = (about.get("recency") or {}).get("fit") or {}
        twin = ((about.get("twin") or {}).get("fit") or {}).get("kappa")
        reach, middle = (float(run.result.mean(name)) for name in ("half_reach", "lost_in_the_middle"))
        life = fit.get("half_life") if is_exponential(fit) else None
        numbers = [fit.get(key) for key in ("r2", "power_r2", "kappa", "kappa_low", "kappa_high")]
        numbers = [reach, *numbers, life, fit.get("peak"), middle, theorem_kappa(run), twin]
        rows.append([run.label, run.task, run.length, *numbers])
    few = few_prompts(len(run.result[CURVE]) for run in runs)
    caption = (
        "Half reach: fewest last tokens that hold half of all influence, whatever the curve's shape. κ: slope per "
        f"token of a straight line in logarithms; half-life ln 2 / κ, where R² is at least {EXPONENTIAL_R2} and no "
        "power law fits better: elsewhere the decay is not exponential and has none. Lost in the middle: how much more "
        "both ends count than the middle, in logarithms. Theorem 3.1's κ is the least that any layer with a transition "
        f"promises.{few}"
    )
    return Table("recency-numbers", "Recency in numbers", COLUMNS, rows, caption)


def _said(runs: Sequence[StoredRun]) -> Text:
    sentences = [f"{run.label} on {run.task}: {finding.message}." for run in runs for finding in run.result.findings]
    return Text("recency-said", "What the recency runs found", sentences or ["Nothing out of the ordinary."])


def _ratio_figure(runs: Sequence[StoredRun]) -> Figure:
    variants = []
    for run in runs:
        about = run.result.provenance["ratio"]
        a, b = (str(spec).rstrip("/").rsplit("/", 1)[-1] for spec in about["models"])
        band = Band(*(np.asarray(run.result[f"log_ratio{part}"]) for part in ("", "_low", "_high")))
        at = list(range(len(band.mean)))
        traces = band_traces(at, band, name="ratio", colour="model:0", dash="solid", mode="lines")
        traces += band_traces(
            at, bare(run.result["log_ratio_fit"]), name="fit", colour="ink", dash="dash", mode="lines"
        )
        rows = [
            [*row[2:], fit] for row, fit in zip(_rows("", "", band), plain(run.result["log_ratio_fit"]), strict=True)
        ]
        layout = {"xaxis": {"title": {"text": "distance t − s, tokens"}}}
        layout |= {"yaxis": {"title": {"text": f"ln influence of {a}\nover that of {b}"}}}
        kappa, low, high = (about.get(key) for key in ("kappa", "kappa_low", "kappa_high"))
        note = f"Fitted decay of the ratio: {_number(kappa)} per token{bracketed(low, high, '.3g')}"
        note += f", R² {_number(about.get('r2'))}."
        columns = ["distance", "ln ratio", "low", "high", "fit"]
        variants.append(Variant({"models": f"{a} over {b}"}, traces, layout, columns, rows, note))
    return Figure(
        "recency-ratio",
        "Ratio of two models' influence",
        "Paper 2's Figure 7b: where the ratio falls, the first model forgets faster than the second.",
        "Ratio of the influence of two models by distance, with its fit.",
        variants,
        models_toggle=False,
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
