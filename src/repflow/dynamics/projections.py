"""The input-output matrix of a real layer: signs of its symmetric part from a matrix of twice the state size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repflow.core.errors import InputError, teach

ROUNDING = 1e-5
"""Share of the largest eigenvalue below which one is zero: weights are float32."""


@dataclass(frozen=True)
class Signature:
    """Signs of the eigenvalues of (M + Mᵀ)/2, M = S_Cᵀ S_B.

    Attributes:
        negative: how many are negative.
        zero: how many are zero, by rank deficiency or rounding; at least width minus twice the state size.
        positive: how many are positive.
        lowest: smallest eigenvalue.
        highest: largest eigenvalue.
        largest: eigenvalues other than the zeros of rank deficiency, ascending.
    """

    negative: int
    zero: int
    positive: int
    lowest: float
    highest: float
    largest: np.ndarray

    @property
    def prediction(self) -> str:
        """What appendix C's conjecture, which is false in both directions, predicts from it."""
        return "divergence" if self.positive else "convergence" if self.negative else "undecided"


def signature(s_c: np.ndarray, s_b: np.ndarray) -> Signature:
    """Signature of one layer's input-output matrix.

    With W = [S_C; S_B], (2 state, width), (M + Mᵀ)/2 = Wᵀ J W / 2, J swapping the halves: its non-zero eigenvalues are
    those of R J Rᵀ / 2 where W Wᵀ = Rᵀ R, a matrix of 2 state rows instead of width.

    Args:
        s_c: output matrix S_C, (state, width).
        s_b: input matrix S_B, (state, width).

    >>> found = signature(np.array([[1.0, 0.0, 0.0]]), np.array([[-2.0, 0.0, 0.0]]))
    >>> found.negative, found.zero, found.positive, round(found.lowest, 9)
    (1, 2, 0, -2.0)
    """
    if s_c.ndim != 2 or s_c.shape != s_b.shape:
        got = f"shapes {s_c.shape} and {s_b.shape}"
        raise InputError(teach("s_c and s_b of one shape (state, width)", got, "slice the layer's projection"))
    state, width = s_c.shape
    both = np.concatenate([s_c, s_b]).astype(np.float64)
    triangle = np.asarray(np.linalg.qr(both.T, mode="r"))  # (min(width, 2 state), 2 state), W Wᵀ = Rᵀ R
    swapped = np.concatenate([triangle[:, state:], triangle[:, :state]], axis=1)
    values = np.linalg.eigvalsh((triangle @ swapped.T + swapped @ triangle.T) / 4)
    small = ROUNDING * np.abs(values).max(initial=0.0)
    negative, positive = int((values < -small).sum()), int((values > small).sum())
    ends = (min(float(values.min()), 0.0), max(float(values.max()), 0.0)) if width > len(values) else (
        float(values.min()), float(values.max())
    )  # fmt: skip
    return Signature(negative, width - negative - positive, positive, *ends, values)
