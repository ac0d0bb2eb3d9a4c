"""Mean and covariance of one Mamba block's update (paper 1, Theorems 3 and 4).

| letter | is | shape |
|---|---|---|
| x_t | token t, N(0, σ² I) | (d,) |
| W_h, W_z | input and gate projection | (e, d) |
| W_c | causal convolution by lag k: u_t = Σ_k W_c[k] W_h x_{t-k} | (K, e, e), or (K, e) by channel |
| h'_t, z_t | SiLU(u_t) ≈ u_t/2, SiLU(W_z x_t) ≈ W_z x_t/2 | (e,) |
| A_t, B_t, C_t | s_t = A_t s_{t-1} + B_t h'_t, o_t = C_t s_t, the same for every input (Assumption 3) | (N, N) or (N,), (N, e), (e, N) |
| F_t | o_t ∘ z_t | (e,) |
| M_{t,m} | Σ_k C_t A_t ... A_{m+k+1} B_{m+k} W_c[k] W_h, so that o_t = ½ Σ_m M_{t,m} x_m | (e, d) |

Does not include: the output projection g of Eq. 6 (paper 1 leaves it out of F as well), the skip D, and A, B, C that
depend on the input, except for the mean (`selective_mamba_mean`).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.arguments import ArrayLike, Number, Shapes, count, is_printed, positive, scalar, variance
from repflow.theory.hypotheses import Hypothesis, report


class MambaParts(NamedTuple):
    """Checked arguments: decay (n, N, N) or (n, N), B (n, N, e), C (n, e, N), kernels W_c[k] W_h (K, e, d), W_z."""

    decay: np.ndarray
    B: np.ndarray
    C: np.ndarray
    kernels: np.ndarray
    W_z: np.ndarray


def mamba_mean(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    W_c: ArrayLike,
    W_h: ArrayLike,
    W_z: ArrayLike,
    *,
    sigma2: Number,
    form: str = "corrected",
) -> np.ndarray:
    """Mean of a Mamba block's update (paper 1, Theorem 3, Eq. 13), both SiLU linearised.

    corrected: row t is σ²/4 diag(C_t B_t W_c[0] W_h W_zᵀ): (n, e), the matrix whose norm E‖F‖² needs.
    printed: the average of these rows over t: (e,).

    >>> one = np.ones((2, 1, 1))
    >>> mamba_mean(0.5 * one, one, one, np.ones((1, 1)), [[2.0]], [[3.0]], sigma2=2.0)
    array([[3.],
           [3.]])
    """
    parts, s2 = mamba_parts(A, B, C, W_c, W_h, W_z), variance(sigma2)
    printed = is_printed(form)
    rows = s2 / 4 * np.einsum("tri,tij,jd,rd->tr", parts.C, parts.B, parts.kernels[0], parts.W_z, optimize=True)
    spread = float(np.abs(rows - rows.mean(0)).max())
    same = [Hypothesis("all rows of μ_F equal", spread == 0, f"rows differ by up to {spread:.3g}")] if printed else []
    report("Theorem 3" + " as printed (Eq. 13)" * printed, [_contractive(parts.decay), *same])
    return np.asarray(rows.mean(0) if printed else rows)


def mamba_trace(
    A: ArrayLike,
    B: ArrayLike,
    C: ArrayLike,
    W_c: ArrayLike,
    W_h: ArrayLike,
    W_z: ArrayLike,
    *,
    sigma2: Number,
    form: str = "corrected",
) -> float:
    """Trace of the covariance of a Mamba block's update, summed over tokens (paper 1, Theorem 4, Eq. 14).

    corrected: σ⁴/16 Σ_t {Tr[(W_z W_zᵀ) ∘ Σ_{m≤t} M_{t,m} M_{t,m}ᵀ] + Tr[(M_{t,t} W_zᵀ) ∘ (W_z M_{t,t}ᵀ)]}.
    printed: σ⁴/4 Σ_t {Tr[(W_z W_zᵀ) ∘ Σ_{j<t} M_{t,j} M_{t,j}ᵀ] + Tr[(M_{t,t} W_zᵀ) ∘ (W_z M_{t,t}ᵀ)]}.
        Two readings are chosen. The index t is free in Eq. 14: it is summed over, as the line before Eq. 73 says.
        W_h' has no lag in Eq. 14: it is W_c[0] W_h, as in Theorem 3, so that M_{t,j} is C_t A_t ... A_{j+1} B_j W_h'.

    >>> one = np.ones((1, 1, 1))
    >>> mamba_trace(0.5 * one, one, one, np.ones((1, 1)), [[2.0]], [[3.0]], sigma2=2.0)
    18.0
    """
    parts, s2 = mamba_parts(A, B, C, W_c, W_h, W_z), variance(sigma2)
    if is_printed(form):
        lags = len(parts.kernels)
        single = Hypothesis("one convolution lag (K = 1)", lags == 1, f"K is {lags}; lag 0 is taken for W_h'")
        report("Theorem 4 as printed (Eq. 14)", [_contractive(parts.decay), single])
        return printed_trace(parts, s2)
    report("Theorem 4", [_contractive(parts.decay)])
    gates = (parts.W_z**2).sum(1)
    total = 0.0
    for response in responses(parts, parts.kernels):
        total += float(((response**2).sum((0, 2)) * gates).sum())
        total += float((np.einsum("rd,rd->r", response[-1], parts.W_z) ** 2).sum())
    return s2**2 / 16 * total


def printed_trace(parts: MambaParts, s2: float) -> float:
    """Eq. 14, summed over t."""
    gates = (parts.W_z**2).sum(1)
    total = 0.0
    for response in responses(parts, parts.kernels[:1]):
        total += float(((response[:-1] ** 2).sum((0, 2)) * gates).sum())
        total += float((np.einsum("rd,rd->r", response[-1], parts.W_z) ** 2).sum())
    return s2**2 / 4 * total


def responses(parts: MambaParts, kernels: np.ndarray) -> Iterator[np.ndarray]:
    """M_{t,m} of each token t in turn, (m ≤ t, e, d): the state's response to every input so far, read by C_t."""
    n, size = parts.B.shape[:2]
    states = np.zeros((n, size, kernels.shape[2]))
    for t in range(n):
        so_far = states[: t + 1]
        so_far[:] = parts.decay[t][:, None] * so_far if parts.decay.ndim == 2 else parts.decay[t] @ so_far
        for lag in range(min(len(kernels), t + 1)):
            so_far[t - lag] += parts.B[t] @ kernels[lag]
        yield parts.C[t] @ so_far


def mamba_parts(A: ArrayLike, B: ArrayLike, C: ArrayLike, W_c: ArrayLike, W_h: ArrayLike, W_z: ArrayLike) -> MambaParts:
    """Check shapes and that the state does not grow by itself (Theorem 5's contractivity)."""
    shapes = Shapes()
    decay = shapes.take(A, "A", "n N N", "n N")
    b, c = shapes.take(B, "B", "n N e"), shapes.take(C, "C", "n e N")
    w_h, w_z = shapes.take(W_h, "W_h", "e d"), shapes.take(W_z, "W_z", "e d")
    w_c = shapes.take(W_c, "W_c", "K e e", "K e")
    radius = float(np.abs(decay if decay.ndim == 2 else np.linalg.eigvals(decay)).max())
    if radius >= 1:
        expected = "contractive A (‖A_t‖ < 1 for every t, the assumption of Theorem 5)"
        got = f"an eigenvalue of absolute value {radius:.4g}"
        raise InputError(teach(expected, got, "discretise it first: A_t is exp(Δ_t A), not A"))
    return MambaParts(decay, b, c, w_c @ w_h if w_c.ndim == 3 else w_c[:, :, None] * w_h, w_z)


def operator_norm(decay: np.ndarray) -> float:
    """max_t ‖A_t‖₂."""
    return float(np.abs(decay).max() if decay.ndim == 2 else np.linalg.norm(decay, 2, axis=(1, 2)).max())


def _contractive(decay: np.ndarray) -> Hypothesis:
    norm = operator_norm(decay)
    return Hypothesis("‖A_t‖₂ < 1 for every t", norm < 1, f"largest ‖A_t‖₂ is {norm:.4g}")


def selective_mamba_mean(
    W_B: ArrayLike,
    W_C: ArrayLike,
    W_h: ArrayLike,
    W_z: ArrayLike,
    *,
    sigma2: Number,
    n: Number,
    step: Number = 1.0,
    decay: Number,
    form: str = "corrected",
) -> np.ndarray:
    """Mean of a block whose B_t = W_B h'_t and C_t = W_C h'_t depend on the input, as in Mamba (repflow).

    With Q = Δ W_Cᵀ W_B, S = σ²/4 W_h W_hᵀ, c = σ²/4 W_h W_zᵀ and decay ρ, row t is
    Tr(Q S) c_rr + [cᵀ(Q + Qᵀ) S]_rr + (Σ_{j<t} ρ^{t-j}) [cᵀ Q S]_rr: of order σ⁴, where Theorem 3 has σ², and the past
    counts. So Assumption 3 (A, B, C the same for every input) changes the order in σ. There is no printed form.

    Args:
        W_B: (N, e).
        W_C: (N, e).
        W_h: (e, d).
        W_z: (e, d).
        sigma2: variance of the tokens.
        n: tokens.
        step: Δ, constant.
        decay: ρ in [0, 1), the same for every state.
        form: `corrected`; `printed` is refused.

    >>> selective_mamba_mean([[1.0]], [[1.0]], [[2.0]], [[2.0]], sigma2=1.0, n=2, decay=0.5)
    array([[3. ],
           [3.5]])
    """
    if is_printed(form):
        raise InputError(teach("form='corrected'", "form='printed'", "Theorem 3 takes B and C for constants"))
    shapes = Shapes()
    w_b, w_c = shapes.take(W_B, "W_B", "N e"), shapes.take(W_C, "W_C", "N e")
    w_h, w_z = shapes.take(W_h, "W_h", "e d"), shapes.take(W_z, "W_z", "e d")
    s2, tokens, delta, rho = variance(sigma2), count(n, "n"), positive(step, "step", "a step Δ"), scalar(decay, "decay")
    if not 0 <= rho < 1:
        raise InputError(teach("decay in [0, 1) (contractive A)", f"{rho:g}", "pass exp(Δ A)"))
    report("Theorem 3 with selection", ())
    q, cov, cross = delta * w_c.T @ w_b, s2 / 4 * w_h @ w_h.T, s2 / 4 * w_h @ w_z.T
    own = np.trace(q @ cov) * np.diag(cross) + np.diag(cross.T @ (q + q.T) @ cov)
    past = np.array([sum(rho ** (t - j) for j in range(t)) for t in range(tokens)])
    return np.asarray(own + past[:, None] * np.diag(cross.T @ q @ cov))
