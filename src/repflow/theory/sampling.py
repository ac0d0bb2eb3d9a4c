"""Monte-Carlo sums in chunks: mean and trace of a covariance with their standard errors, in constant memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from repflow.core.progress import Steps

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""Makes (sample, ...) of what is averaged."""


class Moments(NamedTuple):
    """Estimates from samples.

    Attributes:
        mean: of the draws, in their shape.
        mean_error: its standard error.
        trace: sum over all entries of their variance.
        trace_error: its standard error.
    """

    mean: np.ndarray
    mean_error: np.ndarray
    trace: float
    trace_error: float


def sample_moments(draw: Draw, *, samples: int, seed: int, chunk: int, progress: Steps | None = None) -> Moments:
    """Draw and add up; the same seed and chunk give the same numbers.

    Deviations are taken from the mean of the first chunk, so that one pass suffices without cancellation: with m0 near
    the mean, Tr Σ = E‖F - m0‖² - ‖E F - m0‖².
    """
    rng = np.random.default_rng(seed)
    done, centre = 0, None
    for start in range(0, samples, chunk):
        part = draw(rng, min(chunk, samples - start))
        if centre is None:
            centre = part.mean(0)
            total, squares = np.zeros_like(centre), np.zeros_like(centre)
            norm_sum = norm_squares = 0.0
        off = part - centre
        total += off.sum(0)
        squares += (off**2).sum(0)
        norms = (off**2).reshape(len(off), -1).sum(1)
        norm_sum += float(norms.sum())
        norm_squares += float((norms**2).sum())
        done += len(part)
        if progress is not None:
            progress(done, samples)
    assert centre is not None
    shift = total / samples
    share = samples / max(samples - 1, 1)
    spread = np.maximum(squares / samples - shift**2, 0) * share
    trace = (norm_sum / samples - float((shift**2).sum())) * share
    norm_variance = max(norm_squares / samples - (norm_sum / samples) ** 2, 0.0)
    return Moments(centre + shift, np.sqrt(spread / samples), trace, float(np.sqrt(norm_variance / samples)))
