"""Statements about what can be decoded where, and about where a hybrid's kinds of block sit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repflow.core.readout import Number
from repflow.core.results import Band
from repflow.core.spans import spans
from repflow.studies.diagnose.evidence import FlowEvidence, Interval, ProbeEvidence, depth
from repflow.studies.diagnose.statement import Statement, Thresholds, verdict

MIXERS = ("attention", "ssm", "recurrent", "conv")
OF_LAST = ("final_norm", "lens_rank")
"""Facts whose statement is about the last state."""


def readout(probe: ProbeEvidence) -> tuple[list[Statement], list[str]]:
    """Where the label can be decoded best, with its controls; and the controls that were not measured."""
    statements = [_decodable(probe), _best_state(probe)]
    missing = []
    if probe.last_probed:
        statements.append(_intermediate(probe))
    else:
        missing.append("the last state, which is not finite, so no loss from the peak to it")
    for name, make, absent in (
        ("final_norm", _final_norm, "a probe after the final norm"),
        ("selectivity", _selectivity, "a control task, so no selectivity"),
        ("twin", _twin, "the random twin's probe (--twin)"),
        ("answers", _answers, "the model's own answers"),
        ("lens_rank", _lens, "the logit lens"),
    ):
        if name in probe.facts and (probe.last_probed or name not in OF_LAST):
            statements.append(make(probe))
        else:
            missing.append(absent)
    if probe.facts.get("unconverged"):
        statements.append(_unconverged(probe))
    return statements, missing


def _decodable(probe: ProbeEvidence) -> Statement:
    accuracy, read_out = probe.best(), probe.read
    holds = True if read_out.decodable else None  # another probe may read what these do not
    start = "can be decoded linearly" if holds else "is not shown to be decodable by these probes"
    corrected = (accuracy.value - probe.chance) / (1 - probe.chance)
    numbers = {"state": probe.peak, "accuracy": accuracy, "chance": probe.chance, "classes": read_out.classes}
    text = (
        f"The {read_out.label} {start} at {read_out.chosen}: accuracy {accuracy}, chance {probe.chance:.3f} with"
        f" {read_out.classes} classes, corrected {corrected:.3f}"
    )
    numbers["corrected"] = corrected
    if "information" in probe.facts:
        numbers["bits"] = bits = float(probe.facts["information"][probe.peak])
        text += f", {round(bits, 2) + 0.0:.2f} bits"  # never -0.00
    if probe.recipe:
        text += f"; recipe {probe.recipe}"
    return Statement("decodable", "read-out", holds, f"{text}{read_out.beside}.", numbers | prompts_of(probe))


def prompts_of(probe: ProbeEvidence) -> dict[str, object]:
    """Prompts behind a claim, as data."""
    return {} if probe.read.counts is None else {"prompts": probe.read.counts.to_json()}


def _best_state(probe: ProbeEvidence) -> Statement:
    last, read_out = probe.states - 1, probe.read
    where = f"{read_out.place(probe.peak)} of {read_out.number(last)} ({depth(probe.peak, probe.states):.0%} depth)"
    tied = [state for state in read_out.tied if state != probe.peak]
    numbers = {"state": probe.peak, "tied": list(tied), "accuracy": probe.best()}
    text = f"Best state to read from, chosen on validation: {where}{read_out.by_seed}, test accuracy {probe.best()}"
    if tied:
        text += f"; not distinguished from it: {_spans(probe, tied)}"
    decodable = True if read_out.decodable else None
    if last in read_out.tied and probe.peak != last and decodable:
        text += "; the last state is among these, so there is no reason to read elsewhere"
    if decodable is not True:
        text += "; as nothing above chance is shown there, this is not a recommendation"
    return Statement("best_state", "read-out", decodable, f"{text}.", numbers)


def _intermediate(probe: ProbeEvidence) -> Statement:
    read_out = probe.read
    text = f"{read_out.statement[0].upper()}{read_out.statement[1:]}{read_out.beside}."
    numbers: dict[str, object] = {"peak": probe.peak, "points": _points(read_out.loss)}
    if read_out.shown:
        numbers["corrected"] = _points(read_out.corrected)
    return Statement("intermediate", "read-out", read_out.holds, text, numbers | prompts_of(probe))


def _points(number: Number) -> Interval:
    return Interval(*(100 * part for part in number))


def loss_signature(probe: ProbeEvidence, thresholds: Thresholds) -> list[Statement]:
    """Loss of accuracy from the peak to the last state, published as capacity that the last layer leaves idle."""
    if not probe.last_probed:
        return []
    limit, read_out = thresholds.loss_points, probe.read
    points = 100 * read_out.loss.value
    raw = points > limit
    text = f"As published, loss from peak to last over {limit:g} points: {verdict(raw)} ({points:.1f} points)."
    published = Statement("peak_to_last", "signature", raw, text, {"points": points, "threshold": limit}, "published")
    scaled = _points(read_out.corrected)
    holds = _judged_loss(probe, scaled, limit)
    text = f"As judged, chance-corrected loss over {limit:g} points: {verdict(holds)}"
    text += f" ({read_out.corrected.text()} points{read_out.beside})."
    numbers = {"points": scaled, "threshold": limit, "chance": probe.chance}
    return [published, Statement("peak_to_last", "signature", holds, text, numbers | prompts_of(probe), "judged")]


def _judged_loss(probe: ProbeEvidence, points: Interval, limit: float) -> bool | None:
    """Over the limit only where a loss is claimed at all; decided only by an interval that covers refitting."""
    counts = probe.read.counts
    if counts is None or not counts.covers_refits:
        return None
    over = points.above(limit)
    return None if over and not probe.read.shown else over


def _final_norm(probe: ProbeEvidence) -> Statement:
    normed, last = _interval(probe.facts["final_norm"], 0), probe.at(probe.states - 1)
    text = f"After the final norm the accuracy is {normed}, at the last state before it {last}."
    return Statement("final_norm", "read-out", None, text, {"final_norm": normed, "last": last})


def _selectivity(probe: ProbeEvidence) -> Statement:
    value = _interval(probe.facts["selectivity"], probe.peak)
    text = f"Selectivity at {probe.read.place(probe.peak)}: {value} (corrected accuracy minus that of the control task)"
    numbers: dict[str, object] = {"state": probe.peak, "selectivity": value}
    if "capacity" in probe.facts:
        numbers["capacity"] = capacity = float(probe.facts["capacity"][probe.peak])
        text += f"; the probe fits shuffled labels in training to {capacity:.3f}"
    return Statement("selectivity", "read-out", value.above(0.0), f"{text}.", numbers)


def _twin(probe: ProbeEvidence) -> Statement:
    twin, gain, best = (probe.facts["twin"][name] for name in ("peak_accuracy", "gain", "state"))
    own, holds = probe.best(), gain.above(0.0)
    words = {True: "reads better from", False: "reads no better from", None: "is not shown to read better from"}
    text = (
        f"The probe {words[holds]} the trained model than from its random twin: {own} at {probe.read.chosen} against"
        f" {twin} at the twin's {probe.read.place(best)}, each chosen on its own validation; by prompt the difference"
        f" is {gain}{probe.read.beside}."
    )
    numbers = {"accuracy": own, "twin": twin, "twin_state": best, "difference": gain}
    return Statement("twin", "read-out", holds, text, numbers)


def _answers(probe: ProbeEvidence) -> Statement:
    share, count = probe.facts["answers"]
    text = f"The model's own greedy answers hold the right one in {share} of {count} prompts."
    return Statement("answers", "read-out", None, text, {"share": share, "prompts": count})


def _lens(probe: ProbeEvidence) -> Statement:
    ranks = probe.facts["lens_rank"]
    last = float(ranks[-1])
    first = [state for state, rank in enumerate(ranks) if rank <= 1]
    text = f"Logit lens: the answer's first token has median rank {last:g} at the last state"
    text += f"; it is first in the median from state {first[0]} on" if _stays(first, len(ranks)) else ""
    numbers = {"rank_last": last, "rank_peak": float(ranks[probe.peak])}
    text += f", {numbers['rank_peak']:g} at the probe's best {probe.read.place(probe.peak)}."
    return Statement("lens", "read-out", None, text, numbers)


def _spans(probe: ProbeEvidence, entries: Sequence[int]) -> str:
    """Entries as ranges of states, or of blocks where they are branches."""
    return spans([probe.read.number(entry) for entry in entries], "block" if probe.read.blocks else "state")


def _stays(states: Sequence[int], count: int) -> bool:
    return bool(states) and list(states) == list(range(states[0], count))


def _unconverged(probe: ProbeEvidence) -> Statement:
    states = probe.facts["unconverged"]
    where = _spans(probe, states)
    how = "ended after its fixed epochs, short of a minimum," if probe.recipe == "paper" else "did not converge"
    text = f"The {probe.recipe} recipe {how} at {where} ({len(states)} of {probe.states} states)."
    return Statement("unconverged", "read-out", True, text, {"states": list(states), "count": len(states)})


def layout(flow: FlowEvidence, probe: ProbeEvidence | None) -> list[Statement]:
    """Where the kinds of block of a hybrid sit, and what happens across them."""
    kinds = flow.layer_kinds
    parts = [set(kind.split("+")) & set(MIXERS) for kind in kinds]
    present = [kind for kind in MIXERS if any(kind in part for part in parts)]
    if len(present) < 2:
        return []
    blocks = {kind: [i + 1 for i, part in enumerate(parts) if kind in part] for kind in present}
    places = "; ".join(f"{kind} in {spans(numbers, 'block')} of {len(kinds)}" for kind, numbers in blocks.items())
    statements = [Statement("layout", "layout", True, f"Hybrid: {places}.", {"blocks": blocks})]
    values = _mean_change(flow.similarity.mean(1), blocks)
    listed = ", ".join(f"{kind} {value:+.3f}" for kind, value in values.items())
    text = f"Mean change of raw similarity across a block: {listed}."
    statements.append(Statement("similarity_by_kind", "layout", True, text, values))
    if probe is not None and probe.states == len(kinds) + 1:
        statements += _accuracy_by_kind(probe, blocks, kinds)
    return statements


def _mean_change(curve: np.ndarray, blocks: dict[str, list[int]]) -> dict[str, object]:
    """Mean change of a curve (state,) across the blocks of each kind; kinds without a finite one are left out."""
    step = np.diff(curve)
    by_kind = {kind: [step[b - 1] for b in places if b <= len(step)] for kind, places in blocks.items()}
    finite = {kind: [value for value in values if np.isfinite(value)] for kind, values in by_kind.items()}
    return {kind: float(np.mean(values)) for kind, values in finite.items() if values}


def _accuracy_by_kind(probe: ProbeEvidence, blocks: dict[str, list[int]], kinds: Sequence[str]) -> list[Statement]:
    values = _mean_change(probe.accuracy, blocks)
    listed = ", ".join(f"{kind} {value:+.3f}" for kind, value in values.items())
    text = f"Mean change of the probe's accuracy across a block: {listed}."
    statements = [Statement("accuracy_by_kind", "layout", True, text, values)]
    if probe.peak > 0 and probe.read.decodable:
        kind = kinds[probe.peak - 1]
        text = f"The best state to read from, {probe.peak}, is the output of a block of kind {kind}."
        statements.append(Statement("best_state_kind", "layout", True, text, {"state": probe.peak, "kind": kind}))
    return statements


def _interval(band: Band, index: int) -> Interval:
    return Interval(float(band.mean[index]), float(band.low[index]), float(band.high[index]))
