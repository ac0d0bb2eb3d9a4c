"""Which tokens a metric leaves out: padding always, attention sinks and other massive tokens on request.

One token with a norm hundreds of times the others' can carry most of a Gram matrix, so every run stores its metrics
with all tokens (`none`) and without such tokens (`norm>10`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.spec.request import parse_drop

DEFAULT_DROP = "norm>10"


def kept_tokens(
    norm: Tensor, mask: Tensor, drop: str = "none", *, bos: Tensor | None = None, median: Tensor | None = None
) -> Tensor:
    """Mask of the tokens that count, per state.

    Args:
        norm: token norms (state, batch, token).
        mask: real tokens (batch, token).
        drop: `none`, `first` (position 0), `bos` (where `bos` is True) or `norm>k`: tokens whose norm is over k times
            the median norm of the sample's real tokens at that state.
        bos: (batch, token) True at beginning-of-sequence tokens; needed by `drop="bos"`.
        median: `token_median(norm, mask)` where it is known already.

    Returns:
        (state, batch, token) bool.
    """
    factor = parse_drop(drop)
    keep = mask.expand(norm.shape).clone()
    if drop == "first":
        keep[..., 0] = False
    elif drop == "bos":
        if bos is None:
            raise InputError(
                teach("bos=, a (batch, token) mask of BOS positions, with drop='bos'", "None", "or use drop='first'")
            )
        keep &= ~bos.to(keep.device, torch.bool)
    elif factor is not None:
        median = token_median(norm, mask) if median is None else median
        keep &= norm <= factor * median[..., None]
    return keep


def token_median(values: Tensor, mask: Tensor) -> Tensor:
    """Median over the real tokens of (..., batch, token), averaging the two middle values of an even count."""
    falling = values.masked_fill(~mask, -torch.inf).sort(dim=-1, descending=True).values
    return median_of_sorted(falling, values, mask)


def median_of_sorted(falling: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`token_median` from values already in falling order, padding last; NaN where a real value is NaN."""
    count = mask.sum(-1).expand(falling.shape[:-1])
    low = ((count - 1).clamp(min=0) // 2)[..., None]
    high = (count // 2).clamp(max=falling.shape[-1] - 1)[..., None]
    median = 0.5 * (falling.gather(-1, low) + falling.gather(-1, high))[..., 0]
    broken = (values.isnan() & mask).any(-1)
    return median.masked_fill(broken | (count == 0), torch.nan)
