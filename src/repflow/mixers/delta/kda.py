"""KDA, Kimi Delta Attention (Kimi Team 2025): the delta rule on a state whose every key forgets at its own rate.

Glossary: q, k, v query, key, value of a head; beta write strength; α decay (head, key); S state (value, key). Kimi
Linear and Ling use it. Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.delta.rule import DeltaMixer, per_head
from repflow.mixers.option import at_least
from repflow.mixers.parts.matrix_state import split_heads
from repflow.mixers.parts.step import initial_step_bias


class KDA(DeltaMixer):
    """The delta rule with a decay of every key.

        α_t = exp(−exp(A_log) softplus(W₂ W₁ x_t + dt_bias))        beta_t = sigmoid(W_b x_t)
        S_t = S_{t−1} diag(α_t) (I − beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ        o_t = S_t q_t / √state
        o_proj(norm(o) · sigmoid(g_proj(x)))

    Args:
        width: Channels in and out.
        heads: Heads of queries and keys.
        value_heads: Heads of values, each with decays of its own; as many as keys if left out.
        state: Keys per head; width / heads if left out.
        expand: Values of a head, as a multiple of its keys.
        rank: Rank of the projections of decay and gate; the values of a head if left out.
        conv: Tokens under the short convolutions of queries, keys and values; 0 removes them (silu stays).
        negative: Let write strengths reach 2, so that a key's part of the state can change its sign.
        dt_min, dt_max, dt_floor: Step sizes at initialisation are log-uniform between the first two, the third at
            least.

    >>> KDA(8, heads=2).state_size  # 2 heads of 4 values × 4 keys
    32
    """

    family: ClassVar[str] = "kda"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        value_heads: int | None = None,
        state: int | None = None,
        expand: int | float = 1,
        rank: int | None = None,
        conv: int = 4,
        negative: bool = False,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_floor: float = 1e-4,
    ) -> None:
        keys = per_head(state, width, heads)
        count = heads if value_heads is None else value_heads
        super().__init__(
            width, heads=heads, value_heads=count, state=keys, value=round(keys * expand), conv=conv, negative=negative
        )
        rank = self.value if rank is None else rank
        at_least(1, rank=rank)
        self.f_proj = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, count * keys, bias=False))
        self.A_log = nn.Parameter(torch.empty(count).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(initial_step_bias(count * keys, dt_min, dt_max, dt_floor))
        self.g_proj = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, count * self.value))

    def _log_decay(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(self.A_log.dtype, torch.float32)
        step = functional.softplus(self.f_proj(x).to(wide) + self.dt_bias.to(wide))
        return -torch.exp(self.A_log.to(wide))[:, None] * split_heads(step, self.value_heads)

    def _gate(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.g_proj(x))
