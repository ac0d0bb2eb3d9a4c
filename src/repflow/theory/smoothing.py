"""Over-smoothing of state-space models: memories are closer together than inputs (paper 2, Theorems 4.2 and D.5).

h_t = A_t h_{t-1} + Δ_t b_t with h_0 = 0, diagonal A_t; m_n and M_n are the smallest and largest b_{t,n} over time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, Shapes, count, is_printed, scalar
from repflow.theory.hypotheses import Hypotheses, Hypothesis, report

ROUNDING = 1e-12


class MemoryContraction(NamedTuple):
    """Both sides of the contraction and the hypotheses it rests on.

    Attributes:
        lhs: max over t, s of ‖h_t - h_s‖_∞.
        rhs: the bound.
        hypotheses: which conditions hold; `.failed` names the others, with the states concerned.
    """

    lhs: float
    rhs: float
    hypotheses: Hypotheses


def memory_states(A: np.ndarray, delta: np.ndarray, b: np.ndarray) -> np.ndarray:
    """h_1 .. h_T (T, N) from h_0 = 0."""
    states, last = np.empty_like(b), np.zeros(b.shape[1])
    for t in range(len(b)):
        last = A[t] * last + delta[t] * b[t]
        states[t] = last
    return states


def memory_contraction(A: ArrayLike, delta: ArrayLike, b: ArrayLike, *, form: str = "corrected") -> MemoryContraction:
    """Spread of the memory states against that of the inputs (paper 2, Theorem 4.2 and D.5).

    corrected: rhs = (1 - A_min^(T-1)) max_n (max(M_n, 0) - min(m_n, 0)); holds whenever A + Δ ≤ 1 and Δ ≥ 0.
    printed: rhs = (1 - A_min^(T-1)) max ‖b_t - b_s‖_∞; holds under (ii), where 0 lies between m_n and M_n, and fails under
        (i), A + Δ = 1 without centring, unless h_1 = b_1.

    Proof of the corrected form: for i < j, s_j = P s_i + rest with P a product of at most T-1 decays, so P ≥ A_min^(T-1);
    s_i lies in [min(m, 0), max(M, 0)] and the rest in (1 - P) times it.

    Args:
        A: diagonal decay (T, N), in [0, 1].
        delta: step (T,) or (T, N); the paper has one step for all states.
        b: inputs (T, N).
        form: `corrected` or `printed`.

    >>> found = memory_contraction([[0.5], [0.5]], [0.5, 0.5], [[1.0], [1.0]], form="printed")
    >>> found.lhs, found.rhs, found.hypotheses.failed
    (0.25, 0.0, ('(ii) m_n ≤ 0 ≤ M_n',))
    >>> memory_contraction([[0.5], [0.5]], [0.5, 0.5], [[1.0], [1.0]]).rhs
    0.5
    """  # noqa: E501
    shapes = Shapes()
    decay, inputs = shapes.take(A, "A", "T N"), shapes.take(b, "b", "T N")
    step = shapes.take(delta, "delta", "T", "T N")
    step = np.broadcast_to(step[:, None] if step.ndim == 1 else step, decay.shape)
    if decay.min() < 0 or decay.max() > 1:
        expected = "A in [0, 1] (diagonal, not expansive: the recurrence of Theorem 4.2 is contractive)"
        raise InputError(teach(expected, f"{decay.min():g} to {decay.max():g}", "pass exp(Δ A), not A"))
    states = memory_states(decay, step, inputs)
    lowest, highest = inputs.min(0), inputs.max(0)
    printed = is_printed(form)
    spread = highest - lowest if printed else np.maximum(highest, 0) - np.minimum(lowest, 0)
    rhs = (1 - float(decay.min()) ** (len(decay) - 1)) * float(spread.max())
    conditions = _hypotheses(decay, step, lowest, highest, printed=printed)
    report("Theorem 4.2", conditions, warn=False)  # the result carries them
    return MemoryContraction(float(np.ptp(states, axis=0).max()), rhs, Hypotheses(conditions))


def _hypotheses(
    decay: np.ndarray, step: np.ndarray, lowest: np.ndarray, highest: np.ndarray, *, printed: bool
) -> list[Hypothesis]:
    total = (decay + step).max(0)
    over = np.flatnonzero(total > 1 + ROUNDING)
    many = f"largest A + Δ is {total.max():.6g}; it exceeds 1 in {len(over)} of {len(total)} states" + _some(over)
    conditions = [
        Hypothesis("A + Δ ≤ 1", not len(over), many),
        Hypothesis("Δ ≥ 0", bool(step.min() >= 0), f"smallest Δ is {step.min():.6g}"),
    ]
    if printed:
        apart = np.flatnonzero((lowest > 0) | (highest < 0))
        text = f"0 lies outside [m_n, M_n] in {len(apart)} of {len(lowest)} states" + _some(apart)
        conditions.append(Hypothesis("(ii) m_n ≤ 0 ≤ M_n", not len(apart), text))
    return conditions


def _some(states: np.ndarray) -> str:
    if not len(states):
        return ""
    numbers = ", ".join(str(int(state)) for state in states[:8])
    return f": state {numbers}{', ...' if len(states) > 8 else ''}"


def smoothing_rate(A_min: Number, T: Number, depth: Number, *, form: str = "corrected") -> float:
    """Factor by which a stack narrows the spread of memories, at least (paper 2, Theorem 4.2 and appendix C).

    corrected: (1 - A_min^(T-1))^depth, Theorem 4.2's factor once per layer.
    printed: (1 - A_min^T)^depth, as appendix C rounds it.

    Only what the recurrences alone do: gates, projections, norms and residual streams come between real layers.

    >>> smoothing_rate(0.5, 2, 3), smoothing_rate(0.5, 2, 3, form="printed")
    (0.125, 0.421875)
    """
    a, tokens, layers = scalar(A_min, "A_min"), count(T, "T"), count(depth, "depth")
    if not 0 <= a <= 1:
        raise InputError(teach("A_min in [0, 1] (a contractive diagonal A)", f"{a:g}", "pass exp(Δ A), not A"))
    report("Theorem 4.2", ())
    return float((1 - a ** (tokens if is_printed(form) else tokens - 1)) ** layers)
