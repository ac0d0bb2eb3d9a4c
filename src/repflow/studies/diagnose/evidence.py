"""Evidence for a diagnosis: the numbers of a flow run and of a probe run, without any model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repflow.core import intervals
from repflow.core.readout import ReadOut
from repflow.core.results import Band, Result

ENOUGH = 2 * intervals.LEAST_VALUES
"""Prompts from which on one half chooses a state and the other judges it, with an interval."""


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval; NaN bounds where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")

    @property
    def bounded(self) -> bool:
        """Whether there is an interval."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    def above(self, threshold: float) -> bool | None:
        """True or False when the whole interval lies on one side of the threshold, None when it does not.

        >>> Interval(0.9, 0.85, 0.95).above(0.8), Interval(0.9, 0.7, 1.0).above(0.8)
        (True, None)
        """
        if not self.bounded:
            return None
        if self.low > threshold:
            return True
        return False if self.high <= threshold else None

    def __str__(self) -> str:
        bounds = f" [{self.low:.3f}, {self.high:.3f}]" if self.bounded else " (no interval)"
        return f"{self.value:.3f}{bounds}"

    def to_json(self) -> dict[str, float | None]:
        """Plain values; null for bounds that are missing."""
        entries = {"value": self.value, "low": self.low, "high": self.high}
        return {name: float(value) if np.isfinite(value) else None for name, value in entries.items()}


@dataclass(frozen=True)
class FlowEvidence:
    """What `repflow measure` found.

    Attributes:
        similarity: raw mean cosine between tokens (state, sample).
        excess: the same beyond that between tokens of different prompts; None where it was not measured.
        layer_kinds: kind of each block.
        total: states of the model, where the last of them are not finite and so not among the others.
    """

    similarity: np.ndarray
    excess: np.ndarray | None = None
    layer_kinds: tuple[str, ...] = ()
    total: int | None = None

    @classmethod
    def of(cls, result: Result) -> FlowEvidence | None:
        """From a measured Result; None where it has no token similarity of residual states, or none that is finite.

        States from the first one on that is finite for no prompt, as after a NaN weight, are left out.
        """
        if "token_similarity" not in result or result.config.get("states", "residual") != "residual":
            return None
        similarity, excess = result["token_similarity"], result.get("token_similarity_excess")
        total, nonfinite = len(similarity), ~np.isfinite(similarity).any(1)
        similarity = similarity[: int(nonfinite.argmax()) if nonfinite.any() else total]
        whole = np.isfinite(similarity).all(0)  # a prompt with an undefined state would decide where the curve ends
        if not len(similarity) or not whole.any():
            return None
        if excess is not None:
            excess = excess[: len(similarity), whole]
            excess = excess if np.isfinite(excess).all() else None
        kinds = tuple(result.provenance.get("model", {}).get("layer_kinds", ()))
        return cls(similarity[:, whole], excess, kinds, total)

    @property
    def states(self) -> int:
        """Number of states that are finite."""
        return len(self.similarity)

    @property
    def all_states(self) -> int:
        """Number of states of the model; relative depth is over these."""
        return self.states if self.total is None else self.total

    @property
    def partial(self) -> bool:
        """Whether states after the last one here are not finite."""
        return self.states < self.all_states


@dataclass(frozen=True)
class ProbeEvidence:
    """What `repflow probe` found; all accuracies are from test prompts.

    Attributes:
        accuracy: (state,).
        read: the state that validation chose and the loss from there to the last one.
        recipe: recipe chosen on validation.
        facts: further numbers by name, only those that were measured: accuracy_band (Band), information, selectivity
            (Band), capacity, twin, final_norm, answers, lens_rank, unconverged, step and half_step (Bands over blocks),
            claim (over blocks), layer_kinds.
    """

    accuracy: np.ndarray
    read: ReadOut
    recipe: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, result: Result) -> ProbeEvidence | None:
        """From a probed Result; None where no state could be probed."""
        about = result.provenance["probe"]
        if about["peak_accuracy"] is None:
            return None
        facts: dict[str, Any] = {"accuracy_band": result.band("probe_accuracy")}
        for name in ("information", "capacity"):
            if f"probe_{name}" in result:
                facts[name] = result[f"probe_{name}"]
        if "probe_selectivity" in result.bands:
            facts["selectivity"] = result.bands["probe_selectivity"]
        if "twin/probe_gain" in result:
            twin = {name: _of_band(result.bands[f"twin/probe_{name}"]) for name in ("peak_accuracy", "gain")}
            facts["twin"] = twin | {"state": int(np.nanargmax(result["twin/probe_valid_accuracy"].mean(1)))}
        if "final_norm/probe_accuracy" in result:
            facts["final_norm"] = result.band("final_norm/probe_accuracy")
        if "answer_correct" in result:
            judged = result["answer_correct"][np.isfinite(result["answer_correct"])]
            facts["answers"] = (share_interval(judged), judged.size)
        if "lens_rank" in result:
            ranks = result["lens_rank"]
            facts["lens_rank"] = np.array([_median(row[np.isfinite(row)]) for row in ranks])
        if "probe_converged" in result:
            probed = np.isfinite(result["probe_accuracy"]).all(1)
            facts["unconverged"] = np.flatnonzero(~result["probe_converged"].all(1) & probed).tolist()
        for name, place in (("step", "probe_step"), ("half_step", "half/probe_step")):
            if place in result.bands:
                facts[name] = result.bands[place]
        if "probe_step_claim" in result:
            facts["claim"] = result["probe_step_claim"]
        facts["layer_kinds"] = tuple(result.provenance.get("model", {}).get("layer_kinds", ()))
        return cls(result["probe_accuracy"].mean(1), ReadOut.of(result), str(about["recipe"]), facts)

    @property
    def peak(self) -> int:
        """State chosen on validation."""
        return self.read.peak

    @property
    def chance(self) -> float:
        """Accuracy of guessing."""
        return self.read.chance

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.accuracy)

    @property
    def last_probed(self) -> bool:
        """Whether the last state could be probed; it cannot where it is not finite."""
        return bool(np.isfinite(self.accuracy[-1]))

    def at(self, state: int) -> Interval:
        """Accuracy of a state with its interval."""
        band: Band | None = self.facts.get("accuracy_band")
        if band is None:
            return Interval(float(self.accuracy[state]))
        return Interval(float(self.accuracy[state]), float(band.low[state]), float(band.high[state]))

    def best(self) -> Interval:
        """Accuracy at the state that validation chose; each seed's own choice where seeds differ in it."""
        return Interval(*self.read.accuracy)


def sample_interval(values: np.ndarray) -> Interval:
    """Mean over samples with Student's 95 % interval; none below three samples."""
    return _of_band(intervals.student_interval(values))


def share_interval(right: np.ndarray) -> Interval:
    """Share of ones with Wilson's 95 % interval, which is honest where all or none are right.

    >>> print(share_interval(np.zeros(8)))
    0.000 [0.000, 0.324]
    """
    return _of_band(intervals.share_interval(right))


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if values.size else float("nan")


def _of_band(band: Band) -> Interval:
    return Interval(float(band.mean), float(band.low), float(band.high))


def judged_prompts(values: np.ndarray) -> np.ndarray:
    """Values (state, sample) of the prompts that `held_out` judges on: every second one, all if there are few."""
    return values[:, 1::2] if values.shape[1] >= ENOUGH else values


def judged_on(values: np.ndarray) -> str:
    """Says that numbers are from half of the prompts, where they are.

    >>> judged_on(np.zeros((3, 16))), judged_on(np.zeros((3, 2)))
    (', on 8 of 16 prompts', '')
    """
    judged, count = judged_prompts(values).shape[1], values.shape[1]
    return f", on {judged} of {count} prompts" if judged < count else ""


def held_out(values: np.ndarray, states: np.ndarray, *, largest: bool = True) -> tuple[int, Interval]:
    """Extreme state among some, chosen on every second prompt, and its value on the others.

    The largest of many noisy means is too large by itself; a state chosen elsewhere is not. With fewer than six
    prompts the choice and the value come from the same ones and there is no interval.

    Args:
        values: (state, sample).
        states: the states to choose from.
        largest: the largest, else the smallest.
    """
    count = values.shape[1]
    chosen_on = values[states, ::2] if count >= ENOUGH else values[states]
    means = chosen_on.mean(1)
    state = int(states[int(np.nanargmax(means) if largest else np.nanargmin(means))])
    if count < ENOUGH:
        return state, Interval(float(values[state].mean()))
    return state, sample_interval(values[state, 1::2])


def depth(state: int, states: int) -> float:
    """Relative depth of a state, 0 the embedding, 1 the last block's output."""
    return state / (states - 1) if states > 1 else 0.0
