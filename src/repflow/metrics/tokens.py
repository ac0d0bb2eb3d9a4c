"""What states say about their tokens: sums of unit vectors, energies, sinks, from two passes over each state."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from repflow.metrics import fused, reduce
from repflow.metrics.drop import kept_tokens, median_of_sorted
from repflow.metrics.meter import BatchInfo, on_device
from repflow.metrics.sinks import TOP, rank_key, top_share

PROBES = 32
"""Vectors that estimate ‖K‖_F² outside the top tokens; up to this many tokens the value is exact."""
PROBE_SEED = 7


@lru_cache(maxsize=8)
def _signs(token: int, device: torch.device) -> Tensor:
    """Random signs (probe, token); those of a position are the same for every number of tokens."""
    signs = torch.randint(0, 2, (token, PROBES), generator=torch.Generator().manual_seed(PROBE_SEED), dtype=torch.int8)
    return (signs.T * 2 - 1).contiguous().to(device)


@dataclass(frozen=True)
class BatchContext:
    """What is the same for all states of a batch, on the states' device.

    Attributes:
        mask: real tokens (batch, token).
        bos: beginning-of-sequence tokens (batch, token).
        lengths: real tokens of each row (batch,).
        count: the same as floating-point numbers (batch,).
        kept_rows: rows whose per-token values are kept.
        kept_index: the same as a tensor: indexing by a list would make the GPU wait for the copy.
        probes: vectors that estimate ‖K‖_F² (batch, probe, token).
        probe_sum: their sums over the real tokens (batch, probe).
        scale: weight of one probe in the estimate (batch,).
    """

    mask: Tensor
    bos: Tensor
    lengths: Tensor
    count: Tensor
    kept_rows: list[int]
    kept_index: Tensor
    probes: Tensor
    probe_sum: Tensor
    scale: Tensor

    @classmethod
    def of(cls, batch: BatchInfo, hidden: Tensor, keep: frozenset[int]) -> BatchContext:
        """Make the context of a batch from its first state.

        Probes are random signs, or for a prompt of at most PROBES tokens the unit vectors, whose sum is exact. They
        belong to positions, so that a sample's value does not depend on the batch it runs in.
        """
        device, token = hidden.device, hidden.shape[1]
        dtype = torch.promote_types(hidden.dtype, torch.float32)
        mask = batch.mask(token, device)
        first = torch.zeros_like(mask)
        first[:, 0] = on_device(torch.tensor(batch.bos or [False] * len(batch.samples)), device)
        lengths = on_device(torch.tensor(batch.lengths, dtype=torch.int32), device)
        exact = lengths <= PROBES
        unit = torch.eye(PROBES, token, dtype=dtype, device=device)
        probes = torch.where(exact[:, None, None], unit, _signs(token, device))
        rows = [row for row, sample in enumerate(batch.samples) if sample in keep]
        return cls(
            mask=mask,
            bos=first,
            lengths=lengths,
            count=lengths.to(dtype),
            kept_rows=rows,
            kept_index=on_device(torch.tensor(rows, dtype=torch.long), device),
            probes=probes,
            probe_sum=(probes * mask[:, None]).sum(-1),
            scale=torch.where(exact, 1.0, 1.0 / PROBES).to(dtype),
        )


@dataclass
class TokenSums:
    """What is read off states; `TokenStats` makes metrics of it, once for all states of a batch.

    Attributes:
        norm: (state, batch, token).
        top: positions of the largest tokens (state, batch, rank).
        both: tokens that count, all real ones and the kept (state, batch, 2, token).
        sums: Σ_t h_t and Σ_t u_t over each of the two (state, batch, 4, width).
        channel: Σ_t h_tk² (state, batch, width).
        onto_top: inner products of the centred tokens with the top ones (state, batch, token, rank).
        table: see `reduce.TokenProducts` (state, batch, probe, probe).
        onto_sum: h_t · Σu (state, kept row, token).
    """

    norm: Tensor
    top: Tensor
    both: Tensor
    sums: Tensor
    channel: Tensor
    onto_top: Tensor
    table: Tensor
    onto_sum: Tensor

    @classmethod
    def of(cls, states: list[Tensor], norm: Tensor, about: BatchContext, drop: str) -> TokenSums:
        """Read states (batch, token, width) with their token norms (state, batch, token)."""
        ops = fused if fused.usable(*states) else reduce
        mask = about.mask
        # one sort serves both: ties at the top, which rank_key makes, lie far from any median that would drop a token
        order = rank_key(torch.where(mask, norm, -1).nan_to_num_(nan=-1.0)).sort(dim=-1, descending=True, stable=True)
        top = order.indices[..., :TOP]
        median = median_of_sorted(order.values, norm, mask)
        both = torch.stack([mask.expand_as(norm), kept_tokens(norm, mask, drop, bos=about.bos, median=median)], 2)
        # 1 / 0 would be infinite, but a real token of norm 0 has no direction and must give NaN
        inverse = (both / norm[:, :, None]).masked_fill_(both & (norm == 0)[:, :, None], torch.nan)
        inverse = inverse.masked_fill_(~both, 0)
        others = mask.expand_as(norm).scatter(2, top, False)
        weights = torch.cat([both.to(norm.dtype), inverse], 2)
        sums, channel = ops.column_sums(states, weights, about.probes, others, about.lengths)
        products = _products(ops, states, sums, top, others, about)
        return cls(
            norm=norm,
            top=top,
            both=both,
            sums=sums[:, :, :4],
            channel=channel,
            onto_top=products.tops,
            table=products.table,
            onto_sum=products.last[:, about.kept_index],
        )

    def room(self, states: int) -> TokenSums:
        """Place for all states of a batch, shaped as these.

        Made once, before most states have come: small tensors kept per state would sit between the freed large ones,
        and the C library's memory would then grow by about a state per block.
        """
        return TokenSums(
            **{f.name: (own := getattr(self, f.name)).new_empty(states, *own.shape[1:]) for f in fields(self)}
        )

    def put(self, at: int, part: TokenSums) -> None:
        """Copy a group's values to their place, from state `at` on."""
        for field in fields(self):
            values = getattr(part, field.name)
            getattr(self, field.name)[at : at + len(values)] = values


def _products(
    ops: Any, states: list[Tensor], sums: Tensor, top: Tensor, others: Tensor, about: BatchContext
) -> reduce.TokenProducts:
    """Inner products of the centred tokens with the top tokens and the mixed ones, and h_t · Σu, from one pass."""
    mean = sums[:, :, 0] / about.count[:, None]
    index = top[..., None].expand(-1, -1, -1, mean.shape[-1])
    rows = torch.stack([s.gather(1, i) for s, i in zip(states, index, strict=True)]).to(mean.dtype) - mean[:, :, None]
    # Σ_t z_t over the other tokens is the sum over all less the top ones'
    at_top = about.probes.expand(len(states), -1, -1, -1).gather(3, top[:, :, None].expand(-1, -1, PROBES, -1))
    real = top < about.lengths[:, None]
    size = about.probe_sum - (at_top * real[:, :, None]).sum(-1)
    mixed = sums[:, :, 4:] - size[..., None] * mean[:, :, None]
    return ops.token_products(states, rows, mixed, sums[:, :, 2], mean, others, about.lengths)


@dataclass
class TokenStats:
    """What states say about their tokens; of the axis of 2, the first counts all real tokens, the second the kept.

    Attributes:
        norm: (state, batch, token).
        unit_sum: Σ_t u_t (state, batch, 2, width).
        count: tokens (state, batch, 2).
        token_similarity, common_share, sharpness: (state, batch, 2), see `repflow.metrics.similarity`.
        kept: tokens that the second counts (state, batch, token).
        gram_share, top_tokens, channel_share, top_channels: see `repflow.metrics.sinks`.
        gram_share_error: standard error of the estimate, 0 where it is exact.
        by_token: mean cosine with the other tokens (state, kept row, token).
    """

    norm: Tensor
    unit_sum: Tensor
    count: Tensor
    token_similarity: Tensor
    common_share: Tensor
    sharpness: Tensor
    kept: Tensor
    gram_share: Tensor
    gram_share_error: Tensor
    top_tokens: Tensor
    channel_share: Tensor
    top_channels: Tensor
    by_token: Tensor

    @classmethod
    def of(cls, sums: TokenSums, about: BatchContext) -> TokenStats:
        """Metrics of states from what was read off them."""
        norm, both = sums.norm, sums.both
        share, error = _gram_share(sums, about)
        channels = top_share(sums.channel, TOP)
        count = both.sum(-1).double()
        unit, total = sums.sums[:, :, 2:], sums.sums[:, :, :2]
        energy = (both * norm.double().square()[:, :, None]).masked_fill_(~both, 0).sum(-1)
        common = total.double().square().sum(-1) / (count * energy)
        similarity = (unit.double().square().sum(-1) - count) / (count * (count - 1))
        return cls(
            norm=norm,
            unit_sum=unit,
            count=count,
            token_similarity=similarity.masked_fill_(count < 2, torch.nan),
            common_share=common,
            sharpness=((1 - common) * count / (count - 1)).masked_fill_(count < 2, torch.nan),
            kept=both[:, :, 1],
            gram_share=share,
            gram_share_error=error,
            top_tokens=_real_tops(sums.top, about.mask),
            channel_share=channels.share,
            top_channels=channels.indices,
            by_token=_by_token(sums.onto_sum, norm, about),
        )


def _gram_share(sums: TokenSums, about: BatchContext) -> tuple[Tensor, Tensor]:
    """Share of ‖K‖_F² in rows and columns of the top tokens, and its standard error.

    K = X Xᵀ with X the centred tokens. The top tokens' part is exact; for a probe z over the other tokens,
    E Σ_others (K z)² is the rest.
    """
    top, rank = sums.top, sums.top.shape[2]
    real = top < about.lengths[:, None]
    onto_top = torch.where(real[:, :, None], sums.onto_top, 0).square()
    inside = onto_top.gather(2, top[..., None].expand(-1, -1, -1, rank)).sum((2, 3))
    touched = 2 * onto_top.sum((2, 3)) - inside
    each = sums.table.diagonal(dim1=-2, dim2=-1)  # zᵀ A z' of every two probes, A = K² over the others
    rest = each.sum(-1) * about.scale
    share = touched / (touched + rest)
    # Var zᵀAz ≤ 2 ‖A‖_F², and E (zᵀAz')² = ‖A‖_F²: 992 products tell the spread better than the 32 values' own
    spread = (sums.table.square().sum((-1, -2)) - each.square().sum(-1)) / (PROBES * (PROBES - 1))
    error = share * (2 * spread / PROBES).sqrt() / (touched + rest)
    return share, torch.where(about.scale == 1, 0, error)


def _real_tops(top: Tensor, mask: Tensor) -> Tensor:
    """Positions of the top tokens (state, batch, TOP), -1 where the prompt has fewer tokens."""
    top = top.masked_fill(~mask.expand(len(top), -1, -1).gather(2, top), -1)
    return torch.nn.functional.pad(top, (0, TOP - top.shape[2]), value=-1)


def _by_token(onto_sum: Tensor, norm: Tensor, about: BatchContext) -> Tensor:
    """Mean cosine of each token with the others, for the kept rows (state, kept row, token), from h_t · Σu."""
    rows = about.kept_index
    mask, count = about.mask[rows], about.count[rows, None]
    value = (onto_sum / norm[:, rows] - 1) / (count - 1)
    return value.masked_fill(~mask | (count < 2), torch.nan)
