"""Carry: what a mixer keeps of the tokens it has seen, so that later ones go on from there.

A recurrent mixer keeps its state h and the last inputs that its convolutions and shifts look back at; attention keeps
keys and values. `Mixer.advance` uses it. Tested for every family against whole sequences in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.mixers.parts.rotary import starting_at
from repflow.mixers.scan.delta import delta_scan_chunked
from repflow.mixers.scan.reference import delta_scan_reference
from repflow.mixers.transition import AnyTransition, DeltaTransition, Transition, four_axes, joint_shape

CHUNK = 32
"""Tokens whose transitions are held at once while a prompt's last state is summed up."""


@dataclass
class Carry:
    """State of one layer behind the tokens seen.

    Attributes:
        seen: Tokens seen.
        window: Last inputs of the layer (batch, token, width).
        state: h (batch, channel, state), or what the family keeps instead, by name.
    """

    seen: int = 0
    window: Tensor | None = None
    state: dict[str, Tensor] | None = None

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        if self.window is not None:
            self.window = self.window[rows.to(self.window.device)]
        if self.state is not None:
            self.state = {name: part[rows.to(part.device)] for name, part in self.state.items()}

    def lead(self, x: Tensor, reach: int) -> Tensor:
        """Inputs with the last ones before them in front; afterwards `window` ends with x."""
        whole = x if self.window is None else torch.cat([self.window, x], 1)
        self.window = whole[:, max(0, whole.shape[1] - reach) :] if reach else None
        return whole


def _parts(transition: Transition) -> tuple[Tensor, Tensor, Tensor]:
    decay, b, c, delta = four_axes(transition)
    entry = delta * b
    shape = joint_shape(decay, entry, c)
    return decay.expand(shape), entry.expand(shape), c.expand(shape)


def _delta_parts(transition: DeltaTransition, front: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Arguments of the delta rule's scans, without the first tokens."""
    _, k, v, q, beta = transition
    q, k, v, beta, log_decay = (part[:, front:] for part in (q, k, v, beta, transition.log_decay()))
    return q, k, v, beta, log_decay


def follow(transition: AnyTransition, front: int, h: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (batch, token, channel), zeros for the first `front` tokens, and the state behind the last."""
    if isinstance(transition, DeltaTransition):
        parts = _delta_parts(transition, front)
        outputs, last = delta_scan_reference(*parts, torch.unflatten(h, 1, tuple(parts[2].shape[2:])), None)
        return torch.nn.functional.pad(outputs.flatten(2), (0, 0, front, 0)), last.flatten(1, 2)
    decay, entry, c = _parts(transition)
    reads = []
    for token in range(front, decay.shape[1]):
        h = decay[:, token] * h + entry[:, token]
        reads.append((c[:, token] * h).sum(-1))
    y = torch.stack(reads, 1)
    y = y.real if y.is_complex() else y
    return torch.nn.functional.pad(y, (0, 0, front, 0)), h


def last_state(transition: Callable[[Tensor], AnyTransition], x: Tensor, reach: int) -> Tensor:
    """State behind the last token, h = Σ_t (Π_{s>t} A_s) delta_t b_t, a few tokens at a time: no product grows.

    Args:
        transition: Recurrence of inputs (batch, token, width), as `Mixer.transition` gives it.
        x: Inputs (batch, token, width).
        reach: Tokens before a token that its transition looks at.
    """
    h: Tensor | None = None
    for start in range(0, x.shape[1], CHUNK):
        front = min(start, reach)
        with starting_at(start - front):
            here = transition(x[:, start - front : start + CHUNK])
        if isinstance(here, DeltaTransition):
            parts = _delta_parts(here, front)
            before = None if h is None else torch.unflatten(h, 1, tuple(parts[2].shape[2:]))
            h = delta_scan_chunked(*parts, initial=before)[1].flatten(1, 2)
            continue
        decay, entry, _ = _parts(here)
        decay, entry = decay[:, front:], entry[:, front:]
        # Π over this token and all later ones; behind the last stands 1
        through = decay.flip(1).cumprod(1).flip(1)
        later = torch.cat([through[:, 1:], torch.ones_like(through[:, :1])], 1)
        added = (later * entry).sum(1)
        h = added if h is None else through[:, 0] * h + added
    assert h is not None
    return h
