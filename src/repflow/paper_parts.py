"""Parts of paper 1's findings, asked of the models of one training.

| name | value | from the paper's text |
|---|---|---|
| STEADY | 0.9 | Transformers' layer cosine is 90–100 % until the last layers |
| SHIFT | 0.1 | it falls by 30 points at the end, similarity between tokens by 40 to 60: a third of that |
| ALIKE | 0.5 | Transformers' tokens are 70–90 % alike: more alike than not |
| APART | 0.25 | tokens of random state-space models are 0–25 % alike |
| MARGIN | 0.05 | a difference of cosines or CKA that counts |
| FACTOR | 1.5 | Sm and St differ by a factor of three within a family: half of that on a scale of factors |
| STABLE | 0.25 | largest change of St over lengths in its Table 2, called stable |
| SIZES | 2.0 | factor of parameters from which two models differ in size |

Depth is relative: models have 8, 16 or more blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import numpy as np

from repflow.paper_reading import SSM, TBM, Flow, Reading, Training

STEADY, SHIFT, ALIKE, APART, MARGIN, FACTOR, STABLE, SIZES = 0.9, 0.1, 0.5, 0.25, 0.05, 1.5, 0.25, 2.0
FAMILIES = (TBM, SSM)
STEPS = 8
"""Relative depths at which CKA is read, so that models of 8 and 16 blocks are read at the same distances."""


Named = Sequence[tuple[str, float]]
"""Values with the names of their models."""


@dataclass(frozen=True)
class Clause:
    """A part of a finding in one training.

    Attributes:
        text: what was asked, with its threshold.
        training: seed and steps.
        found: our numbers, or what is missing.
        holds: None where it could not be asked.
        what: what the numbers are.
        values: the numbers by name; none where it could not be asked.
        ends: their 95 % intervals by name, where the readings have them.
    """

    text: str
    training: Training
    found: str
    holds: bool | None
    what: str = ""
    values: Named = ()
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """Models of one training.

    Attributes:
        training: its seed and steps.
        place: "task/length" that curves are read at.
        readings: Transformers and state-space models.
    """

    training: Training
    place: str
    readings: tuple[Reading, ...]

    def of(self, family: str) -> list[tuple[str, Flow]]:
        """Name and trained flow of a family's models."""
        chosen = [reading for reading in self.readings if reading.family == family and self.place in reading.trained]
        return [(reading.model, reading.trained[self.place]) for reading in chosen]

    def clause(
        self,
        text: str,
        what: str,
        values: Named,
        holds: Callable[[], bool | None],
        missing: str,
        ends: Mapping[str, tuple[float, float]] | None = None,
    ) -> Clause:
        """A part of a finding, asked only where there are values.

        Args:
            text: what is asked.
            what: what the values are.
            values: by model; none, or one that is not finite, cannot be asked.
            holds: the answer, None where the numbers are too uncertain for one.
            missing: what to say where it cannot be asked.
            ends: intervals of the values, where they are known.
        """
        if not values or not all(np.isfinite(value) for _, value in values):
            return Clause(text, self.training, missing, None)
        answer, found = holds(), f"{what}: {listed(values)}"
        found += ", which too few prompts leave open" if answer is None else ""
        settled = None if answer is None else bool(answer)
        return Clause(text, self.training, found, settled, what, tuple(values), dict(ends or {}))


def listed(values: Named) -> str:
    """Names with their numbers.

    >>> listed([("mamba", 0.25), ("mamba2", 0.00521)])
    'mamba 0.25, mamba2 0.00521'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in values)


def split_place(place: str) -> tuple[str, int]:
    """Task and length of a place; a task may be a path.

    >>> split_place("kvpr/256")
    ('kvpr', 256)
    """
    task, _, length = place.rpartition("/")
    return task, int(length)


def _each(group: Group, family: str, read: Callable[[Flow], float]) -> list[tuple[str, float]]:
    return [(name, read(flow)) for name, flow in group.of(family)]


def values_of(pairs: Named) -> list[float]:
    """The values alone."""
    return [value for _, value in pairs]


NO_FLOW = "no flow of a Transformer and a state-space model at one task and length"


def _early(values: Sequence[float]) -> list[float]:
    """Entries before the last quarter."""
    return list(values[: len(values) - max(1, len(values) // 4)])


def _late(values: Sequence[float]) -> list[float]:
    return list(values[len(values) - max(1, len(values) // 4) :])


def _over(average: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    """Average of some values, NaN of none: a model of one block has nothing before its last, a run no such metric."""
    return float(average(values)) if len(values) else float("nan")


def token_evolution(group: Group) -> list[Clause]:
    """F 3.2.1, on the cosine of a token before and behind a block."""
    before = _each(group, TBM, lambda flow: _over(np.median, flow.layer_cosine[:-1]))
    fall = _each(
        group, TBM, lambda flow: _over(np.median, flow.layer_cosine[:-1]) - _over(np.mean, flow.layer_cosine[-1:])
    )
    varied = _each(group, SSM, lambda flow: _over(np.median, _early(flow.layer_cosine)))
    rise = _each(
        group, SSM, lambda flow: _over(np.mean, _late(flow.layer_cosine)) - _over(np.mean, _early(flow.layer_cosine))
    )
    return [
        group.clause(
            f"Transformers: median layer cosine before the last block ≥ {STEADY}",
            "median layer cosine before the last block",
            before,
            lambda: min(values_of(before)) >= STEADY,
            NO_FLOW,
        ),
        group.clause(
            f"Transformers: the last block's cosine lies ≥ {SHIFT} below it",
            "fall at the last block",
            fall,
            lambda: min(values_of(fall)) >= SHIFT,
            NO_FLOW,
        ),
        group.clause(
            f"state-space models: median before the last quarter ≥ {MARGIN} below every Transformer's",
            "median layer cosine",
            [*varied, *before] if varied and before else [],
            lambda: max(values_of(varied)) <= min(values_of(before)) - MARGIN,
            NO_FLOW,
        ),
        group.clause(
            f"state-space models: mean of the last quarter ≥ {MARGIN} above that before",
            "rise in the last quarter",
            rise,
            lambda: min(values_of(rise)) >= MARGIN,
            NO_FLOW,
        ),
    ]


def _first_half(flow: Flow) -> float:
    """Highest similarity behind a block of the first half."""
    values = flow.token_similarity
    return float(np.max(values[1 : 1 + len(values) // 2]))


def _highest(flow: Flow) -> float:
    """Highest similarity of all states; NaN where one is, as numpy's maximum has it and Python's has not."""
    return float(np.max(flow.token_similarity))


def _fall(flow: Flow) -> float:
    return _highest(flow) - flow.token_similarity[-1]


def _deepest(flow: Flow) -> float:
    """Relative depth of the highest similarity; NaN where a state has none, which may have been the highest."""
    values = flow.token_similarity
    return int(np.argmax(values)) / (len(values) - 1) if np.isfinite(values).all() else float("nan")


def token_uniqueness(group: Group) -> list[Clause]:
    """F 3.2.2, on the similarity between tokens by depth."""
    early, fall = _each(group, TBM, _first_half), _each(group, TBM, _fall)
    middle = {family: _each(group, family, lambda flow: float(np.median(flow.token_similarity))) for family in FAMILIES}
    peak = {family: _each(group, family, _deepest) for family in FAMILIES}
    return [
        group.clause(
            f"Transformers: token similarity ≥ {ALIKE} in the first half of depth",
            "highest token similarity of the first half",
            early,
            lambda: min(values_of(early)) >= ALIKE,
            NO_FLOW,
        ),
        group.clause(
            f"Transformers: the last state lies ≥ {SHIFT} below the highest",
            "fall from the highest to the last state",
            fall,
            lambda: min(values_of(fall)) >= SHIFT,
            NO_FLOW,
        ),
        group.clause(
            f"state-space models: median over states ≥ {MARGIN} below every Transformer's",
            "median token similarity",
            both(middle),
            lambda: max(values_of(middle[SSM])) <= min(values_of(middle[TBM])) - MARGIN,
            NO_FLOW,
        ),
        group.clause(
            "state-space models: highest similarity deeper than every Transformer's (relative depth)",
            "relative depth of the highest",
            both(peak),
            lambda: min(values_of(peak[SSM])) > max(values_of(peak[TBM])),
            NO_FLOW,
        ),
    ]


def both(found: dict[str, list[tuple[str, float]]]) -> list[tuple[str, float]]:
    """Values of both families; none where one is missing."""
    return [*found[TBM], *found[SSM]] if found[TBM] and found[SSM] else []


def _random(group: Group, family: str, read: Callable[[Flow], float]) -> list[tuple[str, float]]:
    """Of every random scheme at the group's task and length."""
    return [
        (f"{reading.model} ({key.removesuffix(f'/{group.place}')})", read(flow))
        for reading in group.readings
        if reading.family == family
        for key, flow in reading.random.items()
        if key.endswith(f"/{group.place}")
    ]


def random_weights(group: Group) -> list[Clause]:
    """F 3.2.3, on trained weights beside random ones."""
    missing = "no random twin of a Transformer and a state-space model at one task and length"
    ends = _random(group, TBM, lambda flow: flow.token_similarity[-1])
    high = _random(group, SSM, _highest)
    trained = _each(group, TBM, lambda flow: float(np.median(flow.token_similarity)))
    tops = dict(_each(group, SSM, _highest))
    gain = [(name, tops[name.split(" (")[0]] - value) for name, value in high if name.split(" (")[0] in tops]
    return [
        group.clause(
            f"random Transformers: token similarity of the last state ≥ {ALIKE}",
            "random, last state",
            ends,
            lambda: min(values_of(ends)) >= ALIKE,
            missing,
        ),
        group.clause(
            f"trained Transformers: median over states ≥ {ALIKE} as well",
            "trained, median token similarity",
            trained,
            lambda: min(values_of(trained)) >= ALIKE,
            missing,
        ),
        group.clause(
            f"random state-space models: ≤ {APART} in every state",
            "random, highest",
            high,
            lambda: max(values_of(high)) <= APART,
            missing,
        ),
        group.clause(
            f"state-space models: training lifts the highest similarity by ≥ {MARGIN}",
            "lift by training",
            gain,
            lambda: min(values_of(gain)) >= MARGIN,
            missing,
        ),
    ]


def _grid(flow: Flow) -> np.ndarray:
    """CKA between the states at `STEPS` relative depths, the embedding left out."""
    matrix = np.asarray(flow.cka, dtype=np.float64)
    places = np.rint(np.arange(1, STEPS + 1) / STEPS * (len(matrix) - 1)).astype(int)
    return np.asarray(matrix[np.ix_(places, places)])


def _within(matrix: np.ndarray) -> float:
    """Mean CKA of different states."""
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def manifolds(group: Group) -> list[Clause]:
    """F 3.3.1, on CKA between states."""
    half, missing = STEPS // 2, "no CKA of a Transformer and a state-space model (--metrics default,cka_matrix)"

    def read(family: str, value: Callable[[np.ndarray], float]) -> list[tuple[str, float]]:
        return [(name, value(_grid(flow))) for name, flow in group.of(family) if flow.cka]

    early = {family: read(family, lambda matrix: _within(matrix[:half, :half])) for family in FAMILIES}
    shift = read(TBM, lambda matrix: float(matrix[0, half - 1] - matrix[0, -1]))
    gain = read(SSM, lambda matrix: _within(matrix[half:, half:]) - _within(matrix[:half, :half]))
    return [
        group.clause(
            f"Transformers: mean CKA within the first half ≥ {MARGIN} above every state-space model's",
            "mean CKA of the first half",
            both(early),
            lambda: min(values_of(early[TBM])) >= max(values_of(early[SSM])) + MARGIN,
            missing,
        ),
        group.clause(
            f"Transformers: the first block's CKA with the last is ≥ {MARGIN} below that with the middle",
            "fall of CKA with the first block",
            shift,
            lambda: min(values_of(shift)) >= MARGIN,
            missing,
        ),
        group.clause(
            f"state-space models: mean CKA within the last half ≥ {MARGIN} above the first half's",
            "gain of CKA in the last half",
            gain,
            lambda: min(values_of(gain)) >= MARGIN,
            missing,
        ),
    ]


def _overlap(found: dict[str, list[tuple[str, float]]]) -> bool:
    """Whether the ranges of the families share a value."""
    ranges = [values_of(values) for values in found.values()]
    return max(map(min, ranges)) <= min(map(max, ranges))


def smoothness(group: Group) -> list[Clause]:
    """F 3.3.2, on Sm and St as the paper has them."""
    missing = "it takes two Transformers and two state-space models of one training to tell model from family"
    clauses = []
    spread: list[tuple[str, float]] = []
    for name, letters in (("smoothness", "Sm"), ("stability", "St")):
        found = {family: _each(group, family, attrgetter(name)) for family in FAMILIES}
        enough = all(len(found[family]) > 1 for family in FAMILIES)
        clauses.append(
            group.clause(
                f"{letters} of the two families overlaps",
                f"{letters} from block to block, as the paper has it",
                both(found) if enough else [],
                partial(_overlap, found),
                missing,
            )
        )
        for family in FAMILIES if enough else ():
            values = values_of(found[family])
            spread.append((f"{letters} {family}", max(values) / min(values)))
    within = group.clause(
        f"within a family Sm or St differs by a factor ≥ {FACTOR}",
        "largest factor within a family",
        spread,
        lambda: max(values_of(spread)) >= FACTOR,
        missing,
    )
    return [*clauses, within]
