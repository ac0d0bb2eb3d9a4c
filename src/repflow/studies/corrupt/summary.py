"""Numbers of corruption: accuracy, drops and their intervals, from which images were named right.

drop           a0 − a               relative drop   (a0 − a) / a0          as paper 2 prints it
corrected drop (a0 − a) / (a0 − c)  c the share that the most frequent class would get: 1 is all there is to lose
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from repflow.core.intervals import LEAST_VALUES, student_quantile
from repflow.core.results import Finding
from repflow.papers.pixels import least_accuracy

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
    drop = (before - after).mean(-1)
    a0 = before.mean()
    arrays = {"clean_accuracy": np.array(a0), "accuracy": after.mean(-1)}
    axes: dict[str, Any] = {"clean_accuracy": (), "accuracy": AXES}
    for name, (scaled, floor) in {"drop": (0, 0.0), "relative_drop": (1, 0.0), "corrected_drop": (1, chance)}.items():
        whole = a0 - floor if scaled else 1.0
        value = drop / whole if whole > 0 else np.full(drop.shape, np.nan)
        low, high = _bounds(before, after, scaled, floor)
        arrays |= {name: value, f"{name}_low": np.minimum(low, value), f"{name}_high": np.maximum(high, value)}
        axes |= dict.fromkeys((name, f"{name}_low", f"{name}_high"), AXES)
    return arrays, axes


def _bounds(before: np.ndarray, after: np.ndarray, scaled: int, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Interval of a drop, by what there is to lose where it is scaled; NaN below three images.

    Two images are added, one that is lost and one that is won (Bonett and Price 2012): without them an interval has no
    width where no answer changes, and covers too little where few do.
    """
    count = len(before) + 2
    first = np.append(before, [1.0, 0.0])
    second = np.concatenate([after, np.broadcast_to([0.0, 1.0], (*after.shape[:-1], 2))], -1)
    drop, a0 = first - second, first.mean()
    mean, whole = drop.mean(-1), a0 - floor if scaled else 1.0
    if count - 2 < LEAST_VALUES or whole <= 0:
        return np.full(mean.shape, np.nan), np.full(mean.shape, np.nan)
    value = mean / whole
    # what there is to lose is measured on the same images: the ratio is linearised around its value
    rest = drop - mean[..., None] - scaled * value[..., None] * (first - a0)
    half = student_quantile(count - 1) * rest.std(-1, ddof=1) / np.sqrt(count) / whole
    return np.maximum(value - half, -1 / whole), np.minimum(value + half, 1 / whole)


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


def image_findings(named: np.ndarray, labels: np.ndarray, replaced: np.ndarray | None = None) -> list[Finding]:
    """What is to be known of a classifier before a number of it is believed.

    Args:
        named: class that is named for every image as it is (image,); below 0 for none.
        labels: class of each.
        replaced: class that is named with regions replaced (..., image).

    >>> [finding.code for finding in image_findings(np.zeros(20, dtype=int), np.arange(20) % 10)]
    ['not_learned']
    """
    findings, chance, right = [], chance_of(labels), float((named == labels).mean())
    before = int((named < 0).sum())
    after = before if replaced is None else int((replaced < 0).sum(-1).max())
    if before or after:
        of = f"for {before} of {len(named)} images as they are" + (
            f", up to {after} replaced" if after > before else ""
        )
        findings.append(Finding("nonfinite_answer", None, f"the answer is NaN or infinite {of}; it counts as wrong"))
    if right < least_accuracy(chance):
        guessed = f"{100 * right:.1f} % of the images are named rightly, where naming one class always gives"
        text = f"{guessed} {100 * chance:.1f} %: what replaced pixels change says nothing"
        findings.append(Finding("not_learned", None, text))
    return findings
