"""Numbers of figures and their tables, as short as they may be: a page holds hundreds of thousands."""

from __future__ import annotations

from typing import Any

import numpy as np

DIGITS = 9
"""Significant digits of a number in a table, and of most that are drawn."""
SHORT = 5
"""Significant digits of what is drawn over depth, and of the cells of heat maps."""
EXACT_POWER = 22
"""Largest power of ten that a double holds exactly."""


def plain(values: Any, digits: int = DIGITS) -> list[Any]:
    """Nested lists of floats with this many significant digits; None for what is not finite.

    >>> plain(np.array([[1 / 3, np.nan], [np.inf, 2.0]]))
    [[0.333333333, None], [None, 2.0]]
    """
    array = np.asarray(values, dtype=np.float64)
    known = np.isfinite(array)
    with np.errstate(divide="ignore"):
        size = np.floor(np.log10(np.abs(np.where(known, array, 1.0))))
    places = np.where(np.isfinite(size), digits - 1 - size, 0.0)
    power = 10.0 ** np.minimum(np.abs(places), EXACT_POWER)
    filled = np.where(known, array, 0.0)
    # a whole number over an exact power of ten is the double nearest to the short decimal, so that it is written short
    cut = np.where(places >= 0, np.rint(filled * power) / power, np.rint(filled / power) * power)
    far = np.abs(places) > EXACT_POWER
    cut[far] = [float(f"{value:.{digits}g}") for value in filled[far]]
    listed: list[Any] = cut.tolist()
    return listed if known.all() else _with_gaps(listed, known.tolist())


def _with_gaps(values: list[Any], known: list[Any]) -> list[Any]:
    if values and isinstance(values[0], list):
        return [_with_gaps(row, own) for row, own in zip(values, known, strict=True)]
    return [value if own else None for value, own in zip(values, known, strict=True)]


def short(values: Any) -> list[Any]:
    """Numbers to draw, of which a reader sees few digits; None for what is not finite.

    >>> short(np.array([0.123456789, np.nan]))
    [0.12346, None]
    """
    return plain(values, SHORT)


def exact(value: Any) -> float | None:
    """One number of a CSV; None where it is not finite.

    >>> exact(np.float32(0.1)), exact(np.nan)
    (0.100000001, None)
    """
    number = float(value)
    return float(f"{number:.{DIGITS}g}") if np.isfinite(number) else None
