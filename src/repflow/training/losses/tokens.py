"""Penalties on how alike the tokens of a prompt are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.training.losses.states import SLICE, Pass, Which, filled, frugal, without_autocast
from repflow.training.losses.weight import HoldAt, check_weight


def token_contrast(state: Tensor, mask: Tensor | None = None, *, margin: float = 0.5) -> Tensor:
    """Mean over pairs of different tokens of max(0, margin - 1 + cosine) (Su et al. 2022), per row (batch,).

    With margin 1 the cosines below 0 cost nothing; with margin 2 it is the mean cosine plus 1, which pushes all apart.
    Work is tokens² · width, in slices of rows; a row of one token has 0.

    Args:
        state: (batch, token, width).
        mask: real tokens (batch, token), bool.
        margin: how far below 1 a cosine has to be.

    >>> round(token_contrast(torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]]), margin=0.5).item(), 4)
    0.1381
    """
    with without_autocast(state.device):
        unit = torch.nn.functional.normalize(filled(state, mask), dim=-1)
        rows, tokens = unit.shape[:2]
        size = max(1, min(tokens, SLICE // max(1, rows * tokens)))
        real = torch.ones(rows, tokens, dtype=torch.bool, device=unit.device) if mask is None else mask

        def part(unit: Tensor, real: Tensor, queries: Tensor, at: Tensor) -> Tensor:
            cost = torch.relu(margin - 1 + queries @ unit.transpose(1, 2))
            each = torch.arange(unit.shape[1], device=unit.device)
            counted = real[:, None] & real[:, at][..., None] & (at[:, None] != each)
            return torch.where(counted, cost, 0).sum((1, 2))

        places = torch.arange(tokens, device=unit.device)
        total = sum(
            frugal(part, unit, real, unit[:, start : start + size], places[start : start + size])
            for start in range(0, tokens, size)
        )
        count = real.sum(1)
        return total / (count * (count - 1)).clamp(min=1)


def pair_cosine(state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean cosine between tokens of each prompt (batch,), and between tokens of different prompts, (): differentiable.

    The same numbers as `repflow.metrics.token_similarity` and the second term of `token_similarity_excess`, without
    waiting for the GPU.
    """
    with without_autocast(state.device):
        unit = torch.nn.functional.normalize(filled(state, mask), dim=-1)
        if mask is not None:
            unit = torch.where(mask[..., None], unit, 0)
        total = unit.sum(1)
        count = total.new_full((len(total),), unit.shape[1]) if mask is None else mask.sum(1).to(total.dtype)
        within = (total.square().sum(-1) - count) / (count * (count - 1)).clamp(min=1)
        joint = total.sum(0).square().sum() - total.square().sum()
        return within, joint / (count.sum().square() - count.square().sum()).clamp(min=1)


@dataclass(frozen=True)
class TokenDiversity:
    """Contrast between the tokens of a prompt, mean over chosen states (`token_contrast`).

    Attributes:
        weight: its factor, or `HoldAt` to hold the mean penalty at a target.
        margin: cosines above 1 - margin cost.
        states: where.
    """

    weight: float | HoldAt
    margin: float = 0.5
    states: Which = "late"

    def __post_init__(self) -> None:
        """Refuse a margin that no cosine reaches."""
        check_weight(self.weight)
        if not 0 < self.margin <= 2:
            raise InputError(teach("a margin above 0 and at most 2", str(self.margin), "0.5 is SimCTG's"))

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return "token_diversity"

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over states and prompts, ()."""
        chosen = seen.chosen(self.states)
        return torch.stack([token_contrast(h, seen.mask, margin=self.margin).mean() for h in chosen.values()]).mean()


@dataclass(frozen=True)
class ExcessSimilarity:
    """max(0, similarity of tokens within a prompt - similarity between prompts - limit), mean over states and prompts.

    A direction that all tokens of all prompts share costs nothing. Batches need two prompts or more.

    Attributes:
        weight: its factor, or `HoldAt` to hold the mean penalty at a target.
        limit: excess that costs nothing.
        states: where.
    """

    weight: float | HoldAt
    limit: float = 0.0
    states: Which = "late"

    def __post_init__(self) -> None:
        """Check the weight."""
        check_weight(self.weight)

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return "excess_similarity"

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over states and prompts, ()."""
        chosen = seen.chosen(self.states)
        rows = len(next(iter(chosen.values())))
        if rows < 2:
            remedy = "train on larger batches, or use TokenDiversity"
            raise InputError(teach("at least 2 prompts in a batch for ExcessSimilarity", str(rows), remedy))

        def one(state: Tensor, mask: Tensor | None) -> Tensor:
            within, between = pair_cosine(state, mask)
            return torch.relu(within - between - self.limit).mean()

        return torch.stack([frugal(one, state, seen.mask) for state in chosen.values()]).mean()
