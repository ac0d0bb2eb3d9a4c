"""DecayBound: keeps the decays of recurrent mixers below a bound while they are trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from repflow.core.errors import InputError, teach
from repflow.mixers.base import Mixer
from repflow.models.stack.block import StackBlock
from repflow.training.losses.states import Pass, frugal, token_mean, wide, without_autocast
from repflow.training.losses.weight import HoldAt, check_weight

TOKENS = 64
"""Tokens whose decays are computed at a time."""


@dataclass(frozen=True)
class DecayBound:
    """max(0, |A_t| - limit)², mean over recurrent blocks, tokens, channels and states of a stack.

    A is computed a second time from the states of the pass: its projections once more, no scan. States whose decay is
    fixed (poles) have no gradient; one at exactly 1 adds a constant.

    Attributes:
        weight: its factor, or `HoldAt` to hold the penalty at a target.
        limit: ρ, the decay that costs nothing.
    """

    weight: float | HoldAt
    limit: float = 0.99

    def __post_init__(self) -> None:
        """Refuse a bound that is not between 0 and 1."""
        check_weight(self.weight)
        if not 0 < self.limit < 1:
            raise InputError(teach("a limit between 0 and 1", str(self.limit), "0.99 forgets half in 69 tokens"))

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return "decay_bound"

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over blocks, ()."""
        costs = [self._block(block, seen.states[layer], seen.mask) for layer, block in recurrent_blocks(seen.network)]
        if not costs:
            remedy = "bound the gain instead (BlockGain), or train a stack of recurrent mixers"
            raise InputError(teach("a stack with recurrent mixers", type(seen.network).__name__, remedy))
        return torch.stack(costs).mean()

    def _block(self, block: StackBlock, state: Tensor, mask: Tensor | None) -> Tensor:
        mixer: Mixer = block.mixer
        with without_autocast(state.device):
            normed = block.mixer_norm(wide(state))
            rates = mixer.decay_rates()
            if rates is not None:
                steps = frugal(mixer.decay_steps, normed)
                costs: Tensor = _Excess.apply(steps, rates, self.limit)  # type: ignore[no-untyped-call]
                assert mixer.state_size is not None  # states of decay 0 have no rate and count
                return token_mean(costs.sum(2) / mixer.state_size, mask)

            def part(slice_: Tensor) -> Tensor:
                # a convolution looks at tokens before the slice, which are given and then left out
                decay = mixer.transition(slice_).A
                cost = torch.relu(decay.abs() - self.limit).square()
                cost = cost.mean(tuple(range(2, cost.ndim)))
                return cost.expand(len(slice_), slice_.shape[1])

            each = []
            for start in range(0, normed.shape[1], TOKENS):
                front = min(mixer.reach, start)
                each.append(frugal(part, normed[:, start - front : start + TOKENS])[:, front:])
            return token_mean(torch.cat(each, 1), mask)


class _Excess(torch.autograd.Function):
    """Sum over states of max(0, exp(step · rate) − limit)²; steps (batch, token, channel), rates (channel, state).

    The decays are (batch, token, channel, state), as many as a scan never writes down: here they are made for a few
    tokens at a time, once in each direction, in place. By autograd the same took 13 training steps on a GPU.
    """

    @staticmethod
    def forward(ctx: Any, steps: Tensor, rates: Tensor, limit: float) -> Tensor:
        ctx.save_for_backward(steps, rates)
        ctx.limit = limit
        costs = []
        for slice_ in torch.split(steps, TOKENS, 1):
            excess = (slice_.unsqueeze(-1) * rates).exp_().sub_(limit).clamp_(min=0)
            costs.append(torch.linalg.vector_norm(excess, dim=-1).square())
        return torch.cat(costs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        steps, rates = ctx.saved_tensors
        by_steps, by_rates = [], torch.zeros_like(rates)
        for slice_, up in zip(torch.split(steps, TOKENS, 1), torch.split(upstream, TOKENS, 1), strict=True):
            decay = (slice_.unsqueeze(-1) * rates).exp_()
            slope = (decay - ctx.limit).clamp_(min=0).mul_(decay)  # half the derivative by step · rate
            by_steps.append(2 * up * torch.mul(slope, rates, out=decay).sum(-1))
            by_rates += slope.mul_((2 * up * slice_).unsqueeze(-1)).sum((0, 1))
        return torch.cat(by_steps, 1), by_rates, None


def recurrent_blocks(network: nn.Module) -> Iterator[tuple[int, StackBlock]]:
    """Blocks of a stack whose mixer has a recurrence, with the state that each reads."""
    blocks = [module for module in network.modules() if isinstance(module, StackBlock)]
    return ((layer, block) for layer, block in enumerate(blocks) if block.mixer.recurrent)
