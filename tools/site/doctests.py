"""Docstrings on the site: doctests as code. Markdown would take the prompt `>>>` for a quotation of a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?P=indent)(?! *$).*)*", re.MULTILINE)


def fenced(text: str) -> str:
    r"""The docstring with each doctest, and what it prints, in a fence of its own.

    >>> fenced("One.\n\n>>> 1 + 1\n2\n\nTwo.").splitlines()
    ['One.', '', '```pycon', '>>> 1 + 1', '2', '```', '', 'Two.']
    """

    def fence(match: re.Match[str]) -> str:
        indent = match["indent"]
        return f"{indent}```pycon\n{match[0]}\n{indent}```"

    return DOCTEST.sub(fence, text)


class Doctests(Extension):
    """Fences the doctests of every object that is documented."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each object that was read."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
