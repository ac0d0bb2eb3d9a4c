"""What the recall laboratory claims, fixed before the data, and how its numbers decide.

Every row is a sum of switches: two more states, two decays that are fixed, fixed ones at the poles. One linear model of
the log-odds of accuracy has these three, depth, and how the three change with depth, with intervals over seeds
(`repflow.studies.laboratory.effect`). Reach of influence (its logarithm) and similarity of tokens behind the last block
go through the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.verdict import DOES_NOT, HOLDS, OPEN, Part, decide
from repflow.studies.laboratory.effect import Effect, RankCorrelation, effects, log_odds, over_seeds, rank_correlation

SWITCHES = {
    "none/16": (0, 0, 0), "none/18": (1, 0, 0), "placebo/16": (0, 1, 0), "both/16": (0, 1, 1), "both+/16": (1, 1, 1),
}  # fmt: skip
"""More states, decays that are fixed, fixed ones at 1 and 0."""
FACTORS = ("two more states", "two fixed decays", "fixed at the poles")
DEEP = "4 layers"
QUERIES = 1000
"""Test rows of each number of pairs; a row of p pairs has p queries."""
SMALL = 0.2
"""Log-odds below which an effect counts as none: 5 points at an accuracy of a half."""


@dataclass(frozen=True)
class Study:
    """Numbers of the last phase: one entry per model.

    Attributes:
        cells: as `tools.recall.run table` writes them.
        pairs: numbers of pairs in a test row.
    """

    cells: Sequence[Mapping[str, Any]]
    pairs: Sequence[int]

    def of(self, name: str) -> np.ndarray:
        """A number or a list of each model, NaN for None."""
        return np.array([np.asarray(cell[name], dtype=np.float64) for cell in self.cells])

    def seeds(self) -> list[int]:
        """Of each model."""
        return [int(cell["seed"]) for cell in self.cells]

    def rows(self) -> list[str]:
        """Of each model."""
        return [str(cell["row"]) for cell in self.cells]

    def odds(self, place: int) -> np.ndarray:
        """Log-odds of accuracy with one number of pairs (cell,)."""
        return log_odds(self.of("accuracy")[:, place], QUERIES * self.pairs[place])

    def last_similarity(self) -> np.ndarray:
        """Similarity of tokens behind the last block (cell,)."""
        return np.array([cell["token_similarity"][int(cell["layers"])] for cell in self.cells], dtype=np.float64)

    def factors(self) -> dict[str, list[int]]:
        """Switches of each model, depth, and their products."""
        deep = [int(cell["layers"] == 4) for cell in self.cells]
        columns = {name: [SWITCHES[row][place] for row in self.rows()] for place, name in enumerate(FACTORS)}
        products = {
            f"{name}, {DEEP}": [a * b for a, b in zip(column, deep, strict=True)] for name, column in columns.items()
        }
        return {**columns, DEEP: deep, **products}

    def effects(self, values: np.ndarray) -> dict[str, Effect]:
        """All effects on one value per model."""
        return effects(values, self.factors(), self.seeds())

    def at_depth(self, fitted: Mapping[str, Effect], name: str, layers: int) -> Effect:
        """An effect in models of one depth."""
        shallow, more = fitted[name].by_seed, fitted[f"{name}, {DEEP}"].by_seed
        return over_seeds(np.array(shallow) + (np.array(more) if layers == 4 else 0))

    def difference(self, values: np.ndarray, row: str, layers: int, other: str, other_layers: int) -> Effect:
        """Of two rows, seed by seed."""
        sides = []
        for kind, depth in ((row, layers), (other, other_layers)):
            mine = {
                c["seed"]: v
                for c, v in zip(self.cells, values, strict=True)
                if (c["row"], c["layers"]) == (kind, depth)
            }
            sides.append(mine)
        return over_seeds([sides[0][seed] - sides[1][seed] for seed in sorted(sides[0])])

    def correlation(self, x: np.ndarray, y: np.ndarray, layers: int) -> RankCorrelation:
        """Of two numbers in models of one depth, over rows."""
        mine = np.flatnonzero([cell["layers"] == layers for cell in self.cells])
        return rank_correlation(x[mine], y[mine], [self.rows()[place] for place in mine])


@dataclass(frozen=True)
class Claim:
    """A sentence and the parts that decide it.

    Attributes:
        text: the sentence.
        rule: when each part is shown.
        parts: what the numbers say of it.
    """

    text: str
    rule: str
    parts: Callable[[Study], list[tuple[str, bool | None]]]

    def verdict(self, study: Study | None) -> tuple[str, str]:
        """One of the four words, and the numbers behind it."""
        if study is None:
            return OPEN, "not run"
        parts = self.parts(study)
        verdict = decide([Part(text, holds) for text, holds in parts])
        words = {True: HOLDS, False: DOES_NOT, None: OPEN}
        return verdict.word, "; ".join(f"{text} ({words[holds]})" for text, holds in parts)


def shown(effect: Effect, unit: str = "") -> str:
    """An effect with its interval."""
    return f"{effect.mean:+.2f} [{effect.low:+.2f}, {effect.high:+.2f}]{unit}"


def _none(effect: Effect) -> bool | None:
    """Whether an effect is shown to be as good as none."""
    inside = effect.low > -SMALL and effect.high < SMALL
    return True if inside else False if effect.low > SMALL or effect.high < -SMALL else None


def _per_depth(
    name: str, values: Callable[[Study], np.ndarray], judge: Callable[[Effect], bool | None]
) -> Callable[[Study], list[tuple[str, bool | None]]]:
    def parts(study: Study) -> list[tuple[str, bool | None]]:
        fitted = study.effects(values(study))
        both = [(layers, study.at_depth(fitted, name, layers)) for layers in (2, 4)]
        return [(f"{layers} layers {shown(effect)}", judge(effect)) for layers, effect in both]

    return parts


def _most_pairs(study: Study) -> np.ndarray:
    return study.odds(len(study.pairs) - 1)


def _reach(study: Study) -> np.ndarray:
    return np.asarray(np.log(study.of("half_reach")))


def _negative(effect: Effect) -> bool | None:
    return None if effect.sign is None else not effect.sign


def _beyond_state(study: Study) -> list[tuple[str, bool | None]]:
    fitted = study.effects(_most_pairs(study))
    parts = []
    for layers in (2, 4):
        pole, state = (study.at_depth(fitted, FACTORS[place], layers) for place in (2, 0))
        apart = over_seeds(np.array(pole.by_seed) - np.array(state.by_seed))
        parts.append((f"{layers} layers: poles less states {shown(apart)}", apart.sign))
    return parts


def _depth_hurts(study: Study) -> list[tuple[str, bool | None]]:
    effect = study.difference(_most_pairs(study), "none/16", 4, "none/16", 2)
    return [(f"4 less 2 layers {shown(effect)}", _negative(effect))]


def _predicts(values: Callable[[Study], np.ndarray], sign: int) -> Callable[[Study], list[tuple[str, bool | None]]]:
    def parts(study: Study) -> list[tuple[str, bool | None]]:
        by_depth: list[tuple[str, bool | None]] = []
        for layers in (2, 4):
            ranks = study.correlation(values(study), _most_pairs(study), layers)
            side = True if ranks.low > 0 else False if ranks.high < 0 else None
            text = f"{layers} layers: rank correlation {ranks.value:+.2f} [{ranks.low:+.2f}, {ranks.high:+.2f}]"
            by_depth.append((text, side if sign > 0 or side is None else not side))
        return by_depth

    return parts


CLAIMS = (
    Claim(
        "Poles raise recall.",
        "the effect of fixed decays being at the poles, with the most pairs, is above 0 at 2 and at 4 layers",
        _per_depth(FACTORS[2], _most_pairs, lambda effect: effect.sign),
    ),
    Claim(
        "They do more than as many further states.",
        "the effect of the poles less that of two more states is above 0 at both depths",
        _beyond_state,
    ),
    Claim(
        "Fixing two decays where they start changes nothing.",
        f"the effect of two fixed decays lies within ± {SMALL} log-odds at both depths",
        _per_depth(FACTORS[1], _most_pairs, _none),
    ),
    Claim("Depth hurts the default.", "none/16 has lower log-odds with 4 layers than with 2, most pairs", _depth_hurts),
    Claim(
        "Poles lengthen the reach of influence.",
        "their effect on the logarithm of the half reach is above 0 at both depths",
        _per_depth(FACTORS[2], _reach, lambda effect: effect.sign),
    ),
    Claim(
        "Poles make tokens less alike.",
        "their effect on the similarity behind the last block is below 0 at both depths",
        _per_depth(FACTORS[2], Study.last_similarity, _negative),
    ),
    Claim(
        "Within a depth, models that reach further recall more.",
        "rank correlation of half reach and recall with the most pairs above 0 at both depths, rows drawn again",
        _predicts(_reach, 1),
    ),
    Claim(
        "Within a depth, models whose tokens are more alike recall less.",
        "rank correlation of similarity and recall with the most pairs below 0 at both depths, rows drawn again",
        _predicts(Study.last_similarity, -1),
    ),
)


def read_study(numbers: Mapping[str, Any]) -> Study | None:
    """The phase of five seeds; None where it is not finished."""
    phase = numbers.get("core-seeds")
    if phase is None or phase.get("unfinished"):
        return None
    return Study(phase["cells"], phase["recall"]["pairs"])
