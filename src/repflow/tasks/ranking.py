"""Passages most like a question, by BM25 of the package bm25s (extra `bm25`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from repflow.core.errors import MissingExtraError

WORD = re.compile(r"\w\w+")
DIGITS = 4
"""Decimals of a score that count: the last bits depend on the machine, and a tie goes to the lower number."""


class Ranking:
    """BM25 over passages (k1 = 1.5, b = 0.75, Lucene's idf, as bm25s has them)."""

    def __init__(self, passages: Sequence[str]) -> None:
        bm25s = _package()
        self._index = bm25s.BM25()
        words = [_words(passage) or ["-"] for passage in passages]
        self._index.index(words, show_progress=False)
        self._known = self._index.vocab_dict
        self._count = len(passages)

    def best(self, query: str, count: int) -> list[int]:
        """Numbers of the passages with the highest scores, highest first."""
        terms = [word for word in _words(query) if word in self._known]
        scores = self._index.get_scores(terms) if terms else np.zeros(self._count)
        order = np.argsort(-np.round(np.asarray(scores, dtype=np.float64), DIGITS), kind="stable")
        return [int(number) for number in order[:count]]


def _words(text: str) -> list[str]:
    return WORD.findall(text.casefold())


def _package() -> Any:
    try:
        import bm25s
    except ImportError:
        raise MissingExtraError(
            "distractors by BM25 need bm25s, which is not installed; pip install 'repflow[bm25]', or pass "
            "--distractors random"
        ) from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it turns its own debug messages on
    return bm25s
