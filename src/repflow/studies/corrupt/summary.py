"""Numbers of corruption: accuracy, drops and their intervals, from which images were named right.

drop           a0 − a               relative drop   (a0 − a) / a0          as paper 2 prints it
corrected drop (a0 − a) / (a0 − c)  c the share that the most frequent class would get: 1 is all there is to lose
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repflow.core.intervals import LEAST_VALUES, student_quantile

AXES = ("replacement", "region")


def accuracy_arrays(
    before: np.ndarray, after: np.ndarray, chance: float
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and axes of a Result.

    Args:
        before: 1 where an image is named right (image,).
        after: share of the draws in which it is, region replaced (replacement, region, image).
        chance: accuracy of naming the most frequent class.
    """
    drop = before - after
    a0 = before.mean()
    arrays = {
        "clean_accuracy": np.array(a0),
        "accuracy": after.mean(-1),
    }
    axes: dict[str, Any] = {"clean_accuracy": (), "accuracy": AXES}
    scales = {"drop": (1.0, 0.0), "relative_drop": (a0, 1.0), "corrected_drop": (a0 - chance, 1.0)}
    for name, (scale, ratio) in scales.items():
        mean = drop.mean(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = mean / scale if scale > 0 else np.full(mean.shape, np.nan)
            # the denominator is measured on the same images: the ratio is linearised around its value
            rest = drop - mean[..., None] - ratio * value[..., None] * (before - a0)
            half = _half(rest) / scale if scale > 0 else np.full(mean.shape, np.nan)
        arrays |= {name: value, f"{name}_low": value - half, f"{name}_high": value + half}
        axes |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), AXES)
    return arrays, axes


def _half(rest: np.ndarray) -> np.ndarray:
    """Half of Student's interval of a mean over the last axis; NaN below three values."""
    count = rest.shape[-1]
    if count < LEAST_VALUES:
        return np.full(rest.shape[:-1], np.nan)
    return np.asarray(student_quantile(count - 1) * rest.std(-1, ddof=1) / np.sqrt(count))


def chance_of(labels: np.ndarray) -> float:
    """Accuracy of naming the most frequent class.

    >>> chance_of(np.array([0, 1, 1, 2]))
    0.5
    """
    return float(np.bincount(labels).max() / len(labels))


def shares(predictions: np.ndarray, classes: int) -> np.ndarray:
    """Share of the predictions that each class has (..., class), over the last axis.

    >>> shares(np.array([0, 2, 2, 1]), 4).tolist()
    [0.25, 0.25, 0.5, 0.0]
    """
    return np.stack([(predictions == number).mean(-1) for number in range(classes)], -1)


def region_facts(regions: Any, kinds: Any, classes: Any) -> Mapping[str, Any]:
    """Names along the axes of a Result."""
    return {"regions": [str(region) for region in regions], "replacements": list(kinds), "classes": list(classes)}
