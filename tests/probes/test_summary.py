"""What is said of the probes: peak on validation, drop on test, intervals that cover, chance and information."""

import dataclasses

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.probes import (
    ArrayFeatures,
    ProbeFit,
    Split,
    chance_level,
    corrected,
    fit_probes,
    majority_share,
    summarise,
)
from tests.probes.probe_inputs import class_means, random_splits


def made_fit(right, splits, *, recipe="paper", labels=None, classes=4):
    """A fit whose readings are given: right is (seed, state, sample)."""
    seeds, states, samples = right.shape
    labels = np.arange(samples) % classes if labels is None else labels
    tables = {
        part: np.stack([right[k][:, getattr(s, part)].mean(1) for k, s in enumerate(splits)], 1)
        for part in ("train", "valid", "test")
    }
    blank = np.zeros((states, seeds))
    return ProbeFit(
        recipe=recipe,
        n_classes=classes,
        seeds=tuple(range(seeds)),
        splits=list(splits),
        labels=np.broadcast_to(labels, (seeds, samples)),
        **{f"accuracy_{part}": table for part, table in tables.items()},
        loss=blank,
        gradient=blank,
        converged=np.ones((states, seeds), bool),
        penalty=blank,
        log_likelihood_test=np.full((states, seeds), -np.log(2.0)),
        correct_valid=[right[k][:, s.valid] for k, s in enumerate(splits)],
        correct_test=[right[k][:, s.test] for k, s in enumerate(splits)],
    )


def readings(accuracies, seeds, samples, seed=0, shared=0.0):
    """Random correctness at given accuracies; `shared` of the luck is the prompt's own, the same under every seed."""
    rng = np.random.default_rng(seed)
    own = rng.random((1, len(accuracies), samples))
    fresh = rng.random((seeds, len(accuracies), samples))
    luck = np.where(rng.random((seeds, 1, samples)) < shared, own, fresh)
    return luck < np.asarray(accuracies)[None, :, None]


def test_peak_drop_and_ties_are_found():
    accuracies = [0.3, 0.5, 0.9, 0.895, 0.6]
    fit = made_fit(readings(accuracies, 3, 3000), random_splits(3000, 3))
    summary = summarise(fit)
    assert summary.peak in (2, 3)
    assert set(summary.like_peak) == {2, 3}
    assert summary.beats
    assert summary.drop_low < summary.drop < summary.drop_high
    assert summary.drop == pytest.approx(0.3, abs=0.05)
    np.testing.assert_allclose(summary.accuracy, fit.accuracy_test.mean(1))
    assert (summary.accuracy_low < summary.accuracy).all()
    assert (summary.accuracy < summary.accuracy_high).all()
    np.testing.assert_allclose(summary.corrected, (summary.accuracy - summary.chance) / (1 - summary.chance))
    assert summary.chance == pytest.approx(0.25, abs=0.02)
    # log-likelihood -ln 2 where frequencies alone give -ln 4: one bit
    np.testing.assert_allclose(summary.information, 1.0, atol=0.02)


@pytest.mark.parametrize("overlap", ["fixed split", "redrawn split", "own prompts"])
def test_the_luckiest_of_65_equal_states_does_not_beat_the_last(overlap):
    """The maximum over 65 equal states lies points above the rest, yet the drop is 0 within its interval."""
    said, drops, naive = 0, [], []
    for trial in range(30):
        right = readings([0.5] * 65, 3, 600, seed=trial, shared=0.8)
        splits = random_splits(600, 3, seed=trial)
        if overlap == "fixed split":
            splits = [splits[0]] * 3
        if overlap == "own prompts":
            blocks = random_splits(200, 3, seed=trial)
            splits = [Split(*(r + 200 * k for r in (s.train, s.valid, s.test))) for k, s in enumerate(blocks)]
        summary = summarise(made_fit(right, splits))
        said += summary.beats
        drops.append(summary.drop)
        naive.append(summary.accuracy.max() - summary.accuracy[-1])
    assert said <= 4  # 2.5 % of 30, with room
    assert abs(np.mean(drops)) < 0.02
    assert np.mean(naive) > 0.05


def test_peak_of_a_seed_ignores_prompts_the_seed_tests_on():
    """State 0 is right exactly on seed 1's validation prompts, all of which seed 0 tests on."""
    rows = np.arange(40)
    splits = [Split(rows[:20], rows[20:30], rows[30:]), Split(rows[:20], rows[30:], rows[20:30])]
    right = np.zeros((2, 2, 40), bool)
    right[:, 0, 30:] = True
    right[:, 1, 20:23] = True
    summary = summarise(made_fit(right, splits))
    assert summary.peak == 0
    assert summary.peaks.tolist() == [1, 0]


def test_noise_is_not_read_better_at_the_peak_when_seeds_share_their_prompts():
    """Chance correlations of one set of prompts show in every split of it, so pooling the splits would favour them."""
    above, pooled, said = [], [], 0
    for trial in range(24):
        rng = np.random.default_rng([31, trial])
        x, y = rng.standard_normal((25, 150, 6)), np.arange(150) % 2
        splits = random_splits(150, 5, seed=trial)
        fit = fit_probes(ArrayFeatures(x), y, splits, n_classes=2, recipe="robust", penalties=(0.1,))
        summary = summarise(fit)
        above.append(summary.peak_accuracy - 0.5)
        pooled.append(summary.accuracy[summary.peak] - 0.5)
        said += summary.peak_low > 0.5
    assert abs(np.mean(above)) < 0.02
    assert np.mean(pooled) > 0.02, "what the seeds' own peaks avoid"
    assert said <= 3


def test_recipe_is_chosen_on_validation_not_on_test():
    splits = random_splits(400, 2)
    good_valid, good_test = np.zeros((2, 2, 400), bool), np.zeros((2, 2, 400), bool)
    for k, split in enumerate(splits):
        good_valid[k][:, split.valid] = True
        good_test[k][:, split.test] = True
    summary = summarise([made_fit(good_test, splits, recipe="paper"), made_fit(good_valid, splits, recipe="robust")])
    assert summary.recipe == "robust"
    assert summary.recipe_valid["paper"] < summary.recipe_valid["robust"] == 1


def test_chance_is_the_majority_where_labels_are_unbalanced():
    labels = np.repeat([0, 1, 2], [70, 20, 10])
    assert majority_share(labels, labels, 3) == 0.7
    assert majority_share(np.array([0, 1, 1]), np.array([0, 0, 0, 1]), 2) == 0.5  # never below 1 / classes
    fit = made_fit(readings([0.7], 1, 100), random_splits(100, 1), labels=labels, classes=3)
    [split] = fit.splits
    assert chance_level(fit) == (labels[split.test] == 0).mean()
    assert np.isnan(corrected(1.0, 1.0))


def test_real_probes_of_equal_and_unequal_states():
    x, y = class_means((0.1, 1.2, 0.1, 0.1), samples=500, width=8)
    splits = random_splits(500, 3)
    fits = {r: fit_probes(ArrayFeatures(x), y, splits, n_classes=3, recipe=r, epochs=50) for r in ("paper", "robust")}
    summary = summarise(fits)
    assert summary.peak == 1
    assert summary.like_peak == (1,)
    assert summary.beats
    assert summary.n_classes == 3
    best = fits[summary.recipe]
    labels = np.stack([y[s.test] for s in splits])
    shares = np.stack([np.log((np.bincount(y[s.train]) + 1) / (len(s.train) + 3)) for s in splits])
    prior = [shares[k][labels[k]].mean() for k in range(3)]
    np.testing.assert_allclose(summary.information, ((best.log_likelihood_test - prior) / np.log(2)).mean(1))
    assert summary.information[1] > 0.7


def test_states_that_could_not_be_fitted_are_passed_over():
    x, y = class_means((0.1, 1.5, 0.1, 3.0))
    x[3] = np.nan
    summary = summarise(fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3))
    assert (summary.peak, summary.last) == (1, 3)
    assert np.isnan(summary.accuracy[3])
    assert np.isnan(summary.accuracy_low[3])
    assert 3 not in summary.like_peak
    # an earlier state is no stand-in for the last one
    assert np.isnan([summary.last_accuracy, summary.drop, summary.drop_low, summary.drop_high]).all()
    assert not summary.beats
    assert summary.peak_accuracy > 0.5
    asked = summarise(fit_probes(ArrayFeatures(x), y, random_splits(300, 2), n_classes=3), last=2)
    assert asked.drop > 0.2


def test_no_state_that_could_be_fitted_gives_nan_throughout():
    x, y = class_means((0.1, 1.5))
    bad = fit_probes(ArrayFeatures(x * np.nan), y, random_splits(300, 2), n_classes=3, epochs=3)
    summary = summarise(bad)
    assert np.isnan(summary.accuracy).all()
    assert np.isnan([summary.peak_accuracy, summary.peak_low, summary.drop, summary.unconverged]).all()
    assert (summary.peak, summary.like_peak, summary.beats) == (0, (), False)
    assert summary.chance == pytest.approx(1 / 3, abs=0.1)


def test_unfit_input_is_taught():
    x, y = class_means((0.1, 1.5))
    splits = random_splits(300, 2)
    fit = fit_probes(ArrayFeatures(x), y, splits, n_classes=3, epochs=3)
    with pytest.raises(InputError, match="at least one fit"):
        summarise([])
    with pytest.raises(InputError, match="same states, seeds and splits"):
        summarise([fit, dataclasses.replace(fit, splits=splits[::-1])])
    with pytest.raises(InputError, match="a last state from 0 to 1; got state 7"):
        summarise(fit, last=7)
    with pytest.raises(InputError, match="a group for each of"):
        summarise(fit, groups=["a"])


def test_a_few_test_prompts_give_no_interval_and_no_claim():
    rows = np.arange(30)
    splits = [Split(rows[:20], rows[20:26], rows[26:])]
    right = np.zeros((1, 2, 30), bool)
    right[:, 0] = True  # state 0 always right, the last never
    summary = summarise(made_fit(right, splits))
    assert summary.test_units == 4
    assert summary.drop == 0.75  # from 1 to chance, whatever lies below it
    assert np.isnan([summary.drop_low, summary.drop_high, summary.peak_low]).all()
    assert not summary.beats
    assert summary.like_peak == (0, 1)
    grouped = summarise(made_fit(right.repeat(4, 2), [Split(*(np.arange(4 * p[0], 4 * p[-1] + 4) for p in
                        (splits[0].train, splits[0].valid, splits[0].test)))]), groups=np.arange(120) // 8)  # fmt: skip
    assert grouped.test_units == 2
