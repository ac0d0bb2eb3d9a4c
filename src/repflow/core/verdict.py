"""The four words that repflow judges a claim with, and the rule behind them. No torch.

A claim is cut into parts. Each part is shown to hold, shown not to hold, or neither: its 95 % interval lies on one side
of its threshold, on the other, or around it.

| word | when |
|---|---|
| holds | every part is shown to hold |
| does not hold | every part is shown not to hold |
| partly holds | one part at least is shown to hold and one shown not to, each at 5 % over the number of parts |
| open | anything else: too few trainings or prompts to say |

Every word comes with "k of n parts in m of r trainings": k parts of n are shown to hold, and m trainings of r could be
asked. A claim of several parts is decided only if all of them are, so each part keeps its whole 5 %; that some part
among several is settled by luck is what "partly holds" has to guard against, and so it divides the 5 % among them.

`benchmarks/verdicts.py` draws claims whose truth is known, and `benchmarks/verdicts.json` is its table: margins that
spread evenly around the threshold, in one of several shapes, get a wrong decisive word in at most 5 % of draws. The
rule takes it that margins of trainings spread smoothly. A part that is clearly true or clearly false by the toss of a
coin, beside parts that are all true, passes for true in 12 % at three trainings and 6 % at four; no rule that ever
decides there can do better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from repflow.core.errors import InputError, nearest

__all__ = [
    "DOES_NOT",
    "HOLDS",
    "MEANING",
    "OPEN",
    "PARTLY",
    "WORDS",
    "Part",
    "Verdict",
    "decide",
    "power",
    "read_word",
    "settle",
]

HOLDS, PARTLY, DOES_NOT, OPEN = WORDS = ("holds", "partly holds", "does not hold", "open")
MEANING = {
    HOLDS: "every part of the claim is shown to be true",
    PARTLY: "at least one part is shown to be true and at least one shown to be false",
    DOES_NOT: "every part of the claim is shown to be false",
    OPEN: "these runs cannot settle it: too few trainings or prompts, or something was not measured",
}
"""The words for readers new to them."""
FORMER = {
    "agrees": HOLDS,
    "consistent": HOLDS,
    "differs": DOES_NOT,
    "not_consistent": DOES_NOT,
    "not consistent": DOES_NOT,
    "mixed": OPEN,
    "not measurable": OPEN,
    "not_measurable": OPEN,
}
"""Words of earlier versions, which runs on disk may have. "mixed" was said of nearly everything, so it is open."""
WRONG = 0.05
"""Largest share of wrong decisive verdicts."""
TAIL = WRONG / 2
"""One-sided error of a part whose 95 % interval lies on one side of its threshold."""
LEAST_UNITS = 3
"""Trainings of different seeds from which their spread is judged; as `repflow.core.intervals.LEAST_VALUES`."""
LEAST_CELLS = 6
"""Parts times trainings of a decisive verdict: as many tosses of a coin fall on one side in 3.1 %, five in 6.2 %."""
EFFECT = 2.0
"""Margin in standard deviations over trainings that `power` is given at: a part that fails in 1 training of 44."""


@dataclass(frozen=True)
class Part:
    """A part of a claim and whether it was shown.

    Attributes:
        text: what was asked.
        holds: shown to hold, shown not to hold, None where neither.
        tail: one-sided error that it was shown with.
    """

    text: str
    holds: bool | None
    tail: float = TAIL


@dataclass(frozen=True)
class Verdict:
    """A word with its counts.

    Attributes:
        word: one of `WORDS`.
        held: parts that are shown to hold.
        failed: parts that are shown not to hold.
        parts: all parts.
        asked: trainings that could be asked.
        trainings: all trainings.
        power: chance of "holds" if every part were true by `EFFECT`; None where it is not known.
    """

    word: str
    held: int
    failed: int
    parts: int
    asked: int
    trainings: int
    power: float | None = None

    @property
    def counts(self) -> str:
        """Parts that hold and trainings that could be judged.

        >>> decide([Part("a", True), Part("b", None)], asked=3, trainings=4).counts
        '1 of 2 parts in 3 of 4 trainings'
        """
        return f"{self.held} of {_many(self.parts, 'part')} in {self.asked} of {_many(self.trainings, 'training')}"

    def __str__(self) -> str:
        return f"{self.word}: {self.counts}"


def decide(parts: Sequence[Part], *, asked: int = 1, trainings: int = 1, units: int | None = None) -> Verdict:
    """The verdict on a claim.

    Args:
        parts: of the claim, each with what its interval shows.
        asked: trainings that could be asked.
        trainings: all trainings.
        units: independent draws behind every part's interval where these are trainings of different seeds; None where
            the intervals are over prompts.

    >>> str(decide([Part("a", True), Part("b", True)], asked=4, trainings=4, units=3))
    'holds: 2 of 2 parts in 4 of 4 trainings'
    >>> decide([Part("a", True), Part("b", False)]).word, decide([Part("a", False), Part("b", None)]).word
    ('partly holds', 'open')
    """
    held, failed = ([part for part in parts if part.holds is answer] for answer in (True, False))
    chance = None if units is None else power(len(parts), units)
    few = units is not None and len(parts) * units < LEAST_CELLS
    word = OPEN
    if parts and not few and len(held) == len(parts):
        word = HOLDS
    elif parts and not few and len(failed) == len(parts):
        word = DOES_NOT
    elif all(any(part.tail <= WRONG / len(parts) for part in side) for side in (held, failed)):
        word = PARTLY
    return Verdict(word, len(held), len(failed), len(parts), asked, trainings, chance)


def settle(margins: Sequence[float], zone: float = 0.0) -> tuple[bool | None, float]:
    """Whether margins of independent trainings show a part to hold, and the one-sided error of saying so.

    It holds where Student's 95 % interval of their mean lies above zero, and does not where it lies below `zone`.
    Neither is shown with fewer than three margins; where all are alike, nothing is known of their spread, and their
    signs are counted instead.

    Args:
        margins: how far each training lies on the claim's side of its threshold, negative on the other.
        zone: margins up to here are too small to count.

    >>> settle([0.2, 0.25, 0.22])[0], settle([-0.3, -0.2, -0.25])[0], settle([0.1, -0.1, 0.3])[0]
    (True, False, None)
    """
    known = [float(margin) for margin in margins if math.isfinite(margin)]
    if len(known) < LEAST_UNITS:
        return None, 1.0
    above, below = _tail(known), _tail([zone - margin for margin in known])
    if above <= TAIL:
        return True, above
    return (False, below) if below <= TAIL else (None, min(above, below))


def _tail(margins: Sequence[float]) -> float:
    """One-sided error of saying that the mean of these lies above zero."""
    from scipy.special import stdtr  # a fifth of a second, which --help need not spend

    count, mean = len(margins), math.fsum(margins) / len(margins)
    spread = math.sqrt(math.fsum((margin - mean) ** 2 for margin in margins) / (count - 1))
    if spread <= abs(mean) * 1e-9:
        return 0.5**count if mean > 0 else 1.0  # as a sign test has it
    return float(stdtr(count - 1, -mean * math.sqrt(count) / spread))


def power(parts: int, units: int, effect: float = EFFECT) -> float:
    """Chance that a claim is said to hold, if each part is true by a margin of `effect` standard deviations.

    Args:
        parts: of the claim, taken as independent.
        units: trainings of different seeds.
        effect: true margin over its standard deviation between trainings.

    >>> round(power(2, 3), 2), round(power(4, 3), 2), round(power(4, 6), 2), power(4, 2)
    (0.22, 0.05, 0.89, 0.0)
    """
    from scipy.special import nctdtr, stdtrit

    if units < LEAST_UNITS or parts < 1 or parts * units < LEAST_CELLS:
        return 0.0
    edge = float(stdtrit(units - 1, 1 - TAIL))
    return float(1 - nctdtr(units - 1, effect * math.sqrt(units), edge)) ** parts


def read_word(stored: str) -> str:
    """A stored word as one of `WORDS`; those of earlier versions are read as the nearest of today's.

    >>> read_word("holds"), read_word("differs"), read_word("mixed")
    ('holds', 'does not hold', 'open')
    """
    if stored in WORDS:
        return stored
    if stored not in FORMER:
        raise InputError(f"unknown verdict {stored!r}; {nearest(stored, [*WORDS, *FORMER])}")
    return FORMER[stored]


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")
