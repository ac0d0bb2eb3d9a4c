"""Exact limits and rates of the three scenarios, beside which a simulation is put.

The paper proves O(1/√t), O(1/t) and O((ln t)^l). The first two are sharp, with the constants below; the third is loose:
every token grows like ln t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from repflow.dynamics.step_size import Numbers


@dataclass(frozen=True)
class ConvergenceLimits:
    """Limits as t → ∞ for μ < 0, a > 0, whatever S_Δ and x0.

    Attributes:
        scaled_tokens: (token,), of √t |x_l|.
        scaled_diagonal: (token,), of t P_ll.
    """

    scaled_tokens: np.ndarray
    scaled_diagonal: np.ndarray


def convergence_limits(tokens: int, *, mu: Numbers, a: Numbers) -> ConvergenceLimits:
    """Constants of Theorem 4.1's rates.

    All step sizes go to ln 2, and d ln|x_l|/dt = μ h_l → -1/(2t) for every l, so h_l t → 1/(2|μ|), and
    ln2 x_l² = h_l - 2^-a h_{l-1} gives

        √t |x_1| → √K,    √t |x_l| → √(K (1 - 2^-a)) for l ≥ 2,    K = 1 / (2 |μ| ln 2)
        t P_11 → -½,      t P_ll → -(1 - 2^-a) / 2

    >>> convergence_limits(2, mu=-1.58, a=1.08).scaled_tokens.round(6)
    array([0.675684, 0.490498])
    """
    share = np.full(tokens, 1 - 2.0**-a)
    share[0] = 1.0
    return ConvergenceLimits(np.sqrt(share / (2 * abs(mu) * math.log(2))), -share / 2)


def printed_sign_slopes(tokens: int, *, a: Numbers) -> np.ndarray:
    """Slopes of ln|x_l| over ln t for μ < 0 and a < 0, as Figure 3 prints it: -2^{(l-1)|a|} / 2, l from 1.

    >>> printed_sign_slopes(3, a=-1.08).round(5)
    array([-0.5    , -1.05702, -2.23457])
    """
    return -0.5 * 2.0 ** (np.arange(tokens) * abs(a))


def first_token_log_rate(*, s_delta: Numbers) -> float:
    """Limit of |x_1| / ln t for μ > 0 and S_Δ x_1 < 0: 1/|S_Δ|. It is reached slowly, as 3 ln x_1 / ln t dies out.

    >>> round(first_token_log_rate(s_delta=-0.71), 4)
    1.4085
    """
    return 1.0 / abs(s_delta)


def first_token_estimate(t: Numbers, *, mu: Numbers, s_delta: Numbers) -> float:
    """|x_1|(t) for large t in the slow-divergence scenario: x = (ln t + ln(μ λ) + 3 ln x) / λ, λ = |S_Δ|.

    >>> round(first_token_estimate(1e200, mu=1.79, s_delta=-0.71) / math.log(1e200), 3)
    1.469
    """
    rate = abs(s_delta)
    x = math.log(t) / rate
    for _ in range(200):
        x = (math.log(t) + math.log(mu * rate) + 3 * math.log(x)) / rate
    return x


ORDERED_UP_TO = 36.78
"""Largest a for which g(r) = r² D / (1 - e^{-a D}), D = ln(1 + e^-r), increases on [r0, ∞).

Up to it x_l ≥ x_{l-1} stays, as the proof of Theorem 4.3 claims for every a.
"""
