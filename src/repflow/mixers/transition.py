"""Transition: a diagonal linear recurrence, the one formulation every mixer of this package is written in.

Glossary: h state, A decay, b input, c read-out, delta step size; the state lives on (channel, state) axes, so that a
matrix state (linear attention's keys × values) has values on the channel axis, keys on the state axis.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach


class Transition(NamedTuple):
    """A diagonal linear recurrence, token by token.

        h_t = A_t h_{t−1} + delta_t · b_t        h_0 = 0
        y_t = Σ_state c_t h_t                    (its real part where h is complex)

    Each part is broadcastable to (batch, token, channel, state). `b` includes the input and excludes `delta`.
    """

    A: Tensor
    b: Tensor
    c: Tensor
    delta: Tensor


def four_axes(transition: Transition) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Parts of a transition with all four axes (batch, token, channel, state), missing leading ones of size 1."""
    parts = []
    for name, part in zip(Transition._fields, transition, strict=True):
        if part.ndim > 4:
            raise InputError(
                teach(
                    f"{name} broadcastable to (batch, token, channel, state)",
                    f"shape {tuple(part.shape)}",
                    "fold heads into the channel axis",
                )
            )
        parts.append(part.reshape((1,) * (4 - part.ndim) + tuple(part.shape)))
    decay, b, c, delta = parts
    if joint_shape(*parts)[1] == 0:
        raise InputError(teach("at least one token", "none", "give a sequence with tokens"))
    return decay, b, c, delta


def joint_shape(*parts: Tensor) -> torch.Size:
    """Shape that tensors broadcast to."""
    return torch.broadcast_shapes(*(part.shape for part in parts))  # type: ignore[no-untyped-call]
