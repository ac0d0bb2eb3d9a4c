"""minGRU (Feng et al. 2024): a GRU whose gate does not look at the state, so that it is a diagonal recurrence.

Glossary: z update gate; u candidate (the paper's h̃). Parameter names are those of the package minGRU-pytorch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from repflow.mixers.base import Mixer
from repflow.mixers.option import at_least
from repflow.mixers.transition import Transition


def positive(x: Tensor) -> Tensor:
    """Give x + 1/2 where x is at least 0, sigmoid(x) elsewhere: the paper's g, which keeps states above 0.

    >>> positive(torch.tensor([1.0, 0.0])).tolist()
    [1.5, 0.5]
    """
    return torch.where(x >= 0, x + 0.5, torch.sigmoid(x))


class GatedMean(Mixer):
    """A weighted mean of candidates, one number per channel: what minGRU and minLSTM are, whatever their gates.

    Attributes:
        inner: Channels of the state.
    """

    projection: ClassVar[str]
    """Name of the layer that makes candidates and gates."""
    gates: ClassVar[int]

    def __init__(
        self, width: int, *, expand: int | float = 1, positive: bool = True, project: bool = True
    ) -> None:  # fmt: skip
        super().__init__(width)
        self.inner, self.positive = int(width * expand), positive
        at_least(1, expand=self.inner)
        self.add_module(self.projection, nn.Linear(width, (1 + self.gates) * self.inner, bias=False))
        whole = project or self.inner != width
        self.to_out = nn.Linear(self.inner, width, bias=False) if whole else nn.Identity()

    @property
    def state_size(self) -> int:
        """A number per channel."""
        return self.inner

    def transition(self, x: Tensor) -> Transition:
        """A = what is kept of the mean, b = the candidate, c = 1, delta = what is taken of the candidate."""
        candidate, *gates = getattr(self, self.projection)(x).chunk(1 + self.gates, dim=-1)
        candidate = positive(candidate) if self.positive else candidate
        one = torch.ones_like(candidate[:1, :1, :1, None])
        balance = self.balance(*gates)
        keep, take = torch.sigmoid(balance)[..., None], torch.sigmoid(-balance)[..., None]
        return Transition(keep, candidate[..., None], one, take)

    def balance(self, *gates: Tensor) -> Tensor:
        """Logit of what is kept: A = sigmoid(balance)."""
        raise NotImplementedError

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Project."""
        output: Tensor = self.to_out(y.to(x.dtype))
        return output


class MinGRU(GatedMean):
    """A weighted mean of candidates under one gate.

        z_t = sigmoid(W_z x_t)        u_t = g(W_h x_t)        h_t = (1 − z_t) h_{t−1} + z_t u_t        to_out(h)

    Args:
        width: Channels in and out.
        expand: Channels of the state, as a multiple of the width.
        positive: Whether g is the paper's for its log-space form (x + 1/2, or sigmoid(x) below 0); the identity
            otherwise.
        project: Whether to_out follows; always where the state has more or fewer channels.

    >>> MinGRU(8, expand=2).state_size
    16
    """

    family: ClassVar[str] = "min_gru"
    projection: ClassVar[str] = "to_hidden_and_gate"
    gates: ClassVar[int] = 1

    def balance(self, *gates: Tensor) -> Tensor:
        """A = 1 − z = sigmoid of the negative gate."""
        return -gates[0]
