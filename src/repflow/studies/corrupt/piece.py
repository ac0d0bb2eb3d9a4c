"""Pieces of work that can be done in any order and by different workers, each kept as soon as it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from repflow.studies.engine.cell import Share

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink

WHOLE = Share(0, 1)


@dataclass(frozen=True)
class Piece:
    """Images or prompts with one region replaced in one way, or as they are.

    Attributes:
        name: of its shard.
        read: has the model read them.
        tokens: that the model reads.
        samples: places of prompts whose own values these are, for the manifest.
    """

    name: str
    read: Callable[[], dict[str, np.ndarray]]
    tokens: int
    samples: tuple[int, ...] = ()


def keep_pieces(
    pieces: Sequence[Piece], sink: Sink, total: int, progress: Progress | None, share: Share = WHOLE
) -> None:
    """Do the pieces of a share, unless they are kept.

    Args:
        pieces: all there are, in the same order for every share.
        sink: keeps them.
        total: what progress counts to.
        progress: called after each piece.
        share: the part that is done here.
    """
    tokens = 0
    for place, piece in enumerate(pieces):
        if share.has(place) and not sink.has(piece.name):
            sink.keep(piece.name, piece.read(), {"samples": list(piece.samples)})
        tokens += piece.tokens
        if progress is not None:
            progress((place + 1) * total // len(pieces), total, tokens)
