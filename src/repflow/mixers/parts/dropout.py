"""Dropout of whole channels: a mean over tokens averages out what is dropped token by token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach


class ChannelDropout(nn.Module):
    """Drops channels of a row, at all of its tokens, while training.

    Args:
        share: Of the channels, from 0 to below 1.

    >>> dropped = ChannelDropout(0.5)(torch.ones(2, 3, 4))
    >>> bool((dropped == dropped[:, :1]).all()), sorted(set(dropped.flatten().tolist()) | {0.0, 2.0})
    (True, [0.0, 2.0])
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise InputError(teach("dropout from 0 to below 1", str(share), "leave it out for none"))
        self.share = share

    def scale(self, x: Tensor) -> Tensor | None:
        """What each channel of a row (batch, 1, width) is multiplied by; None where nothing is dropped."""
        if not (self.training and self.share):
            return None
        return functional.dropout(torch.ones_like(x[:, :1]), self.share)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, width) → same."""
        scale = self.scale(x)
        return x if scale is None else x * scale
