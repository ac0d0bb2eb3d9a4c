"""HGRN2 (Qin et al. 2024): a gated linear RNN whose forget gates are also its keys, with a matrix state.

Glossary: α forget gate (head, key); q query; v input of a head; S state (value, key).
Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.gla import GatedMatrix
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.head_norm import HeadRMSNorm
from repflow.mixers.parts.matrix_state import split_heads


class HGRN2(GatedMatrix):
    """Gated linear attention with keys 1 − α.

        α_t = lower + (1 − lower) sigmoid(W_f x_t)        q_t = silu(W_q x_t)        v_t = W_i x_t
        S_t = S_{t−1} diag(α_t) + v_t (1 − α_t)ᵀ        o_t = S_t q_t / √state        o_proj(norm(o))

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head, the paper's expansion; width / heads if left out.
        lower: Least forget gate. The model learns one for each layer, rising with depth and 0 in the first; here it is
            a number.
        norm: Whether an RMS norm over all heads' outputs follows.

    >>> HGRN2(8, heads=2).state_size  # 8 values × 4 keys
    32
    """

    family: ClassVar[str] = "hgrn2"

    def __init__(
        self, width: int, *, heads: int = 4, state: int | None = None, lower: float = 0.0, norm: bool = True
    ) -> None:
        super().__init__(width)
        self.heads, self.value = heads, divides(width, heads, "width", "heads")
        self.state = self.value if state is None else state
        at_least(1, state=self.state)
        if not 0 <= lower < 1:
            raise InputError(teach("a lower bound from 0 to below 1", f"{lower:g}", "the first layer's is 0"))
        self.lower = lower
        self.q_proj = nn.Linear(width, heads * self.state, bias=False)
        self.f_proj = nn.Linear(width, heads * self.state, bias=False)
        self.i_proj = nn.Linear(width, width, bias=False)
        self.g_norm = HeadRMSNorm(width) if norm else None
        self.o_proj = nn.Linear(width, width, bias=False)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Norm, project."""
        out = y.to(x.dtype)
        return self.o_proj(out if self.g_norm is None else self.g_norm(out))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys, values and log decays (batch, token, head, dim)."""
        gate = self.f_proj(x)
        gate = gate.to(torch.promote_types(gate.dtype, torch.float32))
        closed = (1 - self.lower) * torch.sigmoid(-gate)  # 1 − α, without the rounding of a difference
        log_decay = functional.logsigmoid(gate) if self.lower == 0 else torch.log1p(-closed)
        queries, values = functional.silu(self.q_proj(x)) * self.state**-0.5, self.i_proj(x)
        q, k, v, g = (split_heads(part, self.heads) for part in (queries, closed.to(values.dtype), values, log_decay))
        return q, k, v, g
