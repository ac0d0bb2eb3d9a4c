"""Effects over grids of trainings, on simulated grids whose effects are known; ranks against scipy's."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from repflow.core.errors import InputError
from repflow.studies.laboratory.effect import effects, log_odds, over_seeds, rank_correlation, spearman

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
