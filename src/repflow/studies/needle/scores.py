"""Scores of the needle test, in numpy: ranks, log-odds and slopes over position."""

from __future__ import annotations

import numpy as np


def log_odds(logprob: np.ndarray) -> np.ndarray:
    """Log-odds of the planted word against all other candidates: log p_0 - log sum_{c > 0} p_c.

    Args:
        logprob: (..., candidate), the planted word first.

    >>> float(log_odds(np.log([0.5, 0.25, 0.25])).round(12))
    0.0
    """
    others = logprob[..., 1:]
    largest = others.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        total = largest[..., 0] + np.log(np.exp(others - largest).sum(-1))
        return np.asarray(logprob[..., 0] - total)


def rank(logprob: np.ndarray) -> np.ndarray:
    """Place of the planted word among the candidates, 1 is the most likely: 1 + #{c : p_c > p_0}; NaN where any is.

    Equal probabilities share their places, so that a model that does not distinguish words does not find every needle.

    >>> rank(np.array([[-1.0, -2.0, -0.5], [-1.0, np.nan, -3.0], [-1.0, -1.0, -1.0]])).tolist()
    [2.0, nan, 2.0]
    """
    planted, others = logprob[..., :1], logprob[..., 1:]
    place = 1.0 + (others > planted).sum(-1) + 0.5 * (others == planted).sum(-1)
    return np.where(np.isnan(logprob).any(-1), np.nan, place)


def slope(values: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Least-squares slope over position of each needle: sum (d - mean d)(v - mean v) / sum (d - mean d)^2.

    Args:
        values: a score (length, position, sample).
        depth: where the needle was placed, from 0 to 1, of the same shape.

    Returns:
        (length, sample), units of the score per document; NaN with fewer than two places or a score that is missing.

    >>> where = np.array([0.0, 0.5, 1.0])[None, :, None]
    >>> slope(1 + 3 * where, where).tolist()
    [[3.0]]
    """
    away = depth - depth.mean(1, keepdims=True)
    spread = (away**2).sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        slopes = (away * (values - values.mean(1, keepdims=True))).sum(1) / spread
    return np.where(spread > 0, slopes, np.nan)


def ends_over_middle(values: np.ndarray) -> np.ndarray:
    """Mean at the first and the last position less the mean in between (length, sample); NaN with fewer than three.

    >>> ends_over_middle(np.array([3.0, 1.0, 0.0, 4.0])[None, :, None]).tolist()
    [[3.0]]
    """
    if values.shape[1] < 3:
        return np.full((values.shape[0], values.shape[2]), np.nan)
    return np.asarray((values[:, 0] + values[:, -1]) / 2 - values[:, 1:-1].mean(1))
