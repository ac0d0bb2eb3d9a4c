"""Numbers of an influence curve: exponential fit, half-life, shares, the middle, and the ratio of two curves.

A curve holds ln ‖∂y_t/∂x_s‖ by the distance t − s, the token itself first: (distance,) or, with anything before it,
(..., sample, distance). NaN stands for distances that a prompt does not have. Averages over prompts are of logarithms.

| letter | meaning |
|---|---|
| κ | decay per token: influence ~ exp(−κ distance) (paper 2, Theorem 3.1, where it is a bound and not a law) |
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from repflow.core.catalogue import is_exponential
from repflow.core.errors import InputError, teach
from repflow.core.intervals import paired_interval, rate_interval, welch_interval
from repflow.core.results import sample_mean
from repflow.papers.values import RATIO_DISTANCES

WINDOWS = (1, 16, 64, 256)
"""Last tokens whose share is reported; the first window is the token itself."""
LEAST_POINTS = 3
"""Distances that a fit needs at least."""
LEAST_MIDDLE = 10
"""Tokens that a prompt needs before its fifths mean something."""


@dataclass(frozen=True)
class ExponentialFit:
    """Least squares of ln influence = intercept − κ distance, and how good an exponential is.

    Every prompt has an intercept of its own, all share κ: where prompts differ in length, far distances are those of
    the long ones alone, and a line through the mean curve would mistake the difference between prompts for a slope.
    With prompts of one length it is the line through the mean curve.

    Attributes:
        first: smallest distance of the fit.
        last: largest.
        intercept: mean over prompts.
        kappa: κ.
        kappa_low: 95 % interval over prompts (`repflow.core.intervals.rate_interval`), NaN below three prompts.
        kappa_high: its upper end.
        r2: share of the mean curve's variance (in logarithms, prompts brought to one level) that the line explains.
        rmse: root mean square distance from the line, in logarithms.
        power: exponent p of the power law distance^−p on the same distances.
        power_r2: share that the power law explains; above `r2`, the curve is not an exponential.
        peak: distance in the nearer half at which the mean curve is largest, the token itself left out.
    """

    first: int
    last: int
    intercept: float
    kappa: float
    kappa_low: float
    kappa_high: float
    r2: float
    rmse: float
    power: float
    power_r2: float
    peak: int

    @property
    def exponential(self) -> bool:
        """Whether the curve is straight enough for a half-life to mean something; see `catalogue.EXPONENTIAL_R2`."""
        return is_exponential(asdict(self))

    @property
    def half_life(self) -> tuple[float, float, float]:
        """Tokens over which the line halves, ln 2 / κ, with its interval; infinite where κ is not positive.

        It describes the curve only where that is `exponential`; `half_reach` always does.
        """
        return tuple(_halving(kappa) for kappa in (self.kappa, self.kappa_high, self.kappa_low))  # type: ignore[return-value]

    def line(self, distances: np.ndarray) -> np.ndarray:
        """The fitted ln influence at some distances."""
        return np.asarray(self.intercept - self.kappa * np.asarray(distances, dtype=np.float64))

    def to_json(self) -> dict[str, Any]:
        """Fields and half-life; None for what is not finite, and for the half-life of what is not exponential."""
        names = ("half_life", "half_life_low", "half_life_high")
        life = dict(zip(names, self.half_life if self.exponential else (math.nan,) * 3, strict=True))
        numbers = {key: value if math.isfinite(value) else None for key, value in (asdict(self) | life).items()}
        return numbers | {"exponential": self.exponential}


def exponential_fit(curves: np.ndarray, *, first: int | None = None, last: int | None = None) -> ExponentialFit:
    """Fit exp(−κ distance) to curves (sample, distance), or one curve (distance,).

    Args:
        curves: ln influence by distance.
        first: smallest distance of the fit; by default 1, as the theorem is about s < t. Stacked layers peak away from
            zero: pass the `peak` of a first fit to fit what comes after it.
        last: largest distance; by default the largest there is.

    >>> fit = exponential_fit(2.0 - 0.25 * np.arange(40))
    >>> round(fit.kappa, 6), round(fit.r2, 6), fit.first, round(fit.half_life[0], 4)
    (0.25, 1.0, 1, 2.7726)
    """
    table = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    mean = _mean(table)
    first, last, peak = _window(mean, first, last)
    distances = np.arange(first, last + 1, dtype=np.float64)
    part = table[:, first : last + 1]
    part = part[np.isfinite(part).sum(1) >= LEAST_POINTS]
    if not len(part):
        raise _too_short(first, last)
    intercept, slope, r2, rmse = _line(distances, part)
    _, power, power_r2, _ = _line(np.log(np.maximum(distances, 1)), part)
    joint, own = _moments(distances, part)
    band = rate_interval(-joint / own, weights=own)
    low, high = float(band.low), float(band.high)
    return ExponentialFit(first, last, intercept, 0.0 - slope, low, high, r2, rmse, 0.0 - power, power_r2, peak)


def kappas(curves: np.ndarray, first: int, last: int) -> np.ndarray:
    """κ of every curve over the same distances: (..., distance) → (...); NaN where there are too few.

    >>> kappas(np.array([[0.0, -1, -2, -3], [0.0, -2, -4, -6]]), 1, 3)
    array([1., 2.])
    """
    part = np.asarray(curves, dtype=np.float64)[..., first : last + 1]
    joint, own = _moments(np.arange(first, first + part.shape[-1], dtype=np.float64), part)
    with np.errstate(invalid="ignore", divide="ignore"):
        slope = joint / own
    return np.where(np.isfinite(part).sum(-1) >= LEAST_POINTS, -slope, np.nan)


def recent_share(
    curves: np.ndarray, windows: Sequence[int] = WINDOWS, *, lengths: np.ndarray | None = None
) -> np.ndarray:
    """Share of all influence that the last tokens hold, the token itself among them: (..., distance) → (..., window).

        share_w = Σ_{distance < w} ‖J‖ / Σ ‖J‖

    NaN where a prompt has no token beyond the window. `lengths` (...) says how many distances a prompt has, where far
    ones may be zero influence (NaN) rather than missing.

    >>> recent_share(np.log([4.0, 3.0, 2.0, 1.0]), windows=(1, 2, 4))
    array([0.4, 0.7, nan])
    """
    influence = _linear(curves)
    total, length = influence.sum(-1), _length(curves) if lengths is None else lengths
    shares = [influence[..., :window].sum(-1) / np.where(total > 0, total, np.nan) for window in windows]
    return np.stack([np.where(length > w, share, np.nan) for w, share in zip(windows, shares, strict=True)], axis=-1)


def half_reach(curves: np.ndarray) -> np.ndarray:
    """Least number of last tokens that hold half of all influence: (..., distance) → (...).

    >>> half_reach(np.log([[4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 9.0]]))
    array([2., 4.])
    """
    summed = _linear(curves).cumsum(-1)
    total = summed[..., -1:]
    reached = (summed >= 0.5 * total).argmax(-1) + 1.0
    return np.where(total[..., 0] > 0, reached, np.nan)


def lost_in_the_middle(curves: np.ndarray, *, lengths: np.ndarray | None = None) -> np.ndarray:
    """How much less the middle counts than both ends, in logarithms: (..., distance) → (...).

        index = min(mean of the first fifth, mean of the last fifth) − mean of the middle fifth      (of ln influence)

    The last fifth is the nearest. Positive where the curve is U-shaped; negative for a plain decay, whose first fifth
    lies below its middle. NaN for prompts of fewer than ten tokens, and where all of a fifth is zero influence.
    `lengths` (...) says how many distances a prompt has, where far ones may be zero (NaN) rather than missing.

    >>> lost_in_the_middle(np.array([5.0, 4, 3, 2, 1, 1, 2, 3, 4, 5]))
    array(3.5)
    >>> lost_in_the_middle(-np.arange(10.0))
    array(-4.)
    """
    table = np.asarray(curves, dtype=np.float64)
    depths = np.full(table.shape[:-1], np.nan)
    lengths = _length(table) if lengths is None else np.broadcast_to(lengths, depths.shape)
    for place in np.ndindex(*table.shape[:-1]):
        length = int(lengths[place])
        if length >= LEAST_MIDDLE:
            row, fifth = table[place][:length], length // 5
            start = (length - fifth) // 2
            parts = (row[:fifth], row[length - fifth :], row[start : start + fifth])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a fifth that underflowed whole is NaN
                near, far, middle = (float(np.nanmean(part)) for part in parts)
            depths[place] = np.minimum(near, far) - middle
    return depths


@dataclass(frozen=True)
class RatioFit:
    """ln of one model's influence over another's by distance, and its fitted decay (paper 2, Figure 7b).

    Attributes:
        log_ratio: (distance,).
        low: 95 % interval over prompts (distance,): Student's of the differences where paired, else Welch's.
        high: its upper end.
        fit: the exponential fitted to the ratio.
        paired: both curves are of the same prompts, so that the differences of each are taken.
    """

    log_ratio: np.ndarray
    low: np.ndarray
    high: np.ndarray
    fit: ExponentialFit
    paired: bool


def ratio_fit(a: np.ndarray, b: np.ndarray, *, paired: bool, nearest: int = RATIO_DISTANCES) -> RatioFit:
    """Ratio of two models' influence within the nearest tokens: curves (sample, distance) of each.

    Args:
        a: curves of the first model.
        b: curves of the second; the same number of prompts where they are paired.
        paired: row i of both is the same prompt.
        nearest: distances 1 to nearest − 1 are fitted.

    >>> line = -np.arange(20.0)
    >>> round(ratio_fit(np.stack([line, line]), np.stack([0.5 * line, 0.5 * line]), paired=True).fit.kappa, 6)
    0.5
    """
    first, second = (np.atleast_2d(np.asarray(part, dtype=np.float64)) for part in (a, b))
    size = min(first.shape[1], second.shape[1], nearest)
    first, second = first[:, :size], second[:, :size]
    if paired and len(first) != len(second):
        got = f"{len(first)} and {len(second)} prompts"
        raise InputError(teach("the same prompts of both models", got, "measure both on one task"))
    if paired:  # a prompt whose influence is zero in one model is left out of both
        first, second = np.where(np.isfinite(second), first, np.nan), np.where(np.isfinite(first), second, np.nan)
    mean = _mean(first) - _mean(second)
    finite = [np.where(np.isfinite(part), part, np.nan) for part in (first, second)]
    if paired:
        band = paired_interval(*finite)
        return RatioFit(mean, band.low, band.high, exponential_fit(first - second, first=1), paired)
    band, fitted = welch_interval(*finite), exponential_fit(mean, first=1)
    slopes = welch_interval(*(kappas(part, fitted.first, fitted.last) for part in finite))
    ends = {f"kappa_{end}": fitted.kappa + float(getattr(slopes, end) - slopes.mean) for end in ("low", "high")}
    return RatioFit(mean, band.low, band.high, ExponentialFit(**asdict(fitted) | ends), paired)


def _window(mean: np.ndarray, first: int | None, last: int | None) -> tuple[int, int, int]:
    present = np.flatnonzero(np.isfinite(mean))
    end = int(present[-1]) if len(present) else 0
    last = end if last is None else min(last, end)
    near = mean[1 : max(2, end // 2 + 1)]  # the far end may be a sink, which is no peak of the decay
    peak = 1 + int(np.nanargmax(near)) if np.isfinite(near).any() else 1
    first = 1 if first is None else first
    if first < 0 or last - first + 1 < LEAST_POINTS:
        raise _too_short(first, last)
    return first, last, peak


def _too_short(first: int, last: int) -> InputError:
    expected = f"a curve over at least {LEAST_POINTS} distances to fit"
    return InputError(teach(expected, f"distances {first} to {last}", "use longer prompts or a later token t"))


def _moments(x: np.ndarray, curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ (x − x̄)(y − ȳ) and Σ (x − x̄)² over what is finite of each curve: (..., distance) → (...)."""
    present = np.isfinite(curves)
    away = np.where(present, x - _center(x, present), 0.0)
    return (away * np.where(present, curves, 0.0)).sum(-1), (away**2).sum(-1)


def _center(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    count = present.sum(-1, keepdims=True)
    return np.asarray(np.where(present, values, 0.0).sum(-1, keepdims=True) / np.maximum(count, 1))


def _line(x: np.ndarray, curves: np.ndarray) -> tuple[float, float, float, float]:
    """Mean intercept, common slope, R² and root mean square residual of a line with an intercept for each curve."""
    present = np.isfinite(curves)
    joint, own = _moments(x, curves)
    if own.sum() == 0:
        return math.nan, math.nan, math.nan, math.nan
    slope = joint.sum() / own.sum()
    levels = _center(curves, present) - slope * _center(x, present)
    left = _mean(curves - levels - slope * x)
    here = np.isfinite(left)
    left, level = left[here], (left + slope * x)[here]
    spread = float(((level - level.mean()) ** 2).sum())
    r2 = 1 - float((left**2).sum()) / spread if spread > 0 else math.nan
    return float(levels.mean()), float(slope), r2, float(np.sqrt((left**2).mean()))


def _mean(table: np.ndarray) -> np.ndarray:
    """Mean over curves of what is finite: a logarithm of zero influence is left out too."""
    return sample_mean(np.where(np.isfinite(table), table, np.nan), ("sample", "distance"))


def _linear(curves: np.ndarray) -> np.ndarray:
    """Influence by its largest, zero where there is none."""
    table = np.asarray(curves, dtype=np.float64)
    finite = np.where(np.isfinite(table), table, -np.inf)
    top = finite.max(-1, keepdims=True)
    return np.asarray(np.exp(finite - np.where(np.isfinite(top), top, 0.0)))


def _length(curves: np.ndarray) -> np.ndarray:
    """Distances that each curve has: up to its last finite entry."""
    present = np.isfinite(np.asarray(curves, dtype=np.float64))
    last = present.shape[-1] - present[..., ::-1].argmax(-1)
    return np.where(present.any(-1), last, 0)


def _halving(kappa: float) -> float:
    return math.nan if math.isnan(kappa) else math.log(2) / kappa if kappa > 0 else math.inf


def logarithms(squares: np.ndarray) -> np.ndarray:
    """Natural logarithm of the influence; NaN where it is zero, which an average of logarithms cannot take.

    >>> logarithms(np.array([1.0, 0.0]))
    array([ 0., nan])
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = 0.5 * np.log(squares)
    return np.where(np.isfinite(logs), logs, np.nan)


def ragged(rows: list[np.ndarray]) -> np.ndarray:
    """Arrays that differ in their last axis alone, stacked; NaN where one has no entry.

    >>> ragged([np.ones(1), np.ones(2)])
    array([[ 1., nan],
           [ 1.,  1.]])
    """
    longest = max(row.shape[-1] for row in rows)
    whole = np.full((len(rows), *rows[0].shape[:-1], longest), np.nan)
    for number, row in enumerate(rows):
        whole[number, ..., : row.shape[-1]] = row
    return whole
