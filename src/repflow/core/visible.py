"""Text from elsewhere, such as names of models and folders, written so that it is visible and harmless."""

from __future__ import annotations

import re

BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSEEN = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}\u2028\u2029\ufeff\ud800-\udfff]")
_BREAKS = re.compile("[\t\n]")


def visible(text: str) -> str:
    r"""Write out control characters that would act on a page or terminal instead of being seen: escapes, reversals.

    Line feed and tab stay. The page's script does the same to what it shows.

    >>> visible("a\u202eb\u2028"), visible("\x1b[2J")
    ('a[U+202E]b[U+2028]', '[U+001B][2J')
    """
    return _UNSEEN.sub(_spelled, text)


def one_line(text: str) -> str:
    r"""The same with line feed and tab written out too: a name cannot pose as a line of its own.

    >>> one_line("gpt2\nrun is sound")
    'gpt2[U+000A]run is sound'
    """
    return _BREAKS.sub(_spelled, visible(text))


def _spelled(match: re.Match[str]) -> str:
    return f"[U+{ord(match.group()):04X}]"
