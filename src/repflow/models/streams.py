"""Several residual streams: blocks that hand on more than one state per token (hyper-connections, AltUp).

Such a block reads a mixture of its streams, and writes what its sublayers give into all of them; after the last block
a read-out of the model's own makes one state of them. A stream alone is not what any sublayer reads or the head sees:
the `residual` state of such a model is the read-out mixture, which is its own read-out applied to the streams after
every block; `stream:K` is one stream as it is.

| layout | shape | for example |
|---|---|---|
| inner | (batch, token, stream, width) | DeepSeek-V4, Hunyuan 4, GLM-5-Next |
| packed | (batch, token, stream · width) | Qwen4-Exp |
| outer | (stream, batch, token, width) | Gemma 3n |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.results import Finding

INNER, PACKED, OUTER = "inner", "packed", "outer"
LEAST = 1e-5
"""Mean square below which Gemma 3n takes a stream to be of this size."""
Readout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Streams:
    """Streams of a model, found by the shape of what its blocks hand on.

    Attributes:
        count: How many.
        layout: Where the stream axis is: inner, packed or outer.
        readout: Turns what a block hands on into one state (batch, token, width); None before it was found.
        name: Of the read-out, for people.
    """

    count: int
    layout: str
    readout: Readout | None = None
    name: str = ""

    def split(self, hidden: Tensor) -> Tensor:
        """Streams (batch, token, stream, width) of what a block hands on; a view."""
        if self.layout == PACKED:
            return hidden.reshape(*hidden.shape[:-1], self.count, -1)
        return hidden.movedim(0, 2) if self.layout == OUTER else hidden

    def join(self, streams: Tensor) -> Tensor:
        """What a block takes, from streams (batch, token, stream, width).

        >>> streams = torch.arange(24).reshape(1, 2, 3, 4)
        >>> [tuple(Streams(3, layout).join(streams).shape) for layout in (INNER, PACKED, OUTER)]
        [(1, 2, 3, 4), (1, 2, 12), (3, 1, 2, 4)]
        >>> all(torch.equal(s.split(s.join(streams)), streams) for s in (Streams(3, PACKED), Streams(3, OUTER)))
        True
        """
        if self.layout == PACKED:
            return streams.flatten(-2)
        return streams.movedim(2, 0).contiguous() if self.layout == OUTER else streams

    def mixture(self, hidden: Tensor) -> Tensor:
        """The state that the model's own read-out makes of the streams (batch, token, width)."""
        assert self.readout is not None
        return self.readout(hidden)

    def finding(self) -> Finding:
        """What a reader must know of the states."""
        words = (
            f"{self.count} residual streams: `residual` states are their mixture as the model reads it out after its "
            f"last block ({self.name}), applied after every block; `stream:1` to `stream:{self.count}` are the streams"
        )
        return Finding("streams", None, words)

    def one(self, hidden: Tensor, number: int) -> Tensor:
        """One stream (batch, token, width), counted from 1."""
        return self.split(hidden)[:, :, number - 1]


def find_streams(shape: Sequence[int], prompts: Sequence[int], width: int) -> Streams | None:
    """Streams by the shape of a block's input; None for one stream and for shapes of another kind.

    >>> find_streams((2, 8, 4, 32), (2, 8), 32), find_streams((2, 8, 32), (2, 8), 32)
    (Streams(count=4, layout='inner', readout=None, name=''), None)
    """
    (batch, tokens), shape = prompts, tuple(shape)
    if len(shape) == 4 and shape[:2] == (batch, tokens) and shape[3] == width:
        return Streams(shape[2], INNER)
    if len(shape) == 4 and shape[1:] == (batch, tokens, width):
        return Streams(shape[0], OUTER)
    if len(shape) == 3 and shape[:2] == (batch, tokens) and shape[2] > width and shape[2] % width == 0:
        return Streams(shape[2] // width, PACKED)
    return None


def module_readout(module: nn.Module) -> Readout:
    """Read-out by a module of the model, without its hooks: those see the model's own call alone."""
    return lambda hidden: module.forward(hidden)


def altup_readout(base: Any) -> Readout:
    """Gemma 3n's, which is not a module: the streams are projected, brought to the first one's size and averaged."""

    def size(stream: Tensor, least: float) -> Tensor:
        return stream.square().mean(-1, keepdim=True).clamp_min(least).sqrt()

    def read(hidden: Tensor) -> Tensor:
        first = hidden[0]
        moved = [project(stream) for project, stream in zip(base.altup_unembed_projections, hidden[1:], strict=True)]
        return torch.stack([first, *(part * size(first, 0.0) / size(part, LEAST) for part in moved)]).mean(0)

    return read
