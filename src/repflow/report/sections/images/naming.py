"""Words that corruption and attacks share: regions, and what the numbers rest on."""

from __future__ import annotations

from repflow.core.results import Result


def region_words(region: str) -> str:
    """A region as a reader counts it: first and last token, from 0.

    >>> region_words("992:1024"), region_words("5:6")
    ('tokens 992 to 1,023', 'token 5')
    """
    start, end = map(int, region.split(":"))
    return f"token {start:,}" if end - start == 1 else f"tokens {start:,} to {end - 1:,}"


def image_basis(source: str, tokens: int, images: int, order: str = "") -> str:
    """What numbers of a classifier rest on.

    >>> image_basis("drawn:8", 64, 60, "row")
    'drawn:8, 64 tokens in row order, 60 images'
    """
    return f"{source}, {tokens:,} tokens{f' in {order} order' if order else ''}, {images:,} images"


def cautions(result: Result) -> str:
    """Sentences to stand behind a reading: what a run found that its numbers are to be read with."""
    return "".join(f" Mind: {finding.message}." for finding in result.findings)
