"""What a factor does over a grid of trainings: one linear model, its intervals over seeds; rank correlations over rows.

    y = intercept + Σ effect_k x_k + what the seed brings + rest

A grid has the same cells for every seed, and models of one seed see the same batches. So the model is fitted seed by
seed, which takes out what the seed brings, and an effect is the mean of its fits with Student's 95 % interval over
seeds: nothing is taken to be equally noisy in all cells. Two seeds give no such interval: there `pooled_effects` and
`contrast` take the scatter about the model, or of seeds about each cell, to be the same everywhere. NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.intervals import LEAST_VALUES, LEVEL, student_interval, student_quantile

INTERCEPT = "intercept"
ROUNDING = 1e-12
"""Share of the greatest value below which an effect is rounding."""


@dataclass(frozen=True)
class Effect:
    """What a factor does.

    Attributes:
        mean: over seeds.
        low: bound of the 95 % interval; NaN below three seeds.
        high: likewise.
        by_seed: fit of each seed.
        error: standard error of the mean.
        freedom: degrees of freedom of the error.
    """

    mean: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    error: float = float("nan")
    freedom: float = float("nan")

    @property
    def p_value(self) -> float:
        """Chance of a mean as far from 0 where there is no effect; NaN without an error.

        >>> round(Effect(1.0, 0.1, 1.9, (), error=0.4, freedom=8).p_value, 4)
        0.0369
        """
        from scipy.special import stdtr

        if self.error == 0:
            return float(self.mean == 0)
        return float(2 * stdtr(self.freedom, -abs(self.mean) / self.error))

    @property
    def sign(self) -> bool | None:
        """True where it is shown to be above 0, False below, None where neither."""
        return True if self.low > 0 else False if self.high < 0 else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, None for NaN."""
        bounds = [value if np.isfinite(value) else None for value in (self.mean, self.low, self.high)]
        return {**dict(zip(("mean", "low", "high"), bounds, strict=True)), "seeds": len(self.by_seed)}


def over_seeds(values: Sequence[float] | np.ndarray) -> Effect:
    """Mean of one number per seed with its interval.

    >>> effect = over_seeds([1.0, 2.0, 3.0])
    >>> effect.mean, round(effect.low, 2), effect.sign
    (2.0, -0.48, None)
    """
    known = np.asarray(values, dtype=np.float64)
    band = student_interval(known)
    several = len(known) >= LEAST_VALUES
    error = float(known.std(ddof=1) / np.sqrt(len(known))) if several else float("nan")
    bounds = (float(band.mean), float(band.low), float(band.high))
    return Effect(*bounds, tuple(known.tolist()), error, float(len(known) - 1) if several else float("nan"))


def log_odds(share: np.ndarray, count: int | np.ndarray) -> np.ndarray:
    """Ln of right over wrong answers, half an answer added to each, so that none and all are finite.

    >>> log_odds(np.array([0.5, 1.0]), 10).round(2).tolist()
    [0.0, 3.04]
    """
    right = np.asarray(share, dtype=np.float64) * count
    return np.asarray(np.log((right + 0.5) / (count - right + 0.5)))


def effects(
    values: np.ndarray, factors: Mapping[str, Sequence[float | int]], seeds: Sequence[int]
) -> dict[str, Effect]:
    """Effects of factors on one value per cell, and the intercept: what a cell has whose factors are all 0.

    Args:
        values: one per cell (cell,), such as log-odds of accuracy.
        factors: by name a number per cell: 0 and 1 for a switch, products of these for interactions.
        seeds: of each cell; every seed has the same cells.

    Raises:
        InputError: cells are missing for a seed, a value is not finite, or the factors do not distinguish cells enough.

    >>> factors, seeds = {"pole": [0, 1, 0, 1] * 3, "deep": [0, 0, 1, 1] * 3}, [0] * 4 + [1] * 4 + [2] * 4
    >>> fitted = effects(np.array([1.0, 3.0, 2.0, 4.0] * 3), factors, seeds)
    >>> {name: round(effect.mean, 6) for name, effect in fitted.items()}
    {'intercept': 1.0, 'pole': 2.0, 'deep': 1.0}
    """
    names = [INTERCEPT, *factors]
    table = np.stack([np.ones(len(values)), *(np.asarray(factors[name], dtype=np.float64) for name in names[1:])], 1)
    fits = []
    first: np.ndarray | None = None
    for seed in dict.fromkeys(seeds):
        mine = np.flatnonzero(np.asarray(seeds) == seed)
        design, y = table[mine], np.asarray(values, dtype=np.float64)[mine]
        rows = np.unique(design, axis=0)
        if not np.isfinite(y).all():
            got = f"{int((~np.isfinite(y)).sum())} values of seed {seed} that are not finite"
            raise InputError(
                teach("a finite value for every cell", got, "leave out the cells of a model that diverged")
            )
        if first is not None and (rows.shape != first.shape or (rows != first).any()):
            raise InputError(teach("the same cells for every seed", f"others for seed {seed}", "train what is missing"))
        if np.linalg.matrix_rank(design) < len(names):
            got = f"{len(rows)} kinds of cells for {len(names)} effects"
            raise InputError(teach("factors that the cells distinguish", got, "leave out a factor, or train more rows"))
        first = rows
        fits.append(np.linalg.lstsq(design, y, rcond=None)[0])
    columns = np.stack(fits)
    columns[np.abs(columns) < ROUNDING * np.abs(values).max()] = 0  # equal models differ by nothing
    return {name: over_seeds(columns[:, place]) for place, name in enumerate(names)}


def pooled_effects(
    values: np.ndarray, factors: Mapping[str, Sequence[float | int]], seeds: Sequence[int], *, level: float = LEVEL
) -> dict[str, Effect]:
    """The same effects, with intervals from the scatter about the fit, one intercept for each seed.

    What the model does not explain counts as noise, and is taken to be alike in all cells; so intervals are there from
    one seed on, and are NaN where no scatter is left over. The intercept has none.

    >>> factors, seeds = {"x": [0.0, 1.0, 2.0, 3.0]}, [0, 0, 0, 0]
    >>> slope = pooled_effects(np.array([0.0, 1.1, 1.9, 3.0]), factors, seeds)["x"]
    >>> round(slope.mean, 3), round(slope.low, 3), round(slope.high, 3)
    (0.98, 0.797, 1.163)
    """
    fitted = effects(values, factors, seeds)
    table = np.stack([np.asarray(factors[name], dtype=np.float64) for name in factors], 1)
    places = [np.flatnonzero(np.asarray(seeds) == seed) for seed in dict.fromkeys(seeds)]
    slopes = np.array([fitted[name].mean for name in factors])
    y = np.asarray(values, dtype=np.float64)
    centred = [(y[mine] - y[mine].mean(), table[mine] - table[mine].mean(0)) for mine in places]
    rest = np.concatenate([own - columns @ slopes for own, columns in centred])
    freedom = len(y) - len(places) - len(slopes)
    errors = np.full(len(slopes), np.nan)
    if freedom > 0:
        inverse = np.linalg.inv(sum(columns.T @ columns for _, columns in centred))
        errors = np.sqrt(rest @ rest / freedom * np.diag(inverse))
    half = float(student_quantile(freedom, level)) * errors if freedom > 0 else errors
    bounds = {name: (slopes[at] - half[at], slopes[at] + half[at]) for at, name in enumerate(factors)}
    bounds[INTERCEPT] = (np.nan, np.nan)
    return {
        name: replace(effect, low=float(bounds[name][0]), high=float(bounds[name][1]))
        for name, effect in fitted.items()
    }


def contrast(
    values: np.ndarray,
    kinds: Sequence[Any],
    seeds: Sequence[int],
    weights: Mapping[Any, float | int],
    *,
    level: float = LEVEL,
) -> Effect:
    """A weighted sum of means of kinds of cells, such as one kind less another, from two seeds on.

    Every kind has a mean and every seed a shift that is the same for all kinds; the scatter that is left over, of all
    kinds together, gives the interval with (kinds − 1)(seeds − 1) degrees of freedom.

    Args:
        values: one per cell (cell,).
        kinds: of each cell; every kind has every seed once.
        seeds: of each cell.
        weights: by kind; they add up to 0.
        level: of the interval.

    Raises:
        InputError: a kind lacks a seed, a value is not finite, or the weights do not add up to 0.

    >>> one = contrast(np.array([1.0, 1.2, 2.0, 2.3]), ["a", "a", "b", "b"], [0, 1, 0, 1], {"b": 1, "a": -1})
    >>> round(one.mean, 3), [round(value, 3) for value in one.by_seed], round(one.low, 2)
    (1.05, [1.0, 1.1], 0.41)
    """
    rows, columns = list(dict.fromkeys(kinds)), list(dict.fromkeys(seeds))
    grid = np.full((len(rows), len(columns)), np.nan)
    for kind, seed, value in zip(kinds, seeds, values, strict=True):
        grid[rows.index(kind), columns.index(seed)] = value
    if len(values) != grid.size or not np.isfinite(grid).all():
        got = f"{len(values)} values, {int(np.isfinite(grid).sum())} of {grid.size} kinds and seeds finite"
        raise InputError(teach("a finite value for every kind and seed, each once", got, "train what is missing"))
    if abs(sum(weights.values())) > 1e-9 or not set(weights) <= set(rows):
        raise InputError(teach("weights of known kinds that add up to 0", str(dict(weights)), "correct the weights"))
    factors = np.array([weights.get(kind, 0.0) for kind in rows])
    by_seed = factors @ grid
    rest = grid - grid.mean(1, keepdims=True) - grid.mean(0) + grid.mean()
    freedom = (len(rows) - 1) * (len(columns) - 1)
    error = np.sqrt((rest**2).sum() / freedom * (factors**2).sum() / len(columns)) if freedom else np.nan
    half = float(student_quantile(freedom, level) * error) if freedom else np.nan
    mean = float(by_seed.mean())
    return Effect(mean, mean - half, mean + half, tuple(by_seed.tolist()), float(error), float(freedom or np.nan))


def holm(errors: Sequence[float]) -> list[float]:
    """P-values of several questions, so that the chance of one wrong answer among all is bounded (Holm 1979).

    >>> [round(value, 3) for value in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    known = np.asarray(errors, dtype=np.float64)
    order = np.argsort(known)
    raised = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1))
    adjusted = np.empty_like(known)
    adjusted[order] = np.minimum(raised, 1)
    return [float(value) for value in adjusted]


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman's correlation with percentiles of a bootstrap over rows.

    Attributes:
        value: over all cells.
        low: 2.5 % of the draws.
        high: 97.5 % of them.
        rows: rows that were drawn from. With five, ten and sixteen rows of five seeds the percentiles cover 95, 94 and
            92 % where there is no correlation, 95, 97 and 95 % at .6, and 77, 93 and 95 % at .9 (150 grids each).
    """

    value: float
    low: float
    high: float
    rows: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, None for NaN."""
        numbers = {"value": self.value, "low": self.low, "high": self.high}
        return {key: value if np.isfinite(value) else None for key, value in numbers.items()} | {"rows": self.rows}


def rank_correlation(
    x: np.ndarray, y: np.ndarray, rows: Sequence[Any], *, draws: int = 4000, seed: int = 0
) -> RankCorrelation:
    """Whether cells that have more of one thing have more of another, whole rows drawn with replacement.

    Args:
        x: one number per cell (cell,).
        y: another.
        rows: what each cell is a seed of; seeds of a row are drawn together.
        draws: of the bootstrap.
        seed: of the draws.

    >>> ranks = rank_correlation(np.arange(6.0), np.arange(6.0) ** 3, ["a", "a", "b", "b", "c", "c"])
    >>> ranks.value, ranks.rows
    (1.0, 3)
    """
    kinds = list(dict.fromkeys(rows))
    numbers = np.random.default_rng(seed).integers(0, len(kinds), (draws, len(kinds)))
    times = np.stack([(numbers == number).sum(axis=1) for number in range(len(kinds))], axis=1)  # a draw has each row
    drawn = _drawn_spearman(np.asarray(x), np.asarray(y), times[:, [kinds.index(row) for row in rows]])
    known = drawn[np.isfinite(drawn)]
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(known, [tail, 100 - tail]) if len(known) else (np.nan, np.nan)
    return RankCorrelation(spearman(np.asarray(x), np.asarray(y)), float(low), float(high), len(kinds))


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Correlation of ranks, ties shared; NaN where one of them is constant.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 4.0])), 2)
    0.8
    """
    a, b = (_ranks(np.asarray(side, dtype=np.float64)) for side in (x, y))
    if a.std() == 0 or b.std() == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _drawn_spearman(x: np.ndarray, y: np.ndarray, times: np.ndarray) -> np.ndarray:
    """`spearman` of many draws at once, `times` (draw, cell) says how often each has a cell."""
    centred = []
    for side in (x, y):
        places = _ranks(np.asarray(side, dtype=np.float64))
        below = (places < places[:, None]) + (places == places[:, None]) / 2  # how far another cell moves one up
        ranks = times @ below.T
        centred.append(ranks - (times * ranks).sum(axis=1, keepdims=True) / times.sum(axis=1, keepdims=True))
    a, b = centred
    spread = (times * a**2).sum(axis=1) * (times * b**2).sum(axis=1)
    together = (times * a * b).sum(axis=1)
    return np.clip(np.divide(together, np.sqrt(spread), out=np.full(len(times), np.nan), where=spread > 0), -1, 1)


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[inverse]
