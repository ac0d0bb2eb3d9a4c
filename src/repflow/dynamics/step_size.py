"""Step size Δ(u) = softplus(S_Δ u), the causal sum over tokens that it weights, and the constant r0 of Lemma B.6."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy.linalg.lapack import dtbtrs
from scipy.optimize import brentq

Numbers = Any
"""A number, a list or an array: checked by hand, so that every mistake gets one of our messages."""


def softplus(z: Numbers) -> np.ndarray:
    """ln(1 + e^z), without overflow and with full relative precision for very negative z.

    >>> float(softplus(0.0)), float(softplus(-50.0)), float(softplus(1e4))
    (0.6931471805599453, 1.9287498479639178e-22, 10000.0)
    """
    return np.asarray(np.logaddexp(0.0, np.asarray(z, dtype=np.float64)))


def causal_sum(decay: np.ndarray, own: np.ndarray) -> np.ndarray:
    """h_l = decay_l h_{l-1} + own_l over tokens, h_0 = own_0, in O(tokens).

    The direct form with exp(-a Σ_{k=j+1}^l Δ_k) by differences of a running sum cancels near blow-up, where one Δ is
    far larger than the others; this has no difference in it. It is a forward substitution with a bidiagonal matrix,
    which LAPACK does.

    Args:
        decay: (token,), exp(-a Δ_l); the first is not used.
        own: (token,) or (token, column), what each token adds.

    >>> causal_sum(np.array([1.0, 0.5, 0.1]), np.array([1.0, 2.0, 3.0]))
    array([1.  , 2.5 , 3.25])
    """
    band = np.zeros((2, len(decay)))
    band[0] = 1.0
    band[1, :-1] = -decay[1:]
    columns = own[:, None] if own.ndim == 1 else own
    solved, status = dtbtrs(band, columns, uplo="L", diag="U")
    assert status == 0
    return solved.reshape(own.shape)


@cache
def monotone_from() -> float:
    """r0: r² ln(1 + e^-r) decreases from here on (Lemma B.6); the paper prints 2.1160 and, in Eq. 12, 2.12.

    It is the positive root of 2 ln(1 + e^-r) - r / (1 + e^r).

    >>> round(monotone_from(), 12)
    2.115949432078
    """
    return float(brentq(lambda r: 2 * float(softplus(-r)) - r / (1 + np.exp(r)), 1.0, 4.0, xtol=1e-15, rtol=1e-15))
