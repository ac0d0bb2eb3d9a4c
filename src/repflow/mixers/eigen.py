"""Input and read-out maps of S6 whose product has eigenvalues of known sign (paper 3, section 5.1 and appendix D.1).

Glossary: S_B, S_C maps (state, channel) with B_t = S_B x_t, C_t = S_C x_t; L unit lower triangular (channel, rank); d
diagonal.

    S_C = Lᵀ        S_B = diag(d) Lᵀ        S_Cᵀ S_B = L diag(d) Lᵀ

The product is symmetric; by Sylvester's law of inertia its nonzero eigenvalues have the signs of d. It has rank
min(state, channel): the paper calls it definite, but with fewer states than channels (always so in Mamba) all other
eigenvalues are zero.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.option import at_least, one_of

SIGNS = ("positive", "negative", "mixed")


class SignedMaps(nn.Module):
    """S_B and S_C by an LDLᵀ factorisation.

    Attributes:
        rank: Rank of S_Cᵀ S_B, min(state, channel); states beyond it get B = C = 0.
        lower: Entries of L below its diagonal of ones; the others are not read.
        diagonal: d before softplus and sign.
    """

    sign: Tensor

    def __init__(self, channels: int, state: int, eigenvalues: str) -> None:
        super().__init__()
        one_of("eigenvalues", eigenvalues, SIGNS)
        at_least(2 if eigenvalues == "mixed" else 1, state=state, channels=channels)
        self.channels, self.state, self.rank = channels, state, min(state, channels)
        bound = channels**-0.5
        self.lower = nn.Parameter(torch.empty(channels, self.rank).uniform_(-bound, bound))
        self.diagonal = nn.Parameter(torch.zeros(self.rank))
        sign = torch.ones(self.rank)
        if eigenvalues != "positive":
            sign[0 if eigenvalues == "negative" else (self.rank + 1) // 2 :] = -1.0
        self.register_buffer("sign", sign)

    def maps(self) -> tuple[Tensor, Tensor]:
        """S_B and S_C, each (rank, channel)."""
        triangle = self.lower.tril(-1) + torch.eye(self.channels, self.rank).to(self.lower)
        return (self.sign * functional.softplus(self.diagonal))[:, None] * triangle.mT, triangle.mT

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """B and C (..., state) of inputs (..., channel)."""
        c = functional.linear(x, self.maps()[1])
        c = functional.pad(c, (0, self.state - self.rank))
        gain = functional.pad(self.sign * functional.softplus(self.diagonal), (0, self.state - self.rank))
        return c * gain, c
