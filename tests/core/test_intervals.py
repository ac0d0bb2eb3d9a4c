"""Intervals: against scipy.stats, against exact enumeration, and their coverage by simulation."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from repflow.core.errors import InputError
from repflow.core.intervals import (
    LEAST_VALUES,
    clustered_interval,
    corrected_resampled_t,
    nested_difference,
    nested_interval,
    paired_interval,
    paired_proportion_interval,
    positive_interval,
    proportion_interval,
    rate_interval,
    ratio_interval,
    share_interval,
    student_interval,
    welch_interval,
    whole_interval,
)

RNG = np.random.default_rng(3)
TRIALS = 20_000
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [3, 4, 8, 64])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_student_is_scipys(count, level):
    values = RNG.normal(2.0, 3.0, count)
    theirs = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(level)
    band = student_interval(values, level=level)
    np.testing.assert_allclose([band.mean, band.low, band.high], [values.mean(), *theirs], rtol=1e-10)


def test_student_on_the_log_scale_is_student_of_logarithms():
    values = RNG.lognormal(1.0, 0.7, 9)
    theirs = scipy.stats.ttest_1samp(np.log(values), 0.0).confidence_interval(0.95)
    band = student_interval(values, log=True)
    np.testing.assert_allclose([band.low, band.high], np.exp(theirs), rtol=1e-10)
    assert float(band.mean) == pytest.approx(scipy.stats.gmean(values))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_log_scale_has_no_interval_where_a_value_has_no_logarithm(value):
    table = np.array([[1.0, 1.0], [2.0, value], [3.0, 3.0], [4.0, 4.0]])
    band = student_interval(table, log=True)
    assert all(np.isnan(part[1]) for part in band)
    np.testing.assert_allclose([part[0] for part in band], list(student_interval(table[:, 0], log=True)))


def test_student_leaves_out_nan_entry_by_entry():
    table = RNG.normal(size=(5, 7, 2))
    table[0, 1] = np.nan
    table[2, 3:, 1] = np.nan
    table[3, :, 0] = np.nan
    band = student_interval(table, axis=1)
    assert band.mean.shape == (5, 2)
    for place in np.ndindex(5, 2):
        known = table[place[0], :, place[1]]
        alone = student_interval(known[~np.isnan(known)])
        np.testing.assert_array_equal([part[place] for part in band], list(alone))
    assert np.isnan(band.mean[3, 0])
    assert np.isnan(band.low[3, 0])


@pytest.mark.parametrize("count", range(LEAST_VALUES))
def test_below_three_values_there_is_a_mean_and_no_interval(count):
    band = student_interval(np.arange(1.0, count + 1))
    assert math.isnan(band.low)
    assert math.isnan(band.high)
    assert math.isnan(band.mean) if count == 0 else float(band.mean) == np.arange(1.0, count + 1).mean()


def test_infinite_values_leave_no_bounds():
    band = student_interval([1.0, math.inf, 2.0, 3.0])
    assert float(band.mean) == math.inf
    assert not np.isfinite([band.low, band.high]).any()


def test_paired_is_scipys_and_leaves_out_broken_pairs():
    a, b = RNG.normal(size=(2, 12))
    theirs = scipy.stats.ttest_rel(a[:10], b[:10]).confidence_interval(0.95)
    a[10], b[11] = np.nan, np.nan
    band = paired_interval(a, b)
    np.testing.assert_allclose([band.low, band.high], theirs, rtol=1e-10)
    with pytest.raises(InputError, match="welch_interval"):
        paired_interval(a, b[:5])


def test_welch_is_scipys():
    a, b = RNG.normal(0, 1, 5), RNG.normal(1, 4, 11)
    theirs = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    band = welch_interval(np.append(a, np.nan), b)
    np.testing.assert_allclose([band.mean, band.low, band.high], [a.mean() - b.mean(), *theirs], rtol=1e-10)
    assert math.isnan(welch_interval(a[:2], b).low)
    assert [float(part) for part in welch_interval(np.ones(3), np.zeros(3))] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("exact", "method"), [(False, "wilson"), (True, "exact")])
@pytest.mark.parametrize("trials", [1, 2, 7, 60])
def test_proportion_is_scipys(exact, method, trials):
    successes = np.arange(trials + 1)
    band = proportion_interval(successes, trials, exact=exact)
    for k in successes:
        theirs = scipy.stats.binomtest(int(k), trials).proportion_ci(0.95, method=method)
        np.testing.assert_allclose([band.low[k], band.high[k]], [theirs.low, theirs.high], atol=1e-9)


def test_proportion_of_nothing_and_of_the_impossible():
    assert all(math.isnan(part) for part in proportion_interval(0, 0))
    assert all(math.isnan(part) for part in proportion_interval(0, 0, exact=True))
    with pytest.raises(InputError, match="counts, not shares"):
        proportion_interval(3, 2)


@pytest.mark.parametrize("count", [10, 30])
@pytest.mark.parametrize("truth", [(0.0, 0.0), (0.1, 0.0), (0.3, 0.1), (0.2, 0.2)])
def test_paired_proportions_cover_by_enumeration(count, truth):
    """Every outcome (only a right, only b right) with its multinomial probability: coverage without a simulation."""
    covered = 0.0
    for won in range(count + 1):
        for lost in range(count + 1 - won):
            a = np.repeat([1.0, 0.0, 1.0], [won, lost, count - won - lost])
            b = np.repeat([0.0, 1.0, 1.0], [won, lost, count - won - lost])
            band = paired_proportion_interval(a, b)
            weight = scipy.stats.multinomial.pmf([won, lost, count - won - lost], count, [*truth, 1 - sum(truth)])
            covered += weight * float(band.low <= truth[0] - truth[1] <= band.high)
    assert covered >= 0.93


def test_paired_proportions_refuse_numbers_and_keep_a_width_without_a_discordant_pair():
    with pytest.raises(InputError, match="paired_interval"):
        paired_proportion_interval([0.5, 1.0], [1.0, 1.0])
    band = paired_proportion_interval(np.ones(60), np.ones(60))
    assert band.low < 0 < band.high
    swapped = paired_proportion_interval([1.0, 1, 0, np.nan], [0.0, 1, 1, 1])
    assert float(swapped.mean) == 0.0
    assert float(swapped.low) == -float(swapped.high)


def test_corrected_t_is_students_with_a_larger_variance():
    values = RNG.normal(size=6)
    plain, corrected = student_interval(values), corrected_resampled_t(values, train=90, test=30)
    ratio = (corrected.high - corrected.low) / (plain.high - plain.low)
    assert float(ratio) == pytest.approx(math.sqrt((1 / 6 + 30 / 90) / (1 / 6)))
    theirs = scipy.stats.t.interval(0.95, 5, values.mean(), values.std(ddof=1) * math.sqrt(1 / 6 + 30 / 90))
    np.testing.assert_allclose([corrected.low, corrected.high], theirs, rtol=1e-10)
    assert math.isnan(corrected_resampled_t(values[:2], train=90, test=30).low)
    with pytest.raises(InputError, match="train > 0"):
        corrected_resampled_t(values, train=0, test=30)


def test_corrected_t_covers_where_students_does_not():
    """Mean of a fifth of 100 normal values, over ten random splits: what resplitting one set of prompts looks like."""
    data = RNG.normal(size=(2000, 100))
    splits = np.stack(
        [
            np.take_along_axis(data, RNG.permuted(np.tile(np.arange(100), (2000, 1)), axis=1)[:, :20], 1)
            for _ in range(10)
        ]
    )
    means = splits.mean(-1)
    covered = {}
    for name, band in (
        ("student", student_interval(means)),
        ("corrected", corrected_resampled_t(means, train=80, test=20)),
    ):
        covered[name] = ((band.low <= 0) & (band.high >= 0)).mean()
    assert covered["student"] < 0.85
    assert covered["corrected"] >= 0.93


@pytest.mark.parametrize("count", [3, 4, 8, 16, 64])
def test_student_covers_at_every_count(count):
    """Seeded; at 20,000 trials the standard error of a coverage of 95 % is 0.15 points."""
    values = np.random.default_rng(count).normal(size=(count, TRIALS))
    band = student_interval(values)
    assert 0.94 <= ((band.low <= 0) & (band.high >= 0)).mean() <= 0.96
    band = student_interval(np.exp(values), log=True)
    assert 0.94 <= ((band.low <= 1) & (band.high >= 1)).mean() <= 0.96


def test_level_is_checked():
    with pytest.raises(InputError, match="between 0 and 1"):
        student_interval([1.0, 2.0, 3.0], level=95.0)


def covered(band, truth):
    return float(((band.low <= truth) & (band.high >= truth)).mean())


@pytest.mark.parametrize("count", [3, 4, 8, 16, 64])
def test_positive_quantities_cover_better_on_the_log_scale(count):
    rng = np.random.default_rng(count)
    assert 0.93 <= covered(positive_interval(rng.normal(1, 0.2, (count, TRIALS))), 1.0) <= 0.97
    skewed = rng.lognormal(0.0, 1.0, (count, TRIALS))
    plain, log = (covered(interval(skewed), np.exp(0.5)) for interval in (student_interval, positive_interval))
    assert plain < log
    assert 0.81 <= plain <= 0.92


def test_positive_interval_is_students_where_values_spread_little():
    values = 5 + 1e-4 * RNG.normal(size=10)
    np.testing.assert_allclose(positive_interval(values), student_interval(values), rtol=1e-8)
    assert [float(part) for part in positive_interval(np.zeros(5))] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("count", [3, 4, 8, 16, 64])
@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0, 3.0])
def test_rates_cover_whether_they_are_clearly_positive_or_not(count, spread):
    values = np.random.default_rng(count).normal(1.0, spread, (count, TRIALS))
    band = rate_interval(values)
    assert 0.93 <= covered(band, 1.0) <= 0.975
    np.testing.assert_array_equal(band.low, student_interval(values).low)


@pytest.mark.parametrize("count", [3, 8, 32])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.2, 0.5, 0.98])
def test_whole_numbers_that_agree_cover(count, share):
    rng = np.random.default_rng(count)
    values = 2.0 + (rng.random((count, TRIALS)) < share)
    assert covered(whole_interval(values), 2 + share) >= 0.925
    spread = np.ceil(rng.lognormal(2.0, 0.5, (count, TRIALS)))
    band = whole_interval(spread)
    assert covered(band, float(np.ceil(rng.lognormal(2.0, 0.5, 10**6)).mean())) >= 0.92
    plain = positive_interval(spread)
    np.testing.assert_array_less(band.low - 1e-12, plain.low)
    np.testing.assert_array_less(plain.high, band.high + 1e-12)


def test_whole_numbers_need_three_prompts_and_leave_out_what_is_missing():
    table = np.array([[2.0, 2.0, 2.0, np.nan], [2.0, 2.0, np.nan, np.nan]])
    band = whole_interval(table, axis=1)
    np.testing.assert_allclose(band.high, [2 + 1 - 0.025 ** (1 / 3), np.nan])
    np.testing.assert_array_equal(band.mean, [2.0, 2.0])


def test_weighted_rates_are_a_ratio_of_sums():
    values, weights = RNG.normal(2.0, 0.5, 7), RNG.uniform(1, 5, 7)
    band = rate_interval(values, weights=weights)
    assert float(band.mean) == pytest.approx((weights * values).sum() / weights.sum())
    left = weights * (values - float(band.mean)) / weights.mean()
    half = scipy.stats.t.ppf(0.975, 6) * left.std(ddof=1) / math.sqrt(7)
    assert float(band.low) == pytest.approx(float(band.mean) - half)
    np.testing.assert_allclose(rate_interval(values, weights=np.full(7, 3.0)), rate_interval(values))
    holes = np.append(values, np.nan)
    np.testing.assert_allclose(rate_interval(holes, weights=np.append(weights, 9.0)), band)


def test_share_interval_counts_what_is_there():
    values = np.array([[1.0, 0.0, 1.0], [np.nan, 1.0, 1.0], [np.nan] * 3])
    band = share_interval(values, axis=1)
    np.testing.assert_array_equal(band.mean, [2 / 3, 1.0, np.nan])
    np.testing.assert_array_equal([part[1] for part in band], list(proportion_interval(2, 2)))


def benchmark():
    spec = importlib.util.spec_from_file_location("coverage_benchmark", ROOT / "benchmarks" / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, json.loads((ROOT / "benchmarks" / "coverage.json").read_text(encoding="utf-8"))


def test_the_stored_coverage_is_what_the_benchmark_finds():
    """A tenth of the trials: the standard error of a coverage of 90 % is half a point."""
    module, stored = benchmark()
    short = module.measure(4000)
    for row, stored_row in zip(short["rows"], stored["rows"], strict=True):
        assert (row["method"], row["values"]) == (stored_row["method"], stored_row["values"])
        np.testing.assert_allclose(
            np.array(row["coverage"], float), np.array(stored_row["coverage"], float), atol=0.03, err_msg=str(row)
        )


def test_the_concepts_page_prints_the_stored_coverage():
    module, stored = benchmark()
    assert module.table(stored) in (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    for row in stored["rows"]:
        if row["values"] == "normal" and row["method"] != "percentile bootstrap":
            assert all(0.93 <= share <= 0.97 for share in row["coverage"] if share is not None)
            assert row["coverage"][0] is None


def test_a_ratio_covers_with_documents_of_unlike_lengths():
    """Lengths that differ by factors, losses that fall with the length: near the level at every count."""
    rng = np.random.default_rng(0)
    lengths = np.exp(6 + 1.3 * rng.standard_normal(200_000))
    nats = lengths * (3 + 0.35 * rng.standard_normal(200_000) - 0.08 * np.log(lengths / 300))
    true = nats.sum() / lengths.sum()
    for count in (4, 12, 60):
        inside = 0
        for _ in range(600):
            at = rng.integers(0, len(lengths), count)
            band = ratio_interval(nats[at], lengths[at])
            inside += bool(band.low <= true <= band.high)
        assert 0.92 < inside / 600 <= 0.99


def test_a_ratio_of_equal_weights_is_a_mean():
    values = [1.0, 2.0, 4.0, 9.0]
    ratio, mean = ratio_interval(values, [2.0] * 4), student_interval(np.array(values) / 2)
    assert float(ratio.mean) == float(mean.mean)
    wider = float((ratio.high - ratio.mean) / (mean.high - mean.mean))
    assert wider == pytest.approx(np.sqrt(4 / 3))  # the jackknife's √(n / (n − 1))
    assert np.isnan(ratio_interval([1.0, 2.0], [1.0, 1.0]).low)
    with pytest.raises(InputError, match="for each document"):
        ratio_interval([1.0], [-1.0])


def test_wilsons_ends_are_exact_where_nothing_or_everything_is_right():
    """Rounding left 4.9e-17 for 0 of 3, which the page's table printed."""
    none, all_right = proportion_interval(0, np.arange(1, 50)), proportion_interval(np.arange(1, 50), np.arange(1, 50))
    assert (none.low == 0).all()
    assert (all_right.high == 1).all()


CROSSED = (
    [
        0.822,
        0.985,
        -2.105,
        0.76,
        -1.949,
        -0.141,
        -1.135,
        -1.813,
        -1.194,
        -1.06,
        -0.108,
        -0.175,
        -0.109,
        -0.765,
        -1.331,
        -0.948,
        1.341,
        0.461,
        1.52,
        -0.477,
        -0.091,
        -0.204,
        -0.142,
        -1.14,
        0.28,
        -1.463,
        -0.723,
        -1.201,
        0.37,
        -1.326,
        0.116,
        0.73,
        -0.677,
        0.141,
        -0.283,
        -2.146,
        -2.38,
        -2.461,
        -0.054,
        -1.164,
    ],
    [
        4,
        5,
        0,
        5,
        3,
        3,
        4,
        2,
        6,
        0,
        1,
        2,
        3,
        2,
        0,
        0,
        0,
        0,
        1,
        6,
        1,
        4,
        5,
        1,
        1,
        3,
        1,
        6,
        1,
        6,
        5,
        5,
        0,
        2,
        4,
        3,
        4,
        4,
        4,
        0,
    ],
    [
        4,
        2,
        4,
        1,
        1,
        4,
        0,
        0,
        1,
        3,
        0,
        4,
        1,
        1,
        2,
        4,
        4,
        4,
        1,
        0,
        3,
        3,
        3,
        0,
        0,
        2,
        1,
        2,
        4,
        1,
        2,
        1,
        1,
        4,
        0,
        1,
        0,
        0,
        1,
        3,
    ],
)
"""Values, rows and columns."""


def test_crossed_clusters_are_those_of_statsmodels():
    """OLS on a constant, `cov_type="cluster"` with two groups and its corrections, statsmodels 0.15."""
    band = clustered_interval(*CROSSED)
    half = float(band.high - band.mean) / scipy.stats.t.ppf(0.975, 4)
    assert (float(band.mean), half) == pytest.approx((-0.530975, 0.21103442), abs=1e-8)
    heavy = clustered_interval(*CROSSED, weights=[3] * 40)
    assert [float(part) for part in heavy] == pytest.approx([float(part) for part in band])
    assert np.isnan(clustered_interval([1.0, 2.0, 3.0], [0, 1, 2], [0, 0, 1]).low)
    assert np.isnan(clustered_interval([], [], []).mean)


def test_what_was_added_gives_no_freedom():
    plain, fewer = clustered_interval(*CROSSED), clustered_interval(*CROSSED, uncounted=2)
    wider = float((fewer.high - fewer.mean) / (plain.high - plain.mean))
    assert wider == pytest.approx(scipy.stats.t.ppf(0.975, 2) / scipy.stats.t.ppf(0.975, 4))
    assert np.isnan(clustered_interval(*CROSSED, uncounted=3).low)


def test_weights_repeat_trials():
    values, rows, columns = ([*part, *part[:4]] for part in CROSSED)
    twice = clustered_interval(values, rows, columns)
    weighted = clustered_interval(*CROSSED, weights=[2] * 4 + [1] * 36)
    assert [float(part) for part in weighted] == pytest.approx([float(part) for part in twice])


@pytest.mark.parametrize(("images", "lenders", "draws"), [(200, 40, 1), (90, 20, 3)])
def test_shared_lenders_are_no_trials_of_their_own(images, lenders, draws):
    """Wilson's interval takes every image for a trial, and covers far less."""
    random = np.random.default_rng(1)
    held = dict.fromkeys(("crossed", "wilson"), 0)
    for _ in range(600):
        lent = random.integers(0, lenders, (images, draws))
        place = 0.5 * random.standard_normal((images, 1)) + random.standard_normal(lenders)[lent]
        named = place + random.standard_normal((images, draws)) < scipy.stats.norm.ppf(0.3) * 1.5
        rows = np.repeat(np.arange(images), draws)
        band = clustered_interval(named.ravel(), rows, lent.ravel())
        held["crossed"] += band.low <= 0.3 <= band.high
        wilson = proportion_interval(named[:, 0].sum(), images)
        held["wilson"] += wilson.low <= 0.3 <= wilson.high
    assert held["crossed"] >= 0.92 * 600
    assert held["wilson"] < 0.88 * 600


def test_nested_differences_are_welchs_without_errors_and_wider_with():
    a, b = RNG.standard_normal((2, 4, 3))
    none = np.zeros((4, 3))
    welch, nested = welch_interval(a, b), nested_difference((a, none), (b, none), 100)
    np.testing.assert_allclose(np.array(nested), np.array(welch))
    wide = nested_difference((a, none + 1.0), (b, none + 1.0), 10**6)
    assert (wide.high - wide.low > nested.high - nested.low).all()
    one = nested_interval(a, none + 1.0, 10**6)
    same = nested_difference((a, none + 1.0), (np.zeros((4, 3)), none), 10**6)
    np.testing.assert_allclose(np.array(same), np.array(one), rtol=1e-6)
    assert np.isnan(nested_difference((a[:2], none[:2]), (b, none), 100).low).all()
