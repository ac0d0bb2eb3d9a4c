"""Words of corruption: which tokens are replaced, and by what. No torch.

A region is START:END as in Python, the end not included: `992:1024`, `:32`, `-32:`; or `first:K`, `middle:K`, `last:K`.
Several at once: `windows:K`, all windows of K tokens side by side; `paper`, those of paper 2's Tables 1 and 3, of
attacks those of its Figure 3; or those of one of them by the name of its recipe; `fewer`, the first and the last 32, 96
and 192 tokens: fewer than 256, with which attacks hardly succeed, as paper 2 has it. The last two kinds, and `paper`,
are of 1,024 tokens, in proportion where a sequence has another number.

| replacement of pixels | |
|---|---|
| normal | N(0, 1), as paper 2's code has it; far outside of pixels from 0 to 1 |
| data | normal noise of the data's own mean and spread, channel by channel |
| shuffle | pixels of the same image, drawn at random |
| mean | mean image |
| same | the same region of another image of the same class |
| other | the same region of an image of another class |
| target:CLASS | the same region of an image of a class, by its name or number |

| replacement of text | |
|---|---|
| random | random token ids |
| shuffle | tokens of the same prompt, drawn at random |
| other | the same region of another prompt |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from repflow.core.errors import InputError, nearest, teach

PIXELS = ("normal", "data", "shuffle", "mean", "same", "other")
TEXT = ("random", "shuffle", "other")
RANDOM_PAIR, TARGET = "random pair", "target"
"""Replacements of an attack: pixels lent by any other class, and by the class that is the target."""
WINDOWS = 32
"""Windows that a sequence is cut into, where nothing else is asked for."""
SLICE = re.compile(r"(-?\d{1,9})?:(-?\d{1,9})?")
NAMED = re.compile(r"(first|middle|last):(\d{1,9})")
PAPER = {
    "recency-table1": ("992:1024", "0:32", "928:1024", "0:96"),
    "recency-table3": ("1014:1024", "0:10", "768:1024", "0:256", "512:544", "480:576"),
    "recency-fig3": ("0:256", "768:1024", "0:480", "544:1024"),
    "fewer": ("992:1024", "0:32", "928:1024", "0:96", "832:1024", "0:192"),
}
"""Regions of paper 2, of 1,024 pixels; the sizes of `fewer` are ours."""
PAPER_TOKENS = 1024
PRINTED = "paper"
"""Word for regions that the paper prints numbers of: those of `TABLES` or of `FIGURES`."""
TABLES = ("recency-table1", "recency-table3")
"""Of corruption, whose regions are called `paper`."""
FIGURES = ("recency-fig3",)
"""Of attacks, of whose regions the same word is said."""
AIMED = "target:"
"""In front of the class that lends its pixels."""


@dataclass(frozen=True, order=True)
class Region:
    """Tokens from `start` up to `end`, which is not included.

    >>> str(Region(992, 1024)), len(Region(992, 1024))
    ('992:1024', 32)
    """

    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"

    def __len__(self) -> int:
        return self.end - self.start


def parse_region(word: str, tokens: int | None = None) -> Region:
    """A region of a sequence.

    Args:
        word: as it is typed.
        tokens: of the sequence; None checks the word alone, of a sequence that holds it.

    >>> parse_region("-32:", 1024), parse_region("middle:32", 1024), parse_region("last:10", 64)
    (Region(start=992, end=1024), Region(start=496, end=528), Region(start=54, end=64))
    """
    named, plain = NAMED.fullmatch(word), SLICE.fullmatch(word)
    if named is None and (plain is None or word == ":"):
        expected = f"a region START:END, first:K, middle:K or last:K, windows:K, or {', '.join((PRINTED, *PAPER))}"
        raise InputError(teach(expected, f"{word!r:.60}", _remedy(word)))
    size = 1 << 40 if tokens is None else tokens
    if named is not None:
        count = int(named[2])
        at = {"first": 0, "middle": (size - count) // 2, "last": size - count}[named[1]]
        region = Region(at, at + count)
    else:
        assert plain is not None
        start, end = (None if part is None else int(part) for part in plain.groups())
        region = Region(_from(start, 0, size), _from(end, size, size))
    if not 0 <= region.start < region.end <= size:
        if tokens is None:
            raise InputError(teach("a region with its start before its end", repr(word), "correct it"))
        some = max(1, tokens // WINDOWS)
        remedy = f"name tokens from 0 to {tokens}, such as first:{some} and last:{some}"
        raise InputError(teach(f"a region inside of {tokens} tokens", repr(word), remedy))
    return region


def _remedy(word: str) -> str:
    """What to write in place of a word that is no region: the nearest word, with the number that was typed."""
    name, _, number = word[:60].partition(":")
    counted = [f"{known}:{number}" for known in ("first", "middle", "last", "windows")]
    sized = name.isalpha() and number.isdecimal() and len(number) < 10
    advice = nearest(word[:60], counted if sized else [PRINTED, "windows", *PAPER])
    return advice if advice.startswith("did you mean") else "write such as 992:1024, -32: or last:32"


def _from(number: int | None, default: int, size: int) -> int:
    if number is None:
        return default
    return size + number if number < 0 else number


def parse_regions(words: Sequence[str], tokens: int, paper: Sequence[str] = TABLES) -> list[Region]:
    """Regions in the order given, each once; `windows` and `windows:K` stand for all windows of K tokens side by side.

    Args:
        words: as they are typed.
        tokens: of the sequence.
        paper: tables or figures whose regions `paper` stands for.

    >>> [str(region) for region in parse_regions(["windows:16", "last:4"], 40)]
    ['0:16', '16:32', '24:40', '36:40']
    >>> [str(region) for region in parse_regions(["recency-table1"], 256)]
    ['248:256', '0:8', '232:256', '0:24']
    """
    regions: list[Region] = []
    for word in words:
        if word.startswith("windows"):
            regions += windows(word, tokens)
        else:
            regions += [parse_region(part, tokens) for part in paper_regions(word, tokens, paper) or [word]]
    return list(dict.fromkeys(regions))


def paper_regions(word: str, tokens: int, paper: Sequence[str] = TABLES) -> list[str]:
    """Regions of paper 2 that a word stands for, for a sequence of this many tokens; none for any other word.

    >>> paper_regions("paper", 1024)[:2], paper_regions("0:32", 1024), paper_regions("paper", 64, FIGURES)[:2]
    (['992:1024', '0:32'], [], ['0:16', '48:64'])
    >>> paper_regions("fewer", 64)
    ['62:64', '0:2', '58:64', '0:6', '52:64', '0:12']
    """
    tables = paper if word == PRINTED else (word,)
    return [scaled_region(region, tokens) for table in tables for region in PAPER.get(table, ())]


def check_regions(words: Sequence[str], example: str = "--regions windows,first:32,last:32") -> None:
    """Refuse words that are not regions of any sequence.

    Args:
        words: as they are typed.
        example: what to pass where there are none.
    """
    if not words:
        raise InputError(teach("at least one region", "none", f"pass {example}"))
    for word in words:
        if word.startswith("windows"):
            window_size(word)
        elif not paper_regions(word, PAPER_TOKENS):
            parse_region(word)


def windows(word: str, tokens: int) -> list[Region]:
    """Windows that slide over a sequence; the last one ends with it."""
    size = window_size(word) or max(1, tokens // WINDOWS)
    if size > tokens:
        raise InputError(teach(f"windows of at most {tokens} tokens", word, "write a smaller number"))
    starts = [*range(0, tokens - size, size), tokens - size]
    return [Region(start, start + size) for start in starts]


def window_size(word: str) -> int | None:
    """Tokens of a window, None where the word leaves it open."""
    match = re.fullmatch(r"windows(?::([1-9]\d{0,8}))?", word)
    if match is None:
        raise InputError(teach("windows, or windows:K", f"{word!r:.60}", "write windows:32"))
    return None if match[1] is None else int(match[1])


def check_replacements(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse unknown replacements."""
    if not names or len(set(names)) < len(names):
        raise InputError(teach("different replacements", ",".join(names) or "none", f"known: {', '.join(known)}"))
    for name in names:
        aimed = known[0] == PIXELS[0] and name.startswith(AIMED) and len(name) > len(AIMED)
        if name not in known and not aimed:
            what = "tokens of text" if name in TEXT else "pixels" if name in PIXELS else None
            shown = [*known, f"{AIMED}CLASS"] if known[0] == PIXELS[0] else known
            advice = f"{name} replaces {what} alone; choose one of these" if what else nearest(name, shown)
            raise InputError(teach(f"--replace {', '.join(shown)}", repr(name), advice))


def scaled_region(word: str, tokens: int) -> str:
    """A region of paper 2, of 1,024 pixels, for a sequence of another length; at least one token.

    >>> scaled_region("992:1024", 256), scaled_region("0:10", 64)
    ('248:256', '0:1')
    """
    region = parse_region(word, PAPER_TOKENS)
    size = max(1, round(len(region) * tokens / PAPER_TOKENS))
    if region.end == PAPER_TOKENS:
        return f"{tokens - size}:{tokens}"
    start = round(region.start * tokens / PAPER_TOKENS)
    return f"{start}:{start + size}"
