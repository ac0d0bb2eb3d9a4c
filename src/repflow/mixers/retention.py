"""Retention, the mixer of RetNet (Sun et al. 2023): linear attention that rotates and decays, one fixed decay per head.

Glossary: q, k, v query, key, value of a head, q and k turned by their position (xPos' rotation); γ decay of a head.
Parameter names are those of flash-linear-attention's layer.

Not included: the rescaling of scores in RetNet's code, which the norm behind it removes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides, one_of
from repflow.mixers.parts.head_norm import KINDS, head_norm
from repflow.mixers.parts.matrix_state import matrix_transition, split_heads
from repflow.mixers.parts.rotary import BASE, rotate
from repflow.mixers.scan.forms import Path, ssd_scan
from repflow.mixers.transition import Transition

GAIN = 2**-2.5
"""Gain of the projections' Xavier initialisation in RetNet and GLA."""


class Retention(Mixer):
    """Multi-scale retention.

        S_t = γ S_{t−1} + v_t k_tᵀ        o_t = S_t q_t / √state        γ = 1 − 2^(−5 − head)
        out_proj(silu(gate(x)) · norm(o))

    Since q and k turn by t·θ, q_t · k_s carries e^{i(t−s)θ}: with γ this is RetNet's (γ e^{iθ})^{t−s}, in a real state.

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head; width / heads if left out. Even with `rotary`.
        expand: Values of all heads together, as a multiple of the width.
        decay: γ of each head; 1 − 2^(−5 − head) if left out. It is fixed, as in RetNet.
        rotary: Whether queries and keys turn with the position.
        rotary_base: Base of the rotary frequencies.
        norm: Whether each head's output is normed.
        norm_kind: `group` (the paper's GroupNorm, one group per head) or `rms` (later code, one weight for all heads).
        gate: Whether silu(gate(x)) multiplies the output.

    >>> Retention(8, heads=2).state_size  # 16 values × 4 keys
    64
    """

    family: ClassVar[str] = "retention"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        state: int | None = None,
        expand: float = 2.0,
        decay: Sequence[float] | None = None,
        rotary: bool = True,
        rotary_base: float = BASE,
        norm: bool = True,
        norm_kind: str = "group",
        gate: bool = True,
    ) -> None:
        super().__init__(width)
        self.heads, self.rotary, self.rotary_base = heads, rotary, rotary_base
        self.state = divides(width, heads, "width", "heads") if state is None else state
        self.value = divides(round(width * expand), heads, "width of all values", "heads")
        at_least(1, state=self.state, expand=self.value)
        if rotary and self.state % 2:
            raise InputError(teach("an even state, to turn in pairs", str(self.state), "change state, or rotary=False"))
        self.decay = _decays(heads, decay)
        one_of("norm_kind", norm_kind, KINDS)
        self.q_proj = nn.Linear(width, heads * self.state, bias=False)
        self.k_proj = nn.Linear(width, heads * self.state, bias=False)
        self.v_proj = nn.Linear(width, heads * self.value, bias=False)
        self.g_proj = nn.Linear(width, heads * self.value, bias=False) if gate else None
        self.norm = head_norm(norm_kind, heads, self.value) if norm else None
        self.o_proj = nn.Linear(heads * self.value, width, bias=False)
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.g_proj):
            if projection is not None:
                nn.init.xavier_uniform_(projection.weight, gain=GAIN)
        nn.init.xavier_uniform_(self.o_proj.weight)

    @property
    def state_size(self) -> int:
        """Values × keys of every head."""
        return self.heads * self.value * self.state

    def forward(self, x: Tensor, *, path: Path = "auto") -> Tensor:
        """Mix tokens, chunk by chunk."""
        self.check_input(x)
        queries, keys, values = self._project(x)
        y = ssd_scan(values, values.new_ones(values.shape[:3]), self._decay(x).log(), keys, queries, path=path)
        assert isinstance(y, Tensor)
        return self.readout(y.flatten(2), x)

    def transition(self, x: Tensor) -> Transition:
        """A = γ, b = k, c = q / √state, delta = v."""
        return matrix_transition(*self._project(x), self._decay(x)[None, None, :, None])

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Norm, gate, project."""
        out = split_heads(y.to(x.dtype), self.heads)
        if self.norm is not None:
            out = self.norm(out)
        out = out.flatten(2)
        if self.g_proj is not None:
            out = out * functional.silu(self.g_proj(x))
        return self.o_proj(out)

    def _decay(self, x: Tensor) -> Tensor:
        # kept as numbers, not as a buffer: 1 − 2^−9 in bfloat16 is 1
        return torch.tensor(self.decay, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, token, head, dim), positions turned in."""
        queries, keys = split_heads(self.q_proj(x), self.heads), split_heads(self.k_proj(x), self.heads)
        if self.rotary:
            queries, keys = rotate(queries, base=self.rotary_base), rotate(keys, base=self.rotary_base)
        return queries * self.state**-0.5, keys, split_heads(self.v_proj(x), self.heads)


def _decays(heads: int, decay: Sequence[float] | None) -> tuple[float, ...]:
    if decay is None:
        return tuple(1 - 2.0 ** (-5 - head) for head in range(heads))
    if len(decay) != heads or not all(0 < value <= 1 for value in decay):
        raise InputError(
            teach(
                f"a decay above 0 and at most 1 for each of {heads} heads", str(decay), "leave it out for RetNet's own"
            )
        )
    return tuple(decay)
