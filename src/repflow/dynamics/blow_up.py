"""The blow-up time of the one-dimensional system, to about 14 digits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from repflow.core.errors import RepflowError
from repflow.dynamics.inputs import check_budget, check_decay, check_number, check_tokens
from repflow.dynamics.integrate import BUDGET, integrate
from repflow.dynamics.step_size import Numbers, softplus
from repflow.dynamics.system import ScalarSystem


@dataclass(frozen=True)
class BlowUp:
    """When and where a system ends.

    Attributes:
        time: first time at which a token is infinite; infinity where none ever is.
        token: that token, from 0: the first that is infinite then (others may be carried along); None without one.
        upper_bound: a time by which it must have happened, from Theorem 4.4's proof.
    """

    time: float
    token: int | None
    upper_bound: float


def blow_up_time(x0: Numbers, *, mu: Numbers, s_delta: Numbers, a: Numbers, budget: int = BUDGET) -> BlowUp:
    """Time at which the first token reaches infinity (paper 3, Theorem 4.4), and which token that is.

    It happens in finite time if μ > 0 and S_Δ x_l(0) > 0 for some token, or S_Δ = 0; else never.

    Args:
        x0: (token,), at t = 0, none of them zero.
        mu: input-output product S_Cᵀ S_B.
        s_delta: step-size weight S_Δ.
        a: decay, positive.
        budget: evaluations of the right-hand side.

    Raises:
        InputError: an assumption of the paper is broken; the message names it.
        RepflowError: the budget was spent before the end.

    >>> found = blow_up_time([0.5, 1.5], mu=1.0, s_delta=1.0, a=1.0)
    >>> round(found.time, 12), found.token
    (0.091905967769, 1)
    """
    tokens = check_tokens(x0)
    rate, weight, decay = check_number(mu, "mu"), check_number(s_delta, "s_delta"), float(check_decay(a))
    bound = blow_up_bound(tokens, rate, weight)
    if not grows_without_end(tokens, rate, weight).any():
        return BlowUp(math.inf, None, bound)
    path = integrate(ScalarSystem(tokens, rate, weight, decay), np.array([math.inf]), budget=check_budget(budget))
    end = path.end
    if end is None or end.kind != "blow-up":
        why = "its rates are below what float64 can distinguish from zero" if end is None else end.message
        raise RepflowError(f"no blow-up was reached, though one must come by t = {bound:g}: {why}")
    return BlowUp(end.time, end.token, bound)


def blow_up_bound(x0: np.ndarray, mu: Numbers, s_delta: Numbers) -> float:
    """min_l 1 / (2 μ Δ(x_l0) x_l0²) over tokens with S_Δ x_l0 ≥ 0, from Theorem 4.4's proof; infinity without any.

    The printed solution of its comparison equation has the signs of its two terms exchanged; this uses
    x_l(t) ≥ (x_l0^-2 - 2 μ Δ(x_l0) t)^-½.

    >>> round(blow_up_bound(np.array([0.5, 1.5]), 1.0, 1.0), 6)
    0.13061
    """
    growing = grows_without_end(x0, mu, s_delta)
    if not growing.any():
        return math.inf
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        return float((1 / (2 * mu * softplus(s_delta * x0) * x0**2))[growing].min())


def grows_without_end(x0: np.ndarray, mu: Numbers, s_delta: Numbers) -> np.ndarray:
    """(token,), whether a token's own term makes it infinite at a finite time: μ > 0 and S_Δ x_l0 > 0, or S_Δ = 0.

    By signs, not by the bound, which is beyond float64 for tokens of 1e-160.

    >>> grows_without_end(np.array([1e-200, -1.0]), 1.0, 2.0).tolist()
    [True, False]
    """
    return (np.sign(s_delta) * np.sign(x0) >= 0) & (mu > 0)
