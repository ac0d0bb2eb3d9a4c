"""Spans: numbers of states or blocks in a few words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsInt


def spans(numbers: Iterable[SupportsInt], noun: str = "state") -> str:
    """Numbers as ranges with their noun.

    >>> spans([1, 2, 3, 7]), spans([4], "block")
    ('states 1-3, 7', 'block 4')
    """
    ranges: list[list[int]] = []
    for number in sorted(map(int, numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{noun if single else noun + 's'} {text}"
