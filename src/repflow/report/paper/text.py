"""Text of figures: names and tokens are data, so nothing in them is taken for markup or turned around."""

from __future__ import annotations

import re
import unicodedata

from repflow.core.visible import visible

LONGEST = 60
"""Characters of a name in a legend; the rest is an ellipsis."""


def literal(text: str) -> str:
    r"""Text as matplotlib shows it letter by letter.

    Every dollar sign is escaped, so that none begins mathematics, and marks that would turn the text around or cut it
    are written out, as on the page.

    >>> print(literal("cost_$x$\u202e"))
    cost_\$x\$[U+202E]
    """
    # matplotlib takes text for mathematics only where an even number of unescaped dollars stands in it
    return visible(text).replace("\t", " ").replace("$", r"\$")


def shortened(text: str, longest: int = LONGEST) -> str:
    """Text cut in its middle, where names differ least.

    >>> shortened("state-spaces/mamba-130m-hf", 12)
    'state-…0m-hf'
    """
    if len(text) <= longest:
        return text
    left = longest // 2
    return f"{text[:left]}…{text[len(text) - (longest - left - 1) :]}"


def slug(text: str) -> str:
    """A safe, short part of a file name.

    >>> slug("Figure 2: token similarity"), slug("../../x"), slug("")
    ('figure-2-token-similarity', 'x', 'figure')
    """
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii").lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST].strip("-") or "figure"
