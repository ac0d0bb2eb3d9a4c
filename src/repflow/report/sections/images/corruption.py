"""The page's part on corruption: what is answered as a window slides over the sequence, and what pasted pixels do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

import numpy as np

from repflow.core.results import Band
from repflow.report.data.comparable import task_name
from repflow.report.data.context import Context
from repflow.report.data.interval import Interval, at
from repflow.report.data.model import Block, Card, Content, Figure, Table, Variant
from repflow.report.data.runs import StoredRun, called, colour_of, named
from repflow.report.draw.curve import band_traces, bare, thin, thin_note
from repflow.report.draw.number import plain
from repflow.report.sections.images.attack import attack_blocks, attack_examples, attack_facts
from repflow.report.sections.images.example import example_figure
from repflow.report.sections.images.naming import cautions, image_basis, region_words
from repflow.spec.corruption import AIMED

ABOUT = {
    "normal": "N(0, 1) noise, as published",
    "data": "noise of the data's own mean and spread",
    "shuffle": "parts of the same sequence",
    "mean": "mean image",
    "same": "another image of the same class",
    "other": "an image of another class, or another prompt",
    "random": "random tokens",
}
IMAGES, TEXT = "images", "text"
SPOKEN = {
    ("normal", IMAGES): "N(0, 1) noise",
    ("other", IMAGES): "an image of another class",
    ("other", TEXT): "another prompt",
}
"""Of replacements that sentences name otherwise, by what is read."""
TITLES = {IMAGES: "How much depends on each part of an image?", TEXT: "How much depends on each part of a prompt?"}
WORDS = {IMAGES: "accuracy (%)", TEXT: "change of the answer's log-odds"}


def section(runs: Sequence[StoredRun], context: Context) -> Content | None:
    """Figures of all runs of corrupt and attack; None where there are none."""
    corrupted = [run for run in runs if run.study == "corrupt"]
    kinds = {
        IMAGES: [run for run in corrupted if "accuracy" in run.result],
        TEXT: [run for run in corrupted if "log_odds_change" in run.result],
    }
    attacks = [run for run in runs if run.study == "attack"]
    blocks: list[Block] = [_curve(own, kind) for kind, own in kinds.items() if own]
    blocks += attack_blocks(attacks)[:1]
    shown = [block.id for block in blocks]
    blocks += [_influence(read)] if (read := [run for run in kinds[IMAGES] if "influence" in run.result]) else []
    blocks += [_region_table(own, kind) for kind, own in kinds.items() if own] + attack_blocks(attacks)[1:]
    blocks += [_examples(number, kinds[IMAGES]) for number in range(len(kinds[IMAGES]))] + attack_examples(attacks)
    if not blocks:
        return None
    lead = (
        "A region of the sequence is replaced and the answer read again. Noise outside of the data's range is an input "
        "that no model has seen; a drop that comes with parts of other images of the same class too is about the model."
    )
    facts = [card for kind, own in kinds.items() for card in _facts(own, kind)] + attack_facts(attacks)
    return Content(lead, blocks, shown, facts=facts)


def _measured(run: StoredRun, place: int) -> Band:
    """Value with its interval by region of one replacement: accuracy in percent, or the change of log-odds."""
    result = run.result
    if "accuracy" in result:
        low, high = (float(result["clean_accuracy"]) - result[f"drop_{end}"][place] for end in ("high", "low"))
        return Band(100 * result["accuracy"][place], 100 * low, 100 * high)
    band = result.band("log_odds_change")
    return Band(band.mean[place], band.low[place], band.high[place])


def _windows(run: StoredRun) -> list[int]:
    """Regions of the most frequent size, in order: those that slide over the sequence."""
    bounds = [tuple(map(int, word.split(":"))) for word in run.result.provenance["regions"]]
    sizes = [end - start for start, end in bounds]
    size = max(set(sizes), key=lambda entry: (sizes.count(entry), -entry))
    return sorted((at for at, own in enumerate(sizes) if own == size), key=lambda at: bounds[at])


def _curve(runs: Sequence[StoredRun], kind: str) -> Figure:
    """A line per model over the place of a window, a variant per replacement."""
    names = list(dict.fromkeys(name for run in runs for name in run.result.provenance["replacements"]))
    variants = [_variant([run for run in runs if name in _replacements(run)], name, kind) for name in names]
    dotted = "; dotted: nothing replaced" if kind == IMAGES else ""
    return Figure(
        f"corruption-{kind}",
        TITLES[kind],
        f"The value with a window of the sequence replaced, by the window's place, with its 95 % interval{dotted}. A "
        "window's place is its middle token.",
        "A line per model over the place of the replaced window.",
        variants,
    )


def _replacements(run: StoredRun) -> list[str]:
    return list(run.result.provenance["replacements"])


def _variant(runs: Sequence[StoredRun], name: str, kind: str) -> Variant:
    """One replacement in all runs that have it."""
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for run, label in named(runs):
        band = _measured(run, _replacements(run).index(name))
        chosen, regions = _windows(run), run.result.provenance["regions"]
        middles = [sum(map(int, regions[at].split(":"))) / 2 for at in chosen]
        own = Band(*(np.asarray(part)[chosen] for part in (band.mean, band.low, band.high)))
        colour = colour_of(run, runs)
        traces += band_traces(middles, own, name=label, model=run.label, colour=colour)
        if kind == IMAGES:
            ends = [middles[0], middles[-1]]
            style: dict[str, Any] = {"name": f"{label}, nothing replaced", "model": run.label, "dash": "dot"}
            style["colour"] = colour
            traces += band_traces(ends, bare([_clean(run)] * len(ends)), mode="lines", legend=False, **style)
        parts = zip(chosen, own.mean, own.low, own.high, strict=True)
        rows += [[label, regions[at], *plain(np.array(rest))] for at, *rest in parts]
    layout = {
        "xaxis": {"title": {"text": "middle of the replaced window (token)"}},
        "yaxis": {"title": {"text": WORDS[kind]}},
    }
    columns = ["model", "region", WORDS[kind], "low", "high"]
    reading = _reading(runs, name, kind)
    basis = "; ".join(dict.fromkeys(_basis(run) for run in runs))
    return Variant({"replaced by": ABOUT.get(name, name)}, traces, layout, columns, rows, reading=reading, basis=basis)


def _basis(run: StoredRun, most: int | None = None) -> str:
    """What a run rests on; `most` of its images, where a number was read of the first ones alone."""
    facts = run.result.provenance["corrupt"]
    if "images" in facts:
        images = facts["images"] if most is None else min(most, facts["images"])
        return image_basis(facts["source"], facts["tokens"], images, facts["layout"]["order"])
    return f"{task_name(run)}, {facts['tokens']:,} tokens, {facts['prompts']:,} prompts"


def _influence(runs: Sequence[StoredRun]) -> Figure:
    """A line per model: how much each token counts for the answer, on average 1."""
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    for run, label in named(runs):
        value = run.result["influence"] / run.result["influence"].mean()
        places = thin(len(value))
        style: dict[str, Any] = {"name": label, "model": run.label, "mode": "lines", "colour": colour_of(run, runs)}
        traces += band_traces(places, bare(value[places]), **style)
        rows += [[label, token, *plain(np.array([own]))] for token, own in enumerate(value)]
    layout = {
        "xaxis": {"title": {"text": "token"}},
        "yaxis": {"title": {"text": "influence on the answer, by its mean"}, "type": "log"},
    }
    longest = max(len(run.result["influence"]) for run in runs)
    note = thin_note(longest, len(thin(longest)), "tokens")
    basis = "; ".join(dict.fromkeys(_basis(run, int(run.result.config["influence"])) for run in runs))
    return Figure(
        "answer-influence",
        "How much does each token count?",
        "Gradient of the answer's log-odds by token, geometric mean over images, divided by its mean.",
        "A line per model over the tokens of an image.",
        [Variant({}, traces, layout, ["model", "token", "influence"], rows, note, basis=basis)],
        log_axis=True,
    )


def _spoken(name: str, kind: str) -> str:
    """A replacement in a sentence."""
    lent = f"images of {name.removeprefix(AIMED)}" if name.startswith(AIMED) else name
    return SPOKEN.get((name, kind), ABOUT.get(name, lent))


class Lowest(NamedTuple):
    """The region whose replacement leaves least.

    Attributes:
        region: in words.
        left: what is left there: accuracy in percent, or the change of log-odds.
        shown: whether its interval lies below what there is as it is.
    """

    region: str
    left: Interval
    shown: bool


def _lowest(run: StoredRun, name: str) -> Lowest:
    """Of one replacement; NaN where nothing is finite."""
    band = _measured(run, _replacements(run).index(name))
    finite = np.isfinite(band.mean).any()
    place = int(np.nanargmin(band.mean)) if finite else 0
    left = at(band, place)
    return Lowest(region_words(run.result.provenance["regions"][place]), left, left.high < _clean(run))


def _clean(run: StoredRun) -> float:
    """Accuracy in percent with nothing replaced; of log-odds the change is measured, so 0."""
    return 100 * float(run.result["clean_accuracy"]) if "accuracy" in run.result else 0.0


def _reading(runs: Sequence[StoredRun], name: str, kind: str) -> str:
    """Where most is lost: of one model by region, of several by model."""
    known = [(run, low) for run in runs if np.isfinite((low := _lowest(run, name)).left.value)]
    if not known:
        return ""
    run, low = max(known, key=lambda pair: _clean(pair[0]) - pair[1].left.value)
    label, mind, by = called(run, runs), cautions(run.result), f"replaced by {_spoken(name, kind)}"
    if kind == TEXT:
        if low.shown:
            return f"{label}'s log-odds of the answer change most by {low.left.text('.2f')}, with {low.region} {by}."
        where = f"{low.left.text('.2f')} with {low.region}, in {label}"
        return f"No region {by} is shown to lower the answer's log-odds (lowest change: {where})."
    numbers = (
        f"{_clean(run):.1f} % of the images rightly as they are and {low.left.text('.1f')} % with {low.region} {by}"
    )
    if not low.shown:
        return f"No region {by} is shown to lower accuracy: {label} names {numbers}, its lowest.{mind}"
    if len(known) == 1:
        return f"{label} names {numbers}.{mind}"
    least, best = min(known, key=lambda pair: _clean(pair[0]) - pair[1].left.value)
    rest = f"from {_clean(least):.1f} % to {best.left.text('.1f')} %"
    return f"{label} loses most: it names {numbers}. {called(least, runs)} loses least: {rest}.{mind}"


def _facts(runs: Sequence[StoredRun], kind: str) -> list[Card]:
    """What is answered as it is, and with the worst region replaced; of the model that loses most."""
    worst = [(run, name, _lowest(run, name)) for run in runs for name in _replacements(run)]
    worst = [entry for entry in worst if np.isfinite(entry[2].left.value)]
    if not worst:
        return []
    run, name, low = max(worst, key=lambda entry: _clean(entry[0]) - entry[2].left.value)
    basis, target = _basis(run), f"corruption-{kind}"
    if kind == TEXT:
        text = f"change of the answer's log-odds in {run.label} with {low.region} replaced by {_spoken(name, kind)}"
        return [Card("Depends most on", f"{low.left.value:.1f}", text, basis, target)]
    text = f"of the images are named rightly by {run.label}"
    return [
        Card("As they are", f"{_clean(run):.0f} %", text, basis, target),
        Card(
            "Worst region",
            f"{low.left.value:.0f} %",
            f"with {low.region} replaced by {_spoken(name, kind)}",
            basis,
            target,
        ),
    ]


def _region_table(runs: Sequence[StoredRun], kind: str) -> Table:
    """Every region and replacement, with intervals and both drops."""
    columns = ["model", "region", "replaced by", WORDS[kind], "low", "high"]
    columns += ["relative drop (%)", "drop by what is above chance (%)"] if kind == IMAGES else []
    rows: list[list[Any]] = []
    for run, label in named(runs):
        for place, name in enumerate(_replacements(run)):
            band = _measured(run, place)
            for number, region in enumerate(run.result.provenance["regions"]):
                own = [label, region, name, *plain(np.array(astuple(at(band, number))))]
                if kind == IMAGES:
                    drops = [100 * float(run.result[key][place, number]) for key in ("relative_drop", "corrected_drop")]
                    own += plain(np.array(drops))
                rows.append(own)
    return Table(f"corruption-{kind}-table", f"Every region and replacement of {kind}", columns, rows)


def _examples(number: int, runs: Sequence[StoredRun]) -> Figure:
    """Images before and after, of one of the runs."""
    region = region_words(runs[number].result.provenance["corrupt"]["example_region"])
    caption = f"The first test images, {region} replaced in every way; pixels beyond 0 and 1 are cut."
    return example_figure(number, runs, part="corruption", ways=_replacements(runs[number]), caption=caption)
