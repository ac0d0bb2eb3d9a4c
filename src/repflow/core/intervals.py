"""95 % intervals that hold for a handful of prompts. NumPy and scipy.special only; every layer may use it.

| the values are | function | interval |
|---|---|---|
| one number per prompt | `student_interval` | Student's t; `log=True` for a geometric mean |
| one positive number per prompt | `positive_interval` | Student's t of the mean's logarithm |
| one whole number per prompt | `whole_interval` | that, at least as wide as prompts that agree leave it |
| one rate of decay per prompt | `rate_interval` | Student's t below, of the logarithm above |
| two numbers per prompt | `paired_interval` | Student's t of the differences |
| one number per prompt, other prompts on each side | `welch_interval` | Welch's t |
| right or wrong per prompt | `share_interval`; counts: `proportion_interval` | Wilson's, or Clopper and Pearson's |
| right or wrong, twice per prompt | `paired_proportion_interval` | Bonett and Price's adjusted Wald |
| one number per training, with its error over prompts | `nested_interval` | t of both, Welch's freedom |
| the same of two models on the same prompts | `nested_difference` | t of all four |
| one number per prompt and its lender | `clustered_interval` | Student's t of both kinds of clusters |
| one number per random split of the same prompts | `corrected_resampled_t` | Nadeau and Bengio's corrected t |

Percentiles of a bootstrap are not among them: for the mean of normal values they cover 50 % at 2 values, 80 % at 4,
88 % at 8 and 92 % at 16 (`benchmarks/coverage.py`), as they take the spread of the few values at hand for the whole.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from repflow.core.errors import InputError, teach

__all__ = [
    "LEAST_VALUES",
    "LEVEL",
    "NO_INTERVAL",
    "Band",
    "bracketed",
    "clustered_interval",
    "corrected_resampled_t",
    "nested_difference",
    "nested_interval",
    "normal_quantile",
    "paired_interval",
    "paired_proportion_interval",
    "positive_interval",
    "proportion_interval",
    "rate_interval",
    "ratio_interval",
    "share_interval",
    "smallest_difference",
    "student_interval",
    "student_quantile",
    "welch_interval",
    "whole_interval",
]

Values: TypeAlias = "np.ndarray | np.number | Sequence[Any] | float | int"

LEVEL = 0.95
LEAST_VALUES = 3
"""Values that an interval of a mean needs. With two, Student's quantile is 12.7: right on average, and useless."""
NO_INTERVAL = f"no interval below {LEAST_VALUES} prompts"
"""What tables and pages say, once, where values have no interval."""


class Band(NamedTuple):
    """A mean and the interval around it: arrays without the axis that was averaged over; NaN where there is none."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def bracketed(low: Any, high: Any, form: str = ".3f", *, scale: float = 1.0) -> str:
    """Bounds after a value, with the space before them; nothing where there are none, as below three prompts.

    >>> "0.2" + bracketed(0.1, 0.3, ".1f"), "0.2" + bracketed(None, float("nan"))
    ('0.2 [0.1, 0.3]', '0.2')
    """
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{scale * float(low):{form}}, {scale * float(high):{form}}]"


def student_interval(values: Values, *, axis: int = 0, level: float = LEVEL, log: bool = False) -> Band:
    """Mean over an axis and Student's interval of it.

        mean ± t(n − 1) · s / √n,     log: exp(mean of logs ± t(n − 1) · s of logs / √n)

    NaN values are left out, each entry with the n that it has. Below three values the bounds are NaN; without any, the
    mean is as well. Infinite values make the mean infinite, or NaN, and leave no bounds.

    Args:
        values: one number per prompt along `axis`.
        axis: the axis of prompts.
        level: nominal coverage.
        log: for positive quantities that spread by factors, such as a half-life: the mean is geometric and both bounds
            are positive. An entry with a value at or below zero has no logarithm: all three are NaN.

    >>> band = student_interval([1.0, 2.0, 3.0, 4.0])
    >>> float(band.mean), round(float(band.low), 4), round(float(band.high), 4)
    (2.5, 0.4457, 4.5543)
    >>> [round(float(part), 4) for part in student_interval([1.0, 2.0, 4.0], log=True)]
    [2.0, 0.3575, 11.19]
    >>> student_interval([1.0, 2.0]).low
    array(nan)
    """
    _check_level(level)
    table = np.moveaxis(np.asarray(values, dtype=np.float64), axis, 0)
    if log:
        unfit = (table <= 0).any(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            band = student_interval(np.log(table), level=level)
        return Band(*(np.asarray(np.where(unfit, np.nan, np.exp(part))) for part in band))
    mean, spread, count = _moments(table)
    half = _student(count, level) * spread / np.sqrt(np.maximum(count, 1))
    with np.errstate(invalid="ignore"):
        return Band(mean, np.asarray(mean - half), np.asarray(mean + half))


def positive_interval(values: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean over an axis of a quantity that is never negative, and an interval that is not either.

        mean · exp(± t(n − 1) · s / (√n · mean))

    Student's interval of the logarithm of the mean, by the delta method: like `student_interval` where the spread is
    small, positive and longer upwards where it is not. Of skewed values it covers more (`benchmarks/coverage.py`).

    >>> [round(float(part), 4) for part in positive_interval([1.0, 2.0, 9.0])]
    [4.0, 0.2669, 59.9386]
    """
    band = student_interval(values, axis=axis, level=level)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = np.where(band.mean > 0, (band.high - band.mean) / band.mean, np.nan)
        low, high = band.mean * np.exp(-share), band.mean * np.exp(share)
    # values that are all zero have a mean of zero and no spread
    return Band(band.mean, *(np.where(band.mean > 0, part, band.low) for part in (low, high)))


def whole_interval(values: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean over an axis of whole numbers from 1, such as tokens, and an interval with a width where all agree.

        mean ± q at least,   q = 1 − ((1 − level) / 2)^(1/n)

    Values that agree have no spread, and `positive_interval` no width: it covers the mean of 8 numbers of which 5 % in
    truth are one larger in a third of cases, this one in all. q is Clopper and Pearson's upper end of a share that was
    seen in none of n, here of numbers that are one off.

    >>> [round(float(part), 4) for part in whole_interval([2.0] * 8)]
    [2.0, 1.6306, 2.3694]
    >>> [round(float(part), 4) for part in whole_interval([1.0, 2.0, 9.0])]  # as positive_interval's
    [4.0, 0.2669, 59.9386]
    """
    band = positive_interval(values, axis=axis, level=level)
    count = (~np.isnan(np.asarray(values, dtype=np.float64))).sum(axis)
    least = 1 - ((1 - level) / 2) ** (1 / np.maximum(count, 1))
    low, high = np.minimum(band.low, band.mean - least), np.maximum(band.high, band.mean + least)
    return Band(band.mean, np.asarray(low), np.asarray(high))


def rate_interval(values: Values, *, weights: Values | None = None, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean of a rate, such as the decay κ per token, whose reciprocal is of interest too: a half-life is ln 2 / κ.

    The lower end is Student's, so that only it decides whether there is a decay at all. The upper end is that of
    `positive_interval` where the lower one is above zero, as rates spread by factors. Taking the logarithm for both
    wherever the rate comes out positive would cover 90 % of rates that are a third of their spread.

    Args:
        values: one rate per prompt along `axis`; NaN is left out.
        weights: the mean is Σ w v / Σ w, as of slopes of prompts of different length, and its spread that of a ratio.
        axis: the axis of prompts.
        level: nominal coverage.

    >>> [round(float(part), 4) for part in rate_interval([0.1, 0.2, 0.3])]
    [0.2, -0.0484, 0.4484]
    >>> [round(float(part), 4) for part in rate_interval([0.18, 0.2, 0.22])]
    [0.2, 0.1503, 0.2564]
    """
    table = np.moveaxis(np.asarray(values, dtype=np.float64), axis, 0)
    if weights is None:
        band = student_interval(table, level=level)
    else:
        weight = np.where(np.isnan(table), np.nan, np.moveaxis(np.asarray(weights, dtype=np.float64), axis, 0))
        whole = _moments(weight)[0]
        rate = _moments(weight * table)[0] / whole
        around = student_interval(weight * (table - rate) / whole, level=level)
        band = Band(np.asarray(rate), np.asarray(rate + around.low), np.asarray(rate + around.high))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        above = band.mean * np.exp((band.high - band.mean) / band.mean)
    return Band(band.mean, band.low, np.where(band.low > 0, above, band.high))


def ratio_interval(over: Values, under: Values, *, level: float = LEVEL) -> Band:
    """Σ a / Σ b over documents and an interval of it, for weights b that may differ by factors.

        r = Σ a / Σ b,     r ± t(ν) · √(Σ e²) / Σ b,   e = (a − r b) / (1 − b / Σ b),   ν = (Σ b²)² / Σ b⁴ − 1

    A perplexity's exponent is such a ratio: nats by tokens, where a long document counts for more. What a document
    changes when it is left out (the jackknife) is what the spread is made of, and a few long ones leave few degrees of
    freedom ν, two at least. With lengths of web pages it covers 93 to 97 % from 4 documents on, where Student's
    interval of the ratio covers 74 to 90 % of 8 to 140. Below three documents there are no bounds.

    Args:
        over: one value per document.
        under: one weight per document, at least 0.
        level: nominal coverage.

    >>> [round(float(part), 4) for part in ratio_interval([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])]
    [2.5, 0.0566, 4.9434]
    """
    _check_level(level)
    a, b = np.asarray(over, dtype=np.float64), np.asarray(under, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not (b >= 0).all():
        got = f"shapes {a.shape} and {b.shape}"
        raise InputError(teach("a value and a weight of at least 0 for each document", got, "pass two lists"))
    a, b = a[b > 0], b[b > 0]
    if not len(b):
        return Band(*(np.array(np.nan),) * 3)
    ratio, whole = np.asarray(a.sum() / b.sum()), b.sum()
    if len(b) < LEAST_VALUES:
        return Band(ratio, np.array(np.nan), np.array(np.nan))
    apart = (a - ratio * b) / (1 - b / whole)
    freedom = max(2.0, float((b**2).sum() ** 2 / (b**4).sum()) - 1)
    half = student_quantile(freedom, level) * np.sqrt((apart**2).sum()) / whole
    return Band(ratio, np.asarray(ratio - half), np.asarray(ratio + half))


def paired_interval(a: Values, b: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean of a − b over prompts measured both ways, and Student's interval; a prompt that is NaN in one is left out.

    >>> [round(float(part), 4) for part in paired_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])]
    [2.0, -0.4841, 4.4841]
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        got = f"shapes {first.shape} and {second.shape}"
        raise InputError(teach("the same prompts on both sides", got, "use welch_interval for different prompts"))
    with np.errstate(invalid="ignore"):
        return student_interval(first - second, axis=axis, level=level)


def welch_interval(a: Values, b: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean of a less mean of b, each of its own prompts, and Welch's interval; three values on each side are needed.

        difference ± t(ν) · √(u + v),   u = s_a²/n_a,  v = s_b²/n_b,   ν = (u + v)² / (u²/(n_a − 1) + v²/(n_b − 1))

    >>> [round(float(part), 4) for part in welch_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])]
    [2.0, -2.1554, 6.1554]
    """
    _check_level(level)
    moments = [_moments(np.moveaxis(np.asarray(part, dtype=np.float64), axis, 0)) for part in (a, b)]
    (first, spread_a, count_a), (second, spread_b, count_b) = moments
    with np.errstate(invalid="ignore", divide="ignore"):
        u, v = spread_a**2 / count_a, spread_b**2 / count_b
        freedom = (u + v) ** 2 / (u**2 / (count_a - 1) + v**2 / (count_b - 1))
        enough = np.minimum(count_a, count_b) >= LEAST_VALUES
        # without any spread the degrees of freedom are 0/0, and the interval has no width whatever they are
        half = student_quantile(np.where(u + v > 0, freedom, 1.0), level) * np.sqrt(u + v)
        half, difference = np.where(enough, half, np.nan), np.asarray(first - second)
        return Band(difference, np.asarray(difference - half), np.asarray(difference + half))


def smallest_difference(share: float, trials: int, *, discordant: float | None = None, power: float = 0.8) -> float:
    """Difference of two shares right on the same prompts that a test at 5 % finds with this power.

        (z of 97.5 % + z of the power) · √(d / n),   d the share of prompts on which the two differ

    Two models that are right independently of one another differ on 2 p (1 − p) of them, the largest share that
    models of equal accuracy should have; those that err alike differ on fewer.

    Args:
        share: share right, p, of either.
        trials: prompts, n.
        discordant: d, where it was measured.
        power: share of repetitions in which such a difference would be found.

    >>> round(smallest_difference(0.8, 2000), 4), round(smallest_difference(0.8, 2000, discordant=0.1), 4)
    (0.0354, 0.0198)
    """
    from scipy.special import ndtri

    if not (0 <= share <= 1 and trials >= 1 and 0 < power < 1 and 0 <= (discordant or 0) <= 1):
        got = f"{share} of {trials}, power {power}"
        raise InputError(teach("shares from 0 to 1 and at least one trial", got, "pass a share and a count"))
    differ = 2 * share * (1 - share) if discordant is None else discordant
    return (normal_quantile(LEVEL) + float(ndtri(power))) * math.sqrt(differ / trials)


def proportion_interval(successes: Values, trials: Values, *, level: float = LEVEL, exact: bool = False) -> Band:
    """Share of successes and Wilson's interval, which has a width at 0 and 1 too; from one trial on, NaN without any.

        (p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n)

    Args:
        successes: how many trials came out right.
        trials: how many there were.
        level: nominal coverage; Wilson's is met on average over p, not at every p.
        exact: Clopper and Pearson's interval instead, which covers at least `level` at every p and is wider.

    >>> [round(float(part), 4) for part in proportion_interval(10, 10)]
    [1.0, 0.7225, 1.0]
    >>> [round(float(part), 4) for part in proportion_interval(10, 10, exact=True)]
    [1.0, 0.6915, 1.0]
    """
    _check_level(level)
    right, count = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    if ((right < 0) | (right > count)).any():
        raise InputError(teach("0 <= successes <= trials", f"{successes} of {trials}", "pass counts, not shares"))
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(count > 0, right / count, np.nan)
    low, high = _clopper_pearson(right, count, level) if exact else _wilson(share, count, level)
    return Band(share, np.where(count > 0, low, np.nan), np.where(count > 0, high, np.nan))


def share_interval(values: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Share of ones among right (1) and wrong (0) along an axis, and Wilson's interval; NaN is left out.

    >>> [round(float(part), 4) for part in share_interval([1.0, 1.0, 0.0, float("nan")])]
    [0.6667, 0.2077, 0.9385]
    """
    table = np.asarray(values, dtype=np.float64)
    return proportion_interval(np.nansum(table, axis), (~np.isnan(table)).sum(axis), level=level)


def paired_proportion_interval(a: Values, b: Values, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Share right in a less share right in b, on the same prompts, and Bonett and Price's adjusted Wald interval.

        d ± z √((p + q − d²) / (n + 2)),   p = (only a right + 1)/(n + 2),  q = (only b right + 1)/(n + 2),  d = p − q

    Sixty prompts on which both agree do not prove that there is no difference: unlike Student's, the interval has a
    width there. Its middle d is drawn a little towards zero; `mean` is the plain difference. NaN prompts are left out.

    >>> [round(float(part), 3) for part in paired_proportion_interval([1.0] * 60, [1.0] * 60)]
    [0.0, -0.045, 0.045]
    """
    _check_level(level)
    first, second = (np.moveaxis(np.asarray(part, dtype=np.float64), axis, 0) for part in (a, b))
    if first.shape != second.shape:
        got = f"shapes {first.shape} and {second.shape}"
        raise InputError(teach("the same prompts on both sides", got, "pair the prompts first"))
    known = ~(np.isnan(first) | np.isnan(second))
    wrong = known & ~(np.isin(first, (0, 1)) & np.isin(second, (0, 1)))
    if wrong.any():
        raise InputError(teach("right (1) or wrong (0) per prompt", "other values", "use paired_interval for numbers"))
    count = known.sum(0)
    won, lost = (known & (first > second)).sum(0), (known & (first < second)).sum(0)
    p, q = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = normal_quantile(level) * np.sqrt((p + q - (p - q) ** 2) / (count + 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > 0, (won - lost) / count, np.nan)
    bounds = (np.where(count > 0, np.clip(p - q + side * half, -1, 1), np.nan) for side in (-1, 1))
    return Band(mean, *bounds)


def nested_interval(values: Values, errors: Values, prompts: int, *, axis: int = 0, level: float = LEVEL) -> Band:
    """Mean over trainings that were tested on the same prompts, and its interval for other trainings and other prompts.

        m ± t √(s²/n + e²),   s² the variance of the n values, e² the mean of their squared errors over prompts

    The trainings share their prompts, so that their errors do not average out; some of s² is of prompts too, which
    makes the interval a little wide. Welch and Satterthwaite give t its freedom. NaN below three trainings.

    Args:
        values: one per training.
        errors: standard error of each over prompts.
        prompts: number of prompts.
        axis: of the trainings.
        level: of the interval.

    >>> [round(float(part), 3) for part in nested_interval([0.4, 0.5, 0.6], [0.0] * 3, 100)]  # as Student's
    [0.5, 0.252, 0.748]
    >>> [round(float(part), 3) for part in nested_interval([0.5] * 3, [0.1] * 3, 10**6)]
    [0.5, 0.304, 0.696]
    """
    _check_level(level)
    mean, between, within, count = _nested(values, errors, axis)
    if count < LEAST_VALUES:
        return Band(mean, np.full(mean.shape, np.nan), np.full(mean.shape, np.nan))
    half = _nested_half([(between, count - 1), (within, max(prompts - 1, 1))], level)
    return Band(mean, mean - half, mean + half)


def nested_difference(
    a: tuple[Values, Values], b: tuple[Values, Values], prompts: int, *, axis: int = 0, level: float = LEVEL
) -> Band:
    """Mean of one model's trainings less another's, all tested on the same prompts, for other trainings and prompts.

        difference ± t √(s_a²/n_a + s_b²/n_b + e_a² + e_b²)

    with the letters of `nested_interval`. What two models get wrong on the same prompts usually goes together, which
    makes the interval a little wide. NaN below three trainings on either side.

    Args:
        a: values of one model, one per training, and the standard error of each over prompts.
        b: the same of the other model.
        prompts: number of prompts.
        axis: of the trainings.
        level: of the interval.

    >>> seeds = [2.0, 4.0, 6.0], [1.0, 2.0, 3.0]  # without errors as Welch's
    >>> [round(float(part), 4) for part in nested_difference((seeds[0], [0.0] * 3), (seeds[1], [0.0] * 3), 100)]
    [2.0, -2.1554, 6.1554]
    >>> [round(float(part), 3) for part in nested_difference(([0.5] * 3, [0.1] * 3), ([0.2] * 3, [0.0] * 3), 10**6)]
    [0.3, 0.104, 0.496]
    """
    _check_level(level)
    first, between_a, within_a, count_a = _nested(*a, axis)
    second, between_b, within_b, count_b = _nested(*b, axis)
    difference = np.asarray(first - second)
    if min(count_a, count_b) < LEAST_VALUES:
        return Band(difference, np.full(difference.shape, np.nan), np.full(difference.shape, np.nan))
    over = max(prompts - 1, 1)
    half = _nested_half([(between_a, count_a - 1), (between_b, count_b - 1), (within_a, over), (within_b, over)], level)
    return Band(difference, difference - half, difference + half)


def _nested(values: Values, errors: Values, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Mean of trainings, its variance over trainings and over prompts, and their number."""
    table, spread = (np.moveaxis(np.asarray(part, dtype=np.float64), axis, 0) for part in (values, errors))
    count = len(table)
    between = table.var(0, ddof=1) / count if count > 1 else np.full(table.shape[1:], np.nan)
    mean, between, within = (np.asarray(part) for part in (table.mean(0), between, np.square(spread).mean(0)))
    return mean, between, within, count


def _nested_half(parts: Sequence[tuple[np.ndarray, int]], level: float) -> np.ndarray:
    """Half the width of an interval whose variance is a sum of parts, each with its degrees of freedom."""
    total = np.asarray(sum(variance for variance, _ in parts))
    with np.errstate(invalid="ignore", divide="ignore"):
        freedom = total**2 / np.asarray(sum(variance**2 / degrees for variance, degrees in parts))
    quantile = student_quantile(np.where(np.isfinite(freedom), np.maximum(freedom, 1), np.inf), level)
    return np.asarray(quantile * np.sqrt(total))


def clustered_interval(
    values: Values,
    rows: Values,
    columns: Values,
    *,
    weights: Values | None = None,
    uncounted: int = 0,
    level: float = LEVEL,
) -> Band:
    """Mean of trials that share their rows and their columns, and its interval for other rows and other columns.

        m ± t(g − 1) √(V_rows + V_columns − V_both),   V = c / (c − 1) · Σ over its c clusters (Σ w e)² / (Σ w)²

    Trials are, for example, images (rows) into which images of another class (columns) are pasted: each of a few of
    those is used many times, and takes its effect along. e are residuals, g is the smaller number of rows and columns.
    The variance is at least that of either (Cameron, Gelbach and Miller 2011). NaN below three rows or columns.

    Args:
        values: one number per trial.
        rows: which row each trial has.
        columns: which column.
        weights: of the trials in the mean; all alike where there are none.
        uncounted: of the rows and of the columns, those that were added to the data, which give t no freedom.
        level: nominal coverage.

    >>> band = clustered_interval([1.0, 2.0, 3.0, 4.0], [0, 1, 2, 3], [0, 1, 2, 3])  # nothing is shared: as Student's
    >>> [round(float(part), 4) for part in band]
    [2.5, 0.4457, 4.5543]
    >>> twice = clustered_interval([1.0, 1.0, 2.0, 2.0, 3.0, 3.0], range(6), [0, 0, 1, 1, 2, 2])  # as of three values
    >>> [round(float(part), 4) for part in twice]
    [2.0, -0.4841, 4.4841]
    """
    _check_level(level)
    table = np.asarray(values, dtype=np.float64).ravel()
    share = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    if not len(table):
        return Band(*(np.asarray(np.nan),) * 3)
    share = share / share.sum()
    mean = np.asarray(share @ table)
    first, second = (np.unique(np.asarray(part).ravel(), return_inverse=True)[1] for part in (rows, columns))
    fewest = min(int(part.max()) + 1 for part in (first, second)) - uncounted
    if fewest < LEAST_VALUES:
        return Band(mean, np.asarray(np.nan), np.asarray(np.nan))
    off = share * (table - mean)
    both = first * (int(second.max()) + 1) + second
    variance = [_clustered(off, part) for part in (first, second, np.unique(both, return_inverse=True)[1])]
    total = max(variance[0] + variance[1] - variance[2], *variance[:2])
    half = student_quantile(np.asarray(fewest - 1.0), level) * np.sqrt(total)
    return Band(mean, np.asarray(mean - half), np.asarray(mean + half))


def _clustered(off: np.ndarray, cluster: np.ndarray) -> float:
    """Variance of a mean whose residuals, weighted, add up within clusters."""
    sums = np.bincount(cluster, off)
    return float(np.square(sums).sum() * len(sums) / (len(sums) - 1))


def corrected_resampled_t(
    differences: Values, *, train: int | float, test: int | float, axis: int = 0, level: float = LEVEL
) -> Band:
    """Mean over repeated random splits and Nadeau and Bengio's interval of it, which counts that splits share prompts.

        mean ± t(k − 1) · s · √(1/k + test/train)

    Student's interval over k splits takes them for k independent samples of prompts, and shrinks to nothing as k grows;
    the added test/train holds it open. Below three splits the bounds are NaN, as nothing measures s.

    Args:
        differences: one number per split along `axis`: a test accuracy, or a difference of two on the same split.
        train: training prompts of a split.
        test: test prompts of a split.
        axis: the axis of splits.
        level: nominal coverage.

    C. Nadeau and Y. Bengio, Inference for the Generalization Error, Machine Learning 52 (2003), 239-281.

    >>> [round(float(part), 4) for part in corrected_resampled_t([0.1, 0.2, 0.3], train=80, test=20)]
    [0.2, -0.1286, 0.5286]
    """
    _check_level(level)
    if not (train > 0 and test > 0):
        raise InputError(teach("train > 0 and test > 0 prompts per split", f"{train} and {test}", "pass the counts"))
    mean, spread, count = _moments(np.moveaxis(np.asarray(differences, dtype=np.float64), axis, 0))
    half = _student(count, level) * spread * np.sqrt(1 / np.maximum(count, 1) + test / train)
    with np.errstate(invalid="ignore"):
        return Band(mean, np.asarray(mean - half), np.asarray(mean + half))


def student_quantile(freedom: Values, level: float = LEVEL) -> np.ndarray:
    """Half width, in standard errors, of Student's two-sided interval at these degrees of freedom.

    >>> student_quantile([2, 7, 1000]).round(3).tolist()
    [4.303, 2.365, 1.962]
    """
    from scipy.special import stdtrit  # a fifth of a second, which reading a stored run need not spend

    return np.asarray(stdtrit(np.asarray(freedom, dtype=np.float64), (1 + level) / 2))


@functools.lru_cache(256)
def _one_quantile(freedom: int, level: float) -> float:
    """Every metric of a run asks for the same few."""
    return float(student_quantile(freedom, level))


def normal_quantile(level: float = LEVEL) -> float:
    """Half width, in standard errors, of the normal distribution's two-sided interval.

    >>> round(normal_quantile(), 6)
    1.959964
    """
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(teach("a level between 0 and 1", f"{level}", "pass 0.95 for 95 %"))


def _moments(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, standard deviation (n − 1) and count of what is not NaN along the first axis."""
    present = ~np.isnan(table)
    count = np.asarray(present.sum(0))
    mean = np.where(count > 0, np.where(present, table, 0.0).sum(0) / np.maximum(count, 1), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.where(present, (table - mean) ** 2, 0.0).sum(0)
        spread = np.asarray(np.sqrt(np.where(count > 1, squares / np.maximum(count - 1, 1), np.nan)))
    return mean, spread, count


def _student(count: np.ndarray, level: float) -> np.ndarray:
    """Student's quantile for a mean of this many values; NaN below three."""
    sizes, place = np.unique(count, return_inverse=True)  # the inverse of a distribution is slow; few counts differ
    quantiles = [_one_quantile(int(n) - 1, level) if n >= LEAST_VALUES else math.nan for n in sizes]
    return np.asarray(np.array(quantiles, dtype=np.float64)[place]).reshape(count.shape)


def _wilson(share: np.ndarray, count: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    z = normal_quantile(level)
    with np.errstate(invalid="ignore", divide="ignore"):
        middle, whole = share + z**2 / (2 * count), 1 + z**2 / count
        half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
        low, high = ((middle - half) / whole).clip(0, 1), ((middle + half) / whole).clip(0, 1)
    return np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high)  # exactly so, where rounding leaves 5e-17


def _clopper_pearson(right: np.ndarray, count: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    from scipy.special import betaincinv

    tail, wrong = (1 - level) / 2, count - right
    low = np.where(right > 0, betaincinv(np.maximum(right, 1), wrong + 1, tail), 0.0)
    high = np.where(wrong > 0, betaincinv(right + 1, np.maximum(wrong, 1), 1 - tail), 1.0)
    return low, high
