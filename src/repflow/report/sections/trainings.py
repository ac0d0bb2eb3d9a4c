"""The built-in models beside further trainings of themselves: what a seed does to a curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.results import Band
from repflow.papers.reading import Reading, further_trainings, further_words, known_readings, read_results
from repflow.report.data.comparable import Group, basis
from repflow.report.data.context import Context
from repflow.report.data.model import Figure, Variant
from repflow.report.data.runs import StoredRun
from repflow.report.draw.curve import axis_names, band_traces, columns_for, joined, small_multiples
from repflow.report.draw.depth import depth, hybrids, strip, strip_note, with_strips
from repflow.report.draw.number import exact

MEASURES = {"token similarity": ("token_similarity", "state"), "layer cosine": ("layer_cosine", "layer")}
"""Words in the menu: curve of a reading, and its axis."""
LEAST = 2
"""Further trainings that make a band."""
COLUMNS = ("model", "measure", "training", "place", "relative depth", "value")


@dataclass(frozen=True)
class Again:
    """A run, its reading, and readings of further trainings of the same model."""

    run: StoredRun
    own: Reading
    others: Sequence[Reading]


def trainings_figure(groups: Sequence[Group], context: Context) -> Figure | None:
    """A panel per built-in model; None where none of these runs has further trainings on the same prompts."""
    known = known_readings()
    variants = []
    for group in groups:
        for words, (curve, axis) in MEASURES.items():
            members = [again for run in group.runs if (again := _again(run, known, curve))]
            if members:
                variants.append(_variant(members, group.when | {"measure": words}, words, curve, axis, context))
    if not variants:
        return None
    caption = (
        "Solid: the model of this page. Band: from the lowest to the highest of further trainings of it from several "
        "seeds, for as many steps as the legend says, on the same prompts; dashed: their mean. A line outside its band "
        "lies outside what these seeds gave: another number of steps can do that, and so can one more seed. Models "
        "without further trainings on these prompts are not shown."
    )
    alt = "Lines of a measure over depth, one panel per model, with a band over further trainings."
    title = "The same models, trained again"
    full_caption = joined(caption, strip_note(context.models, variants))
    return Figure("trainings", title, full_caption, alt, variants, depth_axis=True)


def _again(run: StoredRun, known: Sequence[Reading], curve: str) -> Again | None:
    """The run with further trainings that have its curve on the very same prompts; None where they make no band."""
    place = f"{run.result.config.get('task')}/{run.result.config.get('length')}"
    for own in read_results([run.result]):
        mine = own.trained.get(place)
        if mine is None or not getattr(mine, curve):  # a twin, or a run without this metric
            continue
        others = [
            other for other in further_trainings(own, known, place)
            if other.trained[place].prompts == mine.prompts and getattr(other.trained[place], curve)
        ]  # fmt: skip
        if len(others) >= LEAST:
            return Again(run, own, others)
    return None


def _variant(
    members: Sequence[Again], when: dict[str, str], words: str, curve: str, axis: str, context: Context
) -> Variant:
    traces: list[dict[str, Any]] = []
    rows: list[list[Any]] = []
    shapes: list[dict[str, Any]] = []
    for place, again in enumerate(members):
        at = f"{again.run.result.config['task']}/{again.run.result.config['length']}"
        mine, *theirs = ([*getattr(reading.trained[at], curve)] for reading in (again.own, *again.others))
        where = depth(again.run, axis, len(mine))
        style: dict[str, Any] = {"model": again.run.label, "depth": where, "axes": axis_names(place)}
        style |= {"legend": place == 0, "mode": "lines"}
        no_band = np.full(len(mine), np.nan)
        band = Band(np.mean(theirs, 0), np.min(theirs, 0), np.max(theirs, 0))
        x, label, name = where["relative"], further_words(again.others), f"this page ({again.own.training})"
        traces += band_traces(x, band, name=label, colour="muted", dash="dash", **style)
        traces += band_traces(
            x, Band(np.asarray(mine), no_band, no_band), name=name, colour="ink", dash="solid", **style
        )
        for reading, values in zip((again.own, *again.others), (mine, *theirs), strict=True):
            cells = (again.run.label, words, str(reading.training))
            rows += [[*cells, axis, at, exact(value)] for at, value in zip(x, values, strict=True)]
        own = [model for model in hybrids(context.models) if model.label == again.run.label]
        shapes += [shape for model in own for shape in strip(model, panel=axis_names(place)[0][1:])]
    labels = [again.run.label for again in members]
    layout = small_multiples(
        labels, {"title": {"text": ""}}, {"title": {"text": words}}, columns=columns_for(len(labels)), models=labels
    )
    for place in range(1, len(members)):
        layout[f"yaxis{place + 1}"] |= {"matches": "y"}  # one scale: panels are held against each other
    layout |= with_strips(layout, shapes)
    return Variant(when, traces, layout, COLUMNS, rows, basis=basis(again.run for again in members))
