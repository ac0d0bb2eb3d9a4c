"""Penalties on a token's path over depth: bends, spread, and growth in a block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from repflow.core.errors import InputError, teach
from repflow.mixers.option import one_of
from repflow.training.losses.states import SLICE, Pass, Which, filled, frugal, token_mean, without_autocast
from repflow.training.losses.weight import HoldAt, check_weight

FORMS = ("direction", "raw")
TINY = 1e-12
"""Added to a variance, whose root has no gradient at 0."""


def path_bend(states: Tensor) -> Tensor:
    """Mean |h[s] - (h[s-1] + h[s+1]) / 2| over depth and channels. (state, batch, token, width) → (batch, token)."""
    return (states[1:-1] - 0.5 * (states[:-2] + states[2:])).abs().mean((0, -1))


def path_spread(states: Tensor) -> Tensor:
    """Standard deviation over depth, mean over channels. (state, batch, token, width) → (batch, token)."""
    return (states.var(0, correction=0) + TINY).sqrt().mean(-1)


def directions(states: Tensor) -> Tensor:
    """Token vectors of root mean square 1."""
    return states * states.square().mean(-1, keepdim=True).clamp(min=TINY).rsqrt()


def over_paths(seen: Pass, which: Which, form: str, least: int, value: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean over prompts of a number per token's path, in slices of tokens, ().

    Args:
        seen: a pass.
        which: states of the path, neighbours.
        form: `direction` compares the vectors' directions, `raw` the vectors themselves.
        least: states that the number needs.
        value: (state, batch, token, width) → (batch, token).
    """
    chosen = seen.chosen(which, least=least)
    if any(b - a != 1 for a, b in pairwise(chosen)):
        raise InputError(teach("states that follow one another", str(list(chosen)), "choose a range without gaps"))
    states = list(chosen.values())
    rows, tokens, width = states[0].shape
    size = max(1, min(tokens, SLICE // max(1, len(states) * rows * width)))
    mask = seen.mask

    def part(real: Tensor | None, *slices: Tensor) -> Tensor:
        path = torch.stack([filled(one, real) for one in slices])
        return value(directions(path) if form == "direction" else path)

    with without_autocast(states[0].device):
        each = [
            frugal(part, None if mask is None else mask[:, at : at + size], *(h[:, at : at + size] for h in states))
            for at in range(0, tokens, size)
        ]
        return token_mean(torch.cat(each, 1), mask)


@dataclass(frozen=True)
class PathPenalty:
    """A number per token's path over depth, above a limit, mean over prompts.

    Attributes:
        weight: its factor, or `HoldAt` to hold the penalty at a target.
        limit: what costs nothing.
        form: `direction` (every token vector has root mean square 1, so that shrinking the states gains nothing) or
            `raw` (as printed).
        states: neighbours.
        name: under which it is logged.
        least: states that the number needs.
    """

    weight: float | HoldAt
    limit: float = 0.0
    form: str = "direction"
    states: Which = "all"
    name: ClassVar[str]
    least: ClassVar[int]

    def __post_init__(self) -> None:
        """Check the weight and the form."""
        check_weight(self.weight)
        one_of("form", self.form, FORMS)

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over prompts, ()."""
        return torch.relu(over_paths(seen, self.states, self.form, self.least, self.measure) - self.limit)

    def measure(self, states: Tensor) -> Tensor:
        """The number: (state, batch, token, width) → (batch, token)."""
        raise NotImplementedError


class SmoothnessPenalty(PathPenalty):
    """Mean absolute second difference over depth (Sm, paper 1, Eq. 3) above a limit; at least 3 states."""

    name, least = "smoothness", 3

    def measure(self, states: Tensor) -> Tensor:
        """`path_bend`."""
        return path_bend(states)


class StabilityPenalty(PathPenalty):
    """Standard deviation over depth (St, paper 1, Eq. 4) above a limit; at least 2 states."""

    name, least = "stability", 2

    def measure(self, states: Tensor) -> Tensor:
        """`path_spread`."""
        return path_spread(states)


@dataclass(frozen=True)
class BlockGain:
    """max(0, ‖h[l]‖ / ‖h[l-1]‖ - limit)², mean over blocks and tokens: a block may not make a token grow beyond it.

    Attributes:
        weight: its factor, or `HoldAt` to hold the penalty at a target.
        limit: gain that costs nothing; 1 asks for blocks that do not grow.
        states: at least 2, neighbours.
    """

    weight: float | HoldAt
    limit: float = 1.0
    states: Which = "all"

    def __post_init__(self) -> None:
        """Refuse a limit that no block can keep."""
        check_weight(self.weight)
        if not self.limit > 0:
            raise InputError(teach("a limit above 0", str(self.limit), "1 asks for blocks that do not grow"))

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return "block_gain"

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over blocks and tokens, ()."""

        def gain(states: Tensor) -> Tensor:
            norms = (states.square().sum(-1) + TINY).sqrt()
            return torch.relu(norms[1:] / norms[:-1] - self.limit).square().mean(0)

        return over_paths(seen, self.states, "raw", 2, gain)
