"""Measured parts of a page: what stands between `<!-- made: NAME -->` and `<!-- end -->` is written by a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

PART = re.compile(r"(?P<head><!-- made: (?P<name>\w+) -->(?P<line>\n?)).*?(?P<end><!-- end -->)", re.DOTALL)
"""A made part, on lines of its own or within a sentence."""


def filled(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """A page with its measured parts replaced."""
    return PART.sub(lambda match: f"{match['head']}{parts[match['name']]()}{match['line']}{match['end']}", text)


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of a page.

    >>> print(table(["model", "reach"], [["mamba", "10"]]))
    | model | reach |
    |---|---|
    | mamba | 10 |
    """
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
