"""minLSTM (Feng et al. 2024): an LSTM whose gates do not look at the state and share out 1, a diagonal recurrence.

Glossary: f, i forget and input gate; u candidate (the paper's h̃). Parameter names are those of the package
minGRU-pytorch.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from repflow.mixers.min_gru import GatedMean


class MinLSTM(GatedMean):
    """A weighted mean of candidates under two gates.

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
    projection: ClassVar[str] = "to_hidden_and_f_i_gate"
    gates: ClassVar[int] = 2

    def balance(self, *gates: Tensor) -> Tensor:
        """A = f / (f + i), a sigmoid of ln f − ln i, which no small f + i can spoil."""
        forget, enter = gates
        return functional.softplus(-enter) - functional.softplus(-forget)
