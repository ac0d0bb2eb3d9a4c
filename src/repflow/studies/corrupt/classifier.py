"""A classifier with its images, ready to be read: predictions of all images, as they are and with a region replaced."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from repflow.capture.influence.answer import answer_influence
from repflow.core.errors import InputError, teach
from repflow.interventions.corruption import Sequences, fill
from repflow.models.classifier import Classifier, load_classifier
from repflow.spec.corruption import AIMED, TARGET, Region
from repflow.studies.corrupt.config import ALSO_OF_IMAGES, OF_CLASSIFIERS, counted, refuse_set
from repflow.studies.engine.parts import OneModel, Prompting
from repflow.tasks.pixels import Images, PixelLayout, load_images

TOKENS = 1 << 18
"""Tokens of a batch on a GPU, an eighth of it on a CPU."""
NO_CLASS = -1
"""What a classifier names whose logits are not finite: no class, which is never right."""


@dataclass(frozen=True)
class Subject:
    """A classifier and what it reads.

    Attributes:
        classifier: the network.
        images: test images.
        layout: how they become sequences.
        sequences: the images as sequences.
        batch: images of a forward pass.
    """

    classifier: Classifier
    images: Images
    layout: PixelLayout
    sequences: Sequences
    batch: int

    @classmethod
    def of(cls, classifier: Classifier, images: Images, layout: PixelLayout, batch: int | None = None) -> Subject:
        """Check that the images fit the classifier, and lay them out."""
        classifier.check(layout, images.shape, len(images.classes))
        sequences = Sequences(layout.sequence(images.pixels), images.labels, len(images.classes))
        room = TOKENS if classifier.device.type == "cuda" else TOKENS // 8
        size = max(1, room // sequences.tokens.shape[1]) if batch is None else batch
        return cls(classifier, images, layout, sequences, size)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return int(self.sequences.tokens.shape[1])

    @cached_property
    def _held(self) -> torch.Tensor:
        """All sequences where the classifier is, in bytes."""
        return torch.tensor(self.sequences.tokens, device=self.classifier.device)

    @torch.no_grad()
    def predictions(self, region: Region | None = None, filled: np.ndarray | None = None) -> np.ndarray:
        """Class that is named for every image, with a region replaced where one is given; `NO_CLASS` for none."""
        named = []
        for start in range(0, len(self.images), self.batch):
            rows = slice(start, start + self.batch)
            pixels = self._held[rows].float() / 255
            if region is not None:
                assert filled is not None
                pixels[:, region.start : region.end] = torch.tensor(filled[rows], device=pixels.device)
            logits = self.classifier.logits(pixels, self.layout, self.images.shape)
            finite = (logits < torch.inf).all(-1)  # False of NaN too; -inf rules a class out
            named.append(torch.where(finite, logits.argmax(-1), NO_CLASS).cpu().numpy())
        return np.concatenate(named)

    def replaced(self, region: Region, kind: str, **draw: Any) -> np.ndarray:
        """Class that is named for every image whose region is replaced."""
        return self.predictions(region, self._fill(region, kind, **draw))

    def drawn(self, region: Region, kind: str, *, seed: int, draws: int) -> np.ndarray:
        """The same of every draw (draw, image)."""
        return np.stack([self.replaced(region, kind, seed=seed, draw=draw) for draw in range(draws)])

    def _fill(self, region: Region, kind: str, **draw: Any) -> np.ndarray:
        if kind.startswith(AIMED):
            draw, kind = {**draw, "target": self.target(kind)}, TARGET
        return fill(self.sequences, region, kind, **draw)

    def check_lenders(self, kind: str) -> None:
        """Refuse a replacement that these images cannot lend to each other, before any is read."""
        self._fill(Region(0, 1), kind, seed=0, draw=0)

    def target(self, kind: str) -> int:
        """Class that lends its pixels by `target:CLASS`, of which there must be images."""
        number = self.images.class_number(kind.removeprefix(AIMED))
        if not len(self.sequences.members(number)):
            got = f"none of {self.images.classes[number]} in {len(self.images)} images"
            raise InputError(
                teach("test images of the target class", got, "read more with --samples, or choose another")
            )
        return number

    def influence(self, count: int) -> np.ndarray:
        """Influence of every token on the answer (image, token), of the first images."""
        parts = []
        for start in range(0, min(count, len(self.images)), self.batch):
            pixels = self._held[start : min(start + self.batch, count)].float() / 255
            parts.append(answer_influence(self.classifier, pixels, self.layout, self.images.shape))
        return np.concatenate(parts)

    def example(self, number: int, region: Region | None = None, kind: str = "", **draw: Any) -> np.ndarray:
        """One image as bytes (row, column, channel), as it is or with a region replaced; pixels are cut to 0 to 1."""
        tokens = self.sequences.tokens[number : number + 1].astype(np.float32) / 255
        if region is not None:
            tokens[:, region.start : region.end] = self._fill(region, kind, **draw)[number]
        whole = self.layout.picture(tokens, self.images.shape)[0]
        step = max(1, -(-max(whole.shape[:2]) // 32))  # a large image is shown by every few of its pixels
        return np.clip(np.round(255 * whole[::step, ::step]), 0, 255).astype(np.uint8)


def open_subject(config: Any, given: Any = None) -> Subject:
    """The classifier and the images that a config names, or those given from Python.

    Args:
        config: with the fields of `Corrupted`.
        given: a Subject, or a classifier's network.
    """
    if isinstance(given, Subject):
        return given
    config = counted(config, text=False)
    if config.init != "trained" or config.ablate:
        got = f"init {config.init}, ablate {config.ablate}"
        raise InputError(teach("a classifier as it was trained", got, "leave --init and --ablate out"))
    read = f"{config.model or 'a network'}, a classifier of images"
    refuse_set(config, Prompting, "prompts", read, ALSO_OF_IMAGES)
    refuse_set(config, OneModel, "language models", read, OF_CLASSIFIERS)
    extra = {"dtype": config.dtype} if config.dtype else {}
    options = {"device": config.device, **extra}
    classifier = Classifier(given) if given is not None else load_classifier(config.model, **options)
    drawn = config.images.partition(":")[0] == "drawn"
    counts = {"train": 1, "test": config.samples} if drawn else {}
    data = load_images(config.images, seed=config.seed, **counts)
    own = classifier.layout
    layout = PixelLayout(
        own.order if config.order is None else config.order,
        grey=own.grey or config.grey,
        patch=own.patch if config.patch is None else config.patch,
    )
    images = renumbered(data.test.first(min(config.samples, len(data.test))), classifier.class_names)
    return Subject.of(classifier, images, layout, config.batch_size)


def renumbered(images: Images, names: tuple[str, ...] | None) -> Images:
    """Images whose classes are numbered as a model numbers them, where both call them alike; else as they are.

    Args:
        images: with names of their classes.
        names: what the model calls its classes; None where it only numbers them.

    >>> images = Images.checked(np.zeros((2, 4, 4)), [0, 1], ("cat", "dog"))
    >>> renumbered(images, ("Dog", "Cat")).labels.tolist(), renumbered(images, ("tabby", "dog")).labels.tolist()
    ([1, 0], [0, 1])

    Raises:
        InputError: some classes are called alike, and stand at other numbers.
    """
    if names is None or len(names) != len(images.classes):
        return images
    theirs, ours = ([name.strip().casefold() for name in part] for part in (names, images.classes))
    if sorted(theirs) == sorted(ours):
        places = np.array([theirs.index(name) for name in ours])
        named = tuple(images.classes[ours.index(name)] for name in theirs)
        return Images(images.pixels, places[images.labels], named)
    moved = [name for name in theirs if name in ours and ours.index(name) != theirs.index(name)]
    if moved:
        expected = "images whose classes are called as the model calls them, or not at all alike"
        got = f"{moved[0]!r} as class {ours.index(moved[0])} of the images and {theirs.index(moved[0])} of the model"
        raise InputError(teach(expected, got, f"name the images' classes as the model does: {', '.join(names)}"))
    return images
