"""The two matrix products of a linear probe, in float32 on any device.

On a GPU, float32 products on plain cores run at about a tenth of the matrix units' rate. Three TF32 products give
nearly float32: with x = h + l, where h keeps the upper 10 bits of the fraction and l the rest,

    x·w ≈ h_x·h_w + h_x·l_w + l_x·h_w

leaves out l_x·l_w and the rounding of l, both near 2⁻²¹ of |x||w|; sums are in float32. One TF32 product alone has an
error near 2⁻¹⁰.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

PRECISIONS = ("float32", "tf32", "ieee")
"""`float32`: three TF32 products on a GPU. `tf32`: one. `ieee`: no matrix units. On a CPU all are plain float32."""
_LOW_BITS = ~((1 << 13) - 1)


def split_tf32(x: Tensor) -> tuple[Tensor, Tensor]:
    """Cut float32 into a part that TF32 holds exactly and the rest: x = high + low, exactly.

    >>> high, low = split_tf32(torch.tensor([1.0001]))
    >>> bool(high + low == torch.tensor([1.0001])), float(high)
    (True, 1.0)
    """
    high = (x.view(torch.int32) & _LOW_BITS).view(torch.float32)
    return high, x - high


@contextmanager
def tf32_products(allow: bool) -> Iterator[None]:
    """Set for a while whether CUDA may use TF32, and put the user's own setting back."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "tf32" if allow else "ieee"
    try:
        yield
    finally:
        setting.fp32_precision = before


def exact_products(like: Tensor) -> AbstractContextManager[None]:
    """Products of every float32 digit for a while. A CPU has no other, and its workers share no setting."""
    return tf32_products(False) if like.is_cuda else nullcontext()


class RowMatrix:
    """Features of a group of states, (state, row, width), to be multiplied with weights and residuals."""

    def __init__(self, rows: Tensor, *, split: bool) -> None:
        self.split = split
        self.high = rows
        if split:
            self.low = torch.empty_like(rows)
            for high, low in zip(self.high, self.low, strict=True):  # state by state: no third copy of the group
                upper, rest = split_tf32(high)
                low.copy_(rest)
                high.copy_(upper)

    @property
    def shape(self) -> torch.Size:
        """(state, row, width)."""
        return self.high.shape

    def scores(self, start: int, stop: int, weight: Tensor) -> Tensor:
        """X Wᵀ for some rows: weight (state, output, width) → (state, row, output)."""
        rows = self.high[:, start:stop]
        if not self.split:
            return torch.bmm(rows, weight.mT)
        high, low = split_tf32(weight.contiguous())
        out = torch.bmm(rows, low.mT)
        out.baddbmm_(self.low[:, start:stop], high.mT)
        return out.baddbmm_(rows, high.mT)

    def gather(self, start: int, stop: int, residual: Tensor) -> Tensor:
        """Dᵀ X for some rows: residual (state, row, output) → (state, output, width)."""
        rows = self.high[:, start:stop]
        if not self.split:
            return torch.bmm(residual.mT, rows)
        high, low = split_tf32(residual)
        out = torch.bmm(low.mT, rows)
        out.baddbmm_(high.mT, self.low[:, start:stop])
        return out.baddbmm_(high.mT, rows)

    def gather_into(self, total: Tensor, start: int, stop: int, residual: Tensor) -> None:
        """Add Dᵀ X to `total` (state, output, width)."""
        if self.split:
            total += self.gather(start, stop, residual)
        else:
            total.baddbmm_(residual.mT, self.high[:, start:stop])
