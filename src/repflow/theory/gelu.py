"""GELU of a Gaussian: mean, linear gain and covariances in closed form (paper 1, Theorems 1 and 2, corrected).

a ~ N(m, s²), τ = √(1 + s²), Φ and φ the standard normal distribution and density. GELU(a) = a Φ(a).

Does not include: the tanh approximation of GELU (at most 5e-4 apart from it at any a).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr, owens_t

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, is_printed, numbers
from repflow.theory.hypotheses import Hypothesis, report

SMALL = 0.1  # what "≪ 1" is read as
PAIRS = 1 << 20  # pairs of units per chunk: bounds the memory of the covariance


class GeluMoments(NamedTuple):
    """Moments of GELU(a).

    Attributes:
        mean: E[GELU(a)].
        gain: E[GELU'(a)] = Cov(GELU(a), a) / s², the slope of the best linear map.
    """

    mean: float | np.ndarray
    gain: float | np.ndarray


def gelu_moments(mean: ArrayLike, variance: ArrayLike, *, form: str = "corrected") -> GeluMoments:
    """Mean and linear gain of GELU of a Gaussian (paper 1, Theorem 1).

    corrected: E[GELU] = m Φ(m/τ) + s²/τ φ(m/τ),  E[GELU'] = Φ(m/τ) + m/τ³ φ(m/τ); exact.
    printed:   GELU(a) ≈ a/2 (Assumption 4), so m/2 and 1/2.

    Args:
        mean: m, a number or an array.
        variance: s² > 0, of the same shape or one that broadcasts.
        form: `corrected` or `printed`.

    >>> moments = gelu_moments(0.3, 0.64)
    >>> round(moments.mean, 12), round(moments.gain, 12)
    (0.371760167273, 0.648051962954)
    """
    m, s2 = numbers(mean, "mean"), numbers(variance, "variance")
    if (s2 <= 0).any():
        raise InputError(teach("variance > 0 (a Gaussian pre-activation)", f"{s2.min():g}", "pass s², not s"))
    try:
        m, s2 = np.broadcast_arrays(m, s2)
    except ValueError:
        remedy = "pass one variance per mean"
        raise InputError(teach(f"variance like mean {m.shape}", f"shape {s2.shape}", remedy)) from None
    if is_printed(form):
        report("Theorem 1 as printed", linear_gelu(m, s2))
        pair = m / 2, np.full_like(m, 0.5)
    else:
        report("Theorem 1", ())
        pair = moments(m, s2)
    return GeluMoments(*(part if part.ndim else float(part) for part in pair))


def linear_gelu(m: np.ndarray, s2: np.ndarray) -> list[Hypothesis]:
    """Whether GELU may be taken for x/2: both the bias and the spread of every pre-activation must be small."""
    bias, spread = float(np.abs(m).max()), float(np.sqrt(s2.max()))
    return [
        Hypothesis("|b1| ≪ 1 (GELU = x/2)", bias <= SMALL, f"largest |b1| is {bias:.3g}"),
        Hypothesis("σ‖w_i‖ ≪ 1 (GELU = x/2)", spread <= SMALL, f"largest pre-activation spread is {spread:.3g}"),
    ]


def moments(m: np.ndarray, s2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """E[GELU(a)] and E[GELU'(a)]; s² = 0 is a constant."""
    tau = np.sqrt(1 + s2)
    u = m / tau
    return np.asarray(m * ndtr(u) + s2 / tau * _phi(u)), np.asarray(ndtr(u) + m / tau**3 * _phi(u))


def gelu_covariance(m: np.ndarray, covariance: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    """K_ij = Cov(GELU(a_i), GELU(a_j)) of jointly Gaussian units, exactly; some rows of it.

    With H(m_i, m_j) = E[Φ(a_i) Φ(a_j)] = Φ₂(m_i/τ_i, m_j/τ_j; r), r = S_ij/(τ_i τ_j), Stein's lemma twice gives
    E[a_i a_j Φ(a_i) Φ(a_j)] from H and its derivatives; Φ₂ comes from Owen's T. Nothing is truncated.

    Args:
        m: means (unit,).
        covariance: S (unit, unit).
        rows: rows wanted.
    """
    s2 = np.diag(covariance)
    tau = np.sqrt(1 + s2)
    mi, mj, si, sj = m[rows, None], m[None, :], s2[rows, None], s2[None, :]
    ti, tj, c = tau[rows, None], tau[None, :], covariance[rows]
    u, v, r = mi / ti, mj / tj, c / (ti * tj)
    root = np.sqrt((1 - r) * (1 + r))
    wi, wj = (v - r * u) / root, (u - r * v) / root
    h = bivariate_normal(u, v, r)
    hi, hj = _phi(u) * ndtr(wi) / ti, _phi(v) * ndtr(wj) / tj
    hij = _phi(u) * _phi(wi) / (root * ti * tj)
    hii = -_phi(u) * (u * ndtr(wi) + r / root * _phi(wi)) / ti**2
    hjj = -_phi(v) * (v * ndtr(wj) + r / root * _phi(wj)) / tj**2
    b_h = mj * h + sj * hj + c * hi
    b_hi = mj * hi + sj * hij + c * hii
    b_hj = mj * hj + sj * hjj + c * hij
    second = mi * b_h + si * b_hi + c * (h + b_hj)
    mean = moments(m, s2)[0]
    return second - mean[rows, None] * mean[None, :]


def bivariate_normal(h: np.ndarray, k: np.ndarray, r: np.ndarray) -> np.ndarray:
    """P(X ≤ h, Y ≤ k) of standard normal X and Y with correlation r, |r| < 1, by Owen's T function.

    >>> round(float(bivariate_normal(np.array(0.0), np.array(0.0), np.array(0.5))), 12)
    0.333333333333
    """
    h, k, r = np.broadcast_arrays(h, k, r)
    root = np.sqrt((1 - r) * (1 + r))
    with np.errstate(divide="ignore", invalid="ignore"):
        # at h = 0 the slope is infinite with the sign of k: T(0, ±∞) = ±1/4
        a_h = np.where(h == 0, np.sign(k) * np.inf, (k - r * h) / (h * root))
        a_k = np.where(k == 0, np.sign(h) * np.inf, (h - r * k) / (k * root))
    product = h * k
    half = np.where((product < 0) | ((product == 0) & (h + k < 0)), 0.5, 0.0)
    both = (h == 0) & (k == 0)
    with np.errstate(invalid="ignore"):
        value = (ndtr(h) + ndtr(k)) / 2 - owens_t(h, a_h) - owens_t(k, a_k) - half
    return np.where(both, 0.25 + np.arcsin(r) / (2 * np.pi), value)


def read_out_trace(W2: np.ndarray, m: np.ndarray, covariance: np.ndarray) -> float:
    """Tr(W2 K W2ᵀ) = Σ_ij (W2ᵀW2)_ij K_ij, in chunks of rows."""
    gram, total = W2.T @ W2, 0.0
    step = max(1, PAIRS // len(m))
    for start in range(0, len(m), step):
        rows = slice(start, start + step)
        total += float((gram[rows] * gelu_covariance(m, covariance, rows)).sum())
    return total


def gelu(a: Any) -> Any:
    """A Φ(a)."""
    return a * ndtr(a)


def _phi(x: Any) -> Any:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)
