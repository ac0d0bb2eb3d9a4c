"""Paper 2's pixel experiments: what its Tables 1 and 3 print, and how the numbers of a pixels run are read.

A drop is accuracy as images are less accuracy with a region replaced. What a model loses at the trailing end more than
at the leading one, of equally many tokens, is its asymmetry: recency makes it positive, whatever the end shows.
Intervals are for other seeds and other images (`repflow.core.intervals.nested_interval`); of one target of an attack,
and of correlations, for other seeds on these images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from repflow.core.intervals import LEVEL, Band, nested_interval, student_interval
from repflow.core.results import Result
from repflow.spec.corruption import PAPER, scaled_region

CLEAN = {"h3": 0.654, "transformer": 0.580, "rwkv": 0.474, "mamba": 0.674}
"""Accuracy of images as they are, Table 1."""
TABLE1: Mapping[str, Mapping[str, float]] = {
    "h3": {"992:1024": 0.569, "0:32": 0.654, "928:1024": 0.477, "0:96": 0.650},
    "transformer": {"992:1024": 0.535, "0:32": 0.447, "928:1024": 0.431, "0:96": 0.370},
    "rwkv": {"992:1024": 0.150, "0:32": 0.466, "928:1024": 0.138, "0:96": 0.460},
    "mamba": {"992:1024": 0.126, "0:32": 0.658, "928:1024": 0.098, "0:96": 0.647},
}
TABLE3: Mapping[str, Mapping[str, float]] = {
    "h3": {"1014:1024": 0.629, "0:10": 0.654, "768:1024": 0.394, "0:256": 0.639, "512:544": 0.603, "480:576": 0.543},
    "transformer": {
        "1014:1024": 0.571, "0:10": 0.500, "768:1024": 0.249, "0:256": 0.263, "512:544": 0.498, "480:576": 0.347,
    },
    "rwkv": {"1014:1024": 0.194, "0:10": 0.470, "768:1024": 0.107, "0:256": 0.448, "512:544": 0.405, "480:576": 0.392},
    "mamba": {"1014:1024": 0.348, "0:10": 0.664, "768:1024": 0.099, "0:256": 0.597, "512:544": 0.515, "480:576": 0.446},
}  # fmt: skip
"""Accuracy with tokens replaced by N(0, 1) noise, by region."""
RELATIVE1: Mapping[str, tuple[float, ...]] = {
    "h3": (13.04, 0.03, 27.07, 0.72),
    "transformer": (7.81, 22.95, 25.76, 36.32),
    "rwkv": (68.35, 1.58, 70.88, 2.91),
    "mamba": (81.24, 2.30, 85.46, 3.98),
}
"""Relative drops in percent that Table 1 prints beside them, in its order."""
SSMS = ("h3", "rwkv", "mamba")
CONTROLS = ("data", "shuffle", "mean", "same", "other")
"""Replacements that a model may have seen, unlike N(0, 1) noise."""
FEWER = PAPER["fewer"]
"""Regions of fewer than 256 of 1,024 tokens, attacks at which do not succeed "considerably"."""
CONSIDERABLE = 0.1
"""Success above random pairs from which an attack counts as one that succeeds considerably; no number is printed."""


def least_accuracy(chance: float) -> float:
    """Accuracy below which a model has not learned and its drops say nothing: twice that of guessing, of ten classes.

    Of fewer classes it is as far on the way from guessing to 1 as twice is with ten: between two, nothing is twice as
    good as guessing.

    >>> [round(least_accuracy(chance), 3) for chance in (0.01, 0.1, 0.5)]
    [0.02, 0.2, 0.556]
    """
    return min(2 * chance, chance + (1 - chance) / 9)


def learned(result: Result) -> np.ndarray:
    """Whether each model is better than guessing (cell,); one that diverged is not."""
    return np.asarray(result["test_accuracy"] >= least_accuracy(result.provenance["pixels"]["chance"]))


def bounds(result: Result) -> np.ndarray:
    """First token and the one behind the last of every region (region, 2)."""
    words = result.provenance["pixels"]["regions"]
    return np.array([[int(part) for part in word.split(":")] for word in words])


def drops(result: Result) -> np.ndarray:
    """Drop of accuracy (cell, replacement, region)."""
    return np.asarray(result["clean_accuracy"][:, None, None] - result["accuracy"])


def corrected(result: Result) -> np.ndarray:
    """Drop by what is above guessing (cell, replacement, region); NaN for a model that is not above it."""
    above = result["clean_accuracy"] - result.provenance["pixels"]["chance"]
    return np.asarray(drops(result) / np.where(above > 0, above, np.nan)[:, None, None])


def end_pairs(regions: Sequence[tuple[int, int]], tokens: int) -> dict[int, tuple[int, int]]:
    """Places of the regions at the leading and at the trailing end, by their size, in the order of the regions.

    >>> end_pairs([(60, 64), (0, 8), (0, 4), (20, 24)], 64)
    {4: (2, 0)}
    """
    leading = {end: place for place, (start, end) in reversed(list(enumerate(regions))) if start == 0}
    pairs: dict[int, tuple[int, int]] = {}
    for place, (start, end) in enumerate(regions):
        if end == tokens and start > 0 and end - start in leading:
            pairs.setdefault(end - start, (leading[end - start], place))
    return pairs


def ends(result: Result) -> dict[int, tuple[int, int]]:
    """The same of a run: size → places of its leading and its trailing region."""
    facts = result.provenance["pixels"]
    return end_pairs([(int(start), int(end)) for start, end in bounds(result)], facts["tokens"])


def uneven(first: np.ndarray, last: np.ndarray) -> tuple[float, float]:
    """What the last tokens cost more than the first, in accuracy, and its standard error over images.

    Args:
        first: share of the draws in which an image is named right, leading tokens replaced (image,).
        last: the same, trailing tokens replaced.
    """
    more = np.append(first - last, [1.0, -1.0])  # as Bonett and Price: no change at all is not certainty
    return float((first - last).mean()), float(more.std(ddof=1) / np.sqrt(len(more)))


def asymmetry_band(result: Result, cells: Sequence[int], size: int, *, level: float = LEVEL) -> Band:
    """What the last tokens cost more than the first, by replacement: mean over seeds, for other seeds and images."""
    at, own = list(ends(result)).index(size), list(cells)
    values, errors = (result[name][own][..., at] for name in ("asymmetry", "asymmetry_error"))
    return nested_interval(values, errors, result.provenance["pixels"]["images_replaced"], level=level)


def attack_rates(result: Result, cells: Sequence[int], target: int | None = None) -> dict[str, np.ndarray]:
    """Shares of other classes' images that are named as the target, of one target or the mean (cell, region).

    Gives `success` with pixels of the target, and `random_pair` with those of any other class.
    """
    chosen = slice(None) if target is None else slice(target, target + 1)
    return {name: result[name][list(cells)][:, chosen].mean(1) for name in ("success", "random_pair")}


def attack_places(result: Result, regions: Sequence[str]) -> list[int] | None:
    """Places of regions of paper 2, in proportion, among those that a run attacks; None where it lacks one of them."""
    facts = result.provenance["pixels"]
    known, words = list(facts["attack_regions"]), [scaled_region(region, facts["tokens"]) for region in regions]
    return [known.index(word) for word in words] if set(words) <= set(known) else None


def attack_trials(result: Result) -> float:
    """Images that an attack is tried on, in the mean over targets: all targets of an image count as one trial."""
    facts = result.provenance["pixels"]
    return float(facts["images_replaced"] * (1 - 1 / len(facts["classes"])))


def attack_difference(
    result: Result,
    cells: Sequence[int],
    regions: tuple[int, int],
    target: int | None = None,
    *,
    above_pairs: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """How much more often attacks of each model succeed at one region than at another, with its error over images.

    Args:
        result: of a run.
        cells: places of models.
        regions: places of the two.
        target: place of a class; None for the mean over all.
        above_pairs: whether each region's rate is taken above that of its random pairs.
    """
    rates, attacked = attack_rates(result, cells, target), attack_trials(result)
    names = ("success", "random_pair") if above_pairs else ("success",)
    values, error = np.zeros(len(cells)), np.zeros(len(cells))
    for name, sign in zip(names, (1, -1), strict=False):
        last, first = (rates[name][:, place] for place in regions)
        values = values + sign * (last - first)
        error = error + (last * (1 - last) + first * (1 - first)) / attacked
    return values, np.sqrt(error)


def attack_band(
    result: Result,
    cells: Sequence[int],
    regions: tuple[int, int],
    target: int | None = None,
    *,
    above_pairs: bool = False,
    level: float = LEVEL,
) -> Band:
    """How much more often attacks succeed at one region than at another: the mean over seeds.

    The mean over targets has an interval for other seeds and images; one target has it for other seeds on these images:
    its few images lend their pixels to all others, which do not count as trials of their own then.

    Args:
        result: of a run.
        cells: places of a model's seeds.
        regions: places of the two.
        target: place of a class; None for the mean over all.
        above_pairs: whether each region's rate is taken above that of its random pairs.
        level: of the interval.
    """
    values, error = attack_difference(result, cells, regions, target, above_pairs=above_pairs)
    if target is not None:
        return student_interval(values, level=level)
    return nested_interval(values, error, round(attack_trials(result)), level=level)


def excess_band(
    result: Result, cells: Sequence[int], region: int, target: int | None = None, *, level: float = LEVEL
) -> Band:
    """How much more often the target is named with its pixels than with those of any other class, at one region.

    Random pairs are the control, not the rate without an attack: pixels of any class break answers, and what is broken
    may name the target too, more often than it was. Rates near 0 are usual here, so that the error over images is that
    of Agresti and Caffo, with one trial more that succeeds and one that does not.

    Args:
        result: of a run.
        cells: places of a model's seeds.
        region: its place.
        target: place of a class; None for the mean over all.
        level: of the interval, which is for other seeds and images; of one target for other seeds on these images,
            as in `attack_band`.
    """
    rates, attacked = attack_rates(result, cells, target), attack_trials(result)
    success, pairs = (rates[name][:, region] for name in ("success", "random_pair"))
    if target is not None:
        return student_interval(success - pairs, level=level)
    moved = [(attacked * rate + 1) / (attacked + 2) for rate in (success, pairs)]
    error = np.sqrt(sum(rate * (1 - rate) for rate in moved) / (attacked + 2))
    return nested_interval(success - pairs, error, round(attacked), level=level)


def largest_excess(
    result: Result, cells: Sequence[int], regions: Sequence[int], target: int | None = None, *, level: float = LEVEL
) -> Band:
    """The largest of some regions' excess: none has more than `high`, and one at least has more than `low`.

    Each bound is wrong in half of 1 − `level` of studies at most. `high` is the highest of the regions' own: that of
    the region which truly has the largest excess is among them. `low` is the highest of bounds that share the error:
    every region is another chance for luck.

    Args:
        result: of a run.
        cells: places of a model's seeds.
        regions: their places.
        target: place of a class; None for the mean over all.
        level: of the interval.
    """
    shared = 1 - (1 - level) / len(regions)
    usual, strict = (
        [excess_band(result, cells, region, target, level=own) for region in regions] for own in (level, shared)
    )
    means, lows, highs = ([band.mean for band in usual], [band.low for band in strict], [band.high for band in usual])
    return Band(*(np.max(part, axis=0) for part in (means, lows, highs)))


LEAST_WINDOWS = 3
"""Over which ranks are compared."""


@dataclass(frozen=True)
class Correlations:
    """Rank correlations of influence and drop.

    Attributes:
        by_cell: of every model and replacement (cell, replacement); NaN where a model has no influence, and over two
            windows, whose ranks agree or do not.
        windows: over how many.
    """

    by_cell: np.ndarray
    windows: int


def windows(result: Result) -> np.ndarray:
    """Places of the regions that lie side by side over the whole sequence, in order: of the most frequent size."""
    places = bounds(result)
    sizes = places[:, 1] - places[:, 0]
    values, counts = np.unique(sizes, return_counts=True)
    size = values[counts == counts.max()].min()
    mine = np.flatnonzero(sizes == size)
    return np.asarray(mine[np.argsort(places[mine, 0])])


def correlations(result: Result) -> Correlations:
    """Rank correlation over windows of the influence of a window's tokens on the answer and of what it costs."""
    chosen, places = windows(result), bounds(result)
    lost = drops(result)[..., chosen]
    values = np.full(lost.shape[:2], np.nan)
    for cell, influence in enumerate(result["influence"] if len(chosen) >= LEAST_WINDOWS else ()):
        total = np.array([influence[start:end].sum() for start, end in places[chosen]])
        for kind in range(lost.shape[1]):
            values[cell, kind] = spearman(total, lost[cell, kind])
    return Correlations(values, len(chosen))


def correlation_band(values: np.ndarray, *, level: float = LEVEL) -> Band:
    """Mean of correlations over seeds (seed, ...) with Student's interval, cut to what a correlation can be.

    >>> [round(float(part), 2) for part in correlation_band(np.array([0.7, 0.9, 0.8]))]
    [0.8, 0.55, 1.0]
    """
    return Band(*(np.clip(part, -1.0, 1.0) for part in student_interval(values, level=level)))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation of ranks, ties at their mean rank; NaN where one of the two does not vary or is not finite.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    x, y = (ranks(part) - (len(part) - 1) / 2 for part in (a, b))
    size = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / size) if size > 0 else float("nan")


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, ties at their mean.

    >>> ranks(np.array([5.0, 1.0, 5.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray(((last - counts + last - 1) / 2)[inverse])
