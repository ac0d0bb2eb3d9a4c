"""Effective rank: how many directions the tokens of a state really span."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from repflow.metrics.checks import as_batch
from repflow.metrics.drop import kept_tokens
from repflow.metrics.similarity import Hidden, Mask

__all__ = ["effective_rank"]


def effective_rank(
    hidden: Hidden, *, mask: Mask | None = None, drop: str = "none", bos: Mask | None = None
) -> Float[Tensor, "state *batch"]:
    """Exponential of the entropy of the normalised squared singular values of the token-centred states.

    Shapes: (state, *batch, token, width) → (state, *batch), between 1 and min(n - 1, d); NaN when all tokens are equal.

    >>> effective_rank(torch.tensor([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]]))
    tensor([2.])
    """
    batch = as_batch(hidden, mask)
    keep = kept_tokens(batch.hidden.norm(dim=-1), batch.mask, drop, bos=bos)
    value = torch.stack(
        [
            torch.stack([_spectrum_rank(states[flag]) for states, flag in zip(sample, flags, strict=True)])
            for sample, flags in zip(batch.hidden.unbind(1), keep.unbind(1), strict=True)
        ],
        dim=1,
    )
    return value[:, 0] if batch.single else value


def _spectrum_rank(rows: Float[Tensor, "token width"]) -> Float[Tensor, ""]:
    if rows.shape[0] < 2 or not bool(rows.isfinite().all()):
        return rows.new_tensor(torch.nan)
    # Singular values, not eigenvalues of the Gram matrix: squaring first would lose the small half of float32.
    energy = torch.linalg.svdvals(rows - rows.mean(0)).square()
    # 0 log 0 = 0, but its derivative in two factors is -inf * 0
    energy = energy[energy > 0] if bool((energy > 0).any()) else energy
    share = energy / energy.sum()
    return torch.exp(-torch.special.xlogy(share, share).sum())
