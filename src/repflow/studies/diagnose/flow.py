"""Statements about the flow between tokens: where they become alike or separate, and two published signatures."""

from __future__ import annotations

import numpy as np

from repflow.studies.diagnose.evidence import (
    ENOUGH,
    FlowEvidence,
    Interval,
    depth,
    held_out,
    judged_on,
    judged_prompts,
    sample_interval,
)
from repflow.studies.diagnose.statement import Statement, Thresholds, verdict


def homogenise(flow: FlowEvidence) -> Statement:
    """At which depth the tokens are most alike, and whether that is more than at the embedding."""
    state, value = held_out(flow.similarity, np.arange(flow.states))
    curve = judged_prompts(flow.similarity).mean(1)  # of the prompts that value and rise are from, so that they add up
    start, on = float(curve[0]), judged_on(flow.similarity)
    if state == 0:
        text = f"Tokens are nowhere more alike than at the embedding: raw similarity {value} at state 0{on}."
        return Statement("homogenise", "flow", False, text, {"state": 0, "similarity": value})
    rise = _difference(flow.similarity, state, 0)
    holds = rise.above(0.0)
    words = {True: "Tokens become alike", False: "Tokens do not become alike", None: "Not decided whether tokens rise"}
    half = (start + value.value) / 2
    reached = int(np.flatnonzero(curve >= half)[0])
    numbers = {"state": state, "similarity": value, "embedding": start, "rise": rise, "half_way_state": reached}
    text = (
        f"{words[holds]}: most at {_place(state, flow.all_states)}, raw similarity {value} against {start:.3f} at the"
        f" embedding, a rise of {rise}; half of it is reached at state {reached}{on}."
    )
    return Statement("homogenise", "flow", holds, text, numbers)


def recover(flow: FlowEvidence) -> Statement:
    """Whether the tokens separate again after they were most alike."""
    state, value = held_out(flow.similarity, np.arange(flow.states))
    last, on = flow.states - 1, judged_on(flow.similarity)
    if state == last and flow.partial:
        text = (
            f"Not decided whether tokens separate: they are most alike at state {state}, the last one that is finite."
        )
        return Statement("recover", "flow", None, text, {"state": state, "similarity": value})
    if state in (0, last):
        place = (
            "embedding, so there is nothing to separate from"
            if state == 0
            else "last state, so they do not separate again"
        )
        text = f"Tokens are most alike at the {place} (raw similarity {value} at state {state}{on})."
        return Statement("recover", "flow", False, text, {"state": state, "similarity": value})
    lowest, _ = held_out(flow.similarity, np.arange(state + 1, flow.states), largest=False)
    fall = _difference(flow.similarity, state, lowest)
    holds = fall.above(0.0)
    words = {
        True: "Tokens separate again",
        False: "Tokens do not separate again",
        None: "Not decided whether tokens separate",
    }
    text = f"{words[holds]}: from state {state} to state {lowest} raw similarity falls by {fall}{on}."
    return Statement("recover", "flow", holds, text, {"from": state, "to": lowest, "fall": fall})


def _difference(values: np.ndarray, first: int, second: int) -> Interval:
    """One state minus another, paired by prompt, on the prompts that did not choose the states."""
    judged = judged_prompts(values)
    difference = judged[first] - judged[second]
    return Interval(float(difference.mean())) if values.shape[1] < ENOUGH else sample_interval(difference)


def early_signature(flow: FlowEvidence, thresholds: Thresholds) -> list[Statement]:
    """High similarity early in depth, published for Transformers as over-smoothing before tokens differ by task."""
    states = _between(flow.all_states, 0.0, thresholds.early_depth)
    what = f"states up to {thresholds.early_depth:.0%} depth"
    return _similarity_signature("early_similarity", flow, states, thresholds.early_similarity, what)


def late_signature(flow: FlowEvidence, thresholds: Thresholds) -> list[Statement]:
    """High similarity in the last states, published for state-space models as saturation of the state.

    As judged, the last states must also be above all earlier ones: a model alike throughout has no late spike.
    """
    states = _between(flow.all_states, thresholds.late_depth, 1.0)
    what = f"states from {thresholds.late_depth:.0%} depth on"
    statements = _similarity_signature("late_similarity", flow, states, thresholds.late_similarity, what)
    if flow.excess is None or not statements:
        return statements
    earlier = np.setdiff1d(np.arange(1, flow.states), states)
    *published, judged = statements
    return [*published, _spike(flow.excess, judged, states, earlier)] if len(earlier) else statements


def _spike(excess: np.ndarray, judged: Statement, states: np.ndarray, earlier: np.ndarray) -> Statement:
    late, _ = held_out(excess, states)
    before, _ = held_out(excess, earlier)
    rise = _difference(excess, late, before)
    holds = _both(judged.holds, rise.above(0.0))
    text = f"{judged.text[:-1]}; above the highest earlier state ({before}) by {rise}: {verdict(holds)}."
    numbers = judged.numbers | {"earlier_state": before, "rise": rise}
    return Statement(judged.code, judged.section, holds, text, numbers, judged.basis)


def _similarity_signature(
    code: str, flow: FlowEvidence, states: np.ndarray, threshold: float, what: str
) -> list[Statement]:
    if not len(states) or states[-1] >= flow.states:  # a state that is not finite might be the one over it
        return []
    means = flow.similarity[states].mean(1)
    state, value = int(states[int(np.nanargmax(means))]), float(np.nanmax(means))
    text = (
        f"As published, raw similarity over {threshold:.2f} in {what}: {verdict(value > threshold)} "
        f"({value:.3f} at state {state})."
    )
    numbers = {"state": state, "similarity": value, "threshold": threshold}
    statements = [Statement(code, "signature", value > threshold, text, numbers, "published")]
    if flow.excess is not None:
        state, interval = held_out(flow.excess, states)
        holds = interval.above(threshold)
        place = f"{interval} at state {state}{judged_on(flow.excess)}"
        text = f"As judged, excess similarity over {threshold:.2f} in {what}: {verdict(holds)} ({place})."
        cited = {"state": state, "excess": interval, "threshold": threshold}
        statements.append(Statement(code, "signature", holds, text, cited, "judged"))
    return statements


def _between(states: int, low: float, high: float) -> np.ndarray:
    """Block outputs within a range of relative depth; the embedding is not a layer."""
    depths = np.array([depth(state, states) for state in range(states)])
    inside = (depths >= low - 1e-9) & (depths <= high + 1e-9)
    inside[0] = False
    return np.flatnonzero(inside)


def _both(first: bool | None, second: bool | None) -> bool | None:
    if first is False or second is False:
        return False
    return True if first and second else None


def _place(state: int, states: int) -> str:
    return f"state {state} of {states - 1} ({depth(state, states):.0%} depth)"
