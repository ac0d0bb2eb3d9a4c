"""Sm and St by model; probing accuracy, Sm and St against the length of the prompt and the size of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from repflow.core.results import Result
from repflow.papers.thresholds import SIZES
from repflow.report.data.comparable import basis, group_runs
from repflow.report.data.context import Context, measured_runs
from repflow.report.data.interval import Interval, at
from repflow.report.data.model import Block, Content, Figure, Variant
from repflow.report.data.probed import probe_runs, probed_label
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import joined
from repflow.report.draw.number import exact, short

COLUMNS = ("model", "run", "task", "states", "length", "parameters", "value", "low", "high")


@dataclass(frozen=True)
class Point:
    """One run's value of a quantity, with its interval."""

    run: StoredRun
    length: int
    parameters: int
    value: Interval


def _stored(name: str) -> Callable[[Result], Interval | None]:
    return lambda result: at(result.band(name)) if name in result else None


def _probed(name: str) -> Callable[[Result], Interval | None]:
    def read(result: Result) -> Interval | None:
        band = result.bands.get(name)
        return None if band is None else at(band, -1 if band.mean.ndim else ())

    return read


def _last_similarity(result: Result) -> Interval | None:
    return at(result.band("token_similarity"), -1) if "token_similarity" in result else None


def _corrected_last(result: Result) -> Interval | None:
    if "probe_corrected" not in result:
        return None
    chance, last = float(result["probe_chance"]), at(result.bands["probe_accuracy"], -1)
    return Interval(*((part - chance) / (1 - chance) for part in (last.value, last.low, last.high)))


PROBED = {
    "probing accuracy, last state": _probed("probe_accuracy"),
    "probing accuracy, last state, over chance": _corrected_last,
    "probing accuracy, peak": _probed("probe_peak_accuracy"),
    "last-layer loss": _probed("probe_drop"),
}
MEASURED = {
    "smoothness Sm": _stored("smoothness"),
    "stability St": _stored("stability"),
    "smoothness Sm, matched depth": _stored("matched/smoothness"),
    "stability St, matched depth": _stored("matched/stability"),
    "relative Sm": _stored("relative_smoothness"),
    "relative St": _stored("relative_stability"),
    "token similarity, last state": _last_similarity,
}


MATCHED = ", matched depth"
LENGTHS = "scaling-length"


def one_grid(runs: Sequence[StoredRun]) -> bool:
    """Whether several runs all have Sm and St on one grid of relative depth, which is what compares between depths."""
    grids = {run.result.config.get("grid") for run in runs}
    return len(runs) > 1 and len(grids) == 1 and all("matched/smoothness" in run.result for run in runs)


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Sm and St by model, and quantities over length and size; None where nothing was measured."""
    candidates = (summary_figure(runs, context), length_figure(runs, context), size_figure(runs, context))
    figures: list[Block] = [figure for figure in candidates if figure]
    if not figures:
        return None
    lead = "How smooth the way through depth is, and whether longer prompts and larger models flow differently."
    if len({run.label for run in measured_runs(runs)}) == 1:  # a marker per model is one point
        shown = [figure.id for figure in figures if figure.id == LENGTHS]
        return Content(lead, figures, shown, "" if shown else _alone(runs))
    return Content(lead, figures)


def _alone(runs: Sequence[StoredRun]) -> str:
    """Sm and St of the only run in a sentence, which a chart of one point would not say better; "" of several."""
    measured = measured_runs(runs)
    if len(measured) != 1:
        return ""
    values = {name: points(measured, name) for name in ("smoothness Sm", "stability St")}
    numbers = ", ".join(f"{name} {own[0].value}" for name, own in values.items() if own)
    return f"Over depth {measured[0].label} has {numbers} ({basis(measured)})." if numbers else ""


def quantities(runs: Sequence[StoredRun]) -> dict[str, list[StoredRun]]:
    """Runs that can have each quantity, and how to read it; probes by what they are probed for."""
    probed = probe_runs(runs)
    return dict.fromkeys(PROBED, probed) | dict.fromkeys(MEASURED, measured_runs(runs))


def points(runs: Sequence[StoredRun], quantity: str) -> list[Point]:
    """Values of a quantity that some runs have."""
    reader = {**PROBED, **MEASURED}[quantity]
    measured = []
    for run in runs:
        value = reader(run.result)
        if value is not None and np.isfinite(value.value) and run.length.isdigit():
            measured.append(Point(run, int(run.length), int(run.facts.get("parameters", 0)), value))
    return measured


def _sets(
    runs: Sequence[StoredRun], quantity: str, context: Context
) -> dict[tuple[tuple[str, str], ...], list[tuple[Point, str]]]:
    """Points in sets that compare: controls without the length, and the note of each."""
    sets: dict[tuple[tuple[str, str], ...], list[tuple[Point, str]]] = {}
    labels = dict.fromkeys(probed_label(run) if run.study == "probe" else "" for run in runs)
    for label in labels:
        mine = [run for run in runs if (probed_label(run) if run.study == "probe" else "") == label]
        for group in group_runs(mine, allow_mixed=context.allow_mixed):
            when = {key: value for key, value in group.when.items() if key != "length"}
            when |= {"metric": quantity} | ({"probed_for": label} if label else {})
            sets.setdefault(tuple(when.items()), []).extend((p, group.note) for p in points(group.runs, quantity))
    return sets


def summary_figure(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """Sm, St and their relatives side by side, a marker per model."""
    variants = []
    for group in group_runs(measured_runs(runs), allow_mixed=context.allow_mixed):
        matched = [name for name in MEASURED if name.endswith(MATCHED)] if one_grid(group.runs) else []
        for quantity in dict.fromkeys((*matched, *MEASURED)):  # what the verdict gives comes first
            members = points(group.runs, quantity)
            if members:
                variants.append(_summary_variant(group.when | {"metric": quantity}, members, group.note))
    if not variants:
        return None
    caption = (
        "Sm: mean absolute second difference of a state over depth; St: its standard deviation over depth; lower is "
        "smoother and steadier. Matched depth: on a common grid, for models of different depth. Relative: over the "
        "median token's size. With 95 % intervals over prompts."
    )
    alt = "Markers with intervals, one per model, of a chosen quantity over depth."
    return Figure("over-depth", "Smoothness and stability over depth", caption, alt, variants, log_axis=True)


def _summary_variant(when: dict[str, str], members: Sequence[Point], note: str) -> Variant:
    traces = [_trace(point.run.label, [point.run.label], [point], "markers") for point in members]
    layout = {"xaxis": {"type": "category"}, "yaxis": {"title": {"text": when["metric"]}}, "showlegend": False}
    return Variant(when, traces, layout, COLUMNS, _rows(members), note, basis=_basis(members))


def length_figure(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """A line per model over the length of the prompt."""
    variants = []
    for quantity, mine in quantities(runs).items():
        for when, members in _sets(mine, quantity, context).items():
            own = [point for point, _ in members]
            if len({point.length for point in own}) > 1:
                variants.append(_length_variant(dict(when), own, joined(*dict.fromkeys(n for _, n in members))))
    if not variants:
        return None
    caption = "Each quantity over the tokens of a prompt, with its 95 % interval over prompts."
    alt = "Line chart of a quantity over the length of the prompt, one line per model."
    title = "Accuracy, Sm and St against length"
    return Figure(LENGTHS, title, caption, alt, variants, log_axis=True)


def _length_variant(when: dict[str, str], members: Sequence[Point], note: str) -> Variant:
    traces = []
    for label in dict.fromkeys(point.run.label for point in members):
        mine = sorted((point for point in members if point.run.label == label), key=lambda point: point.length)
        traces.append(_trace(label, [point.length for point in mine], mine, "lines+markers"))
    ticks = sorted({point.length for point in members})
    words = [str(value) for value in ticks]
    layout = {
        "xaxis": {"title": {"text": "tokens per prompt"}, "type": "log", "tickvals": ticks, "ticktext": words},
        "yaxis": {"title": {"text": when["metric"]}},
    }
    return Variant(when, traces, layout, COLUMNS, _rows(members), note, basis=_basis(members))


def size_figure(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """A marker per model over its number of parameters."""
    variants = []
    for quantity, mine in quantities(runs).items():
        for when, members in _sets(mine, quantity, context).items():
            for length in dict.fromkeys(point.length for point, _ in members):
                here = [(point, note) for point, note in members if point.length == length]
                if len({point.parameters for point, _ in here}) > 1:
                    controls = dict(when) | {"length": str(length)}
                    note = joined(*dict.fromkeys(note for _, note in here), _size_note([p.parameters for p, _ in here]))
                    variants.append(_size_variant(controls, [point for point, _ in here], note))
    if not variants:
        return None
    caption = (
        "Each quantity over the number of parameters, with its 95 % interval over prompts. Models of other families or "
        "training differ in more than size."
    )
    alt = "Chart of a quantity over the number of parameters, one marker per model."
    title = "Accuracy, Sm and St against model size"
    return Figure("scaling-size", title, caption, alt, variants, log_axis=True)


def _size_note(sizes: Sequence[int]) -> str:
    """A warning where no model is much larger than another."""
    alike = max(sizes) < SIZES * min(sizes)
    return (
        f"No model here has {SIZES:g} times the parameters of another: this says nothing about size." if alike else ""
    )


def _size_variant(when: dict[str, str], members: Sequence[Point], note: str) -> Variant:
    traces = [_trace(point.run.label, [point.parameters], [point], "markers") for point in members]
    layout = {
        "xaxis": {"title": {"text": "parameters"}, "type": "log"},
        "yaxis": {"title": {"text": when["metric"]}},
    }
    return Variant(when, traces, layout, COLUMNS, _rows(members), note, basis=_basis(members))


def _basis(members: Sequence[Point]) -> str:
    return basis(point.run for point in members)


def _trace(label: str, x: Sequence[int | str], mine: Sequence[Point], mode: str) -> dict[str, Any]:
    mean, low, high = (np.array([getattr(p.value, part) for p in mine]) for part in ("value", "low", "high"))
    trace: dict[str, Any] = {"type": "scatter", "mode": mode, "name": label, "x": list(x), "y": short(mean)}
    trace["meta"] = {"model": label}
    if np.isfinite(low).any():
        ends = {"array": short(np.nan_to_num(high - mean)), "arrayminus": short(np.nan_to_num(mean - low))}
        trace["error_y"] = {"type": "data", "symmetric": False, **ends}
    if mode == "markers":
        trace["marker"] = {"size": 11}
    return trace


def _rows(members: Sequence[Point]) -> list[list[Any]]:
    return [
        [p.run.label, p.run.name, p.run.task, p.run.states, p.length, p.parameters, *map(exact, astuple(p.value))]
        for p in members
    ]
