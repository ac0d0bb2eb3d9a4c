"""Figure 3 of paper 1: trained weights against random twins, with what seeds of weights make of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from repflow.core.results import Band
from repflow.report.data.comparable import basis, task_name
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Cell, Content, Figure, PageModel, Table, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import Summary, twin_sentence
from repflow.report.draw.curve import axis_names, columns_for, joined, small_multiples
from repflow.report.draw.depth import depth, gap_note, hybrids, strip, strip_note, with_strips
from repflow.report.draw.lines import nan_mean
from repflow.report.draw.number import exact, short

MEASURES = {"raw": "token_similarity", "excess over other prompts": "token_similarity_excess"}
TRAINED = "trained"
DASHES = ("dot", "dash", "dashdot", "longdash", "longdashdot")
COLUMNS = ("model", "weights", "state", "relative depth", "mean", "low", "high", "seeds")
SIGNS = {1: "+", -1: "−", 0: "?"}

Family = dict[str, list[StoredRun]]
"""Runs of one architecture on the same prompts by scheme of weights."""


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Trained against random weights; None where no model was measured with both or with random ones alone."""
    figure = figure_3(runs, context)
    judged = [run for run in runs if run.study == "twins"]
    blocks: list[Block] = [figure] if figure else []
    blocks += [verdict_table(judged), cell_table(judged)] if judged else []
    if not blocks:
        return None
    lead = (
        "What shows with random weights comes from the architecture and how it is initialised; what shows only in "
        "trained weights was learnt."
    )
    return Content(lead, blocks)


def figure_3(runs: Sequence[StoredRun], context: Context) -> Figure | None:
    """Similarity by depth of trained weights and of every random scheme, a panel per model."""
    conditions: dict[tuple[str, str, str], dict[str, Family]] = {}
    for run in runs:
        if run.study == "measure" and not run.facts.get("ablate"):
            where = (task_name(run), run.length, run.states)
            family = conditions.setdefault(where, {}).setdefault(str(run.facts.get("spec")), {})
            family.setdefault(str(run.facts.get("init", TRAINED)), []).append(run)
    variants = []
    for (task, length, states), families in conditions.items():
        chosen = [same_prompts(family) for family in families.values() if set(family) - {TRAINED}]
        for words, metric in MEASURES.items():
            when = {"task": task, "length": length, "states": states, "measure": words}
            variant = _variant([family for family in chosen if _has(family, metric)], metric, when, context)
            variants += [variant] if variant else []
    if not variants:
        return None
    caption = (
        "Token similarity by depth: trained weights with their 95 % interval over prompts, random weights as the mean "
        "over seeds with a band from the lowest to the highest seed, or with the interval over prompts where there is "
        "one seed. All weights of a panel read the same prompts; all panels have one scale."
    )
    alt = "Lines of token similarity over depth for trained and random weights, one panel per model."
    title = "Trained weights against random twins"
    return Figure(
        "figure-3",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
    )


def _has(family: Family, metric: str) -> bool:
    return any(metric in run.result for init, runs in family.items() if init != TRAINED for run in runs)


def same_prompts(family: Family) -> Family:
    """Runs of a family that read the prompts of its trained run, or of its first one."""
    first = (family.get(TRAINED) or next(iter(family.values())))[0]
    wanted = first.result.provenance.get("digests", {}).get("prompts")
    same = {
        init: [run for run in runs if run.result.provenance.get("digests", {}).get("prompts") == wanted]
        for init, runs in family.items()
    }
    return {init: _by_weights(runs) for init, runs in same.items() if runs}


def _by_weights(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """One run per set of weights: a twin that was measured twice counts once."""
    return list({run.result.provenance.get("digests", {}).get("weights"): run for run in runs}.values())


def seed_band(runs: Sequence[StoredRun], metric: str) -> Band:
    """Mean over seeds of weights, from the lowest to the highest seed; for one run its interval over prompts."""
    if len(runs) == 1:
        only: Band = runs[0].result.band(metric)
        return only
    curves = np.stack([run.result.mean(metric) for run in runs])
    known = np.isfinite(curves).any(0)
    low = np.where(known, np.nanmin(np.where(known, curves, 0.0), axis=0), np.nan)
    high = np.where(known, np.nanmax(np.where(known, curves, 0.0), axis=0), np.nan)
    return Band(nan_mean(curves, 0), low, high)


def _variant(families: Sequence[Family], metric: str, when: dict[str, str], context: Context) -> Variant | None:
    if not families:
        return None
    schemes = list(dict.fromkeys(init for family in families for init in family if init != TRAINED))
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    notes, labels, shapes, listed = [], [], [], set()
    for place, family in enumerate(families):
        label = _label(family)
        labels.append(label)
        for init in sorted(family, key=lambda init: init != TRAINED):
            runs = [run for run in family[init] if metric in run.result]
            if not runs:
                continue
            band = seed_band(runs, metric)
            where = depth(runs[0], "state", len(band.mean))
            style = _style(init, schemes)
            traces += _lines(init, label, where, band, place, style, legend=init not in listed)
            listed.add(init)
            rows += _rows(label, init, where, band, len(runs))
            notes.append(gap_note(band.mean, runs[0], "state"))
        own = [model for model in hybrids(context.models) if model.label == label]
        shapes += [shape for model in own for shape in strip(model, panel=axis_names(place)[0][1:])]
    layout = small_multiples(
        labels,
        {"title": {"text": ""}},
        {"title": {"text": "token similarity"}},
        columns=columns_for(len(labels)),
        models=labels,
    )
    for place in range(1, len(families)):
        layout[f"yaxis{place + 1}"] |= {"matches": "y"}  # one scale: panels are held against each other
    layout |= with_strips(layout, shapes)
    shown_runs = [run for family in families for runs in family.values() for run in runs]
    gaps_text = _differ(families) if metric == MEASURES["raw"] else ""
    return Variant(when, traces, layout, COLUMNS, rows, joined(*notes), gaps_text, basis=basis(shown_runs))


def _differ(families: Sequence[Family]) -> str:
    """The model whose trained and random weights differ most at the end; "" where none was measured with both."""
    entries = []
    for family in families:
        twins = [run for init, runs in family.items() if init != TRAINED for run in runs]
        if TRAINED in family and twins:
            trained = family[TRAINED][0]
            entries.append(Summary(PageModel(trained.label, 0, trained.layers), flow=trained, twin=twins[0]))
    return twin_sentence(entries)


def _label(family: Family) -> str:
    """The trained model's label, or the architecture's name."""
    if TRAINED in family:
        return family[TRAINED][0].label
    first = next(iter(family.values()))[0]
    return str(first.facts.get("name", first.label))


def _style(init: str, schemes: Sequence[str]) -> dict[str, Any]:
    """A panel is one model, so that colours distinguish weights, not models."""
    if init == TRAINED:
        return {"color": "ink", "dash": "solid", "width": 2.5}
    at = schemes.index(init)
    return {"color": f"model:{at}", "dash": DASHES[at % len(DASHES)]}


def _lines(
    init: str, label: str, where: dict[str, list[float]], band: Band, place: int, style: dict[str, Any], *, legend: bool
) -> list[dict[str, Any]]:
    x, y = axis_names(place)
    shared: dict[str, Any] = {"type": "scatter", "xaxis": x, "yaxis": y, "x": where["relative"], "legendgroup": init}
    shared |= {"meta": {"model": label, "x": where}}
    traces: list[dict[str, Any]] = []
    if np.isfinite(band.low).any():
        edge = {**shared, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
        fill = {"fill": "tonexty", "fillcolor": f"{style['color']}/0.18"}
        traces += [{**edge, "y": short(band.low)}, {**edge, "y": short(band.high), **fill}]
    own = {**shared, "mode": "lines", "name": init, "y": short(band.mean), "showlegend": legend, "line": style}
    return [*traces, own]


def _rows(label: str, init: str, where: dict[str, list[float]], band: Band, seeds: int) -> list[list[Any]]:
    parts = (band.mean, band.low, band.high)
    return [
        [label, init, where["absolute"][i], where["relative"][i], *(exact(part[i]) for part in parts), seeds]
        for i in range(len(band.mean))
    ]


def verdict_table(runs: Sequence[StoredRun]) -> Table:
    """What `repflow twins` concluded, per model and measure."""
    rows: list[list[Cell]] = []
    for run in runs:
        for measure, verdict in run.result.provenance["verdicts"].items():
            rows.append([run.label, task_name(run), measure, str(verdict["code"]), str(verdict["statement"])])
        for ablation, broken in (run.result.provenance.get("break_conditions") or {}).items():
            rows.append([run.label, task_name(run), f"without {ablation}", "break condition", str(broken["statement"])])
    caption = (
        "Architectural: late minus early similarity has one sign in every cell of a whole grid of schemes, lengths and "
        "seeds, trained weights included. Anything less is named for what it is."
    )
    return Table("twins-verdicts", "What the sign does", ("model", "task", "measure", "verdict", "why"), rows, caption)


def cell_table(runs: Sequence[StoredRun]) -> Table:
    """Late minus early similarity in every cell, with its interval over seeds and prompts."""
    rows: list[list[Cell]] = []
    for run in runs:
        labels, result = run.result.provenance["labels"], run.result
        for a, w, n in np.ndindex(*result["raw/late_minus_early_mean"].shape):
            row: list[Cell] = [run.label, labels["weights"][w], labels["length"][n], labels["ablation"][a]]
            for measure in ("raw", "excess"):
                mean, low, high = (
                    float(result[f"{measure}/late_minus_early_{p}"][a, w, n]) for p in ("mean", "low", "high")
                )
                row += [exact(mean), exact(low), exact(high), SIGNS[int(low > 0) - int(high < 0)]]
            rows.append(row)
    names = [f"{what}, {measure}" for measure in ("raw", "excess") for what in ("late − early", "low", "high", "sign")]
    share = runs[0].result.config.get("share", 1 / 3)
    caption = (
        f"Mean similarity of the last {share:.0%} of the blocks minus that of the first {share:.0%}; 95 % interval "
        "over seeds of weights and prompts. Sign: + or − where the interval excludes zero, ? where it does not."
    )
    columns = ("model", "weights", "length", "without", *names)
    return Table("twins-cells", "Late minus early similarity", columns, rows, caption)
