"""DeltaMixer: projections, short convolutions, the delta rule, and a norm of each head's output.

Glossary: q, k, v query, key, value of a head; beta write strength; α decay (a head's, or a key's).
Parameter names are those of flash-linear-attention's layers.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.head_norm import HeadRMSNorm
from repflow.mixers.parts.length import unit_length
from repflow.mixers.parts.matrix_state import split_heads
from repflow.mixers.scan.forms import Path, delta_scan
from repflow.mixers.transition import DeltaTransition

UNIT = 1e-6
"""Added to the squared length of queries and keys before its root divides them."""


class DeltaMixer(Mixer):
    """A mixer with the delta rule; families say how the state decays and what gates the output.

    Args:
        width: Channels in and out.
        heads: Heads of queries and keys.
        value_heads: Heads of values; every key head serves equally many.
        state: Keys of a head.
        value: Values of a head.
        conv: Tokens under the short convolutions of queries, keys and values; 0 removes them (silu stays).
        negative: Let write strengths reach 2, so that a key's part of the state can change its sign.
    """

    family: ClassVar[str]

    def __init__(
        self, width: int, *, heads: int, value_heads: int, state: int, value: int, conv: int, negative: bool
    ) -> None:
        super().__init__(width)
        divides(value_heads, heads, "number of value_heads", "heads")
        at_least(1, state=state, value=value)
        at_least(0, conv=conv)
        self.heads, self.value_heads, self.state, self.value, self.negative = heads, value_heads, state, value, negative
        keys, values = heads * state, value_heads * value
        self.q_proj = nn.Linear(width, keys, bias=False)
        self.k_proj = nn.Linear(width, keys, bias=False)
        self.v_proj = nn.Linear(width, values, bias=False)
        self.q_conv1d = CausalConvolution(keys, conv, bias=False) if conv else None
        self.k_conv1d = CausalConvolution(keys, conv, bias=False) if conv else None
        self.v_conv1d = CausalConvolution(values, conv, bias=False) if conv else None
        self.b_proj: nn.Linear | None = nn.Linear(width, value_heads, bias=False)
        self.o_norm: HeadRMSNorm | None = HeadRMSNorm(value)
        self.o_proj = nn.Linear(values, width, bias=False)

    @property
    def state_size(self) -> int:
        """Values × keys of every head."""
        return self.value_heads * self.value * self.state

    def forward(self, x: Tensor, *, path: Path = "auto") -> Tensor:
        """Mix tokens by `delta_scan`."""
        self.check_input(x)
        q, k, v, beta = self._project(x)
        y = delta_scan(q, k, v, beta, log_decay=self._log_decay(x), path=path)
        assert isinstance(y, Tensor)
        return self.readout(y.flatten(2), x)

    def transition(self, x: Tensor) -> DeltaTransition:
        """A = α, keys and queries of length 1, the latter by 1/√state."""
        q, k, v, beta = self._project(x)
        log_decay = self._log_decay(x)
        if log_decay is None:
            decay = v.new_ones(1, 1, 1, 1)
        else:
            decay = log_decay.exp() if log_decay.ndim == 4 else log_decay.exp()[..., None]
        return DeltaTransition(decay, k, v, q, beta)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Norm, gate, project."""
        out = split_heads(y.to(x.dtype), self.value_heads)
        if self.o_norm is not None:
            out = self.o_norm(out)
        gate = self._gate(x)
        out = out.flatten(2)
        return self.o_proj(out if gate is None else out * gate)

    def _log_decay(self, x: Tensor) -> Tensor | None:
        """Log α (batch, token, head) or (batch, token, head, key); None without decay."""
        return None

    def _gate(self, x: Tensor) -> Tensor | None:
        """What multiplies the normed output (batch, token, head · value)."""
        return None

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values (batch, token, head, dim) and write strengths (batch, token, head)."""
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        filters = (self.q_conv1d, self.k_conv1d, self.v_conv1d)
        q, k, v = (
            functional.silu(part if conv is None else conv(part)) for part, conv in zip(parts, filters, strict=True)
        )
        q, k = (unit_length(split_heads(part, self.heads), UNIT) for part in (q, k))
        ones = v.new_ones(*v.shape[:2], self.value_heads)
        beta = ones if self.b_proj is None else torch.sigmoid(self.b_proj(x))
        return q * self.state**-0.5, k, split_heads(v, self.value_heads), 2 * beta if self.negative else beta


def per_head(state: int | None, width: int, heads: int) -> int:
    """Keys of a head: as given, or the width's share."""
    return divides(width, heads, "width", "heads") if state is None else state
