"""Parts of paper 1's findings on the flow of states, judged on the models of one training; see `repflow.papers.claims`.

Depth is relative: models have 8, 16 or more blocks. Thresholds are `repflow.papers.thresholds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from repflow.core.intervals import welch_interval
from repflow.papers.claims import FAMILIES, NO_ENDS, Clause, Group, Named, mean_of, values_of
from repflow.papers.reading import SSM, TBM, Flow
from repflow.papers.thresholds import ALIKE, APART, FACTOR, MARGIN, PARTING, SHIFT, STEADY

STEPS = 8
"""Relative depths at which CKA is read, so that models of 8 and 16 blocks are read at the same distances."""
POOLED = "none: this CKA is one number of all prompts together"
NO_FLOW = "no flow of a Transformer and a state-space model at one task and length"
Read = Callable[[Group], float]


def _early(values: Sequence[float]) -> list[float]:
    """Entries before the last quarter."""
    return list(values[: len(values) - max(1, len(values) // 4)])


def _late(values: Sequence[float]) -> list[float]:
    return list(values[len(values) - max(1, len(values) // 4) :])


def _over(average: Callable[[Sequence[float]], float], values: Sequence[float]) -> float:
    """Average of some values, NaN of none: a model of one block has nothing before its last, a run no such metric."""
    return float(average(values)) if len(values) else float("nan")


def _family(family: str, number: Callable[[Flow], float]) -> Callable[[Group], list[tuple[str, float]]]:
    return lambda group: group.each(family, number)


def _both(number: Callable[[Flow], float]) -> Callable[[Group], list[tuple[str, float]]]:
    """Numbers of both families; none where one is missing."""

    def found(group: Group) -> list[tuple[str, float]]:
        first, second = (group.each(family, number) for family in FAMILIES)
        return [*first, *second] if first and second else []

    return found


def _least(values: Callable[[Group], Named], threshold: float) -> Read:
    """Margin of a mean over a lower bound."""
    return lambda group: mean_of(values(group)) - threshold


def _most(values: Callable[[Group], Named], threshold: float) -> Read:
    return lambda group: threshold - mean_of(values(group))


def _above(high: str, low: str, number: Callable[[Flow], float]) -> Read:
    """Margin of one family's mean over the other's plus `MARGIN`."""
    return lambda group: mean_of(group.each(high, number)) - mean_of(group.each(low, number)) - MARGIN


def _steady(flow: Flow) -> float:
    return _over(np.median, flow.layer_cosine[:-1])


def _turn(flow: Flow) -> float:
    return _steady(flow) - _over(np.mean, flow.layer_cosine[-1:])


def _settling(flow: Flow) -> float:
    return _over(np.mean, _late(flow.layer_cosine)) - _over(np.mean, _early(flow.layer_cosine))


def token_evolution(group: Group) -> list[Clause]:
    """F 3.2.1, on the cosine of a token before and after a block."""
    before, fall, rise = _family(TBM, _steady), _family(TBM, _turn), _family(SSM, _settling)

    def varied(now: Group) -> list[tuple[str, float]]:
        """Of state-space models before the last quarter, of Transformers before the last block."""
        ssm = now.each(SSM, lambda flow: _over(np.median, _early(flow.layer_cosine)))
        tbm = before(now)
        return [*ssm, *tbm] if ssm and tbm else []

    def apart(now: Group) -> float:
        ssm = now.each(SSM, lambda flow: _over(np.median, _early(flow.layer_cosine)))
        return mean_of(before(now)) - mean_of(ssm) - MARGIN

    return [
        group.ask(
            f"Transformers: median layer cosine before the last block ≥ {STEADY}",
            "median layer cosine before the last block", before, _least(before, STEADY), NO_FLOW,
        ),
        group.ask(
            f"Transformers: the last block's cosine is ≥ {SHIFT} below it",
            "fall at the last block", fall, _least(fall, SHIFT), NO_FLOW,
        ),
        group.ask(
            f"state-space models: median before the last quarter ≥ {MARGIN} below the Transformers'",
            "median layer cosine", varied, apart, NO_FLOW,
        ),
        group.ask(
            f"state-space models: mean of the last quarter ≥ {MARGIN} above that before",
            "rise in the last quarter", rise, _least(rise, MARGIN), NO_FLOW,
        ),
    ]  # fmt: skip


def _first_half(flow: Flow) -> float:
    """Highest similarity after a block of the first half."""
    values = flow.token_similarity
    return float(np.max(values[1 : 1 + len(values) // 2]))


def _highest(flow: Flow) -> float:
    """Highest similarity of all states; NaN where one is, as with numpy's maximum but not Python's."""
    return float(np.max(flow.token_similarity))


def _fall(flow: Flow) -> float:
    return _highest(flow) - flow.token_similarity[-1]


def _middle(flow: Flow) -> float:
    return float(np.median(flow.token_similarity))


def depth_of_similarity(flow: Flow) -> float:
    """Mean relative depth of the states, weighted by their similarity: 0.5 where it is the same in all.

    The place of the highest state says nothing of a curve that is flat around it, and jumps between prompts.

    >>> depth_of_similarity(Flow([0.2] * 5, [], 0.0, 0.0)), depth_of_similarity(Flow([0.0, 0.0, 0.5], [], 0.0, 0.0))
    (0.5, 1.0)
    """
    weights = np.maximum(flow.token_similarity, 0.0)
    total = float(weights.sum())
    return float(weights @ np.linspace(0, 1, len(weights))) / total if total > 0 else math.nan


def token_uniqueness(group: Group) -> list[Clause]:
    """F 3.2.2, on the similarity between tokens by depth."""
    early, fall = _family(TBM, _first_half), _family(TBM, _fall)
    return [
        group.ask(
            f"Transformers: token similarity ≥ {ALIKE} in the first half of depth",
            "highest token similarity of the first half", early, _least(early, ALIKE), NO_FLOW,
        ),
        group.ask(
            f"Transformers: the last state is ≥ {PARTING} below the highest",
            "fall from the highest to the last state", fall, _least(fall, PARTING), NO_FLOW,
        ),
        group.ask(
            f"state-space models: median over states ≥ {MARGIN} below the Transformers'",
            "median token similarity", _both(_middle), _above(TBM, SSM, _middle), NO_FLOW,
        ),
        group.ask(
            f"state-space models: similarity is ≥ {MARGIN} of the depth deeper than in Transformers",
            "mean relative depth, weighted by similarity",
            _both(depth_of_similarity), _above(SSM, TBM, depth_of_similarity), NO_FLOW,
        ),
    ]  # fmt: skip


def _twins(family: str, number: Callable[[Flow], float]) -> Callable[[Group], list[tuple[str, float]]]:
    """A number of every random twin."""
    return lambda group: [(f"{model} ({scheme})", number(flow)) for model, scheme, flow in group.twins(family)]


def _lift(group: Group) -> list[tuple[str, float]]:
    """How much higher the highest similarity is with trained weights than in each random twin."""
    tops = dict(group.each(SSM, _highest))
    return [
        (f"{model} ({scheme})", tops[model] - _highest(flow))
        for model, scheme, flow in group.twins(SSM)
        if model in tops
    ]


def random_weights(group: Group) -> list[Clause]:
    """F 3.2.3, on trained weights beside random ones."""
    missing = "no random twin of a Transformer and a state-space model at one task and length"
    ends = _twins(TBM, lambda flow: flow.token_similarity[-1])
    high, trained = _twins(SSM, _highest), _family(TBM, _middle)
    return [
        group.ask(
            f"random Transformers: token similarity of the last state ≥ {ALIKE}",
            "random, last state", ends, _least(ends, ALIKE), missing,
        ),
        group.ask(
            f"trained Transformers: median over states ≥ {ALIKE} as well",
            "trained, median token similarity", trained, _least(trained, ALIKE), missing,
        ),
        group.ask(
            f"random state-space models: ≤ {APART} in every state",
            "random, highest", high, _most(high, APART), missing,
        ),
        group.ask(
            f"state-space models: training lifts the highest similarity by ≥ {MARGIN}",
            "lift by training", _lift, _least(_lift, MARGIN), missing,
        ),
    ]  # fmt: skip


def _grid(flow: Flow) -> np.ndarray:
    """CKA between the states at `STEPS` relative depths, the embedding left out."""
    matrix = np.asarray(flow.cka, dtype=np.float64)
    places = np.rint(np.arange(1, STEPS + 1) / STEPS * (len(matrix) - 1)).astype(int)
    return np.asarray(matrix[np.ix_(places, places)])


def _within(matrix: np.ndarray) -> float:
    """Mean CKA of different states."""
    return float(matrix[~np.eye(len(matrix), dtype=bool)].mean())


def _cka(value: Callable[[np.ndarray], float]) -> Callable[[Flow], float]:
    return lambda flow: value(_grid(flow)) if flow.cka else math.nan


def _measured(family: str, number: Callable[[Flow], float]) -> Callable[[Group], list[tuple[str, float]]]:
    """Of the models whose CKA was measured."""
    return lambda group: [(name, value) for name, value in group.each(family, number) if math.isfinite(value)]


def manifolds(group: Group) -> list[Clause]:
    """F 3.3.1, on CKA between states: one number of all prompts together, which has no interval over them."""
    half, missing = STEPS // 2, "no CKA of a Transformer and a state-space model (--metrics default,cka_matrix)"
    first = _cka(lambda matrix: _within(matrix[:half, :half]))
    early = {family: _measured(family, first) for family in FAMILIES}
    shift = _measured(TBM, _cka(lambda matrix: float(matrix[0, half - 1] - matrix[0, -1])))
    gain = _measured(SSM, _cka(lambda matrix: _within(matrix[half:, half:]) - _within(matrix[:half, :half])))

    def contrast(now: Group) -> list[tuple[str, float]]:
        tbm, ssm = (early[family](now) for family in FAMILIES)
        return [*tbm, *ssm] if tbm and ssm else []

    return [
        group.ask(
            f"Transformers: mean CKA within the first half ≥ {MARGIN} above the state-space models'",
            "mean CKA of the first half", contrast,
            lambda now: mean_of(early[TBM](now)) - mean_of(early[SSM](now)) - MARGIN, missing, POOLED,
        ),
        group.ask(
            f"Transformers: the first block's CKA with the last is ≥ {MARGIN} below that with the middle",
            "fall of CKA with the first block", shift, _least(shift, MARGIN), missing, POOLED,
        ),
        group.ask(
            f"state-space models: mean CKA within the last half ≥ {MARGIN} above the first half's",
            "gain of CKA in the last half", gain, _least(gain, MARGIN), missing, POOLED,
        ),
    ]  # fmt: skip


CONVENTIONS = {"": "from block to block, as the paper has it", "matched_": "on a grid of relative depth"}
"""Prefix of Sm and St: two models of other depth are comparable on the grid alone, but the paper has the blocks."""
FEW_MODELS = "none: two models against two fail to overlap in a third of draws by chance; it takes three of each family"


def smoothness(group: Group) -> list[Clause]:
    """F 3.3.2, on Sm and St by both conventions, which have to agree."""
    per_block, on_grid = (_smoothness(group, prefix, words) for prefix, words in CONVENTIONS.items())
    return [replace(first, also=second) for first, second in zip(per_block, on_grid, strict=True)]


def _smoothness(group: Group, prefix: str, words: str) -> list[Clause]:
    missing = "it takes two Transformers and two state-space models of one training to distinguish model from family"
    clauses = [
        _no_gap(group, letters, attrgetter(f"{prefix}{name}"), words, missing)
        for name, letters in (("smoothness", "Sm"), ("stability", "St"))
    ]

    def factors(now: Group) -> list[tuple[str, float]]:
        ratios = []
        for name, letters in (("smoothness", "Sm"), ("stability", "St")):
            for family in FAMILIES:
                values = values_of(now.each(family, attrgetter(f"{prefix}{name}")))
                if len(values) > 1:
                    ratios.append((f"{letters} {family}", max(values) / min(values)))
        return ratios

    within = group.ask(
        f"within a family Sm or St differs by a factor ≥ {FACTOR}",
        f"largest factor within a family, {words}",
        factors,
        lambda now: max(values_of(factors(now)), default=math.nan) - FACTOR,
        missing,
    )
    return [*clauses, within]


def _no_gap(group: Group, letters: str, number: Callable[[Flow], float], words: str, missing: str) -> Clause:
    """Whether a family's mean is within a factor of the other's, its interval over models."""
    by_family = {family: group.each(family, number) for family in FAMILIES}
    logs = [np.log(values_of(by_family[family])) for family in FAMILIES]
    text = f"{letters} of the two families is within a factor of {FACTOR}"
    named = [*by_family[TBM], *by_family[SSM]]
    if min(map(len, logs)) < 2 or not np.isfinite(np.concatenate(logs)).all():
        return Clause(text, group.training, missing)
    gap = welch_interval(*logs)
    edge, middle = math.log(FACTOR), float(gap.mean)
    ends = (float(gap.low), float(gap.high))
    margin, interval, over = edge - abs(middle), NO_ENDS, FEW_MODELS
    if np.isfinite(ends).all():
        nearest = 0.0 if ends[0] <= 0 <= ends[1] else min(map(abs, ends))
        interval, over = (edge - max(map(abs, ends)), edge - nearest), "models"
    return group.answer(text, f"{letters} {words}", named, margin, interval, over, ends={})
