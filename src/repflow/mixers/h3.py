"""H3 (Fu et al. 2022): a shift SSM on the keys, a diagonal SSM on keys × values, gated by the queries.

Glossary: q, k, v query, key, value; A, C, Δ of the diagonal SSM as in `repflow.mixers.diagonal_ssm`; D skip.

A shift SSM (its state is the last tokens, its read-out learned) is a causal filter with a tap per state, and
is written as one; the transition is the diagonal SSM's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.diagonal_ssm import DiagonalSSM, diagonal_transition
from repflow.mixers.option import at_least, divides
from repflow.mixers.parts.convolution import CausalConvolution
from repflow.mixers.parts.matrix_state import split_heads
from repflow.mixers.transition import Transition
from repflow.mixers.triton.long_filter import filter_obstacle, long_filter

MANY = 16
"""Taps from which a shift goes by products on a GPU: torch's convolution of 64 was a fifth of a training step."""


class H3(Mixer):
    """The H3 layer.

        k̃ = shift(k) + D_k k        kv = v_t ⊗ k̃_t per head        y = SSM(kv) + D kv        output_linear(q · y)

    Args:
        width: Channels in and out.
        state: Real numbers of state per channel of the diagonal SSM, even.
        head_dim: Channels of a head; 1 multiplies channel by channel, d makes an outer product of d² channels per head.
        conv: Taps of the shift SSM; as many as `state` if left out; 0 removes it.
        discretisation: Of the diagonal SSM: `bilinear`, H3's own, or `zoh`.
        init: Rates A at initialisation: `lin`, `inv` or `legs`.
        dt_min, dt_max: Step sizes at initialisation are log-uniform between them.

    >>> H3(8, state=4, head_dim=2).state_size  # 4 heads × 2 × 2 channels × 2 complex states
    64
    """

    family: ClassVar[str] = "h3"
    kind: ClassVar[str] = "ssm"

    def __init__(
        self,
        width: int,
        *,
        state: int = 64,
        head_dim: int = 1,
        conv: int | None = None,
        discretisation: str = "bilinear",
        init: str = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
    ) -> None:
        super().__init__(width)
        self.heads, self.head_dim = divides(width, head_dim, "width", "head_dim"), head_dim
        self.kernel = DiagonalSSM(
            self.heads, state=state, discretisation=discretisation, init=init, dt_min=dt_min, dt_max=dt_max
        )
        taps = state if conv is None else conv
        at_least(0, conv=taps)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.shift = CausalConvolution(width, taps, bias=False) if taps else None
        self.shift_D = nn.Parameter(torch.randn(width)) if taps else None
        self.D = nn.Parameter(torch.randn(self.heads))
        self.output_linear = nn.Linear(width, width)
        if self.shift is not None:
            nn.init.normal_(self.shift.weight)

    @property
    def state_size(self) -> int:
        """Channels of the diagonal SSM × complex states, each two real numbers; the shift's window is not counted."""
        return self.heads * self.head_dim**2 * self.kernel.pairs * 2

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, by Fourier transform."""
        self.check_input(x)
        if self.reference_wanted("fourier", "the same filter at every token"):
            return self.by_recurrence(x)
        kv = self._product(x)
        return self._gated(self._by_fourier(kv), kv, x)

    def _by_fourier(self, kv: Tensor) -> Tensor:
        """The diagonal SSM over products (batch, token, head, value, key)."""
        # one SSM per head serves all its products: they take the place of samples
        apart = kv.permute(0, 3, 4, 1, 2).flatten(0, 2)
        return torch.unflatten(self.kernel(apart), 0, (kv.shape[0], self.head_dim, self.head_dim)).permute(
            0, 3, 4, 1, 2
        )

    def core_behind(self, past: Tensor, tokens: Tensor, size: int) -> Tensor:
        """Both filters over the past as a whole, and over each chunk what its tokens change (`behind`)."""
        if self.reference_wanted("fourier", "the same filter at every token"):
            return super().core_behind(past, tokens, size)
        fill = -tokens.shape[1] % size
        own_keys, own_values = (filled(part(tokens), fill) for part in (self.k_proj, self.v_proj))
        missing = own_keys.shape[1] - past.shape[1]
        keys, values = (filled(part(past), missing) for part in (self.k_proj, self.v_proj))
        shifted, own_shifted = keys, own_keys
        if self.shift is not None and self.shift_D is not None:
            shifted = self.shift(keys) + self.shift_D * keys
            own_shifted = behind(self.shift, keys, own_keys, size) + self.shift_D * own_keys
        kv, own_kv = self._outer(values, shifted), self._outer(own_values, own_shifted)
        y = behind(self._by_fourier, kv, own_kv, size)
        count = tokens.shape[1]
        return self._gated(y[:, :count], own_kv[:, :count], tokens)

    def transition(self, x: Tensor) -> Transition:
        """Of the diagonal SSM: channels are (head, value, key), b = (B̄ / Δ) k̃ v."""
        kv = self._product(x)
        log_decay, entry, step = self.kernel.discretise()
        c = self.kernel.readouts()
        log_decay, entry, c, step = (
            part.repeat_interleave(self.head_dim**2, dim=0) for part in (log_decay, entry, c, step[:, None])
        )
        return diagonal_transition(kv.flatten(2), log_decay.exp(), entry, c, step)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Skip, multiply by the queries, project."""
        kv = self._product(x)
        return self._gated(y.to(x.dtype).reshape(kv.shape), kv, x)

    def _product(self, x: Tensor) -> Tensor:
        """Give v ⊗ k̃ (batch, token, head, value, key)."""
        return self._outer(self.v_proj(x), self._shifted(self.k_proj(x)))

    def _shifted(self, keys: Tensor) -> Tensor:
        """Give k̃."""
        if self.shift is None or self.shift_D is None:
            return keys
        if self.shift.kernel_size[0] >= MANY and filter_obstacle(keys, self.shift.weight, self.shift_D) is None:
            return long_filter(keys, self.shift.weight[:, 0].flip(-1)[:, : keys.shape[1]], skip=self.shift_D)
        return self.shift(keys) + self.shift_D * keys

    def _outer(self, values: Tensor, keys: Tensor) -> Tensor:
        return split_heads(values, self.heads)[..., :, None] * split_heads(keys, self.heads)[..., None, :]

    def _gated(self, y: Tensor, kv: Tensor, x: Tensor) -> Tensor:
        queries = split_heads(self.q_proj(x), self.heads)
        y = y + self.D[:, None, None] * kv
        return self.output_linear((y * queries[..., None, :]).sum(-1).flatten(2))


def filled(x: Tensor, count: int) -> Tensor:
    """Tokens (batch, token, channel) with this many zeros behind them."""
    return functional.pad(x, (0, 0, 0, count))


def behind(filter_: Callable[[Tensor], Tensor], past: Tensor, tokens: Tensor, size: int) -> Tensor:
    """A causal filter over each chunk of tokens, behind what stands in `past` for the chunks before it.

    The filter is linear and the same at every token, so it may run over the past as a whole; what a chunk's own tokens
    are apart from it is then filtered chunk by chunk: a pass per chunk is not needed.

    Args:
        filter_: (batch, token, ...) → the same.
        past: (batch, token, ...), whole chunks, of which the last is 0.
        tokens: of the same shape.
        size: tokens of a chunk.

    >>> twice = lambda x: x + functional.pad(x, (0, 0, 1, 0))[:, :-1]
    >>> past, tokens = torch.tensor([[[5.0], [7.0], [0.0], [0.0]]]), torch.tensor([[[1.0], [2.0], [3.0], [4.0]]])
    >>> behind(twice, past, tokens, 2).flatten().tolist()
    [1.0, 3.0, 10.0, 7.0]
    """
    apart = torch.unflatten(tokens - past, 1, (-1, size))
    changed = torch.unflatten(filter_(apart.flatten(0, 1)), 0, apart.shape[:2])
    return filter_(past) + changed.flatten(1, 2)
