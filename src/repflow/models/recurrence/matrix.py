"""Recurrences with a matrix state per head and a diagonal transition: linear attention and its descendants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from repflow.mixers.mlstm import EPSILON, Parts
from repflow.mixers.parts.matrix_state import matrix_transition
from repflow.mixers.transition import Transition
from repflow.models.recurrence.layer import WHOLE, Operator, Recurrence

LARGE = 60.0
"""Logarithm of an input gate from which sums of it may leave float32's range."""


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

        C_t = f_t C_{t−1} + e^{i_t} v_t k_tᵀ        h_t = C_t q_t / max(|n_t · q_t|, 1)

    The normaliser is the last value of each head. Layers keep both over a running scale e^m, in which forget gates do
    not show; here they are as they are. The map over tokens takes the division in, and its inputs are the values.

    Args:
        parts: What the layer makes of its input.
        kind: own for a mixer of repflow, mlstm for transformers'.
        layer: Runs the layer's own code for what `mixed` gives.
    """

    def __init__(self, parts: Parts, *, kind: str = "own", layer: Callable[[], Tensor] | None = None) -> None:
        # a gate without a cap can leave float32's range
        least = torch.float32 if float(parts.i.detach().amax()) < LARGE else torch.float64
        wide = torch.promote_types(parts.v.dtype, least)
        queries, keys, values, taken = (part.to(wide) for part in (parts.q, parts.k, parts.v, parts.i.exp()))
        decay = parts.log_f.exp().to(wide)[..., None]
        super().__init__(queries, keys, values * taken[..., None], decay, kind=kind, layer=layer)
        self.raw, self.dim, self.taken, self.forget = values[..., :-1], values.shape[-1] - 1, taken, parts.log_f
        self.slack = EPSILON * parts.scale().exp()

    def log_decay(self, tokens: slice = WHOLE) -> Tensor:
        """Log f_t of each head."""
        return self.forget[:, tokens, :, None]

    def output(self, initial: Tensor | None = None) -> Tensor:
        """What the layer norms and gates: the memory's output over the normaliser's size."""
        y = torch.unflatten(super().output(initial), 2, (self.units, self.dim + 1))
        size = y[..., -1:].abs().clamp_min(1.0) + self.slack[..., None].to(y.dtype)
        return (y[..., :-1] / size).flatten(2)

    def mixed(self) -> Tensor:
        """By the layer's own code where there is one."""
        return self.output() if self.layer is None else self.layer()

    def operator(self, units: Tensor) -> Operator:
        """Of the memory before the division; keys enter with the input gate, values are the inputs."""
        entry = self.taken[:, :, units, None] * self.keys[:, :, units]
        return Operator(self.decay[:, :, units], entry, self.queries[:, :, units], self.raw[:, :, units])

    def matrix(self, units: Tensor, sample: int) -> Tensor:
        """Maps over tokens with the division in them: the normaliser at t is the sum of the memory's row t."""
        weights = super().matrix(units, sample)
        size = weights.sum(-1, keepdim=True).abs().clamp_min(1.0)
        return weights / (size + self.slack[sample, :, units].mT[..., None])


def some(part: Tensor, tokens: slice) -> Tensor:
    """Some tokens of what may be the same at all of them."""
    return part[:, tokens] if part.shape[1] > 1 else part
