"""Corruption: parts of a sequence replaced, by noise or by parts of other sequences.

What stands in the place of a region is drawn on the CPU for all images at once, from a seed that has the replacement,
the region and the draw in it: the same on every machine, whatever the size of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.spec.corruption import PIXELS, RANDOM_PAIR, TARGET, TEXT, Region

SEEDS = {name: number for number, name in enumerate((*PIXELS, RANDOM_PAIR, TARGET, "random"))}


@dataclass(frozen=True)
class Sequences:
    """Images as sequences, with what replaces their parts.

    Attributes:
        tokens: uint8 (image, token, channel); a pixel's value is this by 255.
        labels: class of each (image,).
        classes: number of classes.
    """

    tokens: np.ndarray
    labels: np.ndarray
    classes: int

    def __len__(self) -> int:
        return len(self.tokens)

    def members(self, label: int) -> np.ndarray:
        """Images of a class."""
        return np.flatnonzero(self.labels == label)

    @cached_property
    def level(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and spread of all pixels, channel by channel, from 0 to 1."""
        flat = self.tokens.reshape(-1, self.tokens.shape[-1])
        return flat.mean(0) / 255, flat.std(0) / 255


def fill(
    sequences: Sequences, region: Region, kind: str, *, seed: int, draw: int, target: int | None = None
) -> np.ndarray:
    """What replaces a region of every image, float32 (image, token of the region, channel), pixels from 0 to 1.

    Args:
        sequences: all images.
        region: tokens that are replaced.
        kind: a replacement of `repflow.spec.corruption`, or TARGET or RANDOM_PAIR for an attack.
        seed: of the run.
        draw: number of the draw.
        target: class that lends its pixels in an attack; images of other classes lend them in a random pair.
    """
    random = _random(region, kind, seed, draw, target)
    part = sequences.tokens[:, region.start : region.end]
    if kind == "normal":
        return random.standard_normal(part.shape, dtype=np.float32)
    if kind == "data":
        mean, spread = sequences.level
        return (mean + spread * random.standard_normal(part.shape, dtype=np.float32)).astype(np.float32)
    if kind == "mean":
        return np.broadcast_to((part.mean(0, dtype=np.float64) / 255).astype(np.float32), part.shape)
    if kind == "shuffle":
        places = random.integers(0, sequences.tokens.shape[1], part.shape[:2])
        return sequences.tokens[np.arange(len(part))[:, None], places].astype(np.float32) / 255
    donors = _donors(sequences, kind, target, random)
    return part[donors].astype(np.float32) / 255


def lenders(
    sequences: Sequences, region: Region, kind: str, *, seed: int, draw: int, target: int | None = None
) -> np.ndarray:
    """Image whose pixels `fill` puts into each image, of replacements that are lent (image,)."""
    return _donors(sequences, kind, target, _random(region, kind, seed, draw, target))


def _random(region: Region, kind: str, seed: int, draw: int, target: int | None) -> np.random.Generator:
    return np.random.default_rng([seed, SEEDS[kind], region.start, region.end, draw, 0 if target is None else target])


def _donors(sequences: Sequences, kind: str, target: int | None, random: np.random.Generator) -> np.ndarray:
    """Image that lends its pixels to each image."""
    if kind in (TARGET, RANDOM_PAIR):
        assert target is not None
        pool = sequences.members(target) if kind == TARGET else np.flatnonzero(sequences.labels != target)
        if not len(pool):
            raise InputError(
                teach(
                    "images that lend their pixels", f"none of class {target}", "raise --samples, or give more images"
                )
            )
        return pool[random.integers(0, len(pool), len(sequences))]
    order = np.argsort(sequences.labels, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    counts = np.bincount(sequences.labels, minlength=sequences.classes)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])[sequences.labels]
    own = counts[sequences.labels]
    if kind == "same":
        if own.min() < 2:
            lone = int(sequences.labels[own.argmin()])
            expected = "at least 2 images of every class, to lend pixels to each other"
            raise InputError(teach(expected, f"1 of class {lone}", "raise --samples, or give more images"))
        return order[first + (place - first + 1 + random.integers(0, own - 1)) % own]
    if own.max() == len(sequences):
        raise InputError(teach("images of at least 2 classes", "one", "raise --samples, or give more images"))
    return order[(first + own + random.integers(0, len(sequences) - own)) % len(sequences)]


def fill_ids(ids: np.ndarray, region: Region, kind: str, vocabulary: np.ndarray, *, seed: int, draw: int) -> np.ndarray:
    """What replaces a region of token ids (prompt, token), of prompts of one length.

    Args:
        ids: of all prompts.
        region: tokens that are replaced.
        kind: a replacement of text.
        vocabulary: ids that random ones are drawn from.
        seed: of the run.
        draw: number of the draw.
    """
    assert kind in TEXT
    random = np.random.default_rng([seed, SEEDS[kind], region.start, region.end, draw])
    size = (len(ids), len(region))
    if kind == "random":
        return vocabulary[random.integers(0, len(vocabulary), size)]
    if kind == "shuffle":
        return ids[np.arange(len(ids))[:, None], random.integers(0, ids.shape[1], size)]
    check_prompts_lend(len(ids))
    donors = (np.arange(len(ids)) + 1 + random.integers(0, len(ids) - 1, len(ids))) % len(ids)
    return ids[donors, region.start : region.end]


def check_prompts_lend(count: int) -> None:
    """Refuse fewer prompts than lend tokens to each other."""
    if count < 2:
        raise InputError(teach("at least 2 prompts, to lend tokens to each other", f"{count}", "pass --samples 8"))
