"""Softmax attention in mean field: what Theorem 2 of paper 1 misses (its cross terms do not vanish).

B = W_Qᵀ W_K / √d_k, so that the logit of tokens t and j is h_tᵀ B h_j. For a fixed h_t the weights tilt the Gaussian of
h_j by σ² Bᵀ h_t, hence E[Attn_t | h_t] → σ² W_V Bᵀ h_t as n grows: it does not go to zero with 1/n. To O(1/n):

    M1 = I - 2σ⁴ B Bᵀ, N = (I - σ²B)(I - σ²B)ᵀ, D1 = det M1^-½, D2 = det N^-½, P = T2 + σ² G Bᵀ
    Tr Σ = nσ²‖P‖² + 2[-σ⁴ D1 Tr(Pᵀ G Bᵀ M1⁻¹) + σ² D2 Tr(Pᵀ G (I - σ²Bᵀ) N⁻¹)]
           + D1 σ²‖G‖² + σ⁶ D1 Tr(G Bᵀ M1⁻¹ B Gᵀ)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.theory.hypotheses import Hypothesis

MEAN_FIELD = 0.01  # largest (D1 - 1)/n at which the O(1/n) form was within 1 % of simulation


class MeanField(NamedTuple):
    """The trace and whether n is large enough for it."""

    trace: float
    hypotheses: tuple[Hypothesis, ...]


def mean_field_trace(
    w1: np.ndarray, w2: np.ndarray, wv: np.ndarray, wq: np.ndarray, wk: np.ndarray, s2: float, n: int
) -> MeanField:
    """Tr Σ of a block with full softmax attention and GELU = x/2, to O(1/n)."""
    t2 = 0.5 * w2 @ w1
    g = wv + t2 @ wv
    b = wq.T @ wk / np.sqrt(len(wq))
    eye = np.eye(len(b))
    m1 = eye - 2 * s2**2 * b @ b.T
    smallest = float(np.linalg.eigvalsh(m1)[0])
    if smallest <= 0:
        expected = "I - 2σ⁴ B Bᵀ > 0, B = W_Qᵀ W_K/√d_k (else E[exp(2 logit)] is infinite: no mean field)"
        largest = float(1 / (np.sqrt(2) * np.linalg.norm(b, 2)))
        raise InputError(teach(expected, f"smallest eigenvalue {smallest:.3g}", f"sigma2 must be below {largest:.4g}"))
    tilt = eye - s2 * b
    nn = tilt @ tilt.T
    r1, r2 = np.linalg.inv(m1), np.linalg.inv(nn)
    d1, d2 = np.linalg.det(m1) ** -0.5, np.linalg.det(nn) ** -0.5
    p = t2 + s2 * g @ b.T
    cross = -(s2**2) * d1 * np.trace(p.T @ g @ b.T @ r1) + s2 * d2 * np.trace(p.T @ g @ tilt.T @ r2)
    own = d1 * s2 * (g * g).sum() + s2**3 * d1 * np.trace(g @ b.T @ r1 @ b @ g.T)
    spread = (d1 - 1) / n
    text = f"(D1 - 1)/n is {spread:.3g}, {MEAN_FIELD} is the most that was within 1 %"
    return MeanField(
        float(n * s2 * (p * p).sum() + 2 * cross + own),
        (Hypothesis("n large enough for the mean field", bool(spread <= MEAN_FIELD), text),),
    )
