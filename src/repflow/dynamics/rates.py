"""The rates of paper 3's three scenarios beside token norms behind the blocks of a model (its Figures 7 and 8).

A block is a step of time: t = 0 is the embedding, t the output of block t.

| scenario | theorem | norm at t |
|---|---|---|
| convergence | 4.1: O(1/√t) | x₀ / √(1 + k t) |
| slow divergence | 4.3, corrected: Θ(ln t) | x₀ (1 + c ln(1 + k t)) |
| fast divergence | 4.4: infinite at a finite time | x₀ / √(1 − k t) |

The first and the third solve dx/dt = ∓ (k / 2x₀²) x³, as the theorems' first token does where its step size is
constant. k and c are fitted by least squares in ln x. With k = 0 all three are constant, so a curve is followed only
where norms move and it is far better than that. Near t = 0 a slow and a fast divergence look alike: which of the two is
nearer means little where norms have hardly grown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach

REGIMES = ("convergence", "slow divergence", "fast divergence")
CLEAR, NEAR, MOVED = 0.5, 0.25, 0.1
"""A curve is followed where its error is below this share of a constant's and within this in ln x, 28 %; norms that lie
within the last of the first one, by root mean square, have not moved."""


@dataclass(frozen=True)
class RateFit:
    """Three curves through the first norm.

    Attributes:
        curves: (regime, state); NaN where too few norms are finite.
        errors: root mean square of ln norm less ln curve (regime,).
        constant: the same of a constant.
    """

    curves: np.ndarray
    errors: np.ndarray
    constant: float

    @property
    def followed(self) -> str | None:
        """The scenario whose curve is nearest, if it is near, and nearer than a constant by far; None for none."""
        if not np.isfinite(self.errors).any() or self.constant < MOVED:
            return None
        best = int(np.nanargmin(self.errors))
        return REGIMES[best] if self.errors[best] < min(NEAR, CLEAR * self.constant) else None


def rate_curve(regime: str, scale: Any, steps: np.ndarray, slope: Any = 1.0) -> np.ndarray:
    """Norm over the first one at some times; `slope` is c of slow divergence.

    >>> rate_curve("convergence", 3.0, np.array([0, 1])).tolist()
    [1.0, 0.5]
    >>> rate_curve("fast divergence", 0.75, np.array([1])).tolist()
    [2.0]
    """
    if regime == REGIMES[0]:
        return np.asarray(1 / np.sqrt(1 + scale * steps))
    if regime == REGIMES[1]:
        return np.asarray(1 + slope * np.log1p(scale * steps))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(1 / np.sqrt(1 - scale * steps))


def fit_rates(norms: np.ndarray) -> RateFit:
    """Fit the three curves to mean norms (state,); those behind the first that is not finite are left out.

    >>> fit = fit_rates(2 / np.sqrt(1 + 0.7 * np.arange(9)))
    >>> fit.followed, float(fit.errors[0].round(6)), fit_rates(np.ones(9)).followed
    ('convergence', 0.0, None)
    """
    values = np.asarray(norms, dtype=np.float64)
    if values.ndim != 1 or (values[np.isfinite(values)] < 0).any():
        raise InputError(teach("norms (state,), none below 0", f"shape {values.shape}", "pass mean norms by depth"))
    bad = ~(np.isfinite(values) & (values > 0))
    count = int(np.argmax(bad)) if bad.any() else len(values)
    curves = np.full((len(REGIMES), len(values)), np.nan)
    if count < 3:
        return RateFit(curves, np.full(len(REGIMES), np.nan), np.nan)
    steps, logs = np.arange(count, dtype=np.float64), np.log(values[:count] / values[0])
    errors = np.empty(len(REGIMES))
    for place, regime in enumerate(REGIMES):
        scale, slope, errors[place] = _fitted(regime, steps, logs)
        curves[place] = values[0] * rate_curve(regime, scale, np.arange(len(values), dtype=np.float64), slope)
    return RateFit(curves, errors, float(np.sqrt(np.mean(logs**2))))


def _fitted(regime: str, steps: np.ndarray, logs: np.ndarray) -> tuple[float, float, float]:
    """Time scale, slope and error: the best of a table, then refined around it, again and again."""
    if regime == REGIMES[2]:  # below 1 / t of the last block: the curve must not end before it
        axis = np.concatenate([[0.0], (1 - 10.0 ** np.linspace(-0.01, -12, 240)) / steps[-1]])
    else:
        axis = np.concatenate([[0.0], 10.0 ** np.linspace(-8, 12, 240)])
    slopes = np.array([1.0]) if regime != REGIMES[1] else 10.0 ** np.linspace(-4, 4, 161)
    best = (0.0, 1.0, float("inf"))
    for _ in range(12):
        k, c = (part.ravel() for part in np.meshgrid(axis, slopes, indexing="ij"))
        curves = rate_curve(regime, k[:, None], steps, c[:, None])
        table = np.sqrt(np.mean((np.log(curves) - logs) ** 2, axis=1))
        at = int(np.nanargmin(table))
        if table[at] < best[2]:
            best = float(k[at]), float(c[at]), float(table[at])
        axis, slopes = _finer(axis, best[0]), _finer(slopes, best[1])
    return best


def _finer(axis: np.ndarray, middle: float) -> np.ndarray:
    """Points between the neighbours of one."""
    if len(axis) == 1:
        return axis
    place = int(np.argmin(np.abs(axis - middle)))
    return np.linspace(axis[max(0, place - 1)], axis[min(len(axis) - 1, place + 1)], 25)
