"""Lengths as the paper writes them: 300, 1K = 1000, 2K = 2000, 4K = 4000 tokens."""

from __future__ import annotations

import re

from repflow.core.errors import InputError, teach

THOUSANDS = re.compile(r"^(\d+(?:\.\d+)?)[kK]$")


def parse_length(text: str | int) -> int:
    """Tokens that a length stands for; K is a thousand, not 1024.

    >>> parse_length("4K"), parse_length("300"), parse_length(512), parse_length("1.5k")
    (4000, 300, 512, 1500)
    """
    if isinstance(text, int):
        return text
    thousands = THOUSANDS.match(text.strip())
    try:
        return round(float(thousands[1]) * 1000) if thousands else int(text)
    except (ValueError, OverflowError):  # no number, or one of hundreds of digits
        raise InputError(teach("a length such as 300, 1K or 4K", f"{text!r:.80}", "K is 1000 tokens")) from None
