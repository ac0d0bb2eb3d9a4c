"""Whether one row of classifiers is better than another, and how large a difference the tested texts could show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from repflow.core.intervals import bracketed, corrected_resampled_t, smallest_difference
from repflow.studies.classify.config import ClassifyCell

Places = dict[int, int]
"""Place of the cell of each seed."""


def compared(
    cells: Sequence[ClassifyCell], arrays: Mapping[str, np.ndarray], tested: int, folds: int
) -> Iterator[tuple[str, str]]:
    """Codes and sentences: the smallest effect, then each row at its best rate against the first.

    A difference is taken seed by seed, on the same texts, with the interval of Nadeau and Bengio: folds share what
    they are trained on. It is decided only where that interval leaves out 0 and the difference is one that
    the texts could show.

    Args:
        cells: of the grid.
        arrays: accuracy of each.
        tested: texts that were tested, all seeds together.
        folds: parts of the texts.
    """
    accuracy = arrays["accuracy"]
    known = accuracy[np.isfinite(accuracy)]
    if not len(known):
        return
    share = float(known.mean())
    least = smallest_difference(share, tested)
    yield (
        "smallest_effect",
        f"two models that are right on {100 * share:.0f} % of the {tested:,} texts tested must differ by "
        f"{100 * least:.1f} points to be found different in 4 of 5 repetitions; smaller differences stay open",
    )
    best = best_rates(cells, accuracy)
    first, *others = best
    rates = len({cell.rate for cell in cells})
    for other in others:
        seeds = sorted(best[first].keys() & best[other].keys())
        apart = np.array([accuracy[best[other][seed]] - accuracy[best[first][seed]] for seed in seeds])
        yield "difference", f"{other} against {first}: {difference_words(apart, least, folds)}{_chosen(rates)}"


def best_rates(cells: Sequence[ClassifyCell], accuracy: np.ndarray) -> dict[str, Places]:
    """Of every row, depth and width the models with its best rate, by seed; models that diverged have none."""
    places: dict[tuple[str, float], Places] = {}
    for place, cell in enumerate(cells):
        if np.isfinite(accuracy[place]):
            words = f"{cell.row}, {cell.layers} layer{'' if cell.layers == 1 else 's'}, width {cell.width}"
            places.setdefault((words, cell.rate), {})[cell.seed] = place
    best: dict[str, Places] = {}
    for (words, _), own in places.items():
        if words not in best or _mean(accuracy, own) > _mean(accuracy, best[words]):
            best[words] = own
    return best


def difference_words(apart: np.ndarray, least: float, folds: int) -> str:
    """A difference with its interval, and better, worse or open.

    >>> difference_words(np.array([0.1, 0.11, 0.12]), 0.05, 5)
    '+11.0 points [+7.7, +14.3] over 3 seeds: better'
    >>> difference_words(np.array([0.03, 0.03, 0.03]), 0.05, 5)
    '+3.0 points [+3.0, +3.0] over 3 seeds: open'
    """
    if not len(apart):
        return "no seed in common: open"
    band = corrected_resampled_t(apart, train=folds - 1, test=1)
    mean, low, high = (float(side) for side in band)
    decided = abs(mean) >= least and (low > 0 or high < 0)
    word = ("better" if mean > 0 else "worse") if decided else "open"
    interval = bracketed(low, high, "+.1f", scale=100.0) or " (too few seeds for an interval)"
    return f"{100 * mean:+.1f} points{interval} over {len(apart)} seed{'s' * (len(apart) > 1)}: {word}"


def _mean(accuracy: np.ndarray, places: Places) -> float:
    return float(accuracy[list(places.values())].mean())


def _chosen(rates: int) -> str:
    return "" if rates == 1 else f"; the better of {rates} rates on these very texts, for both"
