"""Three-way split by group: training to fit, validation to choose, test to report."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.errors import InputError, teach

PARTS = ("train", "valid", "test")
SALT = 0x73706C69
"""Keeps the draw apart from others with the same seed, such as the one that ordered the prompts."""
TRIES = 20
"""Greedy orders tried before a split is called impossible."""


@dataclass(frozen=True)
class Split:
    """Sorted row numbers of the three parts. Rows in none of them are left out.

    Attributes:
        train: Rows the probe is fitted on.
        valid: Rows that choose penalty, recipe and peak state.
        test: Rows that are reported.
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        """Refuse empty or overlapping parts: a row in two of them would be a leak."""
        rows = [np.asarray(getattr(self, part)) for part in PARTS]
        for part, mine in zip(PARTS, rows, strict=True):
            if mine.ndim != 1 or not mine.size or mine.dtype.kind not in "iu" or mine.min() < 0:
                raise InputError(
                    teach(f"{part} as row numbers, at least one", f"{mine.dtype} of shape {mine.shape}", "split again")
                )
        if len(np.unique(np.concatenate(rows))) < sum(map(len, rows)):
            raise InputError(
                teach("each row in one part, once", "a row that occurs twice", "split with three_way_split")
            )


def three_way_split(
    labels: Sequence[int] | np.ndarray,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    *,
    seed: int,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
) -> Split:
    """Split rows into training, validation and test: groups stay together, each label keeps its share in each part.

    Groups go, in random order and large ones first, to the part that lacks most of their labels. With one row per group
    every class is cut at the fractions, to within one row. The draw depends on labels, the partition into groups and
    the seed, never on the groups' names.

    Args:
        labels: (sample,) classes from 0.
        groups: (sample,) rows of equal value stay together; None makes each row its own group.
        seed: Of the draw.
        fractions: Shares of training, validation and test.

    >>> split = three_way_split([0, 1] * 5, seed=0)
    >>> [len(split.train), len(split.valid), len(split.test)]
    [6, 2, 2]
    """
    labels = _check_labels(labels)
    shares = _check_fractions(fractions)
    if seed < 0:
        raise InputError(teach("a seed of 0 or more", f"{seed}", "pass for example seed=0"))
    members = _members(groups, len(labels))
    counts = np.zeros((len(members), int(labels.max()) + 1), np.int64)
    for group, rows in enumerate(members):
        np.add.at(counts[group], labels[rows], 1)
    counts = counts[:, counts.sum(0) > 0]
    _check_groups(counts)
    generator = np.random.default_rng([SALT, seed])
    for _ in range(TRIES):
        part = _assign(counts, shares, generator)
        totals = np.stack([counts[part == i].sum(0) for i in range(3)])
        if totals.min() > 0:
            return Split(*(np.sort(np.concatenate([members[g] for g in np.flatnonzero(part == i)])) for i in range(3)))
    raise InputError(
        teach(
            "groups that can be split so that every class is in training, validation and test",
            f"{len(members)} groups whose classes always leave a part without one of them",
            "use more groups, smaller groups or fewer classes",
        )
    )


def half_training(
    split: Split,
    labels: Sequence[int] | np.ndarray,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    *,
    seed: int,
) -> Split:
    """The same split with half of the training rows: groups stay together, each label keeps its share.

    >>> split = half_training(three_way_split([0, 1] * 20, seed=0), [0, 1] * 20, seed=0)
    >>> len(split.train), len(split.valid), len(split.test)
    (12, 8, 8)
    """
    known = np.asarray(labels)[split.train]
    names = None if groups is None else [groups[row] for row in split.train.tolist()]
    members = _members(names, len(known))
    counts = np.zeros((len(members), int(known.max()) + 1), np.int64)
    for group, rows in enumerate(members):
        np.add.at(counts[group], known[rows], 1)
    counts = counts[:, counts.sum(0) > 0]
    part = _assign(counts, np.array([0.5, 0.5]), np.random.default_rng([SALT, seed, 2]))
    # a class in one group only may fall to either half: the one that holds more classes is kept
    larger = max((0, 1), key=lambda half: int((counts[part == half].sum(0) > 0).sum()))
    rows = np.concatenate([members[group] for group in np.flatnonzero(part == larger)])
    return Split(split.train[np.sort(rows)], split.valid, split.test)


def _check_labels(labels: Sequence[int] | np.ndarray) -> np.ndarray:
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size or array.dtype.kind not in "iu" or array.min() < 0:
        raise InputError(
            teach("one class number from 0 per sample", f"{array.dtype} of shape {array.shape}", "number the classes")
        )
    if array.min() == array.max():
        raise InputError(
            teach(
                "labels of at least two classes",
                f"{array.size} samples, all of class {array[0]}",
                "vary what the label stands for: a probe of one class is always right",
            )
        )
    return array.astype(np.int64)


def _check_fractions(fractions: tuple[float, float, float]) -> np.ndarray:
    shares = np.asarray(fractions, float)
    if shares.shape != (3,) or shares.min() <= 0 or abs(shares.sum() - 1) > 1e-6:
        raise InputError(
            teach("three positive fractions that sum to 1", f"{fractions}", "pass for example (0.6, 0.2, 0.2)")
        )
    return shares


def _members(groups: Sequence[Hashable] | np.ndarray | None, count: int) -> list[np.ndarray]:
    """Rows of each group, groups in order of first appearance."""
    if groups is None:
        return [np.array([row]) for row in range(count)]
    names = list(groups)
    if len(names) != count:
        raise InputError(teach(f"one group per sample, {count}", f"{len(names)}", "pass groups=None for none"))
    members: dict[Hashable, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(row)
    return [np.array(rows) for rows in members.values()]


def _check_groups(counts: np.ndarray) -> None:
    fewest = int((counts > 0).sum(0).min())
    if fewest < 3:
        raise InputError(
            teach(
                "every class in at least 3 groups, one for each of training, validation and test",
                f"{len(counts)} groups and a class in only {fewest} of them",
                "use more samples, fewer classes, or groups that do not join everything",
            )
        )


def _assign(counts: np.ndarray, shares: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Part of each group: the one that lacks most of the group's labels, then the one that lacks most rows."""
    totals = counts.sum(0)
    lack = shares[:, None] * totals  # (part, class), rows still wanted
    left = (counts > 0).sum(0)  # groups of each class still to come
    empty = np.ones_like(lack, bool)
    order = generator.permutation(len(counts))
    order = order[np.argsort(-counts[order].sum(1), kind="stable")]
    part = np.empty(len(counts), np.int64)
    jitter = generator.random((len(counts), len(shares))) * 1e-6
    for place, group in enumerate(order):
        seen = np.flatnonzero(counts[group])
        mine = counts[group, seen]
        # relative to the class: a rare label's need counts as much as a common one's
        need = (lack[:, seen] / totals[seen] * mine).sum(1) + 1e-3 * lack.sum(1) / totals.sum() + jitter[place]
        # the last groups of a class are kept for the parts that have none of it
        last = left[seen] <= empty[:, seen].sum(0)
        need += len(counts) * (empty[:, seen] & last).sum(1)
        best = int(need.argmax())
        part[group] = best
        lack[best, seen] -= mine
        empty[best, seen] = False
        left[seen] -= 1
    return part
