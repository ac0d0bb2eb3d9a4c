"""One line of `repflow theory verify`: what a statement prints, what holds, what a simulation finds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.progress import Steps
from repflow.theory.hypotheses import collecting
from repflow.theory.simulate import FORMS, Simulation, simulate

WITHIN = 0.01  # a closed form that differs by no more holds
NOISE = 4.0  # standard errors that a short simulation may add to that


@dataclass(frozen=True)
class Check:
    """A statement beside its simulation.

    Attributes:
        paper: 1 or 2.
        statement: theorem, lemma or proposition.
        setting: conditions of the check.
        kind: `value` (a number and its simulation), `bound` (how often an inequality fails), `data` (against Table 1).
        printed: the paper's number; for a bound how many draws break it; None where the paper has none.
        corrected: the same of the form that holds.
        simulation: Monte-Carlo estimate; for a bound the number of draws; for data the measured ratio.
        error: standard error of the estimate; 0 where nothing is random.
        passes: whether the corrected form agrees with the simulation (for data: whether theory and data agree).
        verdict: a sentence.
    """

    paper: int
    statement: str
    setting: str
    kind: str
    printed: float | None
    corrected: float | None
    simulation: float
    error: float
    passes: bool
    verdict: str

    @property
    def gap(self) -> float | None:
        """(corrected - simulation) / simulation of a value; None for the other kinds."""
        if self.kind != "value" or self.corrected is None or abs(self.simulation) <= NOISE * self.error:
            return None  # of a number that is zero for all one can see there is no relative gap
        return _relative(self.corrected, self.simulation)


def value_check(
    statement: str,
    setting: str,
    printed: float | None,
    corrected: float | None,
    simulation: float,
    error: float,
    say: str,
) -> Check:
    """A number: it holds within 1 %, or within the noise of a simulation too short to say."""
    room = WITHIN * abs(simulation)
    passes = corrected is None or abs(corrected - simulation) <= max(room, NOISE * error)
    if not passes:
        verdict = "corrected form off by more than 1 %"
    elif printed is None:
        verdict = say
    elif abs(printed - simulation) <= max(room, NOISE * error):
        verdict = "holds here as printed"
    else:
        off = _relative(printed, simulation)
        verdict = f"printed off by {off:+.0%}: {say}" if math.isfinite(off) and abs(off) < 10 else f"printed off: {say}"
    return Check(1, statement, setting, "value", printed, corrected, simulation, error, passes, verdict)


def bound_check(
    paper: int, statement: str, setting: str, printed: int | None, corrected: int, draws: int, say: str
) -> Check:
    """An inequality: how many of some draws break it."""
    passes = corrected == 0
    words = "as printed: no draw breaks it" if printed == 0 else f"printed fails: {say}" if printed else say
    verdict = words if passes else f"corrected form broken by {corrected} of {draws} draws"
    broken = None if printed is None else float(printed)
    return Check(paper, statement, setting, "bound", broken, float(corrected), float(draws), 0.0, passes, verdict)


def _relative(value: float, against: float) -> float:
    return (value - against) / against if against else math.nan


class Session:
    """What every check draws with: samples by the cost of one, the seed, and the progress to report to."""

    def __init__(self, samples: int, seed: int, progress: Steps | None = None) -> None:
        self.samples, self.seed, self.progress = samples, seed, progress

    def simulate(self, name: str, *args: Any, share: float = 1.0, **kwargs: Any) -> Simulation:
        """Simulate with a share of the samples."""
        count = max(100, int(self.samples * share))
        return simulate(name, *args, samples=count, seed=self.seed, progress=self.progress, **kwargs)

    def weights(self, *shapes: tuple[int, ...]) -> list[np.ndarray]:
        """Gaussian matrices of variance one over their last axis."""
        rng = np.random.default_rng(self.seed + 1)
        return [rng.standard_normal(shape) / math.sqrt(shape[-1]) for shape in shapes]


def form_check(
    session: Session, statement: str, setting: str, say: str, name: str, *args: Any, share: float = 1.0, **kwargs: Any
) -> Check:
    """A closed form beside its Monte-Carlo twin; vectors by their squared norm, freed of the noise's share of it."""
    twin = session.simulate(name, *args, share=share, **kwargs)
    with collecting():
        printed = FORMS[name](*args, form="printed", **kwargs)
    if isinstance(twin.estimate, float):
        numbers = (float(printed), float(twin.closed_form), twin.estimate, float(twin.standard_error))
    else:
        noise = np.asarray(twin.standard_error) ** 2
        error = 2 * math.sqrt(float((twin.estimate**2 * noise).sum()))
        square = float((twin.estimate**2).sum() - noise.sum())
        numbers = (float((printed**2).sum()), float(np.sum(np.square(twin.closed_form))), square, error)
    return value_check(statement, setting, *numbers, say)
