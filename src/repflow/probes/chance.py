"""What can be computed without reading the features: chance, the accuracy above it, and the labels' own information."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from repflow.probes.fit import ProbeFit

Number = TypeVar("Number", float, np.ndarray)


def majority_share(train: np.ndarray, test: np.ndarray, n_classes: int) -> float:
    """Test accuracy of always saying the most frequent training class, at least 1 / classes.

    >>> majority_share(np.array([0, 0, 1]), np.array([0, 0, 0, 1]), 2)
    0.75
    """
    common = np.bincount(train, minlength=n_classes).argmax()
    return max(float((test == common).mean()), 1 / n_classes)


def chance_level(fit: ProbeFit) -> float:
    """`majority_share` averaged over seeds: 1 / classes where labels are balanced."""
    shares = [
        majority_share(labels[split.train], labels[split.test], fit.n_classes)
        for labels, split in zip(fit.labels, fit.splits, strict=True)
    ]
    return float(np.mean(shares))


def corrected(accuracy: Number, chance: float) -> Number:
    """(accuracy - chance) / (1 - chance): 0 for chance, 1 for always right; NaN where chance is 1.

    >>> corrected(0.75, 0.5)
    0.5
    """
    return (accuracy - chance) / (1 - chance if chance < 1 else float("nan"))


def floored_change(
    before: np.ndarray, after: np.ndarray, ends: tuple[np.ndarray, np.ndarray], chance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """After - before, where an accuracy below chance counts as chance; and the ends of its interval, moved alike.

    A probe below chance has read nothing, and only what was above chance can be lost: the change over
    1 - chance never exceeds 1.

    Args:
        before: Accuracies, any shape.
        after: Accuracies of the same shape.
        ends: Ends of the interval of after - before.
        chance: Accuracy of guessing.

    >>> before, after, low, high = (np.array(value) for value in (1.0, 0.25, -1.0, -0.5))
    >>> [round(float(part), 2) for part in floored_change(before, after, (low, high), 0.5)]
    [-0.5, -0.5, -0.25]
    """
    most = 1 - chance
    change = np.asarray(np.maximum(after, chance) - np.maximum(before, chance))
    moved = change - (after - before)
    low, high = (np.asarray(np.clip(end + moved, -most, most)) for end in ends)
    return change, low, high


def prior_log_likelihood(fit: ProbeFit) -> np.ndarray:
    """Mean log-probability of the test labels under the training labels' frequencies, nats, (seed,).

    One is added to each class' count, so that a class that training lacks costs a finite amount.
    """
    out = []
    for labels, split in zip(fit.labels, fit.splits, strict=True):
        counts = np.bincount(labels[split.train], minlength=fit.n_classes) + 1.0
        out.append(float(np.log(counts / counts.sum())[labels[split.test]].mean()))
    return np.array(out)
