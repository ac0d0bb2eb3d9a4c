"""Intervals of the very numbers that the findings rest on: prompts are drawn anew, and every part is asked again.

A part's number may be a median over blocks, a maximum, or the ratio of two models. So its interval cannot be read off
a curve's band: prompts are drawn with replacement, the same for all models that read equally many, the curves of
every draw are averaged, and `repflow.paper_parts` computes the number from them. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from repflow.paper_findings import FINDINGS, Judged
from repflow.paper_parts import Clause, Group
from repflow.paper_reading import SSM, TBM, Flow, Reading, Training, read_results
from repflow.report.page_interval import Interval
from repflow.results import BOOTSTRAP_SEED, Result

DRAWS = 400
LEVEL = (0.025, 0.975)
ENOUGH = 0.9
"""Share of draws that must give a number."""
CURVES = ("token_similarity", "layer_cosine")
SCALARS = ("smoothness", "stability", "matched/smoothness", "matched/stability")
POOLED, PROBED = ("F 3.3.1",), ("F 3.4.1", "F 3.4.2", "F 3.4.3")
Key = tuple[str, str, Training, str]
"""Finding, part, training, name of a number."""


@dataclass(frozen=True)
class Number:
    """A number of a part, and what its interval is over, or why there is none."""

    name: str
    interval: Interval
    over: str


def prompt_intervals(results: Sequence[Result], place: str, *, draws: int = DRAWS) -> dict[Key, tuple[float, float]]:
    """95 % intervals over prompts of the numbers that come from the flow; none of probes and of CKA.

    Args:
        results: runs, loaded.
        place: "task/length" at which the findings are judged.
        draws: of prompts.
    """
    readings = [reading for reading in read_results(results) if reading.family in (TBM, SSM)]
    drawn = [_drawn(reading, results, draws) for reading in readings]
    found: dict[Key, list[float]] = {}
    for draw in range(draws):
        now = [part.at(draw) for part in drawn]
        for training in dict.fromkeys(reading.training for reading in now):
            group = Group(training, place, tuple(reading for reading in now if reading.training == training))
            for finding in FINDINGS:
                for clause in finding.ask(group):
                    for name, value in clause.values:
                        found.setdefault((finding.code, clause.text, training, name), []).append(value)
    return {
        key: (float(ends[0]), float(ends[1]))
        for key, values in found.items()
        if len(values) >= ENOUGH * draws and np.ptp(ends := np.quantile(values, LEVEL)) > 0
    }


def numbers_of(finding: Judged, clause: Clause, ends: Mapping[Key, tuple[float, float]]) -> list[Number]:
    """A part's numbers with their intervals."""
    made = []
    for name, value in clause.values:
        if name in clause.ends:
            made.append(Number(name, Interval(value, *clause.ends[name]), "test prompts"))
        elif span := ends.get((finding.code, clause.text, clause.training, name)):
            made.append(Number(name, Interval(value, *span), "prompts"))
        else:
            made.append(Number(name, Interval(value), _why_none(finding, clause, ends)))
    return made


def _why_none(finding: Judged, clause: Clause, ends: Mapping[Key, tuple[float, float]]) -> str:
    """Why a number has no interval."""
    if finding.code in POOLED:
        return "none: this CKA is one number of all prompts together"
    if finding.code in PROBED:
        return "none: it joins probes of different prompts"
    if not any(training == clause.training for _, _, training, _ in ends):
        return "none: measured on one prompt, or elsewhere and stored without prompts"
    return "none: all prompts give the same"


@dataclass(frozen=True)
class _Drawn:
    """A reading with the flows of every draw; without probes, whose prompts are others."""

    reading: Reading
    trained: Mapping[str, Sequence[Flow]]
    random: Mapping[str, Sequence[Flow]]

    def at(self, draw: int) -> Reading:
        """The reading of one draw."""
        trained, random = ({key: flows[draw] for key, flows in kind.items()} for kind in (self.trained, self.random))
        return replace(self.reading, trained=trained, random=random, probes={})


def _drawn(reading: Reading, results: Sequence[Result], draws: int) -> _Drawn:
    """Flows of a reading, prompts drawn anew."""
    flows: dict[str, dict[str, Sequence[Flow]]] = {"trained": {}, "random": {}}
    for result in results:
        for single in read_results([result]):
            if (single.model, single.training) == (reading.model, reading.training):
                for kind in flows:
                    flows[kind] |= {key: made for key in getattr(single, kind) if (made := draw_flows(result, draws))}
    return _Drawn(reading, **flows)


def draw_flows(result: Result, draws: int) -> list[Flow]:
    """Flows of a run by draws of its prompts; none where it has fewer than two."""
    means: dict[str, np.ndarray] = {name: _means(result, name, draws) for name in (*CURVES, *SCALARS) if name in result}
    if any(not len(values) for values in means.values()) or "token_similarity" not in means:
        return []
    flat = np.full((draws, 1), np.nan)
    scalars = [means.get(name, flat)[:, 0].tolist() for name in SCALARS]
    curves = [means[name].tolist() if name in means else [[]] * draws for name in CURVES]
    return [Flow(*parts) for parts in zip(*curves, *scalars, strict=True)]


def _means(result: Result, name: str, draws: int) -> np.ndarray:
    """Mean of a metric by draw and depth; shape (draw, depth), (draw, 1) without depth, (0, 0) of one prompt."""
    axes, values = result.axes[name], np.asarray(result[name], dtype=np.float64)
    if "sample" not in axes or values.shape[axes.index("sample")] < 2:
        return np.empty((0, 0))
    rows = np.moveaxis(values, axes.index("sample"), 0)
    count = len(rows)
    rows = rows.reshape(count, 1, -1) if len(axes) == 1 else rows.reshape(count, rows.shape[1], -1)
    present = np.isfinite(rows)
    weights = np.random.default_rng(BOOTSTRAP_SEED).multinomial(count, np.full(count, 1 / count), size=draws)
    total = weights @ np.where(present, rows, 0.0).sum(2)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / (weights @ present.sum(2)))
