"""Recurrences with a matrix state per head and a diagonal transition: linear attention and its descendants."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

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


def some(part: Tensor, tokens: slice) -> Tensor:
    """Some tokens of what may be the same at all of them."""
    return part[:, tokens] if part.shape[1] > 1 else part
