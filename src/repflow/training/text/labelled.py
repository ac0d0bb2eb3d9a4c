"""Texts with labels, to train classifiers on: rows of token ids with a mask, and folds of which each is tested once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from repflow.core.errors import InputError, teach
from repflow.core.intervals import smallest_difference
from repflow.models.tokenizer import BYTES, open_tokenizer
from repflow.spec.request import check_least
from repflow.tasks.documents import Document, read_labelled
from repflow.tasks.prompt import encode
from repflow.training.batch import Batch
from repflow.training.text.tokens import end_of

FOLDS = 5


@dataclass(frozen=True)
class LabelledTexts:
    """Texts as rows of one length.

    Attributes:
        rows: ids (text, token), labels (text,) as targets, and a mask where a text is shorter than the longest.
        classes: name of each label.
        folds: number of the fold of each text (text,); texts whose rows are the same are in one fold.
        vocabulary: number of token ids.
        tokenizer: opened.
        cut: share of the texts that were longer than a row.
    """

    rows: Batch
    classes: tuple[str, ...]
    folds: np.ndarray
    vocabulary: int
    tokenizer: Any
    cut: float

    def __len__(self) -> int:
        return len(self.folds)

    def split(self, fold: int) -> tuple[Batch, Batch]:
        """Rows to train on, and those of one fold to test on."""
        here = torch.from_numpy(self.folds == fold)
        return self.rows.rows(~here), self.rows.rows(here)

    def smallest_effect(self, accuracy: float) -> float:
        """Difference between two models that all the texts, each tested once, would show in 4 of 5 repetitions."""
        return smallest_difference(accuracy, len(self))

    def facts(self) -> dict[str, Any]:
        """Counts, as plain JSON values."""
        labels = self.rows.targets
        assert labels is not None
        counts = {name: int((labels == number).sum()) for number, name in enumerate(self.classes)}
        folds = int(self.folds.max()) + 1
        sizes = {"texts": len(self), "tokens": self.rows.inputs.shape[1], "cut": self.cut, "folds": folds}
        return {**sizes, "classes": counts, "vocabulary": self.vocabulary}


def labelled_texts(
    path: str | Path, *, length: int, tokenizer: str | Path | None = None, folds: int = FOLDS, seed: int = 0
) -> LabelledTexts:
    """Read texts with labels: JSON lines with `text` and `label`, or a folder with a folder for each class.

    A text begins with the end-of-text token; of a longer one the first tokens are kept.

    Args:
        path: file or folder.
        length: tokens of a row.
        tokenizer: as of `text_data`.
        folds: parts of which each is tested once, with every class in each.
        seed: of the folds.

    Raises:
        InputError: a class has fewer texts than there are folds.
    """
    check_least([("length", length, 2), ("folds", folds, 2)])
    documents = read_labelled(path)
    opened = open_tokenizer(BYTES if tokenizer is None else tokenizer)
    end, vocabulary = end_of(opened)
    ids = [[end, *own] for own in encode(opened, [document.text for document in documents])]
    classes = tuple(sorted({str(document.label) for document in documents}))
    longest = min(length, max(map(len, ids)))
    table = np.full((len(ids), longest), end, dtype=np.int64)
    mask = np.zeros_like(table)
    for row, own in enumerate(ids):
        size = min(len(own), longest)
        table[row, :size], mask[row, :size] = own[:size], 1
    labels = np.array([classes.index(str(document.label)) for document in documents])
    rows = Batch(
        torch.from_numpy(table),
        torch.from_numpy(labels),
        mask=None if mask.all() else torch.from_numpy(mask),
    )
    cut = float(np.mean([len(own) > longest for own in ids]))
    kept = [tuple(own[:longest]) for own in ids]
    return LabelledTexts(rows, classes, _folds(documents, kept, labels, folds, seed), vocabulary, opened, cut)


def _folds(
    documents: Sequence[Document], kept: Sequence[tuple[int, ...]], labels: np.ndarray, count: int, seed: int
) -> np.ndarray:
    """Fold of each text: within a class in turn, in an order that the texts' words and the seed decide.

    Texts that are the same as far as a row keeps them are copies: a model must not be tested on what it has seen.
    """
    known: dict[tuple[int, ...], int] = {}
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label).tolist()
        shares: dict[tuple[int, ...], tuple[float, str]] = {}
        for at in own:
            shares[kept[at]] = min(shares.get(kept[at], (np.inf, "")), (documents[at].share(seed), documents[at].text))
        if len(shares) < count:
            expected = f"at least {count} different texts of every class, one for each fold"
            got = f"{len(shares)} of {documents[own[0]].label!r} in their first {max(map(len, kept))} tokens"
            raise InputError(teach(expected, got, "choose fewer folds, or longer rows"))
        for place, row in enumerate(sorted(shares, key=shares.__getitem__)):
            known.setdefault(row, place % count)
    return np.array([known[row] for row in kept])
