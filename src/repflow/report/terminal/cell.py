"""How every table writes a number, and which rows a long one keeps."""

from __future__ import annotations

import numpy as np

ROWS = 12
DEPTHS = (0, 25, 50, 75, 100)
ABSENT = "–"
LARGE = 1e6
"""From here on numbers are written by powers of ten."""


def thinned(count: int, rows: int = ROWS) -> list[int]:
    """Indices of at most `rows` of `count` states, first and last among them.

    >>> thinned(5), thinned(49, 5)
    ([0, 1, 2, 3, 4], [0, 12, 24, 36, 48])
    """
    return sorted({round(i) for i in np.linspace(0, count - 1, min(rows, count))})


def decimals(values: np.ndarray, least: int = 2, most: int = 6) -> int:
    """Decimals with which the smallest value of a column that is not 0 keeps two digits.

    >>> decimals(np.array([0.0, 0.16, 31.2])), decimals(np.array([0.0013, 2.0])), decimals(np.array([np.nan]))
    (2, 4, 2)
    """
    known = np.abs(values[np.isfinite(values) & (values != 0)])
    return int(np.clip(1 - np.floor(np.log10(known.min())), least, most)) if known.size else least


def number(value: float | None, digits: int = 3) -> str:
    """A number of fixed digits, by powers of ten where these would fill the line; a dash where there is none.

    >>> number(0.12345), number(-3.4e29), number(None)
    ('0.123', '-3.4e+29', '–')
    """
    if value is None or not np.isfinite(value):
        return ABSENT
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.1e}"
