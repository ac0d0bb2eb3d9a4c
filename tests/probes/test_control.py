"""Control labels are a fixed map; capacity is what can be learnt by heart."""

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.probes import ArrayFeatures, control_labels, fit_probes, shuffled_capacity, shuffled_labels
from tests.probes.probe_inputs import class_means, random_splits


def test_a_key_has_one_label_whatever_stands_beside_it():
    keys = np.random.default_rng(0).integers(0, 50000, 2000)
    labels = control_labels(keys, 7, seed=3)
    assert all(len(set(labels[keys == key])) == 1 for key in set(keys.tolist()))
    np.testing.assert_array_equal(control_labels(keys[::-1][:50], 7, seed=3), labels[::-1][:50])
    assert (control_labels(keys, 7, seed=4) != labels).mean() > 0.7


def test_control_labels_are_spread_evenly():
    counts = np.bincount(control_labels(np.arange(70000), 7, seed=0))
    # chi-squared with 6 degrees of freedom: above 22 once in a thousand
    assert ((counts - 10000) ** 2 / 10000).sum() < 22


def test_control_labels_check_their_input():
    with pytest.raises(InputError, match="one whole number per sample"):
        control_labels(np.array([0.5]), 2, seed=0)
    with pytest.raises(InputError, match="at least two classes; got 1"):
        control_labels([1, 2], 1, seed=0)


def test_shuffled_labels_are_balanced_and_differ_by_seed():
    labels = shuffled_labels(90, 3, 2)
    assert (np.bincount(labels[0]) == 30).all()
    assert (labels[0] != labels[1]).any()


@pytest.mark.parametrize("recipe", ["paper", "robust"])
def test_capacity_grows_with_width(recipe):
    """With more columns than training rows any labels can be learnt; with two hardly any."""
    splits = random_splits(100, 2)
    wide, _ = class_means((0.0,), samples=100, width=120)
    narrow, _ = class_means((0.0,), samples=100, width=2)
    full = shuffled_capacity(ArrayFeatures(wide), 3, splits, recipe=recipe)
    little = shuffled_capacity(ArrayFeatures(narrow), 3, splits, recipe=recipe)
    assert full.shape == (1,)
    assert full[0] > 0.95
    assert little[0] < 0.65


def test_capacity_says_nothing_about_test_rows():
    x, _ = class_means((2.0,), samples=300)
    labels = shuffled_labels(300, 3, 3)
    got = fit_probes(ArrayFeatures(x), labels, random_splits(300, 3), n_classes=3)
    assert abs(got.accuracy_test.mean() - 1 / 3) < 0.12
