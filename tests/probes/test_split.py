"""Three-way splits: whole groups, balanced labels, the same draw for the same seed, and what cannot be split."""

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.probes import Split, three_way_split

PARTS = ("train", "valid", "test")


def parts(split):
    return [getattr(split, part) for part in PARTS]


@pytest.mark.parametrize("fractions", [(0.6, 0.2, 0.2), (0.8, 0.1, 0.1), (0.5, 0.25, 0.25)])
def test_single_rows_are_cut_at_the_fractions_in_every_class(fractions):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(7), 40))
    split = three_way_split(labels, seed=3, fractions=fractions)
    assert sorted(np.concatenate(parts(split)).tolist()) == list(range(280))
    for rows, share in zip(parts(split), fractions, strict=True):
        assert np.abs(np.bincount(labels[rows], minlength=7) - 40 * share).max() <= 1


def test_groups_never_part_and_labels_stay_balanced():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 90, 600)
    labels = rng.integers(0, 4, 600)
    split = three_way_split(labels, [f"question {g}" for g in groups], seed=0)
    members = [set(groups[rows].tolist()) for rows in parts(split)]
    assert not members[0] & members[1]
    assert not members[0] & members[2]
    assert not members[1] & members[2]
    for rows, share in zip(parts(split), (0.6, 0.2, 0.2), strict=True):
        want = np.bincount(labels) * share
        assert np.abs(np.bincount(labels[rows], minlength=4) - want).max() < 8


def test_groups_that_hold_every_label_are_cut_at_the_fractions():
    labels, groups = np.tile(np.arange(5), 20), np.repeat(np.arange(20), 5)
    assert [len(rows) for rows in parts(three_way_split(labels, groups, seed=0))] == [60, 20, 20]


def test_unbalanced_labels_keep_their_share():
    labels = np.repeat([0, 1], [90, 10])
    assert [np.bincount(labels[rows]).tolist() for rows in parts(three_way_split(labels, seed=0))] == [
        [54, 6],
        [18, 2],
        [18, 2],
    ]


def test_a_class_of_three_rows_is_in_every_part():
    labels = np.repeat([0, 1], [30, 3])
    for seed in range(5):
        assert [int((labels[rows] == 1).sum()) for rows in parts(three_way_split(labels, seed=seed))] == [1, 1, 1]


def test_the_seed_decides_and_group_names_do_not():
    labels = np.arange(60) % 3
    names = np.arange(60) // 2
    one = three_way_split(labels, names, seed=5)
    renamed = three_way_split(labels, [f"g{name * 7 % 31}" for name in names], seed=5)
    other = three_way_split(labels, names, seed=6)
    assert all(np.array_equal(a, b) for a, b in zip(parts(one), parts(renamed), strict=True))
    assert not np.array_equal(one.test, other.test)


@pytest.mark.parametrize(
    ("labels", "groups", "match"),
    [
        ([1, 1, 1, 1], None, "at least two classes; got 4 samples, all of class 1"),
        ([0, 1] * 10, ["a"] * 10 + ["b"] * 10, "at least 3 groups.*a class in only 2 of them"),
        ([0, 1, 1, 1, 1], None, "at least 3 groups.*only 1 of them"),
        ([0, 1] * 5, ["a"], "one group per sample, 10; got 1"),
        ([0.5, 1.0], None, "one class number from 0 per sample; got float64"),
        ([0, -1], None, "one class number from 0"),
        ([], None, "one class number from 0"),
    ],
)
def test_what_cannot_be_split_is_taught(labels, groups, match):
    with pytest.raises(InputError, match=match):
        three_way_split(np.asarray(labels), groups, seed=0)


def test_seeds_are_not_negative():
    with pytest.raises(InputError, match="a seed of 0 or more; got -1"):
        three_way_split([0, 1] * 10, seed=-1)


@pytest.mark.parametrize("fractions", [(0.6, 0.4, 0.0), (0.5, 0.5, 0.5)])
def test_fractions_are_checked(fractions):
    with pytest.raises(InputError, match="three positive fractions that sum to 1"):
        three_way_split([0, 1] * 10, seed=0, fractions=fractions)


@pytest.mark.parametrize(
    ("train", "valid", "test", "match"),
    [([0, 1], [1], [2], "each row in one part"), ([0], [], [2], "valid as row numbers"), ([0], [1], [-1], "test as")],
)
def test_a_split_of_ones_own_is_checked(train, valid, test, match):
    with pytest.raises(InputError, match=match):
        Split(*(np.array(rows, dtype=int) for rows in (train, valid, test)))
