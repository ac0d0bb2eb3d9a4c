"""Networks without their numbers, for shapes and counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def outlined(build: Callable[[], T]) -> T:
    """A network without its numbers, which take seconds to draw where it is large.

    One whose start is computed from them, such as a scale by a spectral norm, is built as it is.
    """
    import torch

    try:
        with torch.device("meta"):
            return build()
    except RuntimeError:  # what torch says where a number is asked for
        with torch.device("cpu"):
            return build()
