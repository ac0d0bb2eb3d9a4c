"""Intervals over test prompts and over refits: what they cover, what they refuse to cover."""

import numpy as np
import pytest

from repflow.core.intervals import corrected_resampled_t, paired_proportion_interval, student_interval
from repflow.probes import ArrayFeatures, Split, fit_probes, spread, summarise
from repflow.probes.spread import SHARE, refits_of
from tests.probes.probe_inputs import class_means, random_splits
from tests.probes.test_summary import made_fit, readings


def alone(count):
    """One split whose test rows are all `count` samples after a few to train and validate on."""
    return Split(np.array([0]), np.array([1]), np.arange(2, count + 2))


def moved(split, by):
    return Split(split.train + by, split.valid + by, split.test + by)


@pytest.mark.parametrize("seeds", [1, 4])
def test_interval_over_prompts_covers_the_truth(seeds):
    """95 % intervals of a difference between two states that share their prompts, 300 times over."""
    covered = 0
    for trial in range(300):
        right = readings([0.7, 0.6], seeds, 200, seed=trial, shared=0.7).astype(float)
        gap = spread([part[:1] - part[1:] for part in right], [alone(200)] * seeds)
        low, high = gap.over_prompts()
        covered += low[0] <= 0.1 <= high[0]
    assert 0.92 <= covered / 300 <= 0.985


def test_a_prompt_enters_with_all_its_seeds():
    """Seeds that repeat each other add nothing: the error is that of one seed."""
    right = readings([0.5], 1, 100)[0].astype(float)
    one = spread([right], [alone(100)], made_up=SHARE).error
    four = spread([right] * 4, [alone(100)] * 4, made_up=SHARE).error
    np.testing.assert_allclose(four, one, rtol=1e-12)
    apart = spread([right] * 4, [moved(alone(100), 200 * k) for k in range(4)], made_up=SHARE).error
    np.testing.assert_allclose(apart, one / 2, rtol=0.05)


def test_groups_count_as_one():
    right = np.repeat(readings([0.5], 1, 100)[0], 5, axis=1).astype(float)
    single = spread([right], [alone(500)]).error
    grouped = spread([right], [alone(500)], groups=["x", "y", *(f"q{i // 5}" for i in range(500))]).error
    np.testing.assert_allclose(grouped, single * np.sqrt(5), rtol=0.05)


def test_one_seed_of_differences_is_bonett_and_price():
    """With one seed and prompts one by one the error is theirs; the quantile is Student's, a little wider."""
    first, second = readings([0.8, 0.6], 1, 400)[0].astype(float)
    gap = spread([(first - second)[None]], [alone(400)])
    known = paired_proportion_interval(first, second)
    low, high = gap.over_prompts()
    np.testing.assert_allclose([low[0], high[0]], [known.low, known.high], atol=1e-3)
    assert high[0] - low[0] > known.high - known.low


def test_prompts_that_all_agree_leave_a_width():
    low, high = spread([np.zeros((1, 60))], [alone(60)]).interval()
    assert low[0] < -0.02
    assert high[0] > 0.02


def test_resplits_get_the_corrected_resampled_t():
    splits = random_splits(100, 5)
    right = readings([0.7], 5, 100).astype(float)
    values = [right[k][:, split.test] for k, split in enumerate(splits)]
    numbers = spread(values, splits, made_up=SHARE)
    assert numbers.refits == pytest.approx(20 / 60)
    known = corrected_resampled_t([part.mean() for part in values], train=60, test=20)
    low, high = numbers.over_refits()
    assert low[0] == pytest.approx(float(known.low))
    assert high[0] == pytest.approx(min(1.0, float(known.high)))
    wide = numbers.interval()
    assert wide[0][0] <= min(low[0], numbers.over_prompts()[0][0])
    assert wide[1][0] >= max(high[0], numbers.over_prompts()[1][0])


def test_seeds_with_prompts_of_their_own_get_student():
    splits = [moved(split, 100 * k) for k, split in enumerate(random_splits(100, 4))]
    values = [readings([0.7], 1, 20, seed=k)[0].astype(float) for k in range(4)]
    numbers = spread(values, splits, made_up=SHARE)
    assert numbers.refits == 0
    known = student_interval([part.mean() for part in values])
    np.testing.assert_allclose(numbers.over_refits()[0], known.low)


@pytest.mark.parametrize("splits", [random_splits(100, 1), random_splits(100, 2), [random_splits(100, 1)[0]] * 5])
def test_few_seeds_or_equal_training_rows_say_nothing_of_refits(splits):
    assert refits_of(splits) is None
    right = readings([0.9, 0.2], len(splits), 100)
    summary = summarise(made_fit(right, splits))
    assert not summary.covers_refits
    assert summary.drop_low > 0  # over test prompts alone
    assert not summary.beats


def test_intervals_cover_refits_where_those_over_test_prompts_do_not():
    """Two states that hold the same, probes fitted on 36 rows: the true difference is 0, 120 times over."""
    refits, prompts, total = 0, 0, 0
    for trial in range(6):
        x, y = class_means((1.0,) * 21, samples=60, classes=2, width=12, seed=trial)
        splits = random_splits(60, 5, seed=trial)
        fit = fit_probes(ArrayFeatures(x), y, splits, n_classes=2, recipe="robust", penalties=(0.1,))
        rows = [right.astype(float) for right in fit.correct_test]
        steps = spread([part[1:] - part[:-1] for part in rows], splits)
        for ends, one in ((steps.interval(), 1), (steps.over_prompts(), 0)):
            inside = ((ends[0] <= 0) & (ends[1] >= 0)).sum()
            refits, prompts = (refits + inside, prompts) if one else (refits, prompts + inside)
        total += 20
    assert refits / total >= 0.94
    assert prompts < refits


def test_intervals_over_prompts_are_widened_for_all_blocks():
    """Six intervals of 95 % together: Student's quantile of 1 - 0.05 / 12, which is 2.638 for very many prompts."""
    numbers = spread([readings([0.5], 1, 100_000)[0].astype(float)], [alone(100_000)], made_up=SHARE)
    one, six = (float(np.subtract(*numbers.interval(comparisons=count)[::-1])[0]) for count in (1, 6))
    assert six / one == pytest.approx(2.638 / 1.960, abs=1e-3)
