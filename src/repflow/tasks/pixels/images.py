"""Images with labels, checked once, so that nothing behind has to doubt them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach

MOST_BYTES = 4 << 30
"""Of all images of a set together, which are kept in memory."""
MOST_CLASSES = 100_000
"""Classes that are numbered and not named: a label may be any number, and each class below it gets a name."""
SHARE = 0.2
"""Of the images that are for testing, where a source has no split of its own."""


@dataclass(frozen=True)
class Images:
    """Images of one size.

    Attributes:
        pixels: uint8 (image, row, column, channel); 1 channel is grey, 3 are red, green and blue.
        labels: int64 (image,), numbers into `classes`.
        classes: name of each class.

    >>> Images.checked(np.zeros((2, 4, 4)), [0, 1], ("a", "b")).pixels.shape
    (2, 4, 4, 1)
    """

    pixels: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    @classmethod
    def checked(
        cls, pixels: Any, labels: Any, classes: Sequence[str] | None = None, *, what: str = "the images"
    ) -> Images:
        """Images of arrays; refuses sizes, values and labels that do not fit.

        Args:
            pixels: (image, row, column) or (image, row, column, channel); whole numbers from 0 to 255.
            labels: (image,).
            classes: names; the labels' own numbers if left out.
            what: how errors call them.
        """
        array, numbers = np.asarray(pixels), np.asarray(labels)
        array = array[..., None] if array.ndim == 3 else array
        if array.ndim != 4 or array.shape[-1] not in (1, 3) or 0 in array.shape:
            expected = "pixels (image, row, column) or (image, row, column, channel) with 1 or 3 channels"
            remedy = "give at least one image" if 0 in array.shape else "reshape the array"
            raise InputError(teach(expected, f"shape {array.shape} of {what}", remedy))
        if array.dtype != np.uint8:
            array = _bytes(array, what)
        if numbers.ndim != 1 or len(numbers) != len(array) or not np.issubdtype(numbers.dtype, np.integer):
            expected = f"a whole number as label of each of {len(array)} images"
            got = f"{numbers.dtype} of shape {numbers.shape} for {what}"
            raise InputError(teach(expected, got, "give one label per image"))
        low, high = int(numbers.min()), int(numbers.max())
        names = tuple(map(str, classes)) if classes is not None else numbered(high, what)
        if low < 0 or high >= len(names):
            at = int(np.flatnonzero((numbers < 0) | (numbers >= len(names)))[0])
            got = f"{int(numbers[at])} of image {at} of {what}"
            raise InputError(teach(f"labels from 0 to {len(names) - 1}", got, "number the classes from 0"))
        if len(set(names)) < len(names) or len(names) < 2:
            remedy = "name each class once" if len(names) > 1 else "give images of two classes"
            raise InputError(teach("at least 2 classes with different names", f"{names!r:.80} of {what}", remedy))
        return cls(array, numbers.astype(np.int64), names)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and channels of an image."""
        rows, columns, channels = self.pixels.shape[1:]
        return rows, columns, channels

    def first(self, count: int | None, what: str = "images") -> Images:
        """The first images; all where no number is given.

        Args:
            count: how many.
            what: how an error calls them.
        """
        if count is None or count == len(self):
            return self
        if not 1 <= count <= len(self):
            raise InputError(teach(f"1 to {len(self)} {what}", str(count), "ask for fewer, or give more"))
        return Images(self.pixels[:count], self.labels[:count], self.classes)

    def pick(self, index: Any) -> Images:
        """Some of the images."""
        return Images(self.pixels[index], self.labels[index], self.classes)

    def dealt(self) -> Images:
        """Images that stand class by class, dealt out by twos of each class in turn; in any other order, as they are.

        The first ones are then of all classes, and each has another of its class that lends it pixels.

        >>> Images.checked(np.zeros((8, 2, 2)), [0, 0, 0, 0, 1, 1, 1, 1]).dealt().labels.tolist()
        [0, 0, 1, 1, 0, 0, 1, 1]
        """
        if (np.diff(self.labels) < 0).any():
            return self
        place = np.arange(len(self)) - np.searchsorted(self.labels, self.labels)  # of an image within its class
        order = np.lexsort((place, self.labels, place // 2))
        return self if (np.diff(order) > 0).all() else self.pick(order)

    def digest(self) -> str:
        """SHA-256 of sizes, pixels and labels."""
        state = hashlib.sha256(str(self.pixels.shape).encode())
        state.update(np.ascontiguousarray(self.pixels).data)
        state.update(self.labels.astype("<i8").tobytes())
        return state.hexdigest()

    def class_number(self, name: str) -> int:
        """Number of a class by its name or number.

        >>> Images.checked(np.zeros((1, 2, 2)), [0], ("frog", "horse")).class_number("horse")
        1
        """
        if name in self.classes:
            return self.classes.index(name)
        if name.isdecimal() and len(name) < 10 and int(name) < len(self.classes):
            return int(name)
        expected = f"a class among {', '.join(self.classes)}, or a number from 0 to {len(self.classes) - 1}"
        advice = nearest(name, self.classes)
        raise InputError(teach(expected, f"{name!r:.60}", advice if advice.startswith("did") else "correct the target"))

    def class_numbers(self, names: Sequence[str]) -> list[int]:
        """Numbers of different classes, by their names or numbers.

        >>> Images.checked(np.zeros((1, 2, 2)), [0], ("frog", "horse")).class_numbers(["horse", "0"])
        [1, 0]
        """
        numbers = [self.class_number(name) for name in names]
        if len(set(numbers)) < len(numbers):
            raise InputError(teach("different targets", ",".join(names), "name each class once"))
        return numbers


@dataclass(frozen=True)
class PixelData:
    """A set of images to learn from, and one to test on.

    Attributes:
        name: short name of the source.
        train: to learn from.
        test: to test on.
    """

    name: str
    train: Images
    test: Images

    def __post_init__(self) -> None:
        """Both parts have one size and the same classes."""
        if self.train.shape != self.test.shape or self.train.classes != self.test.classes:
            got = f"{self.train.shape} and {self.test.shape}, {len(self.train.classes)} and {len(self.test.classes)}"
            expected = "one size and the same classes in training and test images"
            raise InputError(teach(expected, got, f"correct the images of {self.name}"))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.classes

    def facts(self) -> dict[str, Any]:
        """What a Result says of the images."""
        return {
            "images": self.name,
            "shape": list(self.train.shape),
            "train_images": len(self.train),
            "test_images": len(self.test),
            "classes": list(self.classes),
        }


def numbered(highest: int, what: str) -> tuple[str, ...]:
    """Names of classes that have none: their numbers, up to the highest label."""
    if highest >= MOST_CLASSES:
        got = f"{highest} of {what}"
        raise InputError(teach(f"labels below {MOST_CLASSES:,}", got, "number the classes from 0"))
    return tuple(map(str, range(max(highest, 0) + 1)))


def split(name: str, images: Images, seed: int, share: float = SHARE) -> PixelData:
    """Split images of every class into training and test images, by a seed.

    >>> whole = Images.checked(np.zeros((10, 2, 2)), [0, 1] * 5)
    >>> data = split("zeros", whole, 0)
    >>> len(data.train), np.bincount(data.test.labels).tolist()
    (8, [1, 1])
    """
    test = []
    for label in range(len(images.classes)):
        own = np.flatnonzero(images.labels == label)
        count = round(share * len(own))
        test.append(np.random.default_rng([seed, label]).permutation(own)[:count])
    chosen = np.sort(np.concatenate(test))
    rest = np.setdiff1d(np.arange(len(images)), chosen)
    if not len(chosen) or not len(rest):
        got = f"{len(images)} images of {len(images.classes)} classes in {name}"
        raise InputError(teach("images for training and for testing", got, "give more images of each class"))
    return PixelData(name, images.pick(rest), images.pick(chosen))


def _bytes(array: np.ndarray, what: str) -> np.ndarray:
    """Whole numbers from 0 to 255 as bytes; shares from 0 to 1 are refused, as nobody can say what 1 means."""
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise InputError(teach("numbers as pixels", f"{array.dtype} in {what}", "pass uint8"))
    finite = np.isfinite(array)
    if not finite.all():
        lost = np.unravel_index(finite.argmin(), array.shape)
        got = f"{array[lost]} in image {lost[0]} of {what}"
        raise InputError(teach("whole numbers from 0 to 255", got, "leave out images with NaN or infinite pixels"))
    if array.min() < 0 or array.max() > 255 or (array != np.round(array)).any():
        got = f"values from {array.min()} to {array.max()} in {what}"
        shares = array.min() >= 0 and array.max() <= 1
        remedy = "multiply by 255 and round" if shares else "bring the values to 0 to 255 and round them"
        raise InputError(teach("whole numbers from 0 to 255", got, remedy))
    return array.astype(np.uint8)
