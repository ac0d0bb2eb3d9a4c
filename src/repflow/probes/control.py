"""Controls: what a probe of this size learns without any meaning in the labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.probes.features import Features
from repflow.probes.fit import fit_probes
from repflow.probes.robust import PENALTIES
from repflow.probes.split import Split

SALT = 0x73687566
"""Keeps the draw apart from others with the same seed, such as the one that made the labels."""


def control_labels(keys: Sequence[int] | np.ndarray, n_classes: int, seed: int) -> np.ndarray:
    """Labels of the control task (Hewitt and Liang 2019): a fixed random map of each key.

    The map is a hash of key and seed, so a key has the same label in every set of prompts and on every machine.

    Args:
        keys: (sample,) such as the id of the queried key's first token.
        n_classes: Classes of the task it controls.
        seed: Of the map.

    >>> control_labels([5, 7, 5, 9], 4, seed=0).tolist()
    [3, 2, 3, 1]
    """
    array = np.asarray(keys)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(teach("one whole number per sample", f"{array.dtype} {array.shape}", "pass token ids"))
    if n_classes < 2:
        raise InputError(teach("at least two classes", f"{n_classes}", "use the task's own number"))
    mixed = _mix(array.astype(np.uint64) + _mix(np.array([seed % 2**63], np.uint64)))
    return (mixed % np.uint64(n_classes)).astype(np.int64)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64: spreads neighbouring numbers over all 64 bits."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def shuffled_labels(n_samples: int, n_classes: int, n_seeds: int, seed: int = 0) -> np.ndarray:
    """Balanced labels in random order, (seed, sample).

    >>> np.bincount(shuffled_labels(6, 3, 1)[0]).tolist()
    [2, 2, 2]
    """
    balanced = np.arange(n_samples) % n_classes
    return np.stack([np.random.default_rng([SALT, seed, k]).permutation(balanced) for k in range(n_seeds)])


def shuffled_capacity(
    features: Features,
    n_classes: int,
    splits: Sequence[Split],
    *,
    recipe: str = "paper",
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    **options: Any,
) -> np.ndarray:
    """Training accuracy on shuffled labels, mean over seeds, (state,): what a probe can memorise.

    `robust` is fitted with its weakest penalty: validation would choose the strongest, there being nothing to learn.
    Other options are those of `fit_probes`.
    """
    labels = shuffled_labels(features.n_samples, n_classes, len(splits), seed)
    fit = fit_probes(
        features, labels, splits, n_classes=n_classes, recipe=recipe, penalties=[min(penalties)], **options
    )
    return fit.accuracy_train.mean(1)
