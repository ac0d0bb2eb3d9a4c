"""A part of a finding, judged on the models of one training: its numbers, its margin, the interval of that. No torch.

A margin is how far the models are on the claim's side of a threshold. A statement about a family is judged on the
mean over its models, so that a training with two Transformers is judged like one with one; each model's number is
listed beside it. The interval is over prompts: each is left out in turn, the number is computed again, and Student's
interval is taken of what every prompt adds to it (the jackknife; of a plain mean it is Student's interval itself).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from repflow.core.intervals import LEAST_VALUES, student_interval
from repflow.papers.reading import FLOWS, SSM, TBM, Flow, Reading, Training

FAMILIES = (TBM, SSM)
STREAM, BRANCH = "residual stream", "state-space branches"
"""Kinds of state: of both families the stream; or the stream of Transformers and what each block of an SSM adds."""
PROMPTS, ALIKE_PROMPTS = "prompts", "none: all prompts give the same"
NO_BRANCH = "what state-space blocks add was not measured of this training"
NO_PROMPTS = "none: fewer than three prompts, or stored as means over prompts"
Named = Sequence[tuple[str, float]]
"""Values with the names of their models."""
Ends = tuple[float, float]
NO_ENDS: Ends = (math.nan, math.nan)


@dataclass(frozen=True)
class Clause:
    """A part of a finding in one training.

    Attributes:
        text: what was asked, with its threshold.
        training: seed and steps.
        found: our numbers, or what is missing.
        what: what the numbers are.
        values: the numbers by name; none where it could not be asked.
        ends: their 95 % intervals by name, where there are any.
        margin: distance from the threshold on the claim's side; NaN where it could not be asked.
        interval: 95 % interval of the margin; NaN without one.
        over: what the interval is over, or why there is none.
        zone: margin below which the part is shown not to hold.
        also: the same part by another convention, with which it has to agree.
    """

    text: str
    training: Training
    found: str
    what: str = ""
    values: Named = ()
    ends: Mapping[str, Ends] = field(default_factory=dict)
    margin: float = math.nan
    interval: Ends = NO_ENDS
    over: str = ""
    zone: float = 0.0
    also: Clause | None = None

    @property
    def asked(self) -> bool:
        """Whether it could be asked."""
        return math.isfinite(self.margin)

    @property
    def holds(self) -> bool | None:
        """Whether it holds in this training; None where its interval leaves it open, or there is none."""
        own = True if self.interval[0] > 0 else False if self.interval[1] < self.zone else None
        return own if self.also is None or self.also.holds is own else None

    @property
    def side(self) -> bool | None:
        """Whether the number is on the claim's side, by every convention measured; None if it was not asked."""
        if not self.asked:
            return None
        return self.margin > 0 and (self.also is None or self.also.side is not False)


@dataclass(frozen=True)
class Group:
    """Models of one training.

    Attributes:
        training: its seed and steps.
        place: "task/length" that curves are read at.
        readings: Transformers and state-space models.
        states: `STREAM` or `BRANCH`.
        everyone: models of all trainings, by which a label is chosen that is the same in all; none: these alone.
        sizes: other sizes of these models, which are asked about sizes alone.
    """

    training: Training
    place: str
    readings: tuple[Reading, ...]
    states: str = STREAM
    everyone: tuple[Reading, ...] = ()
    sizes: tuple[Reading, ...] = ()

    def flows(self, reading: Reading) -> Mapping[str, Flow]:
        """Flows of a model's trained weights, of the states that are judged."""
        return reading.branch if self.states == BRANCH and reading.family == SSM else reading.trained

    def of(self, family: str) -> list[tuple[str, Flow]]:
        """Name and trained flow of a family's models."""
        chosen = [(r.model, self.flows(r).get(self.place)) for r in self.readings if r.family == family]
        return [(name, flow) for name, flow in chosen if flow is not None]

    def twins(self, family: str) -> list[tuple[str, str, Flow]]:
        """Model, scheme and flow of every random twin of a family at the group's place."""
        branch = self.states == BRANCH and family == SSM
        return [
            (reading.model, key.removesuffix(f"/{self.place}"), flow)
            for reading in self.readings
            if reading.family == family
            for key, flow in (reading.random_branch if branch else reading.random).items()
            if key.endswith(f"/{self.place}")
        ]

    def each(self, family: str, number: Callable[[Flow], float]) -> list[tuple[str, float]]:
        """A number of every model of a family."""
        return [(name, number(flow)) for name, flow in self.of(family)]

    @cached_property
    def without(self) -> tuple[Group, ...]:
        """The group with each prompt left out in turn; none where models read other numbers of prompts."""
        counts = {len(flow.without) for family in FAMILIES for _, flow in self.of(family)}
        count = counts.pop() if len(counts) == 1 else 0
        if count < LEAST_VALUES:
            return ()
        return tuple(
            replace(self, readings=tuple(_leave_out(reading, at, count) for reading in self.readings))
            for at in range(count)
        )

    def ask(
        self,
        text: str,
        what: str,
        values: Callable[[Group], Named],
        margin: Callable[[Group], float],
        missing: str,
        no_interval: str = NO_PROMPTS,
    ) -> Clause:
        """A part that is judged on flows.

        Args:
            text: what is asked.
            what: what the values are.
            values: the models' numbers.
            margin: distance from the threshold on the claim's side; NaN where it cannot be asked.
            missing: what to say then.
            no_interval: what to say where no prompt can be left out.
        """
        named, distance = values(self), margin(self)
        if not named or not np.isfinite([*values_of(named), distance]).all():
            unread = self.states == BRANCH and not self.of(SSM)
            return Clause(text, self.training, NO_BRANCH if unread else missing)
        again = [(values(group), margin(group)) for group in self.without]
        names = [name for name, _ in named]
        again = again if all([name for name, _ in part] == names for part, _ in again) else []
        ends = {name: jackknife(value, [part[at][1] for part, _ in again]) for at, (name, value) in enumerate(named)}
        interval = jackknife(distance, [other for _, other in again])
        over = PROMPTS if np.isfinite(interval).all() else ALIKE_PROMPTS if again else no_interval
        return self.answer(text, what, named, distance, interval, over, ends=ends)

    def answer(
        self,
        text: str,
        what: str,
        values: Named,
        margin: float,
        interval: Ends,
        over: str,
        *,
        ends: Mapping[str, Ends],
        zone: float = 0.0,
    ) -> Clause:
        """A part whose numbers and interval are known."""
        finite = {name: pair for name, pair in ends.items() if np.isfinite(pair).all()}
        summary = f"{what}: {listed(values)}"
        return Clause(text, self.training, summary, what, tuple(values), finite, margin, interval, over, zone)


def _leave_out(reading: Reading, at: int, count: int) -> Reading:
    """A reading without one prompt; flows of other numbers of prompts are dropped, since they have none to match."""
    flows = {
        name: {key: flow.without[at] for key, flow in getattr(reading, name).items() if len(flow.without) == count}
        for name in FLOWS
    }
    changes: dict[str, Any] = {**flows, "probes": {}}
    return replace(reading, **changes)


def jackknife(whole: float, left_out: Sequence[float]) -> Ends:
    """95 % interval of a number by what it is with each prompt left out; NaN without a spread.

    >>> [round(end, 4) for end in jackknife(2.5, [3.0, 8 / 3, 7 / 3, 2.0])]  # of 1, 2, 3, 4, as Student's
    [0.4457, 4.5543]
    """
    count = len(left_out)
    if count < LEAST_VALUES:
        return NO_ENDS
    band = student_interval(count * whole - (count - 1) * np.asarray(left_out, dtype=np.float64))
    half = float(band.high - band.low) / 2
    return (whole - half, whole + half) if half > abs(whole) * 1e-9 else NO_ENDS


def listed(values: Named) -> str:
    """Names with their numbers.

    >>> listed([("mamba", 0.25), ("mamba2", 0.00521)])
    'mamba 0.25, mamba2 0.00521'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in values)


def values_of(pairs: Named) -> list[float]:
    """The values alone."""
    return [value for _, value in pairs]


def mean_of(pairs: Named) -> float:
    """Mean over models, NaN of none."""
    return float(np.mean(values_of(pairs))) if pairs else math.nan


def split_place(place: str) -> tuple[str, int]:
    """Task and length of a place; a task may be a path.

    >>> split_place("kvpr/256")
    ('kvpr', 256)
    """
    task, _, length = place.rpartition("/")
    return task, int(length)
