"""Transition: a linear recurrence, the one formulation every mixer of this package is written in.

Glossary: h state, A decay, b input, c read-out, delta step size; the state lives on (channel, state) axes, so that a
matrix state (linear attention's keys × values) has values on the channel axis, keys on the state axis. Of the delta
rule: q query, k key, v value, beta write strength of a head.

| form | step | families |
|---|---|---|
| `Transition` | diagonal: every entry of h decays by itself | all but the delta rule |
| `DeltaTransition` | the keys of a head are mixed, by diag(A) (I − beta k kᵀ) | DeltaNet, Gated DeltaNet, KDA |
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


class DeltaTransition(NamedTuple):
    """The delta rule, token by token and head by head: the state decays, then what it holds at the key is replaced.

        h_t = h_{t−1} diag(A_t) (I − beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ        h_0 = 0
        y_t = h_t q_t

    h (value, key) of a head. With |k| = 1 and beta = 1 the value at k becomes v; with beta = 0 nothing is written.

    Attributes:
        A: Decay, broadcastable to (batch, token, head, key).
        k: Keys (batch, token, key head, key); a key head serves head / key head consecutive heads.
        v: Values (batch, token, head, value).
        q: Queries, as the keys.
        beta: Write strengths (batch, token, head).
    """

    A: Tensor
    k: Tensor
    v: Tensor
    q: Tensor
    beta: Tensor

    def per_head(self) -> DeltaTransition:
        """With keys and queries of every head, and a decay with the axes of a key."""
        heads = self.v.shape[2]
        q, k = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in (self.q, self.k))
        return DeltaTransition(self.A.expand(*self.v.shape[:3], -1), k, self.v, q, self.beta)

    def log_decay(self) -> Tensor:
        """Log A, as the scans take it: (batch, token, head), or (batch, token, head, key) where keys differ."""
        logs = self.A.log().expand(*self.v.shape[:3], -1)
        return logs[..., 0] if logs.shape[-1] == 1 else logs

    def operators(self) -> Tensor:
        """Operators M_t = (I − beta_t k_t k_tᵀ) diag(A_t) (batch, token, head, key, key): hᵀ_t = M_t hᵀ_{t−1} + … .

        >>> one, key = torch.ones(1, 1, 1), torch.tensor([[[[0.6, 0.8]]]])
        >>> operator = DeltaTransition(one[..., None] / 2, key, key, key, one).operators()[0, 0, 0]
        >>> [[round(entry, 4) for entry in row] for row in operator.tolist()]
        [[0.32, -0.24], [-0.24, 0.18]]
        """
        decay, k, _, _, beta = self.per_head()
        eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
        return (eye - beta[..., None, None] * k[..., :, None] * k[..., None, :]) * decay[..., None, :]


AnyTransition = Transition | DeltaTransition


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
