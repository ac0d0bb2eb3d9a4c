"""DeltaNet (Schlag et al. 2021, Yang et al. 2024): linear attention that corrects what the state holds at a key.

Glossary: q, k, v query, key, value of a head; beta write strength; S state (value, key).
Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.delta.rule import DeltaMixer, per_head
from repflow.mixers.option import divides


class DeltaNet(DeltaMixer):
    """The delta rule without decay.

        k_t = unit(silu(conv(W_k x)))        q_t likewise        beta_t = sigmoid(W_b x_t)
        S_t = S_{t−1} (I − beta_t k_t k_tᵀ) + beta_t v_t k_tᵀ        o_t = S_t q_t / √state        o_proj(norm(o))

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head; width / heads if left out.
        expand: Values of all heads together, as a multiple of the width.
        conv: Tokens under the short convolutions of queries, keys and values; 0 removes them (silu stays).
        beta: Whether the token decides how strongly it writes; 1 otherwise.
        negative: Let write strengths reach 2, so that a key's part of the state can change its sign (Grazzi et al.
            2024).
        norm: Whether an RMS norm of each head's output follows.
        gate: Whether silu(g_proj(x)) multiplies the output.

    >>> DeltaNet(8, heads=2).state_size  # 8 values × 4 keys
    32
    """

    family: ClassVar[str] = "delta_net"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        state: int | None = None,
        expand: float = 1.0,
        conv: int = 4,
        beta: bool = True,
        negative: bool = False,
        norm: bool = True,
        gate: bool = False,
    ) -> None:
        value = divides(round(width * expand), heads, "width of all values", "heads")
        keys = per_head(state, width, heads)
        super().__init__(
            width, heads=heads, value_heads=heads, state=keys, value=value, conv=conv, negative=negative
        )  # fmt: skip
        if not beta:
            self.b_proj = None
        if not norm:
            self.o_norm = None
        self.g_proj = nn.Linear(width, heads * value, bias=False) if gate else None

    def _gate(self, x: Tensor) -> Tensor | None:
        return None if self.g_proj is None else functional.silu(self.g_proj(x))
