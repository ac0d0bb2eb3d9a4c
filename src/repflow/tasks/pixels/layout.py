"""How an image becomes a sequence: the order of its pixels or patches, in colour or grey.

row       1 2 3    reversed  9 8 7    column  1 4 7    snake  1 2 3    hilbert  1 2 15 16
          4 5 6              6 5 4            2 5 8           6 5 4             4 3 14 13
          7 8 9              3 2 1            3 6 9           7 8 9             5 8  9 12
                                                                                6 7 10 11
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach

ORDERS = ("row", "reversed", "column", "snake", "hilbert")
LUMA = (299, 587, 114)
"""Weights of red, green and blue in a grey image, by 1,000 (ITU-R BT.601)."""


@dataclass(frozen=True)
class PixelLayout:
    """Images (image, row, column, channel) as sequences (image, token, channel).

    Attributes:
        order: of pixels, or of patches.
        grey: one channel of brightness in place of colours.
        patch: a token is a square of this many pixels a side; its pixels' channels are the token's, row by row.

    >>> picture = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1)
    >>> PixelLayout("snake").sequence(picture)[0, :, 0].tolist(), PixelLayout(patch=2).sequence(picture).shape
    ([0, 1, 3, 2], (1, 1, 4))
    """

    order: str = "row"
    grey: bool = False
    patch: int = 1

    def __post_init__(self) -> None:
        """Refuse unknown orders and patches."""
        if self.order not in ORDERS:
            known = f"an order of pixels among {', '.join(ORDERS)}"
            raise InputError(teach(known, f"{self.order!r:.60}", nearest(str(self.order), ORDERS)))
        if type(self.grey) is not bool or type(self.patch) is not int:
            got = f"{self.grey!r:.20} and {self.patch!r:.20}"
            raise InputError(teach("grey as true or false, and patch as a whole number", got, "correct them"))
        if self.patch < 1:
            raise InputError(teach("--patch of at least 1", str(self.patch), "1 makes every pixel a token"))

    @classmethod
    def stored(cls, own: Any, where: str) -> PixelLayout:
        """Of a model's configuration, which anybody may have written.

        >>> PixelLayout.stored({"order": "snake"}, "tiny").order
        'snake'
        """
        names = [entry.name for entry in fields(cls)]
        if not isinstance(own, dict) or not set(own) <= set(names):
            expected = f"pixel_layout of {where} as an object with {', '.join(names)}"
            raise InputError(teach(expected, f"{own!r:.60}", 'write such as {"order": "row"}'))
        return cls(**own)

    def grid(self, shape: tuple[int, int, int]) -> tuple[int, int]:
        """Rows and columns of tokens of images of a shape."""
        rows, columns, _ = shape
        if rows % self.patch or columns % self.patch:
            got = f"{rows} × {columns} pixels"
            raise InputError(teach(f"sides that patches of {self.patch} divide", got, "choose another --patch"))
        return rows // self.patch, columns // self.patch

    def tokens(self, shape: tuple[int, int, int]) -> int:
        """Tokens of an image.

        >>> PixelLayout(patch=4).tokens((32, 32, 3))
        64
        """
        rows, columns = self.grid(shape)
        return rows * columns

    def channels(self, shape: tuple[int, int, int]) -> int:
        """Channels of a token.

        >>> PixelLayout(patch=4).channels((32, 32, 3)), PixelLayout(grey=True).channels((32, 32, 3))
        (48, 1)
        """
        return (1 if self.grey else shape[2]) * self.patch**2

    def places(self, shape: tuple[int, int, int]) -> np.ndarray:
        """Token of the grid, row by row, that stands at each place of the sequence."""
        return token_order(self.order, *self.grid(shape))

    def sequence(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels uint8 (image, row, column, channel) → (image, token, channel)."""
        shape: Any = pixels.shape[1:]
        rows, columns = self.grid(shape)
        picture = grey_of(pixels) if self.grey else pixels
        count, k = len(picture), self.patch
        tokens = picture.reshape(count, rows, k, columns, k, -1).swapaxes(2, 3).reshape(count, rows * columns, -1)
        return np.ascontiguousarray(tokens[:, self.places(shape)])

    def picture(self, tokens: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
        """Sequences (image, token, channel) → pixels (image, row, column, channel), of any type of number.

        >>> layout, picture = PixelLayout("hilbert", patch=2), np.arange(64).reshape(1, 8, 8, 1)
        >>> bool((layout.picture(layout.sequence(picture), (8, 8, 1)) == picture).all())
        True
        """
        (rows, columns), k = self.grid(shape), self.patch
        back = np.empty_like(tokens)
        back[:, self.places(shape)] = tokens
        parts = back.reshape(len(tokens), rows, columns, k, k, -1).swapaxes(2, 3)
        return parts.reshape(len(tokens), rows * k, columns * k, -1)


def token_order(order: str, rows: int, columns: int) -> np.ndarray:
    """Numbers of a grid's cells, row by row, in an order.

    >>> token_order("column", 2, 3).tolist(), token_order("reversed", 2, 2).tolist()
    ([0, 3, 1, 4, 2, 5], [3, 2, 1, 0])
    """
    grid = np.arange(rows * columns).reshape(rows, columns)
    if order == "column":
        return grid.T.ravel()
    if order == "reversed":
        return grid.ravel()[::-1].copy()
    if order == "snake":
        grid[1::2] = grid[1::2, ::-1].copy()
        return grid.ravel()
    return _hilbert(rows, columns) if order == "hilbert" else grid.ravel()


def _hilbert(rows: int, columns: int) -> np.ndarray:
    """Hilbert's curve from the upper left to the upper right corner, by doubling: four turned copies of the half."""
    if rows != columns or rows & (rows - 1):
        got = f"{rows} × {columns}"
        raise InputError(teach("a square of 2, 4, 8, ... tokens a side for Hilbert's order", got, "choose --order row"))
    down, across = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    side = 1
    while side < rows:
        # each quarter in turn: flipped over the diagonal, as it is twice, flipped over the other diagonal
        down, across = (
            np.concatenate([across, down + side, down + side, side - 1 - across]),
            np.concatenate([down, across, across + side, 2 * side - 1 - down]),
        )
        side *= 2
    return down * columns + across


def grey_of(pixels: np.ndarray) -> np.ndarray:
    """Brightness of pixels, uint8 (image, row, column, 1).

    >>> grey_of(np.array([[[[255, 255, 255], [0, 255, 0]]]], dtype=np.uint8)).ravel().tolist()
    [255, 150]
    """
    if pixels.shape[-1] == 1:
        return pixels
    weighted = pixels.astype(np.uint32) @ np.array(LUMA, dtype=np.uint32)
    return ((weighted + 500) // 1000).astype(np.uint8)[..., None]
