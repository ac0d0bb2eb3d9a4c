"""Recency and low-pass filtering of state-space models (paper 2, Theorem 3.1 and D.2, Proposition 4.1 and D.4)."""

from __future__ import annotations

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, Shapes, is_printed, not_negative, numbers, positive, scalar
from repflow.theory.hypotheses import Hypothesis, report


def influence_bound(A_max: Number, C: Number, lags: ArrayLike, *, form: str = "corrected") -> np.ndarray:
    """Bound on |∂y_t/∂x_s| by the lag t - s (paper 2, Theorem 3.1 and D.2): C exp(-κ lag), κ = log(1/A_max).

    Holds as printed, as an upper bound; both forms are the same. A constant that can be computed is
    C = sup‖c'‖ (sup‖d(Δb)/dx‖ + sup‖dA/dx‖ sup‖h‖), sup‖h‖ ≤ sup‖Δb‖/(1-A_max). It does not say that influence falls
    from lag to lag (see `lti_influence`).

    Args:
        A_max: largest |A_t| over time and states, in (0, 1).
        C: constant of the theorem, ≥ 0.
        lags: lags ≥ 0.
        form: `corrected` or `printed`.

    >>> influence_bound(0.5, 2.0, [0, 1, 2])
    array([2. , 1. , 0.5])
    """
    is_printed(form)
    a, constant, lag = scalar(A_max, "A_max"), not_negative(C, "C", "a bound"), _lags(lags)
    if not 0 < a < 1:
        expected = "A_max in (0, 1) (assumption (iii): A_t diagonal with 0 < |A_t| < 1, a contractive state)"
        raise InputError(teach(expected, f"{a:g}", "at |A| = 1 influence does not decay and no such bound exists"))
    report("Theorem 3.1", ())
    return np.asarray(constant * np.exp(np.log(a) * lag))


def operator_norm(decay: ArrayLike, beta: ArrayLike, length: ArrayLike) -> np.ndarray:
    """Bound on the norm of a delta rule's step M = (I - β k kᵀ) diag(A): max A · max(1, |1 - β |k|²|).

    In place of A_max it makes Theorem 3.1 hold for a transition that is not diagonal. Equal to the norm where all A of
    the step are the same and there is more than one key.

    Args:
        decay: largest A of the step.
        beta: write strength.
        length: |k|.

    >>> operator_norm([0.9, 0.9], [1.0, 1.0], [1.0, 2.0]).tolist()
    [0.9, 2.7]
    """
    along = np.abs(1 - np.asarray(beta) * np.square(length))
    return np.asarray(np.asarray(decay) * np.maximum(1.0, along))


def lti_influence(a: ArrayLike, b: ArrayLike, c: ArrayLike, lags: ArrayLike, *, form: str = "corrected") -> np.ndarray:
    """|∂y_t/∂x_s| of h_t = a h_{t-1} + b x_t, y_t = c·h_t, by the lag: |Σ_n c_n a_n^lag b_n| (paper 2, Lemma D.1).

    Exact. Not monotone with several states: the remark after Lemma D.1 (nearer tokens count for more) is true of each
    state alone. Both forms are the same.

    Args:
        a: decay of each state (N,), real or complex.
        b: input weights (N,).
        c: output weights (N,).
        lags: lags ≥ 0.
        form: `corrected` or `printed`.

    >>> lti_influence([0.9, 0.8], [1, 1], [1, -1.2], range(4)).round(3)
    array([0.2  , 0.06 , 0.042, 0.115])
    """
    is_printed(form)
    shapes = Shapes()
    decay, inp, out = (
        shapes.take(value, name, "N", allow_complex=True) for name, value in (("a", a), ("b", b), ("c", c))
    )
    largest = float(np.abs(decay).max())
    report("Theorem 3.1", [Hypothesis("|a_n| < 1", largest < 1, f"largest |a_n| is {largest:.4g}: no decay")])
    return np.asarray(np.abs((decay ** _lags(lags)[:, None]) @ (inp * out)))


def low_pass_cutoff(A: ArrayLike, b: ArrayLike, c: ArrayLike, eps: Number, *, form: str = "corrected") -> float:
    """Frequency Ω beyond which a diagonal S4 answers with at most eps (paper 2, Proposition D.4): ‖b‖‖c‖/eps + max|A|.

    Holds as printed; both forms are the same. For real A < 0 the term max|A| could be left out. That |Z| → 0 does not
    make it a low-pass filter in the usual sense: it may peak elsewhere than at 0 (see `frequency_response`).

    Args:
        A: diagonal (N,) with negative real parts.
        b: input weights (N,).
        c: output weights (N,).
        eps: bound > 0 on the answer; the definition has eps < 1.
        form: `corrected` or `printed`.

    >>> round(low_pass_cutoff([-1, -3], [1, 2], [0.5, -1], 0.01), 9)
    253.0
    """
    is_printed(form)
    diagonal, inp, out = _system(A, b, c)
    bound = positive(eps, "eps", "Definition D.3")
    report("Proposition D.4", [Hypothesis("0 < eps < 1", bound < 1, f"eps is {bound:g}")])
    gain = float(np.linalg.norm(inp) * np.linalg.norm(out))
    return gain / bound + float(np.abs(diagonal).max())


def frequency_response(
    A: ArrayLike, b: ArrayLike, c: ArrayLike, omega: ArrayLike, *, form: str = "corrected"
) -> np.ndarray:
    """Z(ω) = Σ_n c_n b_n / (iω - A_n), the answer of a diagonal continuous S4 (paper 2, proof of Proposition D.4).

    Exact; both forms are the same.

    Args:
        A: diagonal (N,) with negative real parts.
        b: input weights (N,).
        c: output weights (N,).
        omega: angular frequencies.
        form: `corrected` or `printed`.

    >>> abs(frequency_response([-1, -2], [1, 1], [1, -2], [0.0, 2**0.5])).round(6)
    array([0.      , 0.333333])
    """
    is_printed(form)
    diagonal, inp, out = _system(A, b, c)
    at = numbers(omega, "omega")
    report("Proposition D.4", ())
    return np.asarray((inp * out / (1j * at[..., None] - diagonal)).sum(-1))


def _system(A: ArrayLike, b: ArrayLike, c: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shapes = Shapes()
    diagonal, inp, out = (
        shapes.take(value, name, "N", allow_complex=True) for name, value in (("A", A), ("b", b), ("c", c))
    )
    if (diagonal.real >= 0).any():
        expected = "A with negative real parts (Proposition D.4: a stable, contractive continuous state)"
        raise InputError(teach(expected, f"real part {diagonal.real.max():g}", "pass A, not exp(Δ A)"))
    return diagonal, inp, out


def _lags(lags: ArrayLike) -> np.ndarray:
    array = np.atleast_1d(numbers(list(lags) if isinstance(lags, range) else lags, "lags"))
    if array.ndim != 1 or (array < 0).any():
        raise InputError(teach("lags (lag,) ≥ 0", f"shape {array.shape}, smallest {array.min():g}", "pass t - s ≥ 0"))
    return array
