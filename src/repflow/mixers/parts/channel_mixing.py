"""RWKV's channel mixing: the feed-forward layer of RWKV-4 and RWKV-5, which looks at the token before as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.mixers.parts.shift import blend, initial_shares, shift


class ChannelMixing(nn.Module):
    """RWKV's feed-forward layer.

        k = relu(W_k blend(x))²        sigmoid(W_r blend(x)) · W_v k

    Args:
        width: Channels in and out.
        hidden: Channels of k; 4 width if left out.
        layer: Place in the model, for the initial shares.
        layers: Number of layers.

    >>> ChannelMixing(4)(torch.ones(1, 3, 4)).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, width: int, hidden: int | None = None, *, layer: int = 0, layers: int = 1) -> None:
        super().__init__()
        hidden = 4 * width if hidden is None else hidden
        shares = initial_shares(width, layer, layers)
        self.time_mix_key = nn.Parameter(shares["key"])
        self.time_mix_receptance = nn.Parameter(shares["key"].clone())
        self.key = nn.Linear(width, hidden, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, width) → same."""
        before = shift(x)
        key = functional.relu(self.key(blend(x, before, self.time_mix_key))).square()
        return torch.sigmoid(self.receptance(blend(x, before, self.time_mix_receptance))) * self.value(key)
