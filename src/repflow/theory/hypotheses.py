"""Hypotheses of a statement: which hold for the numbers at hand, and how a user hears of those that do not.

Every closed form checks what it can check. A broken hypothesis without which the formula has no meaning is an error;
one that only makes the printed number wrong, or a bound void, is a `HypothesisWarning`, and the number still comes.
`hypotheses(name, ...)` gives the whole list for the same arguments, without a warning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

_collector: ContextVar[list[Hypothesis] | None] = ContextVar("collector", default=None)


class HypothesisWarning(UserWarning):
    """A closed form was evaluated outside the hypotheses under which it is true."""


class Hypothesis(NamedTuple):
    """One condition of a theorem.

    Attributes:
        name: the condition, in the paper's letters.
        holds: whether the numbers at hand meet it.
        found: what was found, with its number.
    """

    name: str
    holds: bool
    found: str


class Hypotheses(tuple[Hypothesis, ...]):
    """The conditions of one statement, in order.

    >>> found = Hypotheses([Hypothesis("A + Δ ≤ 1", False, "largest A + Δ is 1.2")])
    >>> found.all_hold, found.failed
    (False, ('A + Δ ≤ 1',))
    >>> str(found)
    'hypotheses not met: A + Δ ≤ 1 (largest A + Δ is 1.2)'
    """

    __slots__ = ()

    @property
    def all_hold(self) -> bool:
        """Whether every condition is met."""
        return all(entry.holds for entry in self)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the conditions that are not met."""
        return tuple(entry.name for entry in self if not entry.holds)

    def __str__(self) -> str:
        broken = [f"{entry.name} ({entry.found})" for entry in self if not entry.holds]
        return f"hypotheses not met: {'; '.join(broken)}" if broken else "all hypotheses met"


@contextmanager
def collecting() -> Iterator[list[Hypothesis]]:
    """Gather what closed forms report inside, instead of warnings."""
    reports: list[Hypothesis] = []
    token = _collector.set(reports)
    try:
        yield reports
    finally:
        _collector.reset(token)


def report(statement: str, conditions: Iterable[Hypothesis], *, warn: bool = True) -> Hypotheses:
    """Pass the hypotheses of a statement to whoever collects them, or warn about those that fail."""
    checked = Hypotheses(conditions)
    gathered = _collector.get()
    if gathered is not None:
        gathered += checked
    elif warn and not checked.all_hold:
        warnings.warn(f"{statement}: {checked}", HypothesisWarning, stacklevel=_outside())
    return checked


def _outside() -> int:
    """Frames up to the first one that is not in this package: the line of the user."""
    depth, frame = 1, sys._getframe(1)
    package = __name__.rpartition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(package):
        depth, frame = depth + 1, frame.f_back
    return depth
