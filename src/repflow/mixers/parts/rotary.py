"""Rotary positions (Su et al. 2021): channels turn in pairs with the position; products depend on distances alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

BASE = 10_000.0


class _Start(threading.local):
    def __init__(self) -> None:
        self.position = 0


_start = _Start()


@contextmanager
def starting_at(position: int) -> Iterator[None]:
    """Let the first token of every `rotate` inside stand at this position, behind tokens seen before."""
    before, _start.position = _start.position, position
    try:
        yield
    finally:
        _start.position = before


def rotate(x: Tensor, *, size: int | None = None, base: float = BASE) -> Tensor:
    """Turn channel i and its partner i + size/2 of token t by the angle t · base^(−2i/size).

    The halves are paired as in Llama, GPT-NeoX and flash-linear-attention; RetNet's code pairs neighbours, another
    order of the projections' rows, and spaces its frequencies a little wider.

    Args:
        x: (batch, token, head, dim).
        size: Leading channels that turn, even; all if left out.
        base: Base of the frequencies.

    >>> rotate(torch.tensor([1.0, 0.0]).expand(1, 2, 1, 2))[0, :, 0]
    tensor([[1.0000, 0.0000],
            [0.5403, 0.8415]])
    """
    size = x.shape[-1] if size is None else size
    # angles in float64: at token 10,000 a float32 angle is off by 1e-3
    rates = base ** (-torch.arange(0, size, 2, dtype=torch.float64, device=x.device) / size)
    places = torch.arange(_start.position, _start.position + x.shape[1], dtype=torch.float64, device=x.device)
    angles = places[:, None, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x.tensor_split((size // 2, size), dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)
