"""S4D (Gu et al. 2022): one complex diagonal state-space model per channel, the same for every token.

Glossary: A, C, Δ as in `repflow.mixers.diagonal_ssm`; D skip.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.diagonal_ssm import DiagonalSSM, long_convolution
from repflow.mixers.parts.dropout import ChannelDropout
from repflow.mixers.transition import Transition
from repflow.mixers.triton.long_filter import filter_obstacle, long_filter


class S4D(Mixer):
    """The S4D layer: output_linear(gelu(SSM(x) + D x)), a GLU.

    Args:
        width: Channels in and out.
        state: Real numbers of state per channel, even: state / 2 complex pairs.
        discretisation: `zoh` or `bilinear`.
        init: Rates A at initialisation: `lin`, `inv` or `legs`.
        dt_min, dt_max: Step sizes at initialisation are log-uniform between them.
        skip: Whether D x is added.
        gate: Whether the output projection is gated (GLU); a plain one otherwise.
        dropout: Share of channels that are dropped from a row behind the GELU, while training.

    >>> S4D(8, state=4).state_size  # 8 channels × 2 complex states
    32
    """

    family: ClassVar[str] = "s4d"
    kind: ClassVar[str] = "ssm"

    def __init__(
        self,
        width: int,
        *,
        state: int = 64,
        discretisation: str = "zoh",
        init: str = "lin",
        dt_min: float = 1e-3,
        dt_max: float = 1e-1,
        skip: bool = True,
        gate: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width)
        self.kernel = DiagonalSSM(
            width, state=state, discretisation=discretisation, init=init, dt_min=dt_min, dt_max=dt_max
        )
        self.D = nn.Parameter(torch.randn(width)) if skip else None
        self.gate = gate
        self.dropout = ChannelDropout(dropout)
        self.output_linear = nn.Linear(width, (1 + gate) * width)

    @property
    def state_size(self) -> int:
        """Channels × complex states, each two real numbers."""
        return self.width * self.kernel.pairs * 2

    def forward(self, x: Tensor) -> Tensor:
        """Mix tokens, by Fourier transform; in half precision on a GPU by products, with GELU and dropout in one go."""
        self.check_input(x)
        if self.reference_wanted("fourier", "the same filter at every token"):
            return self.by_recurrence(x)
        taps = self.kernel.kernel(x.shape[1])
        if filter_obstacle(x, taps, self.D) is not None:
            return self.readout(long_convolution(x, taps), x)
        scale, half = self.dropout.scale(x), torch.get_autocast_dtype(x.device.type)
        scale = None if scale is None else scale.squeeze(1)
        return self._projected(long_filter(x, taps, skip=self.D, gelu=True, scale=scale, kind=half))

    def transition(self, x: Tensor) -> Transition:
        """A = Ā, b = (B̄ / Δ) x, c = 2 C, delta = Δ, the same for every token but for x."""
        return self.kernel.transition(x)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Skip, GELU, dropout, project."""
        y = y.to(x.dtype)
        y = y if self.D is None else y + self.D * x
        return self._projected(self.dropout(functional.gelu(y)))

    def _projected(self, inner: Tensor) -> Tensor:
        """Output projection, gated or plain."""
        out = self.output_linear(inner)
        return functional.glu(out, dim=-1) if self.gate else out
