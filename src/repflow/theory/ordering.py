"""Which of a Transformer and a Mamba block moves its tokens more (paper 1, Theorem 5).

E_T = n α_T + σ² (n β_T/4 + γ_T) is exact for uniform attention and GELU = x/2; E_M ≤ n (σ⁴/16) β'. The paper's own
constants lose the sum over tokens, so that its cubic Q(n) can be positive while the ordering fails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, count, is_printed, not_negative, positive, scalar, variance
from repflow.theory.hypotheses import Hypothesis, report
from repflow.theory.mamba import MambaParts, mamba_parts, operator_norm


class MambaConstants(NamedTuple):
    """Constants of Theorem 5.

    Attributes:
        alpha_M: c²b²h²z², bounds the mean of one token: ‖row t‖² ≤ σ⁴/16 α_M.
        beta_M: z²c²b²h² (1 + 1/(1-ρ²)), as printed; the paper has Tr Σ ≤ σ⁴/4 β_M for all tokens together.
        beta_prime: z²c²b²h² (2 + 1/(1-ρ²)): E‖F‖² ≤ n σ⁴/16 β'.
    """

    alpha_M: float
    beta_M: float
    beta_prime: float


class Contractivity(NamedTuple):
    """Norms that Theorem 5 bounds: ‖A_t‖₂ ≤ ρ, ‖C_t‖₂ ≤ c, ‖B_t‖₂ ≤ b, Σ_k‖W_c[k] W_h‖₂ ≤ h, ‖W_z‖_F ≤ z."""

    rho: float
    c: float
    b: float
    h: float
    z: float


@dataclass(frozen=True)
class Cubic:
    """Q(n) = cubic n³ + square n² + constant; takes a number or an array."""

    cubic: float
    square: float
    constant: float

    def __call__(self, n: Any) -> Any:
        """Value at n ≥ 1 tokens."""
        tokens = np.asarray(n, dtype=np.float64)
        if (tokens < 1).any():
            raise InputError(teach("n ≥ 1 tokens", f"{n}", "Theorem 5 is about n = 1, 2, ..."))
        value = self.cubic * tokens**3 + self.square * tokens**2 + self.constant
        return value if value.ndim else float(value)


class StabilityOrdering(NamedTuple):
    """What Theorem 5 gives for some constants.

    Attributes:
        q: Q(n), the paper's cubic; the paper takes Q(n) > 0 for E_T > E_M.
        sigma2_max: largest σ² with Q(1) ≥ 0, the paper's x_max.
        guaranteed: whether E_T ≥ E_M for every n follows from the bounds; None without beta_prime.
        n_star: it follows for n < n_star only; inf where guaranteed, None without beta_prime.
    """

    q: Cubic
    sigma2_max: float
    guaranteed: bool | None
    n_star: float | None


def mamba_constants(
    rho: Number, c: Number, b: Number, h: Number, z: Number, *, form: str = "corrected"
) -> MambaConstants:
    """Constants α_M, β_M and β' of Theorem 5 from the norms that it bounds.

    Both forms give the same three: β_M is the printed one, β' the one that holds.

    >>> round(mamba_constants(0.9, 1, 1, 1, 2).beta_prime, 9)
    29.052631579
    """
    is_printed(form)
    r = scalar(rho, "rho")
    if not 0 <= r < 1:
        expected = "rho in [0, 1) (uniform contractivity: ‖A_t‖₂ ≤ ρ < 1 for every t)"
        raise InputError(teach(expected, f"{r:g}", "the geometric sum 1/(1-ρ²) has no bound"))
    why = "a bound on a norm"
    norms = [not_negative(value, name, why) for name, value in (("c", c), ("b", b), ("h", h), ("z", z))]
    scale = math.prod(value**2 for value in norms)
    report("Theorem 5", ())
    return MambaConstants(scale, scale * (1 + 1 / (1 - r**2)), scale * (2 + 1 / (1 - r**2)))


def contractivity(
    A: ArrayLike, B: ArrayLike, C: ArrayLike, W_c: ArrayLike, W_h: ArrayLike, W_z: ArrayLike
) -> Contractivity:
    """Smallest ρ, c, b, h and z that Theorem 5's assumptions allow for given weights.

    For a convolution of several lags h is Σ_k ‖W_c[k] W_h‖₂, the norm that bounds the whole causal filter.

    >>> one = np.ones((1, 1, 1))
    >>> contractivity(0.5 * one, 2 * one, 3 * one, np.ones((2, 1)), [[1.0]], [[4.0]])
    Contractivity(rho=0.5, c=3.0, b=2.0, h=2.0, z=4.0)
    """
    return norms_of(mamba_parts(A, B, C, W_c, W_h, W_z))


def norms_of(parts: MambaParts) -> Contractivity:
    """Norms of checked arguments."""
    c, b = (float(np.linalg.norm(part, 2, axis=(1, 2)).max()) for part in (parts.C, parts.B))
    filter_norm = float(np.linalg.norm(parts.kernels, 2, axis=(1, 2)).sum())
    return Contractivity(operator_norm(parts.decay), c, b, filter_norm, float(np.linalg.norm(parts.W_z)))


def stability_ordering(
    alpha_T: Number,
    beta_T: Number,
    gamma_T: Number,
    alpha_M: Number,
    beta_M: Number,
    *,
    sigma2: Number,
    beta_prime: Number = None,
    form: str = "corrected",
) -> StabilityOrdering:
    """Does a Transformer block move its tokens more than a Mamba block, for every n (paper 1, Theorem 5)?

    Q(n) = 4σ²β_T n³ + (16σ²γ_T + 16α_T - 4σ⁴β_M) n² - σ⁴α_M and its threshold are the paper's in both forms.
    corrected: guaranteed iff α_T + σ²β_T/4 ≥ σ⁴β'/16, else only for n < n* = σ²γ_T / (σ⁴β'/16 - α_T - σ²β_T/4).
    printed: guaranteed iff Q(1) > 0, then n* is infinite; beta_prime is not needed.

    >>> found = stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=0.5)
    >>> found.q(1), found.q(10), round(found.sigma2_max, 12)
    (73.75, 11049.25, 15.169707421783)
    >>> round(stability_ordering(0, 0.01, 4, 4, 25, sigma2=0.5, beta_prime=29.0526).n_star, 2)
    4.42
    """
    s2, why = variance(sigma2), "a squared norm or a bound on one"
    named = {"alpha_T": alpha_T, "beta_T": beta_T, "gamma_T": gamma_T, "alpha_M": alpha_M, "beta_M": beta_M}
    at, bt, gt, am, bm = (not_negative(value, name, why) for name, value in named.items())
    if am + bm == 0:
        raise InputError(teach("alpha_M or beta_M > 0", "both 0", "a Mamba block that does nothing needs no theorem"))
    cubic = Cubic(4 * s2 * bt, 16 * s2 * gt + 16 * at - 4 * s2**2 * bm, -(s2**2) * am)
    reach = bt + 4 * gt
    threshold = (reach + math.sqrt(reach**2 + 4 * (4 * bm + am) * at)) / (2 * bm + am / 2)
    zero = [name for name, value in zip(named, (at, bt, gt, am, bm), strict=True) if value == 0]
    if is_printed(form):
        conditions = [
            Hypothesis("α_T, β_T, γ_T, α_M, β_M > 0", not zero, f"zero: {', '.join(zero) or 'none'}"),
            Hypothesis("σ² < σ²_max", s2 < threshold, f"σ² is {s2:g}, σ²_max {threshold:g}"),
        ]
        report("Theorem 5 as printed", conditions)
        holds = bool(cubic(1) > 0)
        return StabilityOrdering(cubic, threshold, holds, math.inf if holds else 1.0)
    report("Theorem 5", ())
    if beta_prime is None:
        return StabilityOrdering(cubic, threshold, None, None)
    excess = s2**2 * not_negative(beta_prime, "beta_prime", why) / 16 - at - s2 * bt / 4
    return StabilityOrdering(cubic, threshold, excess <= 0, math.inf if excess <= 0 else s2 * gt / excess)


def guaranteed_sigma2(alpha_T: Number, beta_T: Number, beta_prime: Number, *, form: str = "corrected") -> float:
    """Largest σ² at which E_T ≥ E_M for every n follows: [β_T/4 + √(β_T²/16 + α_T β'/4)] 8/β'.

    The printed threshold is `stability_ordering(...).sigma2_max`; it is far larger and does not guarantee the ordering.

    >>> round(guaranteed_sigma2(0.0, 0.01, 29.0526), 6)
    0.001377
    """
    if is_printed(form):
        raise InputError(teach("form='corrected'", "form='printed'", "stability_ordering(...).sigma2_max is printed"))
    why = "a squared norm or a bound on one"
    at, bt = not_negative(alpha_T, "alpha_T", why), not_negative(beta_T, "beta_T", why)
    bp = positive(beta_prime, "beta_prime", "Theorem 5: a Mamba block that moves tokens")
    report("Theorem 5", ())
    return (bt / 4 + math.sqrt(bt**2 / 16 + at * bp / 4)) * 8 / bp


def transformer_energy(constants: Any, *, sigma2: Number, n: Number) -> float:
    """E_T = n α_T + σ² (n β_T/4 + γ_T), E‖F‖² of a Transformer block.

    >>> round(transformer_energy((0.0, 0.01, 4.4075), sigma2=0.5, n=64), 6)
    2.28375
    """
    s2, tokens = variance(sigma2), count(n, "n")
    at, bt, gt = (scalar(value, "constants") for value in constants)
    return tokens * at + s2 * (tokens * bt / 4 + gt)
