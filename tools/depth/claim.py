"""What the studies of depth, remedies and hybrids claim, fixed before the data, and how their numbers decide.

Loss is that of the test text in nats; recall is the share of right answers, mean over all numbers of pairs. A
difference of two kinds of models is judged by the scatter of seeds about each kind, the same for all kinds of a study
(`repflow.studies.laboratory.effect.contrast`), at 95 %. A part is open where its models are not all trained or one of
them diverged, and where it asks for recall and none of its models recalls: a model that answers with any of the values
in its row is as good as any other that does, whatever was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
from scipy.stats import rankdata

from repflow.core.errors import InputError
from repflow.core.intervals import bracketed
from repflow.core.verdict import DOES_NOT, HOLDS, OPEN, Part, decide
from repflow.studies.laboratory.effect import Effect, contrast
from tools.depth.plan import PAIRS

NOT_RUN, LACKING = "not run", "diverged or not trained"
PLATEAU = "none of {} models recalls more than twice what guessing among the values of a row would"
GUESS = float(np.mean([1 / count for count in PAIRS]))
"""Recall of a model that answers with any of the values in its row."""
RECALLS = 2.0
"""Times what such a guess is right from which a model recalls."""
Answer = tuple[str, bool | None]
"""A part in words with its numbers, and whether it is shown."""


@dataclass(frozen=True)
class Ranks:
    """A rank correlation, the share of permutations with one as great or as small, and how many kinds it is over."""

    value: float
    chance: float
    kinds: int


@dataclass(frozen=True)
class Study:
    """Trained models of a last phase.

    Attributes:
        cells: as `tools.depth.run table` writes them.
        finished: whether these are all of the phase; nothing is judged before, lest it ends where a claim holds.
    """

    cells: Sequence[Mapping[str, Any]]
    finished: bool = True

    def kinds(self) -> list[tuple[str, int, int]]:
        """Row, depth and window of each model."""
        return [(str(cell["row"]), int(cell["layers"]), int(cell["length"])) for cell in self.cells]

    def seeds(self) -> list[int]:
        """Of each model."""
        return [int(cell["seed"]) for cell in self.cells]

    def of(self, name: str) -> np.ndarray:
        """A number of each model: loss, recall (mean over pairs), similarity (last block), reach (ln half reach)."""
        return np.array([_number(cell, name) for cell in self.cells])

    def some(self, test: Callable[[Mapping[str, Any]], bool]) -> Study:
        """Models that pass a test."""
        return Study([cell for cell in self.cells if test(cell)])

    def complete(self, name: str) -> Study:
        """Models of kinds whose number is there for every seed."""
        values, seeds = self.of(name), set(self.seeds())
        known: dict[tuple[str, int, int], set[int]] = {}
        for kind, seed, value in zip(self.kinds(), self.seeds(), values, strict=True):
            if np.isfinite(value):
                known.setdefault(kind, set()).add(seed)
        kept = [cell for cell, kind in zip(self.cells, self.kinds(), strict=True) if known.get(kind) == seeds]
        return Study(kept)

    def less(self, name: str, weights: Mapping[tuple[str, int, int], float]) -> Effect | None:
        """A weighted sum over kinds; None where one of their models is missing or diverged."""
        whole = self.complete(name)
        try:
            return contrast(whole.of(name), whole.kinds(), whole.seeds(), weights)
        except InputError:
            return None

    def plateau(self, kinds: Collection[tuple[str, int, int]] | None = None) -> str | None:
        """Says that no model of some kinds, or of all, recalls more than by guessing; None where one does."""
        mine = [cell for cell, kind in zip(self.cells, self.kinds(), strict=True) if kinds is None or kind in kinds]
        return None if any(recalls(cell) for cell in mine) else PLATEAU.format(len(mine))

    def ranks(self, x: str, y: str, within: Callable[[tuple[str, int, int]], Any]) -> Ranks | None:
        """Rank correlation over kinds of a number of one seed and another of another seed, each about its group's mean.

        Two numbers of one model share its luck and go together whatever its kind; those of different seeds do not. All
        pairs of seeds are taken, and their mean. How rare such a correlation is among kinds that have nothing to do
        with it, all orders of the kinds within their groups say.
        """
        whole = self.complete(x).complete(y)
        kinds, seeds = list(dict.fromkeys(whole.kinds())), sorted(set(whole.seeds()))
        if len(kinds) < LEAST_KINDS or len(seeds) < 2:
            return None
        groups: dict[Any, list[int]] = {}
        for place, kind in enumerate(kinds):
            groups.setdefault(within(kind), []).append(place)
        sides = []
        for name in (x, y):
            known = dict(zip(zip(whole.kinds(), whole.seeds(), strict=True), whole.of(name), strict=True))
            side = np.array([[known[kind, seed] for seed in seeds] for kind in kinds])
            for places in groups.values():
                side[places] -= side[places].mean(0)
            sides.append(rankdata(side, axis=0))
        a, b = (side - side.mean(0) for side in sides)
        spread = np.sqrt((a**2).sum(0))[:, None] * np.sqrt((b**2).sum(0))
        if not spread.all():  # where a number is the same for all kinds, nothing goes with it
            return Ranks(0.0, 1.0, len(kinds))
        apart = ~np.eye(len(seeds), dtype=bool)
        orders = product(*(permutations(places) for places in groups.values()))
        first = np.concatenate(list(groups.values()))
        values = []
        for order in orders:
            moved = np.empty_like(b)
            moved[first] = b[np.concatenate(order)]
            values.append(float((a.T @ moved / spread)[apart].mean()))
        return Ranks(values[0], float(np.mean(np.abs(values) >= abs(values[0]) - 1e-9)), len(kinds))


def recalls(cell: Mapping[str, Any]) -> bool:
    """Whether a model recalls more than twice as much as one that answers with any of the values in its row.

    >>> recalls({"length": 256, "recall": [0.25, 0.13, 0.06, 0.03, 0.02]})
    False
    >>> recalls({"length": 256, "recall": [0.9, 0.5, 0.2, 0.1, 0.05]})
    True
    """
    return bool(_number(cell, "recall") > RECALLS * GUESS)


LEAST_KINDS = 5
"""Kinds of models that a rank correlation needs."""


def _number(cell: Mapping[str, Any], name: str) -> float:
    if name == "recall":
        return float("nan") if cell.get("recall") is None else float(np.mean(cell["recall"]))
    if name == "similarity":
        values = cell.get("similarity")
        return float("nan") if values is None else float(values[int(cell["layers"])])
    key = "half_reach" if name == "reach" else name
    value = float("nan") if cell.get(key) is None else float(cell[key])
    return float(np.log(value)) if name == "reach" else value


@dataclass(frozen=True)
class Claim:
    """A sentence and the parts that decide it.

    Attributes:
        text: the sentence.
        rule: when each part is shown.
        parts: what the numbers say of it.
        study: whose models it is asked of: depth, remedies or hybrids, with the part of the study behind a hyphen.
    """

    text: str
    rule: str
    parts: Callable[[Study], list[Answer]]
    study: str

    def verdict(self, study: Study | None) -> tuple[str, str]:
        """One of the four words, and the numbers behind it."""
        if study is None or not study.cells:
            return OPEN, NOT_RUN
        if not study.finished:
            return OPEN, f"{len(study.cells)} models so far; judged when all are trained"
        parts = self.parts(study)
        verdict = decide([Part(text, holds) for text, holds in parts])
        words = {True: HOLDS, False: DOES_NOT, None: OPEN}
        return verdict.word, "; ".join(f"{text} ({words[holds]})" for text, holds in parts)


def shown(effect: Effect | None, scale: float = 1.0, digits: int = 3) -> str:
    """An effect with its interval."""
    if effect is None:
        return LACKING
    form = f"+.{digits}f"
    return f"{scale * effect.mean:{form}}{bracketed(effect.low, effect.high, form, scale=scale)}"


def counted(effect: Effect | None) -> str:
    """How many seeds an effect is over, behind its numbers."""
    return "" if effect is None else f", {len(effect.by_seed)} seeds"


def above(effect: Effect | None) -> bool | None:
    """Shown to be more than 0, or less."""
    return None if effect is None else effect.sign


def below(effect: Effect | None) -> bool | None:
    """Shown to be less than 0, or more."""
    side = above(effect)
    return None if side is None else not side


def read_study(numbers: Mapping[str, Any], name: str) -> Study | None:
    """Tested models of a phase, and of finished ones that add to it; None where there are none.

    Args:
        numbers: as `tools.depth.run table` writes them.
        name: phases with a plus between them, such as `depth-seeds+depth-third-seeds`.
    """
    first, *more = name.split("+")
    own = numbers.get(first)
    added = [numbers[part] for part in more if numbers.get(part, {}).get("finished")]
    cells = [] if own is None else [cell for phase in (own, *added) for cell in phase["cells"]]
    return Study(cells, finished=bool(own and own.get("finished", True))) if cells else None


def at_better_rates(numbers: Mapping[str, Any], first: str, other: str) -> dict[str, Any]:
    """A phase with the models of the better rate of each kind, by the loss on the validation text, mean over seeds.

    Args:
        numbers: as `tools.depth.run table` writes them.
        first: phase whose name the result has.
        other: phase with the same kinds and seeds at another rate; nothing is compared before both are finished.
    """
    if not all(numbers.get(name, {}).get("finished") for name in (first, other)):
        return {}
    by_kind: dict[tuple[Any, ...], dict[float, list[Mapping[str, Any]]]] = {}
    for cell in (*numbers[first]["cells"], *numbers[other]["cells"]):
        kind = cell["row"], cell["layers"], cell["length"]
        by_kind.setdefault(kind, {}).setdefault(float(cell["rate"]), []).append(cell)
    chosen = [min(rates.values(), key=_validation) for rates in by_kind.values()]
    return {first: {**numbers[first], "cells": [cell for cells in chosen for cell in cells]}}


def _validation(cells: Sequence[Mapping[str, Any]]) -> float:
    """Mean loss on the validation text; infinite where a model diverged."""
    values = [cell.get("validation_loss") for cell in cells]
    return float("inf") if None in values else float(np.mean([float(value) for value in values if value is not None]))
