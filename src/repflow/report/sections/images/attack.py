"""Attacks on the page: how often the target is named once its pixels are pasted, beside what happens without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.results import Band
from repflow.report.data.interval import Interval
from repflow.report.data.model import Block, Card, Figure, Table, Variant
from repflow.report.data.runs import StoredRun, called, colour_of, named
from repflow.report.draw.curve import band_traces, bare
from repflow.report.draw.number import plain
from repflow.report.sections.images.example import example_figure
from repflow.report.sections.images.naming import cautions, image_basis, region_words

LINES = (("success", "target lends", "solid"), ("random_pair", "another class lends", "dash"))
BASE, WITHOUT = "base_rate", "no attack"


def attack_blocks(runs: Sequence[StoredRun]) -> list[Block]:
    """Figure and table; none without runs."""
    return [_figure(runs), _table(runs)] if runs else []


def attack_examples(runs: Sequence[StoredRun]) -> list[Block]:
    """Images before and after, of runs that kept some."""
    shown: list[Block] = []
    for number, run in enumerate(runs):
        if "examples" in run.result:
            facts = run.result.provenance["attack"]
            region, target = region_words(facts["example_region"]), facts["example_target"]
            caption = f"The first test images that are not of {target}, with {region} lent by other images."
            ways = [f"pixels of {target}", "pixels of another class"]
            shown.append(example_figure(number, runs, part="attack", ways=ways, caption=caption))
    return shown


def attack_facts(runs: Sequence[StoredRun]) -> list[Card]:
    """The attack that succeeds most above random pairs, with the rate without it."""
    if not runs:
        return []
    run, place = _best(runs)
    base = 100 * float(run.result["mean_base_rate"])
    region = region_words(run.result.provenance["regions"][place])
    text = f"of other images are named as the target by {run.label} once it lends {region} ({base:.0f} % without)"
    return [Card("Steered", f"{100 * run.result['mean_success'][place]:.0f} %", text, _basis(run), "attack")]


def _best(runs: Sequence[StoredRun]) -> tuple[StoredRun, int]:
    """Run and region of the attack that succeeds most above random pairs, mean over targets.

    A model that names one class whatever it reads has the greatest success, and no attack steers it.
    """
    best = [(run, int(np.nanargmax(run.result["mean_excess"]))) for run in runs]
    return max(best, key=lambda pair: float(pair[0].result["mean_excess"][pair[1]]))


def _basis(run: StoredRun) -> str:
    facts = run.result.provenance["attack"]
    order = facts["layout"]["order"] if "layout" in facts else ""  # not in runs of before
    return image_basis(Path(str(run.result.config["images"])).name, facts["tokens"], facts["images"], order)


def _rate(run: StoredRun, name: str, place: int | tuple[()]) -> str:
    """A rate in percent with its interval."""
    return Interval(*(100 * float(run.result[f"{name}{end}"][place]) for end in ("", "_low", "_high"))).text(".1f")


def _reading(runs: Sequence[StoredRun]) -> str:
    run, place = _best(runs)
    region = region_words(run.result.provenance["regions"][place])
    shown = float(run.result["mean_excess_low"][place]) > 0
    return (
        f"{'' if shown else 'No attack is shown to do more than pixels of any other class. '}"
        f"{called(run, runs)} names the target for {_rate(run, 'mean_success', place)} % of other images once the "
        f"target lends {region}. It does so for {_rate(run, 'mean_random_pair', place)} % if another class lends them, "
        f"and for {_rate(run, 'mean_base_rate', ())} % without an attack.{cautions(run.result)}"
    )


def _rates(run: StoredRun, name: str) -> Band:
    """Rates in percent with their intervals, mean over targets."""
    return Band(*(100 * np.asarray(run.result[f"mean_{name}{end}"]) for end in ("", "_low", "_high")))


def _curves(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """A line for each kind of lender over the regions, and a level without an attack."""
    traces: list[dict[str, Any]] = []
    for run, name_of in named(runs):
        regions = run.result.provenance["regions"]
        own: dict[str, Any] = {"model": run.label, "colour": colour_of(run, runs)}
        for name, words, dash in LINES:
            traces += band_traces(regions, _rates(run, name), dash=dash, name=f"{name_of}, {words}", **own)
        level = bare([float(_rates(run, BASE).mean)] * len(regions))
        traces += band_traces(regions, level, mode="lines", dash="dot", name=f"{name_of}, {WITHOUT}", **own)
    return traces


def _points(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """One region makes no line: its rates stand side by side, each with its interval."""
    traces: list[dict[str, Any]] = []
    for run, name_of in named(runs):
        bands = [_rates(run, name) for name in (*(name for name, *_ in LINES), BASE)]
        mean, low, high = (np.array([float(np.ravel(part)[0]) for part in parts]) for parts in zip(*bands, strict=True))
        reach = {"array": plain(high - mean), "arrayminus": plain(mean - low)}
        traces.append(
            {
                **{"type": "scatter", "mode": "markers", "name": name_of, "meta": {"model": run.label}},
                **{"x": [*(words for _, words, _ in LINES), WITHOUT], "y": plain(mean)},
                **{"error_y": {"type": "data", "symmetric": False, **reach}},
                "marker": {"color": colour_of(run, runs), "size": 9},
            }
        )
    return traces


def _figure(runs: Sequence[StoredRun]) -> Figure:
    """Success by region, mean over targets, with random pairs and the base rate."""
    rows: list[list[Any]] = []
    for run, name_of in named(runs):
        regions = run.result.provenance["regions"]
        for name, words, _ in LINES:
            band = _rates(run, name)
            parts = zip(regions, plain(band.mean), plain(band.low), plain(band.high), strict=True)
            rows += [[name_of, region, words, *rest] for region, *rest in parts]
        base = _rates(run, BASE)
        rows.append([name_of, "", WITHOUT, *plain(np.array([base.mean, base.low, base.high]))])
    asked = list(dict.fromkeys(region for run in runs for region in run.result.provenance["regions"]))
    alone = len(asked) == 1
    traces = _points(runs) if alone else _curves(runs)
    across = f"who lends {region_words(asked[0])}" if alone else "tokens that are lent"
    layout = {
        "xaxis": {"title": {"text": across}, "type": "category"},
        "yaxis": {"title": {"text": "target named (%)"}},
    }
    columns = ["model", "region", "pixels", "target named (%)", "low", "high"]
    basis = "; ".join(dict.fromkeys(_basis(run) for run in runs))
    return Figure(
        "attack",
        "Can pasted pixels steer the answer?",
        "How often the target is named, mean over targets, of images of other classes, with 95 % intervals over "
        "images. A rate says nothing alone: beside it stand the rate with pixels that another class lends, and the "
        "rate without an attack.",
        "Success rates by region, with base rates.",
        [Variant({}, traces, layout, columns, rows, reading=_reading(runs), basis=basis)],
    )


def _table(runs: Sequence[StoredRun]) -> Table:
    rates = ("success", "success_low", "success_high", "random_pair", "excess", "excess_low", "excess_high")
    columns = ["model", "target", "region", "success (%)", "low", "high", "random pair (%)"]
    columns += ["above it", "low", "high", "no attack (%)"]
    rows: list[list[Any]] = []
    for run, name_of in named(runs):
        result = run.result
        for row, target in enumerate(result.provenance["targets"]):
            for place, region in enumerate(result.provenance["regions"]):
                own = [result[name][row, place] for name in rates]
                values = plain(100 * np.array([*own, result["base_rate"][row]]))
                rows.append([name_of, target, region, *values])
    return Table("attack-table", "Every target and region", columns, rows)
