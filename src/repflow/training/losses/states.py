"""States of one training pass, and what every penalty on them has in common.

The states come from the pass itself (`output_hidden_states`), never from hooks: a compiled model ignores hooks. Where
transformers' tuple leaves a state out (`repflow.models.repair`), asking for it is an error that names the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repflow.core.errors import InputError, teach
from repflow.models.families import EMBEDDING, FAMILIES
from repflow.models.repair import check_type
from repflow.training.batch import Batch
from repflow.training.losses.weight import HoldAt

SLICE = 2**24
"""Numbers that a penalty works on at a time."""
STACK = "repflow_stack"

Which = str | Sequence[int]
"""States of a penalty: `late` (the last third of the blocks), `blocks`, `all`, or indices as in a Result, from the end
where negative."""


@dataclass(frozen=True)
class Pass:
    """What one training pass gave.

    Attributes:
        network: the model itself, without a wrapper.
        batch: its inputs, mask and targets.
        states: by index, 0 the embedding and l the raw output of block l, (batch, token, width) each.
        layers: number of blocks.
    """

    network: nn.Module
    batch: Batch
    states: dict[int, Tensor]
    layers: int

    @property
    def mask(self) -> Tensor | None:
        """Real tokens (batch, token), bool; None where all are."""
        return None if self.batch.mask is None else self.batch.mask.bool()

    def chosen(self, which: Which, *, least: int = 1) -> dict[int, Tensor]:
        """States that a penalty asks for, by index.

        Raises:
            InputError: One of them is not in the model, or not in what the model returns; or they are too few.
        """
        if isinstance(which, str):
            first = {"all": 0, "blocks": 1, "late": self.layers - self.layers // 3}.get(which)
            if first is None:
                expected = "states 'late', 'blocks', 'all' or a list of indices"
                raise InputError(teach(expected, repr(which), "for instance states=(4, 5, 6)"))
            indices = [index for index in range(first, self.layers + 1) if index in self.states]
        else:
            indices = [self._index(index) for index in which]
        if len(indices) < least:
            got = f"{len(indices)} of {self.layers + 1}: {indices}"
            raise InputError(teach(f"at least {least} states", got, f"choose among {sorted(self.states)}"))
        return {index: self.states[index] for index in sorted(set(indices))}

    def _index(self, index: int) -> int:
        place = index + self.layers + 1 if index < 0 else index
        if not 0 <= place <= self.layers:
            expected = f"states from 0 (the embedding) to {self.layers} (the last block)"
            raise InputError(teach(expected, str(index), f"choose among {sorted(self.states)}"))
        if place not in self.states:
            expected = f"a state that a training pass of this model returns: {sorted(self.states)}"
            got = f"{index}, which {'its embedding' if place == 0 else 'the raw output of its last block'} is"
            raise InputError(teach(expected, got, "transformers leaves it out of hidden_states; choose another"))
        return place


@runtime_checkable
class Penalty(Protocol):
    """A term beside the loss."""

    @property
    def name(self) -> str:
        """Under which it is logged."""
        ...

    @property
    def weight(self) -> float | HoldAt:
        """Its factor, or the rule that moves it."""
        ...

    def __call__(self, seen: Pass) -> Tensor:
        """The term without its weight, (), with its gradient."""
        ...


def pass_of(network: nn.Module, batch: Batch, output: Any) -> Pass:
    """States of a pass that was run with output_hidden_states.

    Raises:
        InputError: The output has no states, or nobody measured what this model type's tuple holds.
    """
    hidden = getattr(output, "hidden_states", None)
    if hidden is None:
        got = f"{type(output).__name__} of {type(network).__name__} without hidden_states"
        remedy = "penalise a stack or a transformers model, whose forward pass takes output_hidden_states=True"
        raise InputError(teach("a model that returns its states", got, remedy))
    kind = str(getattr(getattr(network, "config", None), "model_type", ""))
    layers = len(hidden) - 1
    if kind == STACK:
        return Pass(network, batch, dict(enumerate(hidden)), layers)
    check_type(kind)
    first = 1 if FAMILIES[kind].missing == EMBEDDING else 0
    return Pass(network, batch, {first + place: state for place, state in enumerate(hidden[:-1])}, layers)


def wide(state: Tensor) -> Tensor:
    """In float32 at least: sums over thousands of tokens in half precision lose the number."""
    return state.to(torch.promote_types(state.dtype, torch.float32))


def frugal(function: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    """Run a function that draws nothing, and again in the backward pass, so that none of its temporaries is kept."""
    value: Tensor = checkpoint(function, *tensors, use_reentrant=False, preserve_rng_state=False)
    return value


def token_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over real tokens, (): of each row first, then over rows. Values are (batch, token)."""
    if mask is None:
        return values.mean()
    real = mask.to(values.dtype)
    return (torch.where(mask, values, 0).sum(1) / real.sum(1).clamp(min=1)).mean()


def filled(state: Tensor, mask: Tensor | None) -> Tensor:
    """The state in float32 at least, 1 at padding: what was there would spoil gradients even where it is left out."""
    return wide(state) if mask is None else torch.where(mask[..., None], wide(state), 1)


def without_autocast(device: torch.device) -> Any:
    """A context in which products keep the precision of what goes in."""
    return torch.autocast(device.type, enabled=False)
