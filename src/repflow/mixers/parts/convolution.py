"""The short causal convolution in front of a selective scan."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class CausalConvolution(nn.Conv1d):
    """One filter per channel over the last `kernel` tokens: (batch, token, channel) → same.

    >>> import torch
    >>> convolution = CausalConvolution(1, 2, bias=False)
    >>> _ = torch.nn.init.ones_(convolution.weight)
    >>> convolution(torch.tensor([[[1.0], [2.0], [4.0]]])).flatten().tolist()
    [1.0, 3.0, 6.0]
    """

    def __init__(self, channels: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__(channels, channels, kernel, groups=channels, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Mix each token with those just before it."""
        before = functional.pad(x.mT, (self.kernel_size[0] - 1, 0))
        return super().forward(before).mT
