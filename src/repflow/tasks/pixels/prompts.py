"""The task `pixels` for models of token ids: grey images of the built-in set, a token per pixel, brightness as id."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.make import check_size
from repflow.tasks.pixels.drawn import CLASSES, LARGEST, SMALLEST, draw_images
from repflow.tasks.pixels.images import Images
from repflow.tasks.pixels.layout import PixelLayout
from repflow.tasks.prompt import Prompt, Prompts, bos_prefix, token_strings

LEVELS = 256


def pixel_prompts(
    vocab_size: int,
    *,
    length: int,
    samples: int,
    seed: int = 0,
    order: str = "row",
    tokenizer: Any = None,
    bos: str = "model",
    bos_id: int | None = None,
    without: Collection[int] = (),
) -> Prompts:
    """Images as prompts: the largest square of at least 8 pixels a side that fits; the label is the class.

    Ids are the brightness from 0 to 255; a model with fewer ids gets as many levels as it has.

    >>> prompts = pixel_prompts(300, length=70, samples=3)
    >>> len(prompts[0].ids), prompts[1].label, prompts.classes[1]
    (64, 1, 'square')
    """
    check_size(length, samples)
    if seed < 0:
        raise InputError(teach("a seed of 0 or more", f"{seed}", "pass --seed 0"))
    prefix = bos_prefix(tokenizer, bos, bos_id)
    side = min(math.isqrt(length - len(prefix)), LARGEST)
    if side < SMALLEST:
        least = SMALLEST**2 + len(prefix)
        expected = f"a length of at least {least} tokens for images of {SMALLEST} × {SMALLEST}"
        remedy = f"pass --length {least}, or {least + 1} for a model that reads a class token too"
        raise InputError(teach(expected, str(length), remedy))
    allowed = np.setdiff1d(np.arange(min(vocab_size, LEVELS + len(without))), list(without))[:LEVELS]
    if len(allowed) < 2:
        raise InputError(teach("a vocabulary of at least 2 ids", f"{len(allowed)}", "choose another model"))
    images = draw_images(samples, side=side, seed=seed, part="test")
    ids = allowed[_levels(images, order) * len(allowed) // LEVELS]
    prompts = []
    for number, row in enumerate(ids.tolist()):
        whole = (*prefix, *row)
        strings = tuple(token_strings(tokenizer, whole))
        prompts.append(
            Prompt(whole, None, strings, bool(prefix), label=int(images.labels[number]), group=f"{seed}/{number}")
        )
    return Prompts("pixels", tuple(prompts), CLASSES)


def _levels(images: Images, order: str) -> np.ndarray:
    """Brightness from 0 to 255 (image, token)."""
    return PixelLayout(order, grey=True).sequence(images.pixels)[..., 0].astype(np.int64)


def image_prompts(images: Images, *, order: str = "row", class_token: str | None = None) -> Prompts:
    """Images as prompts of a classifier with 256 levels: brightness as id, and the class token as the id 256.

    Args:
        images: with labels.
        order: of pixels.
        class_token: where it is: middle or end; None for none.

    >>> prompts = image_prompts(draw_images(2, side=8), class_token="end")
    >>> len(prompts[0].ids), prompts[0].ids[-1]
    (65, 256)
    """
    prompts = []
    for number, row in enumerate(_levels(images, order).tolist()):
        at = {None: len(row), "middle": len(row) // 2, "end": len(row)}[class_token]
        own = (*row[:at], *([] if class_token is None else [LEVELS]), *row[at:])
        strings = tuple("class" if level == LEVELS else str(level) for level in own)
        prompts.append(Prompt(own, None, strings, label=int(images.labels[number]), group=str(number)))
    return Prompts("pixels", tuple(prompts), images.classes)
