"""Sentinels: probes on what should not reveal the label. One that reads it has found a leak in the prompts.

State 0 at the last token holds that token alone; lengths and counts hold the prompt's size; a bag of tokens holds which
tokens occur and nothing of their order. None of them needs the model to have read anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats

from repflow.core.errors import InputError, teach
from repflow.probes.chance import chance_level
from repflow.probes.features import ArrayFeatures
from repflow.probes.fit import check_labels, fit_probes
from repflow.probes.split import Split

LAST, SIZES, BAG = "state 0 at the last token", "length and counts", "bag of tokens"
ERRORS = 3.0
"""Standard errors above chance that make a leak."""
SENTINELS = 3
"""Sentinels of a run; each may raise a false alarm."""
BAG_COLUMNS = 1024
"""Tokens kept in the bag: those most unevenly spread over the classes of the training rows."""
BINS = 32
"""Values of a length or count that get a column of their own; more are put into quantiles."""


@dataclass(frozen=True)
class Sentinel:
    """What one sentinel read.

    Attributes:
        name: What it looked at.
        accuracy: Test accuracy, mean over seeds.
        chance: What guessing gives.
        error: Standard error of the accuracy at chance, each prompt counted once, and a group with one label once.
        leaks: Accuracy above chance + 3 errors, and as unlikely by the exact binomial tail.
        blind: So few test prompts that not even an accuracy of 1 could be distinguished from chance.
    """

    name: str
    accuracy: float
    chance: float
    error: float
    leaks: bool
    blind: bool = False


def sentinels(
    features0: Any,
    lengths: Sequence[int] | np.ndarray | None,
    counts: Sequence[int] | np.ndarray | None,
    token_bags: Sequence[Any] | None,
    labels: Sequence[int] | np.ndarray,
    splits: Sequence[Split],
    *,
    n_classes: int | None = None,
    groups: Sequence[Hashable] | np.ndarray | None = None,
    device: str | torch.device = "cpu",
) -> list[Sentinel]:
    """Probe what should not reveal the label, with the `robust` recipe.

    Args:
        features0: (sample, width) state 0 at the last token, or None.
        lengths: (sample,) tokens of each prompt, or None.
        counts: (sample,) or (sample, count) items and other sizes, or None.
        token_bags: Per sample its token ids, in any order, or None.
        labels: (sample,) or (seed, sample).
        splits: One per seed.
        n_classes: Classes of the label; the largest label + 1 if not given.
        groups: (sample,) prompts of one group with one label count as one: guessing one right means guessing all.
        device: Where to fit.

    >>> y = np.arange(60) % 3
    >>> part = np.arange(60) // 3 % 5
    >>> split = Split(*(np.flatnonzero(np.isin(part, which)) for which in ([0, 1, 2], [3], [4])))
    >>> [found] = sentinels(None, 100 + y, None, None, y, [split])
    >>> found.name, found.accuracy, found.leaks
    ('length and counts', 1.0, True)
    """
    n_classes = int(np.max(labels)) + 1 if n_classes is None else n_classes
    known = check_labels(labels, splits, n_classes, np.shape(labels)[-1])
    n_samples = known.shape[1]
    if groups is not None:
        _check_rows("groups", len(groups), n_samples)
    effective = effective_tests(known, splits, groups)
    verdicts = []
    if features0 is not None:
        rows = features0 if isinstance(features0, torch.Tensor) else torch.as_tensor(np.asarray(features0))
        _check_rows("features0", len(rows), n_samples)
        verdicts.append(_judge(LAST, *_read(LAST, rows[None].float(), known, splits, n_classes, device), effective))
    if lengths is not None or counts is not None:
        sizes = [np.asarray(part, float).reshape(len(part), -1) for part in (lengths, counts) if part is not None]
        for part in sizes:
            _check_rows("lengths and counts", len(part), n_samples)
        columns = torch.as_tensor(size_columns(np.concatenate(sizes, 1)))
        verdicts.append(_judge(SIZES, *_read(SIZES, columns[None], known, splits, n_classes, device), effective))
    if token_bags is not None:
        _check_rows("token_bags", len(token_bags), n_samples)
        verdicts.append(_judge(BAG, *_read_bags(token_bags, known, splits, n_classes, device), effective))
    return verdicts


def _check_rows(name: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise InputError(teach(f"{name} of {wanted} samples", f"{got}", "give one entry per sample"))


def effective_tests(
    labels: np.ndarray, splits: Sequence[Split], groups: Sequence[Hashable] | np.ndarray | None = None
) -> float:
    """Independent tests among all test rows of all seeds: (Σ m)² / Σ m², with m the rows of one group and label.

    A prompt that several seeds test is one prompt, and prompts of a group with one label count as one.

    Args:
        labels: (seed, sample).
        splits: One per seed.
        groups: (sample,); None makes each prompt its own group.

    >>> split = Split(np.array([0]), np.array([1]), np.arange(2, 8))
    >>> y = np.array([[0, 1, 0, 0, 0, 1, 1, 1]])
    >>> effective_tests(y, [split]), effective_tests(y, [split], groups=list("abccdeef"))
    (6.0, 3.6)
    """
    times: dict[Hashable, int] = {}
    for mine, split in zip(labels, splits, strict=True):
        for row in split.test.tolist():
            unit = row if groups is None else (groups[row], int(mine[row]))
            times[unit] = times.get(unit, 0) + 1
    counts = np.array(list(times.values()), dtype=float)
    return float(counts.sum() ** 2 / np.square(counts).sum())


def _read(
    name: str,
    rows: torch.Tensor,
    labels: np.ndarray,
    splits: Sequence[Split],
    n_classes: int,
    device: str | torch.device,
) -> tuple[float, float]:
    """Accuracy and chance of a probe on these rows; in float32, as a CPU has it: a leak stops the run."""
    fit = fit_probes(
        ArrayFeatures(rows), labels, splits, n_classes=n_classes, recipe="robust", device=device, precision="float32"
    )
    if fit.reasons:
        raise InputError(teach(f"finite numbers for {name}", fit.reasons[0], "look for what makes them NaN or Inf"))
    return float(fit.accuracy_test.mean()), chance_level(fit)


def _read_bags(
    bags: Sequence[Any], labels: np.ndarray, splits: Sequence[Split], n_classes: int, device: str | torch.device
) -> tuple[float, float]:
    """The bag's columns are chosen on training rows, so each seed has its own."""
    parts = []
    occurrences = Occurrences.of(bags)
    for mine, split in zip(labels, splits, strict=True):
        columns = torch.as_tensor(occurrences.columns(mine, split.train, n_classes))
        parts.append(_read(BAG, columns[None], mine[None], [split], n_classes, device))
    accuracy, chance = np.mean(parts, axis=0)
    return float(accuracy), float(chance)


def _judge(name: str, accuracy: float, chance: float, effective: float) -> Sentinel:
    error = float(np.sqrt(chance * (1 - chance) / effective))
    # with few prompts per class the normal tail is too thin: the exact one must be as unlikely, over three sentinels
    prompts, least = np.floor(effective), stats.norm.sf(ERRORS) / SENTINELS
    right = np.ceil(accuracy * effective - 1e-9)
    beyond = accuracy > min(chance + ERRORS * error, 1 - 1e-9)  # three errors may lie above 1
    leaks = bool(beyond and stats.binom.sf(right - 1, prompts, chance) < least)
    return Sentinel(name, accuracy, chance, error, leaks, blind=bool(chance**prompts >= least))


def size_columns(sizes: np.ndarray) -> np.ndarray:
    """Each size itself and one column per value (or quantile), so that any function of it can be read.

    >>> size_columns(np.array([[3.0], [5.0], [3.0]])).tolist()
    [[3.0, 1.0, 0.0], [5.0, 0.0, 1.0], [3.0, 1.0, 0.0]]
    """
    out = []
    for column in sizes.T:
        values = np.unique(column)
        if len(values) > BINS:
            values = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[:-1]))
        place = np.searchsorted(values, column, side="right") - 1
        out += [column[:, None], np.eye(len(values))[place]]
    return np.concatenate(out, 1).astype(np.float32)


class Occurrences(NamedTuple):
    """Every token of every prompt, one entry each: sorted out once for all seeds.

    Attributes:
        rows: (entry,) sample.
        tokens: (entry,) number of the token among those that occur.
        kinds: Different tokens.
        samples: Prompts.
    """

    rows: np.ndarray
    tokens: np.ndarray
    kinds: int
    samples: int

    @classmethod
    def of(cls, bags: Sequence[Any]) -> Occurrences:
        """Entries of the bags."""
        ids = [np.asarray(bag).ravel() for bag in bags]
        rows = np.repeat(np.arange(len(ids)), [len(bag) for bag in ids])
        names, tokens = np.unique(np.concatenate(ids), return_inverse=True)
        return cls(rows, tokens, len(names), len(ids))

    def columns(self, labels: np.ndarray, train: np.ndarray, n_classes: int) -> np.ndarray:
        """See `bag_columns`."""
        trained = np.zeros(self.samples, bool)
        trained[train] = True
        inside = trained[self.rows]
        cells = self.tokens[inside] * n_classes + labels[self.rows[inside]]
        seen = np.bincount(cells, minlength=self.kinds * n_classes).reshape(self.kinds, n_classes).astype(float)
        share = np.bincount(labels[train], minlength=n_classes) / len(train)
        hoped = seen.sum(1, keepdims=True) * share
        with np.errstate(divide="ignore", invalid="ignore"):
            informative = np.where(hoped > 0, (seen - hoped) ** 2 / hoped, 0).sum(1)
        chosen = np.sort(np.argsort(-informative, kind="stable")[:BAG_COLUMNS])
        place = np.full(self.kinds, -1)
        place[chosen] = np.arange(len(chosen))
        at = place[self.tokens]
        flat = (self.rows * len(chosen) + at)[at >= 0]
        size = self.samples * len(chosen)
        return np.bincount(flat, minlength=size).reshape(self.samples, len(chosen)).astype(np.float32)


def bag_columns(bags: Sequence[Any], labels: np.ndarray, train: np.ndarray, n_classes: int) -> np.ndarray:
    """How often each of the most informative tokens occurs in each prompt, (sample, token).

    Informative: the largest χ² of a token's counts over the classes against their shares, on training rows.
    """
    return Occurrences.of(bags).columns(labels, train, n_classes)
