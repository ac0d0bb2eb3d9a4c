"""Rates of attacks, by target and as the mean of all targets, with intervals for other images."""

from __future__ import annotations

from typing import Any

import numpy as np

from repflow.core.intervals import clustered_interval, proportion_interval, student_interval
from repflow.spec.corruption import RANDOM_PAIR, TARGET

AXES = ("target", "region")


def attack_rates(
    base: np.ndarray, hits: dict[str, np.ndarray], lent: dict[str, np.ndarray], others: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Rates with their intervals, by target and as the mean of all targets.

    Args:
        base: 1 where the target is named without an attack (target, image).
        hits: 1 where it is named, with the target's pixels and with those of another class (target, region, draw,
            image).
        lent: image whose pixels these are.
        others: images of other classes than the target (target, image), which are attacked.
    """
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, Any] = {}
    success, pair = hits[TARGET], hits[RANDOM_PAIR]
    kinds = {"success": (success, lent[TARGET]), "random_pair": (pair, lent[RANDOM_PAIR])}
    kinds["excess"] = success - pair, lent[TARGET]
    for name, (values, whose) in kinds.items():
        ends = (-1.0, 1.0) if name == "excess" else (0.0, 1.0)
        by_target = [[_lent_band(v[None], w[None], m[None], ends) for v, w in zip(*own, strict=True)]
                     for *own, m in zip(values, whose, others, strict=True)]  # fmt: skip
        whole = [_lent_band(values[:, at], whose[:, at], others, ends) for at in range(values.shape[1])]
        for place, end in enumerate(("", "_low", "_high")):
            arrays[name + end], axes[name + end] = np.array(by_target)[..., place], AXES[:2]
            arrays[f"mean_{name}{end}"], axes[f"mean_{name}{end}"] = np.array(whole)[:, place], AXES[1:2]
    weights = others / others.sum(1, keepdims=True) / len(others)  # of an image in the mean of all targets' rates
    each = [rate_band(part[mask]) for part, mask in zip(base, others, strict=True)]
    mean = rate_band((base * weights).sum(0) * base.shape[-1])
    for place, end in enumerate(("", "_low", "_high")):
        arrays[f"base_rate{end}"], axes[f"base_rate{end}"] = np.array(each)[:, place], AXES[:1]
        arrays[f"mean_base_rate{end}"], axes[f"mean_base_rate{end}"] = np.array(mean[place]), ()
    return arrays, axes


def _lent_band(
    values: np.ndarray, lent: np.ndarray, others: np.ndarray, ends: tuple[float, float]
) -> tuple[float, float, float]:
    """Mean over targets of a rate, and its interval for other images, of those that are attacked and those that lend.

    A class has few images here, and each lends its pixels many times: were every attacked image a trial of its own, the
    interval would cover far too little where lenders differ. Two images are added, one at each end of what can be, as
    Bonett and Price do: an interval without them has no width where nothing was named. NaN below three lenders.

    Args:
        values: by target, draw and image.
        lent: image whose pixels were put in.
        others: images that are attacked (target, image).
        ends: least and largest value.
    """
    targets, draws, count = values.shape
    chosen = np.broadcast_to(others[:, None], values.shape)
    weights = chosen / (others.sum(1)[:, None, None] * draws * targets)
    mean = float((values * weights).sum())
    rows = np.broadcast_to(np.arange(count), values.shape)[chosen]
    attacked = len(np.unique(rows))
    added = np.arange(count, count + 2)
    band = clustered_interval(
        np.concatenate([values[chosen], ends]),
        np.concatenate([rows, added]),
        np.concatenate([lent[chosen], added]),
        weights=np.concatenate([weights[chosen] * attacked, [1.0, 1.0]]),
        uncounted=len(ends),
    )
    low, high = np.clip([band.low, band.high], *ends)
    return mean, float(min(low, mean)), float(max(high, mean))


def rate_band(values: np.ndarray) -> tuple[float, float, float]:
    """Mean over images with its interval: Wilson's of right or wrong, Student's of any other, two images added."""
    mean = float(values.mean())
    if ((values == 0) | (values == 1)).all():
        band = proportion_interval(values.sum(), len(values))
    else:
        band = student_interval(np.concatenate([values, [0.0, 1.0]]))
    low, high = np.clip([band.low, band.high], 0.0, 1.0)
    return mean, float(min(low, mean)), float(max(high, mean))
