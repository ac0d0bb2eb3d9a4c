"""Massive activations: how much of a state rests on a few tokens or a few channels, and where they sit."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from repflow.metrics.checks import as_batch
from repflow.metrics.similarity import Hidden, Mask

__all__ = ["channel_share", "gram_share"]

TOP = 4
"""How many of the largest tokens and channels are reported."""
TIE = 1e-3


class Share(NamedTuple):
    """Share carried by the largest entries, and their indices, largest first."""

    share: Tensor
    indices: Tensor


def gram_share(
    hidden: Hidden, *, top: int = TOP, mask: Mask | None = None
) -> tuple[Float[Tensor, "state *batch"], Int[Tensor, "state *batch rank"]]:
    """Share of ‖K‖_F² that involves the `top` tokens of largest norm, K the Gram matrix of the centred tokens.

    K is what CKA sees: when one token carries most of it, CKA compares that token and little else. The share counts
    every entry of K in the row or column of a top token; equally long tokens rank by position. Meters estimate the
    entries outside (with a standard error, see `repflow.metrics.flow`); this is the exact form, at the cost of a Gram
    matrix.

    Returns:
        Share (state, *batch) and the tokens' positions (state, *batch, rank), largest first; -1 beyond the prompt.
    """
    batch = as_batch(hidden, mask)
    keep = batch.mask[..., None]
    count = batch.mask.sum(-1)[:, None]
    centred = torch.where(keep, batch.hidden, 0)
    centred = torch.where(keep, centred - (centred.sum(2) / count)[:, :, None], 0)
    index = top_index(rank_key(torch.where(keep, batch.hidden, 0).norm(dim=-1)), top)
    gram = centred @ centred.transpose(-1, -2)
    rest = torch.ones_like(gram[..., 0]).scatter(-1, index, 0)
    inside = (gram.square() * rest[..., None] * rest[..., None, :]).sum((-1, -2))
    share = 1 - inside / gram.square().sum((-1, -2))
    index = index.masked_fill(~batch.mask.expand(rest.shape).gather(-1, index), -1)
    return (share[:, 0], index[:, 0]) if batch.single else (share, index)


def channel_share(
    hidden: Hidden, *, top: int = TOP, mask: Mask | None = None
) -> tuple[Float[Tensor, "state *batch"], Int[Tensor, "state *batch rank"]]:
    """Share of the energy Σ_t h_tk² that the `top` channels carry, and which they are, largest first.

    >>> channel_share(torch.tensor([[[3.0, 0.0, 4.0]]]), top=1)
    (tensor([0.6400]), tensor([[2]]))
    """
    batch = as_batch(hidden, mask)
    energy = torch.where(batch.mask[..., None], batch.hidden, 0).square().sum(2)
    share, index = top_share(energy, top)
    return (share[:, 0], index[:, 0]) if batch.single else (share, index)


def top_share(energy: Tensor, top: int) -> Share:
    """Share of the last axis' sum carried by its largest entries."""
    index = top_index(energy, top)
    return Share(energy.gather(-1, index).sum(-1) / energy.sum(-1), index)


def rank_key(norm: Tensor) -> Tensor:
    """Norms to rank tokens by: those within a thousandth of the largest count as equal to it.

    After a norm layer all tokens are equally long except for rounding, which must not choose among them: the same run
    in other batches would name other tokens.
    """
    largest = norm.amax(-1, keepdim=True)
    return torch.where(norm >= (1 - TIE) * largest, largest, norm)


def top_index(values: Tensor, top: int) -> Tensor:
    """Indices of the largest entries along the last axis, largest first, ties to the lower index."""
    top = min(top, values.shape[-1])
    # topk leaves ties open, and the same run must name the same tokens everywhere
    return values.sort(dim=-1, descending=True, stable=True).indices[..., :top]
