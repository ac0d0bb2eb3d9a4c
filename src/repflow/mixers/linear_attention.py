"""Linear attention (Katharopoulos et al. 2020): its kernel factorises, so that a matrix state carries the past.

Glossary: q, k, v query, key, value of a head; φ feature map; S = Σ v φ(k)ᵀ state; z = Σ φ(k) normaliser.
Parameter names are those of flash-linear-attention's layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least, divides, one_of
from repflow.mixers.parts.head_norm import head_norm
from repflow.mixers.parts.matrix_state import matrix_transition, split_heads
from repflow.mixers.scan.forms import Path, ssd_scan
from repflow.mixers.transition import Transition

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: functional.elu(x) + 1,
    "relu": functional.relu,
    "identity": lambda x: x,
}
EPSILON = 1e-6
"""Added to the normaliser, which ReLU features can leave at 0."""


class LinearAttention(Mixer):
    """Causal linear attention.

        S_t = S_{t−1} + v_t φ(k_t)ᵀ        z_t = z_{t−1} + φ(k_t)
        o_t = S_t φ(q_t) / (z_t · φ(q_t))         (normalise)        or  S_t φ(q_t) / √state

    The normaliser is a channel of its own in each head, with value 1; `readout` divides by it.

    Args:
        width: Channels in and out.
        heads: Heads.
        state: Keys per head; width / heads if left out.
        expand: Values of all heads together, as a multiple of the width.
        feature_map: φ: `elu` (elu + 1), `relu` or `identity`.
        normalise: Divide by z · φ(q). By default yes, but for `identity`, whose z can be 0 or negative: refused there.
        norm: Whether an RMS norm of each head's output follows, as flash-linear-attention's layer has it.

    >>> LinearAttention(8, heads=2).state_size  # (8 values + 2 normalisers) × 4 keys
    40
    """

    family: ClassVar[str] = "linear_attention"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        state: int | None = None,
        expand: float = 1.0,
        feature_map: str = "elu",
        normalise: bool | None = None,
        norm: bool = False,
    ) -> None:
        super().__init__(width)
        one_of("feature_map", feature_map, tuple(FEATURE_MAPS))
        if normalise and feature_map == "identity":
            raise InputError(
                teach(
                    "a feature map that is never negative, for a normaliser that is never 0",
                    "feature_map='identity' with normalise=True",
                    "choose elu or relu, or normalise=False",
                )
            )
        self.heads = heads
        self.state = divides(width, heads, "width", "heads") if state is None else state
        self.value = divides(round(width * expand), heads, "width of all values", "heads")
        at_least(1, state=self.state, expand=self.value)
        self.feature_map = feature_map
        self.normalise = feature_map != "identity" if normalise is None else normalise
        self.q_proj = nn.Linear(width, heads * self.state, bias=False)
        self.k_proj = nn.Linear(width, heads * self.state, bias=False)
        self.v_proj = nn.Linear(width, heads * self.value, bias=False)
        self.norm = head_norm("rms", heads, self.value) if norm else None
        self.o_proj = nn.Linear(heads * self.value, width, bias=False)

    @property
    def state_size(self) -> int:
        """Values × keys of every head, and a key-sized normaliser each."""
        return self.heads * (self.value + self.normalise) * self.state

    def forward(self, x: Tensor, *, path: Path = "auto") -> Tensor:
        """Mix tokens, chunk by chunk."""
        self.check_input(x)
        queries, keys, values = self._project(x)
        step = values.new_ones(values.shape[:3])
        y = ssd_scan(values, step, values.new_zeros(self.heads), keys, queries, path=path)
        assert isinstance(y, Tensor)
        return self.readout(y.flatten(2), x)

    def transition(self, x: Tensor) -> Transition:
        """A = 1, b = φ(k), c = φ(q) / √state, delta = v, and 1 in the last channel of each head, the normaliser."""
        return matrix_transition(*self._project(x))

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Divide by the normaliser, norm, project."""
        out = split_heads(y.to(x.dtype), self.heads)
        if self.normalise:
            out = out[..., :-1] / (out[..., -1:] + EPSILON)
        if self.norm is not None:
            out = self.norm(out)
        return self.o_proj(out.flatten(2))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, token, head, dim); a last value of 1 counts for the normaliser."""
        phi = FEATURE_MAPS[self.feature_map]
        queries = phi(split_heads(self.q_proj(x), self.heads)) * self.state**-0.5
        keys = phi(split_heads(self.k_proj(x), self.heads))
        values = split_heads(self.v_proj(x), self.heads)
        if self.normalise:
            values = functional.pad(values, (0, 1), value=1.0)
        return queries, keys, values
