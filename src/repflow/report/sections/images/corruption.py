"""The page's part on corruption: accuracy as a window slides over the sequence, drops of named regions, attacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.report.data.context import Context
from repflow.report.data.model import Block, Content, Figure, Table, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.number import plain

ABOUT = {
    "normal": "N(0, 1) noise, as published",
    "data": "noise of the data's own mean and spread",
    "shuffle": "parts of the same sequence",
    "mean": "mean image",
    "same": "another image of the same class",
    "other": "another image or prompt",
    "random": "random tokens",
}


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of all runs of corrupt and attack; None where there are none."""
    images = [run for run in runs if run.study == "corrupt" and "accuracy" in run.result]
    texts = [run for run in runs if run.study == "corrupt" and "log_odds_change" in run.result]
    attacks = [run for run in runs if run.study == "attack"]
    blocks: list[Block] = []
    for kind, own in (("images", images), ("text", texts)):
        if own:
            blocks += [_curve(own, kind), _region_table(own, kind)]
    blocks += [_influence(read)] if (read := [run for run in images if "influence" in run.result]) else []
    blocks += [_examples(run, number) for number, run in enumerate(images)]
    if attacks:
        blocks += [_attack_figure(attacks), _attack_table(attacks)]
    if not blocks:
        return None
    lead = (
        "A region of the sequence is replaced and the answer read again. Noise outside of the data's range is an input "
        "that no model has seen; a drop that comes with parts of other images of the same class too is about the model."
    )
    return Content(lead, blocks)


def _measured(run: StoredRun, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, low and high by region of one replacement: accuracy in percent, or the change of log-odds."""
    result = run.result
    if "accuracy" in result:
        clean = float(result["clean_accuracy"])
        low, high = (clean - result[f"drop_{end}"][place] for end in ("high", "low"))
        return 100 * result["accuracy"][place], 100 * low, 100 * high
    band = result.band("log_odds_change")
    return band.mean[place], band.low[place], band.high[place]


def _windows(run: StoredRun) -> list[int]:
    """Regions of the most frequent size, in order: those that slide over the sequence."""
    bounds = [tuple(map(int, word.split(":"))) for word in run.result.provenance["regions"]]
    sizes = [end - start for start, end in bounds]
    size = max(set(sizes), key=lambda entry: (sizes.count(entry), -entry))
    return sorted((at for at, own in enumerate(sizes) if own == size), key=lambda at: bounds[at])


def _words(kind: str) -> str:
    return "accuracy (%)" if kind == "images" else "change of the answer's log-odds"


def _curve(runs: Sequence[StoredRun], kind: str) -> Figure:
    """A line per model over the place of a window, a variant per replacement."""
    variants = []
    kinds = list(dict.fromkeys(name for run in runs for name in run.result.provenance["replacements"]))
    for name in kinds:
        traces: list[dict[str, Any]] = []
        rows: list[list[Any]] = []
        for number, run in enumerate(run for run in runs if name in run.result.provenance["replacements"]):
            value, low, high = _measured(run, run.result.provenance["replacements"].index(name))
            chosen, regions = _windows(run), run.result.provenance["regions"]
            middles = [sum(map(int, regions[at].split(":"))) / 2 for at in chosen]
            colour = {"color": f"model:{number % 8}"}
            traces.append(_line(run.name, middles, value[chosen], colour))
            if kind == "images":
                clean = 100 * float(run.result["clean_accuracy"])
                ends = [middles[0], middles[-1]]
                traces.append(_line(f"{run.name}, as it is", ends, [clean] * 2, {**colour, "dash": "dot"}, "lines"))
            bounds = zip(chosen, value[chosen], low[chosen], high[chosen], strict=True)
            rows += [[run.name, regions[at], *plain(np.array(rest))] for at, *rest in bounds]
        layout = {
            "xaxis": {"title": {"text": "middle of the window (token)"}},
            "yaxis": {"title": {"text": _words(kind)}},
        }
        columns = ["model", "region", _words(kind), "low", "high"]
        variants.append(Variant({"replaced by": ABOUT.get(name, name)}, traces, layout, columns, rows))
    return Figure(
        f"corruption-{kind}",
        "What hangs on each part?" if kind == "images" else "What hangs on each part of a prompt?",
        "The value with a window of the sequence replaced, by the window's place; dotted: nothing replaced.",
        "A line per model over the place of the replaced window.",
        variants,
    )


def _influence(runs: Sequence[StoredRun]) -> Figure:
    """A line per model: how much each token counts for the answer, on average 1."""
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for number, run in enumerate(runs):
        value = run.result["influence"] / run.result["influence"].mean()
        traces.append(_line(run.name, range(len(value)), value, {"color": f"model:{number % 8}"}, "lines"))
        rows += [[run.name, token, *plain(np.array([own]))] for token, own in enumerate(value)]
    layout = {
        "xaxis": {"title": {"text": "token"}},
        "yaxis": {"title": {"text": "influence on the answer, by its mean"}, "type": "log"},
    }
    images = max(int(run.result.config.get("influence") or 0) for run in runs)
    return Figure(
        "answer-influence",
        "How much does each token count?",
        f"Gradient of the answer's log-odds by token, geometric mean over up to {images} images, divided by its mean.",
        "A line per model over the tokens of an image.",
        [Variant({}, traces, layout, ["model", "token", "influence"], rows)],
    )


def _line(name: str, x: Any, y: Any, line: dict[str, Any], mode: str = "lines+markers") -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": plain(np.asarray(y)), "line": line}


def _region_table(runs: Sequence[StoredRun], kind: str) -> Table:
    """Every region and replacement, with intervals and both drops."""
    columns = ["model", "region", "replaced by", _words(kind), "low", "high"]
    columns += ["relative drop (%)", "drop by what is above chance (%)"] if kind == "images" else []
    rows: list[list[Any]] = []
    for run in runs:
        for place, name in enumerate(run.result.provenance["replacements"]):
            value, low, high = _measured(run, place)
            for at, region in enumerate(run.result.provenance["regions"]):
                own = [run.name, region, name, *plain(np.array([value[at], low[at], high[at]]))]
                if kind == "images":
                    drops = [100 * float(run.result[key][place, at]) for key in ("relative_drop", "corrected_drop")]
                    own += plain(np.array(drops))
                rows.append(own)
    return Table(f"corruption-{kind}-table", "Every region and replacement", columns, rows)


def _examples(run: StoredRun, number: int) -> Figure:
    """Images before and after, by brightness."""
    shown = run.result["examples"].mean(-1)
    names = ["as it is", *run.result.provenance["replacements"]]
    variants = [_example(shown[:, sample], names, sample) for sample in range(shown.shape[1])]
    region = run.result.provenance["corrupt"]["example_region"]
    return Figure(
        f"corruption-examples-{number + 1}",
        f"Images before and after ({run.name})",
        f"The first test images by brightness, tokens {region} replaced in every way; pixels beyond 0 and 1 are cut.",
        "An image as it is, and with its last region replaced in every way.",
        variants,
        models_toggle=False,
    )


def _example(shown: np.ndarray, names: Sequence[str], sample: int) -> Variant:
    """A panel for each way (replacement, row, column)."""
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    columns = -(-len(names) // 2)
    layout: dict[str, Any] = {"grid": {"rows": 2, "columns": columns, "pattern": "independent"}, "annotations": notes}
    for place, name in enumerate(names):
        axis = "" if place == 0 else str(place + 1)
        cells = {"zmin": 0, "zmax": 255, "showscale": False, "colorscale": "sequential", "name": name}
        z = plain(shown[place][::-1], 4)
        traces.append({"type": "heatmap", "z": z, "xaxis": f"x{axis}", "yaxis": f"y{axis}", **cells})
        layout[f"xaxis{axis}"] = layout[f"yaxis{axis}"] = {"showticklabels": False}
        where = {"xref": f"x{axis} domain", "yref": f"y{axis} domain", "x": 0.5, "y": 1.12, "showarrow": False}
        notes.append({"text": name, **where})
    rows = [[name, *plain(row, 4)] for place, name in enumerate(names) for row in shown[place]]
    head = ["replacement", *(f"column {number}" for number in range(shown.shape[-1]))]
    return Variant({"image": str(sample + 1)}, traces, layout, head, rows)


def _attack_figure(runs: Sequence[StoredRun]) -> Figure:
    """Success by region, mean over targets, with random pairs and the base rate."""
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for number, run in enumerate(runs):
        regions, result = run.result.provenance["regions"], run.result
        colour = {"color": f"model:{number % 8}"}
        kinds = (("success", "target lends", "solid"), ("random_pair", "another class lends", "dash"))
        for name, words, dash in kinds:
            mean = 100 * result[f"mean_{name}"]
            traces.append(_line(f"{run.name}, {words}", regions, mean, {**colour, "dash": dash}))
            ends = [plain(100 * result[f"mean_{name}_{end}"]) for end in ("low", "high")]
            rows += [
                [run.name, region, words, *rest] for region, *rest in zip(regions, plain(mean), *ends, strict=True)
            ]
        base = 100 * float(result["mean_base_rate"])
        traces.append(
            _line(f"{run.name}, no attack", regions, [base] * len(regions), {**colour, "dash": "dot"}, "lines")
        )
        band = [100 * float(result[f"mean_base_rate{end}"]) for end in ("", "_low", "_high")]
        rows.append([run.name, "", "no attack", *plain(np.array(band))])
    layout = {
        "xaxis": {"title": {"text": "region that is lent"}, "type": "category"},
        "yaxis": {"title": {"text": "target named (%)"}},
    }
    return Figure(
        "attack",
        "Can pasted pixels steer the answer?",
        "How often the target is named, mean over targets, of images of other classes.",
        "Success rates by region, with base rates.",
        [Variant({}, traces, layout, ["model", "region", "pixels", "target named (%)", "low", "high"], rows)],
    )


def _attack_table(runs: Sequence[StoredRun]) -> Table:
    rates = ("success", "success_low", "success_high", "random_pair", "excess", "excess_low", "excess_high")
    columns = ["model", "target", "region", "success (%)", "low", "high", "random pair (%)"]
    columns += ["above it", "low", "high", "no attack (%)"]
    rows: list[list[Any]] = []
    for run in runs:
        result = run.result
        for row, target in enumerate(result.provenance["targets"]):
            for place, region in enumerate(result.provenance["regions"]):
                own = [result[name][row, place] for name in rates]
                values = plain(100 * np.array([*own, result["base_rate"][row]]))
                rows.append([run.name, target, region, *values])
    return Table("attack-table", "Every target and region", columns, rows)
