"""A heuristic verdict for D ≥ 2, from appendix C's conjecture, and the reasons not to trust it.

The conjecture: all tokens go to zero if the symmetric part of S_Cᵀ S_B has negative eigenvalues only, and diverge if it
has a positive one. It is false in both directions (docs: guides/token-dynamics), so that the verdict is a guess and the
simulation decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.dynamics.inputs import check_decay, check_matrix, check_tokens_nd
from repflow.dynamics.simulate import simulate_nd
from repflow.dynamics.step_size import Numbers

FATE_BUDGET = 10_000
"""Enough for what is smooth; a token that grows along the edge of a step size would eat any."""
FALLING, RISING = -0.25, 1e-3
"""Slopes of ln‖x‖ over ln t at the end of a simulation: below, to zero (as 1/√t has -½); above, growing."""


@dataclass(frozen=True)
class ClassificationND:
    """A guess, and the numbers it rests on.

    Attributes:
        verdict: `convergence`, `divergence`, or `undecided` (no eigenvalue apart from zero).
        heuristic: always True: appendix C's conjecture is false in both directions.
        eigenvalues: (dim,), of the symmetric part, ascending.
        zeros: how many of them are zero to rounding, as rank deficiency makes them; they do not count.
        forms: (token,), x_lᵀ M x_l at the start.
        signs: (token,), their signs; a token alone shrinks while its form is negative and grows while it is positive.
        outcomes: per token what a simulation shows: `to zero`, `settles`, `grows`, `blows up`, or `unknown` (after a
            token that ends the solution); empty without `s_delta` and `a`. `evidence` has the times and norms.
        evidence: sentences and numbers by name.
    """

    verdict: str
    eigenvalues: np.ndarray
    zeros: int
    forms: np.ndarray
    signs: np.ndarray
    outcomes: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    heuristic: bool = True

    @property
    def scenario(self) -> str:
        """The verdict, under the name it has in one dimension."""
        return self.verdict


def symmetric_eigenvalues(io_matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of (M + Mᵀ)/2, ascending, and their signs with rounding zeros as 0.

    >>> values, signs = symmetric_eigenvalues(np.array([[1.0, 2.0], [0.0, 1.0]]))
    >>> values.round(6).tolist(), signs.tolist()
    ([0.0, 2.0], [0, 1])
    """
    values = np.linalg.eigvalsh((io_matrix + io_matrix.T) / 2)
    small = len(values) * np.finfo(np.float64).eps * max(np.abs(values).max(), np.abs(io_matrix).max())
    return values, np.where(np.abs(values) <= small, 0, np.sign(values)).astype(int)


def classify_nd(
    io_matrix: Numbers,
    x0: Numbers,
    *,
    s_delta: Numbers = None,
    a: Numbers = None,
    until: Numbers = 1e6,
    budget: int = FATE_BUDGET,
) -> ClassificationND:
    """Guess whether the tokens of a system in D dimensions converge (paper 3, appendix C), and check by simulation.

    Args:
        io_matrix: M = S_Cᵀ S_B, (dim, dim).
        x0: (token, dim), at t = 0, none of them the zero vector.
        s_delta: (dim, dim); with `a`, the system is simulated.
        a: decay, one positive number or one per channel.
        until: time to which it is simulated.
        budget: evaluations of the right-hand side, per simulation.

    >>> found = classify_nd([[1.0, 0.0], [0.0, -1.0]], [[0.1, 1.0], [0.15, 1.5]], s_delta=np.zeros((2, 2)), a=1.0)
    >>> found.verdict, found.signs.tolist(), found.outcomes
    ('divergence', [-1, -1], ('to zero', 'to zero'))
    """
    matrix = check_matrix(io_matrix, "io_matrix")
    tokens = check_tokens_nd(x0, len(matrix))
    if (s_delta is None) != (a is None):
        raise InputError(teach("s_delta and a together", "one of them", "pass both to simulate, or neither"))
    values, signs = symmetric_eigenvalues(matrix)
    verdict = "divergence" if (signs > 0).any() else "convergence" if (signs < 0).any() else "undecided"
    forms = np.einsum("ld,de,le->l", tokens, matrix, tokens)
    negative, zero, positive = (int((signs == sign).sum()) for sign in (-1, 0, 1))
    evidence: dict[str, Any] = {
        "reason": f"{negative} negative, {positive} positive and {zero} zero eigenvalues",
        "caution": "heuristic: the conjecture of appendix C is false in both directions",
    }
    outcomes: tuple[str, ...] = ()
    if s_delta is not None and a is not None:
        weights, decay = check_matrix(s_delta, "s_delta", len(matrix)), check_decay(a, dim=len(matrix))
        fates, notes = _fates(matrix, tokens, weights, decay, until, budget)
        outcomes = tuple(fate.outcome for fate in fates)
        evidence |= {
            "until": until,
            "events": notes,
            "times": [fate.time for fate in fates],
            "norms": [fate.norm for fate in fates],
            "conjecture_holds": _agrees(verdict, outcomes),
        }
    return ClassificationND(verdict, values, zero, forms, np.sign(forms).astype(int), outcomes, evidence)


@dataclass
class _Fate:
    """What becomes of a token, when it was seen (blow-up, or norm 1000), and its norm at the last time."""

    outcome: str = "unknown"
    time: float | None = None
    norm: float | None = None


def _fates(
    matrix: np.ndarray, x0: np.ndarray, s_delta: np.ndarray, a: np.ndarray, until: Numbers, budget: int
) -> tuple[list[_Fate], list[str]]:
    """What becomes of each token; those before one that ends the solution are followed on without it."""
    fates = [_Fate() for _ in x0]
    notes: list[str] = []
    count = len(x0)
    while count:
        times = np.array([until / 10, until])
        path = simulate_nd(x0[:count], io_matrix=matrix, s_delta=s_delta, a=a, t=times, budget=budget)
        end = path.stopped
        if end is None:
            slopes = (path.log_norms[1] - path.log_norms[0]) / np.log(10)
            norms = np.exp(path.log_norms[1])
            fates[:count] = [_Fate(_word(float(k)), None, float(n)) for k, n in zip(slopes, norms, strict=True)]
            break
        notes.append(end.message)
        seen = end if end.kind == "blow-up" else next((e for e in path.events if e.kind == "large"), None)
        if seen is None or seen.token is None:
            break
        fates[seen.token] = _Fate("blows up" if seen is end else "grows", seen.time)
        count = seen.token
    return fates, notes


def _word(slope: float) -> str:
    return "to zero" if slope < FALLING else "grows" if slope > RISING else "settles"


def _agrees(verdict: str, outcomes: tuple[str, ...]) -> bool | None:
    """Whether the conjecture fits what each known token does; None where it says nothing or nothing is known."""
    fits = {"convergence": ("to zero",), "divergence": ("grows", "blows up")}.get(verdict)
    known = [outcome for outcome in outcomes if outcome != "unknown"]
    if fits is None or not known:
        return None
    return all(outcome in fits for outcome in known)
