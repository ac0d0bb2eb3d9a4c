"""Recurrences with a matrix state per head and a diagonal transition: linear attention and its descendants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from repflow.mixers.mlstm import EPSILON, Parts, normalised
from repflow.mixers.parts.matrix_state import matrix_transition
from repflow.mixers.transition import Transition
from repflow.models.recurrence.layer import WHOLE, Operator, Recurrence


class MatrixRecurrence(Recurrence):
    """A matrix state per head: h_t = A_t h_{t−1} + v_t k_tᵀ, y_t = h_t q_t.

    Args:
        queries: (batch, token, head, key).
        keys: (batch, token, head, key), those of the token before where `own` is given.
        values: (batch, token, head, value), likewise.
        decay: Broadcastable to (batch, token, head, key); None for 1.
        own: Values of the tokens themselves, and their weights (batch, token, head), in RWKV-5.
        kind: own for a mixer of repflow, lightning for MiniMax's.
        layer: Runs the layer's own code for what `mixed` gives.
    """

    unit = "head"

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        decay: Tensor | None = None,
        *,
        own: tuple[Tensor, Tensor] | None = None,
        kind: str = "own",
        layer: Callable[[], Tensor] | None = None,
    ) -> None:
        self.kind, self.layer = kind, layer
        self.queries, self.keys, self.values, self.own = queries, keys, values, own
        self.decay = keys.new_ones(1, 1, 1, 1) if decay is None else decay
        self.batch, self.tokens, self.units, self.dim = values.shape

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """Keys are b, values Δ."""
        return matrix_transition(*(some(part, tokens) for part in (self.queries, self.keys, self.values, self.decay)))

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log |A_t| of each key."""
        return some(self.decay, tokens).expand(-1, -1, self.units, -1).abs().double().log()

    def operator(self, units: Tensor) -> Operator:
        """Keys enter, values are the inputs."""
        decay = self.decay.expand(-1, -1, self.units, -1)[:, :, units]
        x, weight = (self.values, None) if self.own is None else (self.own[0], self.own[1][:, :, units])
        return Operator(decay, self.keys[:, :, units], self.queries[:, :, units], x[:, :, units], weight)

    def mixed(self) -> Tensor:
        """The states' output, and with it the current token's bonus in RWKV-5."""
        if self.layer is not None:
            return self.layer()
        y = self.output()
        return y if self.own is None else y + (self.own[1][..., None] * self.own[0]).flatten(2)


class MlstmRecurrence(MatrixRecurrence):
    """mLSTM's: what the memory gives is divided by the size of the normaliser, token by token.

        h_t = C_t q_t / max(|n_t · q_t|, 1)

    Memory and normaliser, which is the last value of each head, are divided by a running scale e^m. The map over tokens
    takes the division in, and its inputs are the values.

    Args:
        parts: What the layer makes of its input.
        kind: own for a mixer of repflow, mlstm for transformers'.
        layer: Runs the layer's own code for what `mixed` gives.
    """

    def __init__(self, parts: Parts, *, kind: str = "own", layer: Callable[[], Tensor] | None = None) -> None:
        log_decay, entry, self.m = parts.scaled()
        wide = torch.promote_types(entry.dtype, torch.float32)
        decay = log_decay.exp().to(wide)[..., None]
        queries, keys, entry = (part.to(wide) for part in (parts.q, parts.k, entry))
        super().__init__(queries, keys, entry, decay, kind=kind, layer=layer)
        self.raw, self.dim = parts.v[..., :-1].to(wide), entry.shape[-1] - 1
        self.taken = torch.exp(parts.i - self.m).to(wide)

    def transition(self, tokens: slice = WHOLE) -> Transition:
        """Keys are b, entering values Δ, the normaliser's among them."""
        return super().transition(tokens)

    def output(self, initial: Tensor | None = None) -> Tensor:
        """What the layer norms and gates: the memory's output over the normaliser's size."""
        y = torch.unflatten(super().output(initial), 2, (self.units, self.dim + 1))
        return normalised(y, self.m).flatten(2)

    def mixed(self) -> Tensor:
        """By the layer's own code where there is one."""
        return self.output() if self.layer is None else self.layer()

    def operator(self, units: Tensor) -> Operator:
        """Of the memory before the division; keys enter with the input gate, values are the inputs."""
        entry = self.taken[:, :, units, None] * self.keys[:, :, units]
        decay = self.decay.expand(-1, -1, self.units, -1)[:, :, units]
        return Operator(decay, entry, self.queries[:, :, units], self.raw[:, :, units])

    def matrix(self, units: Tensor, sample: int) -> Tensor:
        """Maps over tokens with the division in them: the normaliser at t is the sum of the memory's row t."""
        weights = super().matrix(units, sample)
        floor = torch.exp(-self.m[sample, :, units]).mT[..., None]
        return weights / (torch.maximum(weights.sum(-1, keepdim=True).abs(), floor) + EPSILON)


def some(part: Tensor, tokens: slice) -> Tensor:
    """Some tokens of what may be the same at all of them."""
    return part[:, tokens] if part.shape[1] > 1 else part
