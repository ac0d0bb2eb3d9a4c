"""Figure 7 of paper 1: what can be read from every state, by a linear probe and by the model's own head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from repflow.core.intervals import share_interval
from repflow.core.readout import ReadOut
from repflow.core.results import Band, Result
from repflow.report.data.comparable import Group, group_runs
from repflow.report.data.context import Context
from repflow.report.data.model import Block, Cell, Content, Figure, Link, PageModel, Table, Variant
from repflow.report.data.probed import probe_runs, probed_label
from repflow.report.data.runs import StoredRun
from repflow.report.data.summary import Summary, readout_sentence
from repflow.report.draw.curve import joined
from repflow.report.draw.depth import strip_note
from repflow.report.draw.lines import Curve, Depth, Drawn, band_rows, curves, line, marker, mean_band
from repflow.report.draw.number import exact

COLUMNS = ("model", "run", "task", "length", "states", "what", "state", "relative depth", "mean", "low", "high")
READOUTS: dict[str, tuple[str, str]] = {
    "linear probe": ("probe_accuracy", "test accuracy"),
    "linear probe, over chance": ("probe_corrected", "(accuracy − chance) / (1 − chance)"),
    "linear probe, selectivity": ("probe_selectivity", "over chance, minus the control task's"),
    "logit lens, answer ranks first": ("lens_rank", "share of prompts"),
    "logit lens, median rank": ("lens_rank", "median rank of the answer's first token"),
    "logit lens, log-probability": ("lens_logprob", "mean log-probability of the answer's first token"),
}


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Probes by depth; None where nothing was probed."""
    probed = probe_runs(runs)
    if not probed:
        return None
    lead = (
        "Where in depth the answer can be read. A probe is trained on some prompts, its state chosen on others, and "
        "every number comes from prompts that neither saw. The control task has labels that only memory can learn."
    )
    blocks: list[Block] = [figure_7(probed, context), readout_table(probed)]
    return Content(lead, blocks)


def figure_7(probed: Sequence[StoredRun], context: Context) -> Figure:
    """Accuracy by state with intervals, chance, control and final norm; or the logit lens."""
    variants = []
    for label in dict.fromkeys(probed_label(run) for run in probed):
        mine = [run for run in probed if probed_label(run) == label]
        for group in group_runs(mine, allow_mixed=context.allow_mixed):
            for words in READOUTS:
                variant = _variant(group, words, label, context)
                variants += [variant] if variant else []
    caption = (
        "Linear probe: test accuracy of a linear read-out of each state, with its 95 % interval (the wider of test "
        "prompts and refits; over test prompts alone with fewer than three seeds). Dotted "
        "line: chance. Thin dashed line: the control task. Thin dotted line: a random twin. Star: the peak that "
        "validation prompts chose. Open marker: the final norm. Logit lens: the state read by the model's own final "
        "norm and head."
    )
    alt = "Line chart of accuracy over depth, one line per model, with chance and the control task."
    title = "What a probe reads at each depth"
    return Figure(
        "figure-7",
        title,
        joined(caption, strip_note(context.models, variants)),
        alt,
        variants,
        depth_axis=True,
        log_axis=True,
    )


def _variant(group: Group, words: str, label: str, context: Context) -> Variant | None:
    name, title = READOUTS[words]
    runs = [run for run in group.runs if name in run.result]
    plain = words == "linear probe"
    curve = Curve(
        title=title,
        read=READERS[words],
        place=words,
        beside=_beside if plain else None,
        shapes=_chance_lines(runs) if plain else (),
        columns=COLUMNS,
        reading=_reading if plain else None,
    )
    variant = curves(group, context, name, group.when | {"probed_for": label, "read-out": words}, curve)
    return replace(variant, note=joined(variant.note, _classes_note(runs))) if variant else None


def _reading(runs: Sequence[StoredRun]) -> str:
    return readout_sentence([Summary(PageModel(run.label, 0, run.layers), probe=run) for run in runs])


def _stored(result: Result, name: str) -> Band:
    return result.bands[name]


def _corrected(result: Result, name: str) -> Band:
    mean = np.asarray(result[name], dtype=np.float64)
    band, chance = result.bands[name.replace("corrected", "accuracy")], float(result["probe_chance"])
    return Band(mean, (band.low - chance) / (1 - chance), (band.high - chance) / (1 - chance))


def _first(result: Result, name: str) -> Band:
    ranks = np.asarray(result[name], dtype=np.float64)
    return share_interval(np.where(np.isfinite(ranks), ranks == 1, np.nan), axis=1)


def _median_rank(result: Result, name: str) -> Band:
    ranks = np.asarray(result[name], dtype=np.float64)
    known = [row[np.isfinite(row)] for row in ranks]
    quartiles = np.array([np.percentile(row, (50, 25, 75)) if row.size else [np.nan] * 3 for row in known])
    return Band(quartiles[:, 0], quartiles[:, 1], quartiles[:, 2])


READERS: dict[str, Callable[[Result, str], Band]] = {
    "linear probe": _stored,
    "linear probe, over chance": _corrected,
    "linear probe, selectivity": _stored,
    "logit lens, answer ranks first": _first,
    "logit lens, median rank": _median_rank,
    "logit lens, log-probability": mean_band,
}


def _beside(run: StoredRun, where: Depth) -> Drawn:
    """Control task, twin and peak of one model."""
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for name, words, dash in (
        ("probe_control_accuracy", "control task", "dash"),
        ("twin/probe_accuracy", "random twin", "dot"),
    ):
        if name in run.result:
            band = run.result.bands[name]
            style = {"mode": "lines", "line": {"dash": dash, "width": 1}, "showlegend": False, "opacity": 0.8}
            traces += line(f"{run.label}, {words}", run.label, where, Band(band.mean, *_none(band)), **style)
            rows += band_rows(run, words, where, band)
    about = run.result.provenance["probe"]
    mean = run.result.bands["probe_accuracy"].mean
    traces.append(marker(run, "peak", _at(where, about["peak"]), mean[[about["peak"]]], "star", 13))
    return traces, rows


def _none(band: Band) -> tuple[np.ndarray, np.ndarray]:
    return np.full_like(band.mean, np.nan), np.full_like(band.mean, np.nan)


def _at(where: Depth, place: int) -> Depth:
    return {kind: [values[place]] for kind, values in where.items()}


def _chance_lines(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """A dotted line at every level of chance."""
    levels = dict.fromkeys(float(run.result["probe_chance"]) for run in runs)
    shared = {"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "yref": "y"}
    look = {"line": {"color": "muted", "width": 1.5, "dash": "dot"}}
    return [{**shared, "y0": level, "y1": level, **look, "label": _chance_label(level)} for level in levels]


def _chance_label(level: float) -> dict[str, Any]:
    return {"text": f"chance {level:.3g}", "textposition": "end", "yanchor": "bottom", "font": {"size": 11}}


def _classes_note(runs: Sequence[StoredRun]) -> str:
    counts = {run.label: run.result.provenance["probe"]["classes"] for run in runs}
    if len(set(counts.values())) < 2:
        return ""
    numbers = ", ".join(f"{label} {count}" for label, count in counts.items())
    return f"The numbers of classes differ ({numbers}): compare what is over chance."


def readout_table(probed: Sequence[StoredRun]) -> Table:
    """Peak, last state and the loss between them, per run."""
    rows: list[list[Cell]] = []
    for run in probed:
        about, read_out = run.result.provenance["probe"], ReadOut.of(run.result)
        counts = read_out.counts
        answers = run.result.arrays.get("answer_correct")
        rows.append(
            [
                run.label,
                run.task,
                run.length,
                run.states,
                probed_label(run),
                Link(str(read_out.number(read_out.peak)), "figure-7"),
                about["peak_accuracy"],
                about["last_accuracy"],
                exact(read_out.loss.value),
                exact(read_out.loss.low),
                exact(read_out.loss.high),
                about["chance"],
                *((None,) * 3 if counts is None else (counts.train, counts.test, counts.seeds)),
                None if answers is None or not np.isfinite(answers).any() else exact(np.nanmean(answers)),
                "yes" if read_out.shown else "not shown",
            ]
        )
    columns = (
        *("model", "task", "length", "states", "probed for", "peak state", "at the peak", "last state", "loss"),
        *("low", "high", "chance", "training prompts", "test prompts", "seeds"),
        *("greedy answers right", "earlier state better"),
    )
    caption = (
        "Loss: accuracy at the peak minus that at the last state, on the same test prompts, an accuracy below chance "
        "counted as chance, with its 95 % interval: the wider of test prompts and refits, where three seeds or more "
        "refit the probes. An earlier state is said to be better only where that interval covers refits and lies above "
        "0, and the loss survives probes fitted on half the training prompts. States of branches count blocks from 1. "
        "Greedy answers: share of prompts that the model itself answers rightly."
    )
    return Table("readout", "Peak against last layer", columns, rows, caption)
