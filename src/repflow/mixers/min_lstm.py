"""minLSTM (Feng et al. 2024): an LSTM whose gates do not look at the state and share out 1, a diagonal recurrence.

Glossary: f, i forget and input gate; u candidate (the paper's h̃). Parameter names are those of the package
minGRU-pytorch.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.base import Mixer
from repflow.mixers.min_gru import positive
from repflow.mixers.option import at_least
from repflow.mixers.transition import Transition


class MinLSTM(Mixer):
    """A weighted mean of candidates, one number per channel.

        f_t = sigmoid(W_f x_t)        i_t = sigmoid(W_i x_t)        u_t = g(W_h x_t)
        h_t = (f_t h_{t−1} + i_t u_t) / (f_t + i_t)        to_out(h)

    Args:
        width: Channels in and out.
        expand: Channels of the state, as a multiple of the width.
        positive: Whether g is the paper's for its log-space form (x + 1/2, or sigmoid(x) below 0); the identity
            otherwise.
        project: Whether to_out follows; always where the state has more or fewer channels.

    >>> MinLSTM(8).state_size
    8
    """

    family: ClassVar[str] = "min_lstm"

    def __init__(
        self, width: int, *, expand: int | float = 1, positive: bool = True, project: bool = True
    ) -> None:  # fmt: skip
        super().__init__(width)
        self.inner, self.positive = int(width * expand), positive
        at_least(1, expand=self.inner)
        self.to_hidden_and_f_i_gate = nn.Linear(width, 3 * self.inner, bias=False)
        whole = project or self.inner != width
        self.to_out = nn.Linear(self.inner, width, bias=False) if whole else nn.Identity()

    @property
    def state_size(self) -> int:
        """A number per channel."""
        return self.inner

    def transition(self, x: Tensor) -> Transition:
        """A = f / (f + i), b = u, c = 1, delta = i / (f + i)."""
        candidate, forget, enter = self.to_hidden_and_f_i_gate(x).chunk(3, dim=-1)
        candidate = positive(candidate) if self.positive else candidate
        # f / (f + i) is a sigmoid of ln f − ln i, which no small f + i can spoil
        balance = functional.softplus(-enter) - functional.softplus(-forget)
        one = torch.ones_like(candidate[:1, :1, :1, None])
        keep, take = torch.sigmoid(balance)[..., None], torch.sigmoid(-balance)[..., None]
        return Transition(keep, candidate[..., None], one, take)

    def readout(self, y: Tensor, x: Tensor) -> Tensor:
        """Project."""
        output: Tensor = self.to_out(y.to(x.dtype))
        return output
