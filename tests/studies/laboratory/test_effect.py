"""Effects over grids of trainings, on simulated grids whose effects are known; ranks against scipy's."""

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import linregress, spearmanr, t, ttest_1samp

from repflow.core.errors import InputError
from repflow.studies.laboratory.effect import (
    contrast,
    effects,
    holm,
    log_odds,
    over_seeds,
    pooled_effects,
    rank_correlation,
    spearman,
)

TRUE = {"intercept": -0.5, "state": 0.3, "fixed": 0.0, "pole": 1.2, "deep": -0.4, "pole at depth": 0.8}
ROWS = {
    "none/16": (0, 0, 0),
    "none/18": (1, 0, 0),
    "placebo/16": (0, 1, 0),
    "both/16": (0, 1, 1),
    "both+/16": (1, 1, 1),
}


def grid(seeds):
    cells = [(row, deep, seed) for seed in range(seeds) for row in ROWS for deep in (0, 1)]
    names = ("state", "fixed", "pole")
    factors = {name: [ROWS[row][place] for row, _, _ in cells] for place, name in enumerate(names)}
    factors |= {"deep": [deep for _, deep, _ in cells]}
    factors["pole at depth"] = [a * b for a, b in zip(factors["pole"], factors["deep"], strict=True)]
    return cells, factors, [seed for _, _, seed in cells]


def simulated(rng, seeds=5, queries=16_000):
    """Accuracies of trainings: true log-odds, a seed's own shift, noise larger in some rows, binomial counts."""
    cells, factors, own = grid(seeds)
    shift = 0.5 * rng.standard_normal(seeds)
    odds = TRUE["intercept"] + sum(TRUE[name] * np.array(values) for name, values in factors.items())
    spread = np.array([0.3 if row.startswith("both") else 0.1 for row, _, _ in cells])
    odds = odds + shift[own] + spread * rng.standard_normal(len(cells))
    right = rng.binomial(queries, 1 / (1 + np.exp(-odds)))
    return log_odds(right / queries, queries), factors, own


def test_intervals_cover_the_true_effects_and_are_as_wide_as_they_must_be():
    rng, draws = np.random.default_rng(0), 600
    inside = dict.fromkeys(TRUE, 0)
    found_pole = 0
    for _ in range(draws):
        fitted = effects(*simulated(rng))
        for name, true in TRUE.items():
            inside[name] += fitted[name].low <= true <= fitted[name].high
        found_pole += fitted["pole"].sign is True
    assert all(0.92 <= count / draws <= 0.98 for count in inside.values()), inside
    assert found_pole > 0.95 * draws


def test_a_seed_that_is_easier_for_all_changes_no_effect():
    cells, factors, own = grid(4)
    plain = np.random.default_rng(1).standard_normal(len(cells))
    moved = plain + 3.0 * np.array(own)
    one, other = effects(plain, factors, own), effects(moved, factors, own)
    for name in factors:
        assert one[name].by_seed == pytest.approx(other[name].by_seed)
    assert other["intercept"].mean == pytest.approx(one["intercept"].mean + 3.0 * 1.5)


def test_equal_models_differ_by_nothing():
    """Least squares leaves some 1e-17 where a factor changes no value, and seeds that agree on it would give a sign."""
    _, factors, own = grid(4)
    values = np.array([0.1, 0.3, 0.7, 0.9])[own]
    for name, effect in effects(values, factors, own).items():
        if name != "intercept":
            assert (effect.mean, effect.low, effect.high, effect.sign) == (0.0, 0.0, 0.0, None)


def test_the_fit_is_that_of_one_regression_with_seeds_as_blocks():
    values, factors, own = simulated(np.random.default_rng(2))
    table = np.stack([np.array(column, dtype=float) for column in factors.values()], 1)
    blocks = np.eye(5)[own]
    whole = np.linalg.lstsq(np.concatenate([table, blocks], 1), values, rcond=None)[0]
    assert [effects(values, factors, own)[name].mean for name in factors] == pytest.approx(whole[: len(factors)])


def test_what_cannot_be_fitted_is_refused():
    values, factors, own = simulated(np.random.default_rng(3))
    with pytest.raises(InputError, match="the same cells for every seed"):
        effects(values[:-1], {name: column[:-1] for name, column in factors.items()}, own[:-1])
    with pytest.raises(InputError, match="factors that the cells distinguish"):
        effects(values, {**factors, "again": factors["pole"]}, own)
    with pytest.raises(InputError, match="1 values of seed 0 that are not finite"):
        effects(np.where(np.arange(len(values)) == 3, np.nan, values), factors, own)
    assert np.isnan(over_seeds([1.0, 2.0]).low)


def test_ranks_are_those_of_scipy_with_ties_too():
    rng = np.random.default_rng(4)
    for _ in range(20):
        x, y = rng.integers(0, 6, 15).astype(float), rng.standard_normal(15)
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert np.isnan(spearman(np.ones(4), np.arange(4.0)))


def test_draws_at_once_are_those_one_by_one():
    rng = np.random.default_rng(8)
    x, y = rng.integers(0, 4, 12).astype(float), rng.standard_normal(12)
    rows = np.arange(4).repeat(3)
    ranks = rank_correlation(x, y, rows.tolist(), draws=50, seed=2)
    slow = []
    for numbers in np.random.default_rng(2).integers(0, 4, (50, 4)):
        cells = np.concatenate([np.flatnonzero(rows == number) for number in numbers])
        slow.append(spearmanr(x[cells], y[cells]).statistic)
    assert (ranks.low, ranks.high) == pytest.approx(tuple(np.nanpercentile(slow, [2.5, 97.5])), abs=1e-12)


def test_the_bootstrap_over_rows_rarely_finds_what_is_not_there():
    """Five rows of five seeds; a bootstrap over cells would take seeds of a row for independent and find it often."""
    rng, found, apart, draws = np.random.default_rng(5), 0, 0, 60
    for _ in range(draws):
        pair = rng.standard_normal((5, 2)).repeat(5, 0) + 0.05 * rng.standard_normal((25, 2))
        for rows, count in ((np.arange(5).repeat(5).tolist(), 0), (list(range(25)), 1)):
            ranks = rank_correlation(*pair.T, rows, draws=100)
            sure = ranks.low > 0 or ranks.high < 0
            found, apart = found + (sure and not count), apart + (sure and count)
    assert found <= 0.15 * draws
    assert apart > 0.3 * draws


def test_pooled_effects_are_those_of_scipys_least_squares():
    """One intercept for each seed, all slopes shared; standard errors from curve_fit's covariance."""
    rng = np.random.default_rng(3)
    values, factors, own = simulated(rng, seeds=2)
    names = list(factors)
    columns = np.array(
        [factors[name] for name in names] + [[seed == one for one in own] for seed in (0, 1)], dtype=float
    )

    def model(x, *parts):
        return np.array(parts) @ x

    best, covariance = curve_fit(model, columns, values, p0=np.zeros(len(columns)))
    width = t.ppf(0.975, len(values) - len(columns)) * np.sqrt(np.diag(covariance))
    fitted = pooled_effects(values, factors, own)
    for place, name in enumerate(names):
        assert fitted[name].mean == pytest.approx(best[place], abs=1e-6)
        assert [fitted[name].low, fitted[name].high] == pytest.approx(
            [best[place] - width[place], best[place] + width[place]], abs=1e-5
        )


def test_one_factor_and_one_seed_are_a_line():
    x, y = np.arange(6.0), np.array([0.1, 0.9, 2.3, 2.8, 4.4, 4.6])
    line, slope = linregress(x, y), pooled_effects(y, {"x": x.tolist()}, [0] * 6)["x"]
    assert slope.mean == pytest.approx(line.slope)
    assert slope.high - slope.mean == pytest.approx(t.ppf(0.975, 4) * line.stderr)


def test_a_contrast_is_that_of_two_ways_without_interaction():
    rng = np.random.default_rng(4)
    kinds = [(depth, window) for depth in (4, 8, 16, 32) for window in (256, 1024)]
    cells = [(kind, seed) for kind in kinds for seed in (0, 1)]
    values = rng.standard_normal(len(cells))
    columns = [[float(cell[0] == kind) for cell in cells] for kind in kinds]
    table = np.array([*columns, [float(seed) for _, seed in cells]])
    best, covariance = curve_fit(lambda x, *parts: np.array(parts) @ x, table, values, p0=np.zeros(len(table)))
    weights = {(32, 256): 1, (16, 256): -1, (32, 1024): -1, (16, 1024): 1}
    row = np.array([*(weights.get(kind, 0) for kind in kinds), 0.0])
    half = t.ppf(0.975, 7) * np.sqrt(row @ covariance @ row)
    ours = contrast(values, [kind for kind, _ in cells], [seed for _, seed in cells], weights)
    assert ours.mean == pytest.approx(row @ best, abs=1e-6)
    assert ours.high - ours.mean == pytest.approx(half, abs=1e-5)
    assert ours.p_value == pytest.approx(2 * t.sf(abs(ours.mean) / (half / t.ppf(0.975, 7)), 7), abs=1e-6)


def test_the_chance_of_a_mean_over_seeds_is_scipys():
    values = [0.2, 0.5, 0.9, 0.4]
    assert over_seeds(values).p_value == pytest.approx(ttest_1samp(values, 0).pvalue)
    assert np.isnan(over_seeds([1.0, 2.0]).p_value)


def test_contrasts_of_two_seeds_cover():
    rng, draws, inside = np.random.default_rng(5), 1000, 0
    kinds, seeds = [kind for kind in "abcdefgh" for _ in range(2)], [0, 1] * 8
    for _ in range(draws):
        values = rng.standard_normal(16) + np.array(seeds) * rng.standard_normal()
        one = contrast(values, kinds, seeds, {"a": 1, "b": -1})
        inside += one.low <= 0 <= one.high
    assert 0.93 <= inside / draws <= 0.97


@pytest.mark.parametrize(
    ("values", "weights", "words"),
    [
        ([1.0, 2.0, np.nan, 1.0], {"a": 1, "b": -1}, "3 of 4 kinds and seeds finite"),
        ([1.0, 2.0, 3.0, 1.0], {"a": 1}, "add up to 0"),
        ([1.0, 2.0, 3.0, 1.0], {"a": 1, "c": -1}, "known kinds"),
    ],
)
def test_contrasts_that_say_nothing_are_refused(values, weights, words):
    with pytest.raises(InputError, match=words):
        contrast(np.array(values), ["a", "a", "b", "b"], [0, 1, 0, 1], weights)


def test_holm_bounds_the_chance_of_one_wrong_answer():
    """By its definition: the smallest level at which the step-down procedure rejects, found by trying levels."""
    rng = np.random.default_rng(6)
    errors = (rng.random(5) ** 2).tolist()
    for value, adjusted in zip(errors, holm(errors), strict=True):
        rejected = []
        for level in np.linspace(0, 1, 20_001):
            ordered = np.sort(errors)
            kept = int(np.argmax([*(p > level / (5 - place) for place, p in enumerate(ordered)), True]))
            rejected.append(bool(value in ordered[:kept]))
        smallest = np.linspace(0, 1, 20_001)[rejected.index(True)] if True in rejected else 1.0
        assert adjusted == pytest.approx(smallest, abs=1e-4)
