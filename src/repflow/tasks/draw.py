"""Random draws that are the same on every machine and under every version of numpy.

numpy promises the raw stream of a bit generator for ever, but not what its Generator computes from it (`shuffle`,
`choice`). So the few draws that tasks need are made from the raw stream here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Draw:
    """A stream of random numbers that depends on whole numbers alone: seed, purpose, sample."""

    def __init__(self, *entropy: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(list(entropy)))

    def raw(self, count: int) -> np.ndarray:
        """Unsigned 64-bit numbers."""
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)

    def below(self, bound: int) -> int:
        """One whole number from 0 to bound - 1.

        >>> [Draw(0, 1).below(10) for _ in range(3)], Draw(0, 2).below(10)
        ([9, 9, 9], 1)
        """
        return int(self.raw(1)[0]) % bound  # the bias, bound / 2^64, is far below anything measurable

    def choose(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def order(self, count: int) -> list[int]:
        """The numbers 0 to count - 1 in random order."""
        return [int(place) for place in np.argsort(self.raw(count), kind="stable")]

    def hex(self, count: int) -> str:
        """Hexadecimal digits, 16 per raw number."""
        return self.raw(-(-count // 16)).astype("<u8").tobytes().hex()[:count]


def balanced(seed: int, purpose: int, sample: int, classes: int) -> int:
    """Class of a sample: every run of `classes` samples from a multiple of `classes` on holds each class once.

    >>> sorted(balanced(0, 0, sample, 4) for sample in range(4, 8))
    [0, 1, 2, 3]
    """
    block, place = divmod(sample, classes)
    return Draw(seed, purpose, block, classes).order(classes)[place]
