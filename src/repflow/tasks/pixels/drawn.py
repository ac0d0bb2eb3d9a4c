"""Images drawn by rules: four shapes, three textures and three digits, thousands of them from a seed, with no download.

Every image has colours, a place, a size and an angle of its own, and a little noise. Image i depends on seed, part and
i alone, so a larger set begins with the smaller one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.tasks.pixels.images import Images, PixelData

CLASSES = ("disc", "square", "triangle", "cross", "stripes", "checks", "dots", "two", "four", "seven")
SIDE, TRAIN, TEST = 32, 4000, 1000
SMALLEST, LARGEST = 8, 256
NOISE = 10.0
"""Standard deviation of the noise, in levels of 255."""
PART = {"train": 0, "test": 1}
BLOCK = 500
"""Images that are drawn at once."""

STROKES = {
    "two": ((-0.5, -0.5), (-0.2, -0.9), (0.3, -0.9), (0.5, -0.4), (-0.5, 0.9), (0.5, 0.9)),
    "four": ((0.5, 0.2), (-0.6, 0.2), (0.2, -0.9), (0.2, 0.9)),
    "seven": ((-0.5, -0.9), (0.5, -0.9), (-0.1, 0.9)),
}
"""Corners of each digit's line, across and down, from −1 to 1."""


def draw_data(*, side: int = SIDE, train: int = TRAIN, test: int = TEST, seed: int = 0) -> PixelData:
    """Training and test images; the two parts are drawn apart."""
    parts = {name: draw_images(count, side=side, seed=seed, part=name) for name, count in _counts(train, test)}
    return PixelData(f"drawn:{side}", parts["train"], parts["test"])


def _counts(train: int, test: int) -> list[tuple[str, int]]:
    return [("train", train), ("test", test)]


def draw_images(count: int, *, side: int = SIDE, seed: int = 0, part: str = "train") -> Images:
    """Colour images of the ten classes, one class after the other.

    >>> images = draw_images(12, side=16)
    >>> images.pixels.shape, images.labels.tolist()
    ((12, 16, 16, 3), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
    """
    if not SMALLEST <= side <= LARGEST:
        raise InputError(teach(f"images of {SMALLEST} to {LARGEST} pixels a side", str(side), "write drawn:32"))
    if not 1 <= count <= 10**6 or seed < 0:
        raise InputError(teach("1 to 1,000,000 images and a seed of 0 or more", f"{count} and {seed}", "correct them"))
    labels = np.arange(count) % len(CLASSES)
    pixels = np.empty((count, side, side, 3), dtype=np.uint8)
    for start in range(0, count, BLOCK):
        block = np.arange(start, min(start + BLOCK, count))
        pixels[block] = _block(len(block), labels[block], side, [seed, PART[part], start // BLOCK])
    return Images(pixels, labels.astype(np.int64), CLASSES)


def _block(count: int, labels: np.ndarray, side: int, seed: list[int]) -> np.ndarray:
    draws = np.random.default_rng(seed)
    numbers = draws.random((BLOCK, 12))[:count]  # all of a block, so that the first do not depend on how many follow
    noise = np.random.default_rng([*seed, 1]).standard_normal((count, side, side, 3)).astype(np.float32) * NOISE
    axis = (np.arange(side) + 0.5) / side * 2 - 1
    ink = np.empty((count, side, side))
    for label, name in enumerate(CLASSES):
        own = np.flatnonzero(labels == label)
        if len(own):
            ink[own] = _ink(name, numbers[own], axis)
    front, back = numbers[:, 6:9], numbers[:, 9:12]
    # colours that are too alike are pulled apart in brightness
    near = np.abs(front.mean(1) - back.mean(1)) < 0.25
    front = np.where(near[:, None], (front + (front.mean(1) > 0.5)[:, None]) / 2, front)
    back = np.where(near[:, None], (back + (numbers[:, 6:9].mean(1) <= 0.5)[:, None]) / 2, back)
    colour = ink[..., None] * front[:, None, None] + (1 - ink[..., None]) * back[:, None, None]
    return np.clip(np.round(255 * colour + noise), 0, 255).astype(np.uint8)


def _ink(name: str, numbers: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Share of the front colour (image, row, column); edges are a pixel wide."""
    shape = name not in ("stripes", "checks", "dots")
    spread = 0.4 if shape else 1.0
    angle = (numbers[:, 0] - 0.5) * (0.6 if name in STROKES else 2 * np.pi)
    down, across = ((numbers[:, 1 + k] - 0.5) * 2 * spread for k in range(2))
    size = 0.35 + 0.25 * numbers[:, 3] if shape else np.ones(len(numbers))
    y, x = axis[None, :, None] - down[:, None, None], axis[None, None, :] - across[:, None, None]
    cosine, sine = (part[:, None, None] for part in (np.cos(angle), np.sin(angle)))
    u, v = ((x * cosine + y * sine) / size[:, None, None], (y * cosine - x * sine) / size[:, None, None])
    inside = _rule(name, numbers)(u, v)
    edge = len(axis) / 2 * size[:, None, None]
    return np.clip(inside * edge + 0.5, 0, 1)


def _rule(name: str, numbers: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Signed distance to a figure's edge, positive inside, roughly."""
    rate = ((2 + 3 * numbers[:, 4]) * np.pi)[:, None, None]
    rules: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "disc": lambda u, v: 0.9 - np.hypot(u, v),
        "square": lambda u, v: 0.8 - np.maximum(np.abs(u), np.abs(v)),
        "triangle": lambda u, v: np.minimum(0.5 - v, 0.5 + v / 2 - 0.87 * np.abs(u)),
        "cross": lambda u, v: np.minimum(
            0.28 - np.minimum(np.abs(u), np.abs(v)), 0.95 - np.maximum(np.abs(u), np.abs(v))
        ),
        "stripes": lambda u, v: np.sin(rate * u) / rate,
        "checks": lambda u, v: np.sin(rate * u) * np.sin(rate * v) / rate,
        "dots": lambda u, v: (np.cos(rate * u) + np.cos(rate * v) - 0.9) / rate,
    }
    if name in rules:
        return rules[name]
    return functools.partial(_strokes, name, (0.14 + 0.12 * numbers[:, 5])[:, None, None])


def _strokes(name: str, thick: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    corners = STROKES[name]
    nearest = np.full(u.shape, np.inf)
    for (ax, ay), (bx, by) in itertools.pairwise(corners):
        along = np.clip(((u - ax) * (bx - ax) + (v - ay) * (by - ay)) / ((bx - ax) ** 2 + (by - ay) ** 2), 0, 1)
        nearest = np.minimum(nearest, np.hypot(u - ax - along * (bx - ax), v - ay - along * (by - ay)))
    return thick - nearest
