"""Gated DeltaNet (Yang et al. 2024): the delta rule on a state that forgets, at a rate of each head and token.

Glossary: q, k, v query, key, value of a head; beta write strength; α decay; S state (value, key). Qwen3-Next, Qwen3.5
and Olmo Hybrid use it. Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.delta.rule import DeltaMixer, per_head
from repflow.mixers.parts.step import initial_step_bias


class GatedDeltaNet(DeltaMixer):
    """The delta rule with one decay per head and token.

        α_t = exp(−exp(A_log) softplus(W_a x_t + dt_bias))        beta_t = sigmoid(W_b x_t)
        S_t = α_t S_{t−1} (I − beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ        o_t = S_t q_t / √state
        o_proj(norm(o) · silu(g_proj(x)))

    Args:
        width: Channels in and out.
        heads: Heads of queries and keys.
        value_heads: Heads of values; as many as keys if left out.
        state: Keys per head; width / heads if left out.
        expand: Values of a head, as a multiple of its keys.
        conv: Tokens under the short convolutions of queries, keys and values; 0 removes them (silu stays).
        negative: Let write strengths reach 2, so that a key's part of the state can change its sign.
        gate: Whether silu(g_proj(x)) multiplies the normed output.
        dt_min, dt_max, dt_floor: Step sizes at initialisation are log-uniform between the first two, the third at
            least.

    >>> GatedDeltaNet(8, heads=2, expand=2).state_size  # 2 heads of 8 values × 4 keys
    64
    """

    family: ClassVar[str] = "gated_delta_net"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        value_heads: int | None = None,
        state: int | None = None,
        expand: int | float = 2,
        conv: int = 4,
        negative: bool = False,
        gate: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        dt_floor: float = 1e-4,
    ) -> None:
        keys = per_head(state, width, heads)
        count = heads if value_heads is None else value_heads
        super().__init__(
            width, heads=heads, value_heads=count, state=keys, value=round(keys * expand), conv=conv, negative=negative
        )
        self.a_proj = nn.Linear(width, count, bias=False)
        # flash-linear-attention draws from 0 on, whose logarithm is −inf
        self.A_log = nn.Parameter(torch.empty(count).uniform_(0.01, 16).log())
        self.dt_bias = nn.Parameter(initial_step_bias(count, dt_min, dt_max, dt_floor))
        self.g_proj = nn.Linear(width, count * self.value, bias=False) if gate else None

    def _log_decay(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(self.A_log.dtype, torch.float32)
        step = functional.softplus(self.a_proj(x).to(wide) + self.dt_bias.to(wide))
        return -torch.exp(self.A_log.to(wide)) * step

    def _gate(self, x: Tensor) -> Tensor | None:
        return None if self.g_proj is None else functional.silu(self.g_proj(x))
