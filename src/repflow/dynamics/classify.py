"""Which of paper 3's scenarios a one-dimensional system is in, and what that rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.errors import InputError, RepflowError
from repflow.dynamics.blow_up import blow_up_bound, blow_up_time, grows_without_end
from repflow.dynamics.inputs import check_decay, check_number, check_tokens
from repflow.dynamics.limits import ORDERED_UP_TO, convergence_limits, first_token_log_rate
from repflow.dynamics.step_size import Numbers, monotone_from


@dataclass(frozen=True)
class Classification:
    """A scenario and its reason.

    Attributes:
        scenario: `convergence`, `slow-divergence`, `fast-divergence`, or `constant` (μ = 0).
        theorem: the statement of paper 3 that says so; what holds instead where its hypothesis fails.
        evidence: the numbers behind it, by name; `reason` is a sentence.
    """

    scenario: str
    theorem: str
    evidence: dict[str, Any]


def classify(x0: Numbers, *, mu: Numbers, s_delta: Numbers, a: Numbers) -> Classification:
    """Decide the scenario of a one-dimensional system from its parameters (paper 3, Table 1).

    Args:
        x0: (token,), at t = 0, none of them zero.
        mu: input-output product S_Cᵀ S_B.
        s_delta: step-size weight S_Δ.
        a: decay, positive.

    >>> classify([1.0, -2.0], mu=-1.0, s_delta=0.3, a=1.0).scenario
    'convergence'
    >>> classify([3.0, 4.0], mu=1.0, s_delta=-1.0, a=1.0).theorem
    'Theorem 4.3'
    """
    tokens = check_tokens(x0)
    rate, weight = check_number(mu, "mu"), check_number(s_delta, "s_delta")
    decay = float(check_decay(a))
    shared = {"mu": rate, "s_delta_x0": (weight * tokens).tolist()}
    if rate == 0:
        reason = "mu = 0: no token moves; the paper's scenarios need mu < 0 or mu > 0"
        return Classification("constant", "none", {**shared, "reason": reason})
    if rate < 0:
        return _convergence(tokens, rate, decay, shared)
    if grows_without_end(tokens, rate, weight).any():
        return _fast(tokens, rate, weight, decay, shared)
    return _slow(tokens, weight, decay, shared)


def _convergence(x0: np.ndarray, mu: float, a: float, shared: dict[str, Any]) -> Classification:
    limits = convergence_limits(len(x0), mu=mu, a=a)
    evidence = {
        "reason": f"mu = {mu:g} < 0: every token goes to 0 like 1/√t and P like 1/t, whatever x0",
        "scaled_token_limits": limits.scaled_tokens.tolist(),
        "scaled_attention_limits": limits.scaled_diagonal.tolist(),
    }
    return Classification("convergence", "Theorem 4.1", shared | evidence)


def _slow(x0: np.ndarray, s_delta: float, a: float, shared: dict[str, Any]) -> Classification:
    """Lemma 4.2; Theorem 4.3 where hypothesis (12) is met with the exact r0."""
    scaled = s_delta * x0
    small = bool((scaled > -monotone_from()).any())
    unordered = bool((np.diff(scaled) > 0).any())
    broken = []
    if small:
        broken.append(f"S_Δ x is {scaled.max():.4g} > -{monotone_from():.4f} at token {int(scaled.argmax())}")
    if unordered:
        broken.append(f"S_Δ x rises after token {int(np.flatnonzero(np.diff(scaled) > 0)[0])}")
    theorem = "Theorem 4.3" if not broken else "Lemma 4.2 (not Theorem 4.3: hypothesis (12) is not met)"
    evidence = {
        "reason": f"mu > 0 and S_Δ x < 0 for all {len(x0)} tokens: all diverge, without a blow-up",
        "hypothesis_12": not broken,
        "hypothesis_12_broken": broken,
        "threshold": -monotone_from(),
        "first_token_log_rate": first_token_log_rate(s_delta=s_delta),
        "printed_rate": "O((ln t)^l), loose: every token grows like ln t",
        "order_kept": not unordered and not small and a <= ORDERED_UP_TO,
    }
    return Classification("slow-divergence", theorem, shared | evidence)


def _fast(x0: np.ndarray, mu: float, s_delta: float, a: float, shared: dict[str, Any]) -> Classification:
    driving = np.flatnonzero(s_delta * x0 > 0)
    if s_delta == 0:
        reason = "mu > 0 and S_Δ = 0: the step size is ln 2 for ever, and the growth cubic"
        theorem = "none (Theorem 4.4 needs S_Δ x > 0 for some token; its proof holds for S_Δ = 0 too)"
    else:
        reason = f"mu > 0 and S_Δ x > 0 at token {int(driving[0])}: a token is infinite at a finite time"
        theorem = "Theorem 4.4"
    evidence = {"reason": reason, "driving_tokens": driving.tolist(), "upper_bound": blow_up_bound(x0, mu, s_delta)}
    try:
        end = blow_up_time(x0, mu=mu, s_delta=s_delta, a=a)
        evidence |= {"blow_up_time": end.time, "blow_up_token": end.token}
    except InputError:
        raise
    except RepflowError as error:  # the scenario is proved without the time
        evidence["blow_up_time_unknown"] = str(error)
    return Classification("fast-divergence", theorem, shared | evidence)
