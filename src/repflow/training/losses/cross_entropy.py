"""Weighted cross entropy at given positions, accuracy beside it, and what a loss is.

    loss = Σ wₜ · cross entropyₜ / Σ wₜ

A loss is a mean over the rows it is given. Where a step accumulates gradients over parts of a batch, each part counts
by `weight`, so that the step is that of the whole batch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from repflow.core.errors import InputError, teach
from repflow.models.stack.network import StackForCausalLM
from repflow.training.batch import Batch

IGNORED = -100
"""Target that is left out, as in torch and transformers."""

Metrics = dict[str, Tensor]


@runtime_checkable
class Loss(Protocol):
    """What a training lowers."""

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean loss () with its gradient, and by name what is logged beside it, () each and without gradient."""
        ...

    def weight(self, batch: Batch) -> Tensor:
        """How much a part of a batch counts among the others, (); from the batch alone."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """A loss that moves while it is used, such as one with a weight that follows a target."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, as plain JSON values."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Weighted cross entropy of a language model or a classifier.

    Attributes:
        accuracy: also report the share of targets that have the greatest logit.
    """

    accuracy: bool = False

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean over all targets of the batch, by their weights."""
        return self.of_logits(read_logits(network, batch), batch)

    def of_logits(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Metrics]:
        """The same, of a pass that was run already."""
        targets, weights = batch_targets(batch)
        metrics = {"accuracy": token_accuracy(logits, targets, weights)} if self.accuracy else {}
        return weighted_mean(token_cross_entropy(logits, targets), weights), metrics

    def weight(self, batch: Batch) -> Tensor:
        """Sum of the weights."""
        return batch_targets(batch)[1].sum()


def token_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of each target in nats, in float32 at least; 0 where it is left out.

    Args:
        logits: (..., class).
        targets: (...).
    """
    wide = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(wide, targets.flatten().long(), reduction="none").view(targets.shape)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Σ w v / Σ w, (); 0 where all weights are.

    >>> float(weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0])))
    2.5
    """
    return (values * weights).sum() / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)


@torch.no_grad()
def token_accuracy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Share of the targets with a weight above 0 that have the greatest logit, ().

    Args:
        logits: (..., class).
        targets: (...).
        weights: (...).

    >>> logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    >>> float(token_accuracy(logits, torch.tensor([1, 0, 1]), torch.tensor([1.0, 1.0, 0.0])))
    0.5
    """
    return weighted_mean((logits.argmax(-1) == targets).float(), (weights > 0).float())


def batch_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """Targets of a batch and their weights, both of the targets' shape."""
    if batch.targets is None:
        if batch.inputs.is_floating_point() or batch.inputs.ndim != 2 or batch.positions is not None:
            expected = "targets, where the inputs are not token ids (batch, token) or positions are given"
            raise InputError(teach(expected, "none", "pass Batch(inputs, targets=...)"))
        return next_tokens(batch.inputs, batch.weights if batch.weights is not None else batch.mask)
    counted = (batch.targets != IGNORED).float()
    if batch.weights is None:
        return batch.targets, counted
    if batch.weights.shape != batch.targets.shape:
        got = f"{tuple(batch.weights.shape)} and {tuple(batch.targets.shape)}"
        raise InputError(teach("weights of the targets' shape", got, "give a weight per target"))
    return batch.targets, batch.weights * counted


def next_tokens(ids: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The next token beside each token, and its weight; the last token has none after it, so its weight is 0.

    Args:
        ids: token ids (batch, token).
        weights: weight of each token as the one to be predicted (batch, token).

    >>> targets, weights = next_tokens(torch.tensor([[5, 6, 7]]))
    >>> targets.tolist(), weights.tolist()
    ([[6, 7, 5]], [[1.0, 1.0, 0.0]])
    """
    each = torch.ones(ids.shape, device=ids.device) if weights is None else weights.float()
    shifted = torch.roll(each, -1, 1)
    shifted[:, -1] = 0
    return torch.roll(ids, -1, 1), shifted


def read_logits(network: nn.Module, batch: Batch) -> Tensor:
    """Logits of a batch: (batch, token, class), (batch, query, class) at its positions, or (batch, class).

    A stack computes its head at the positions alone; other models compute all logits, of which some are kept, as their
    heads may scale or bound what they give.
    """
    return read_pass(network, batch)[0]


def read_pass(network: nn.Module, batch: Batch, *, states: bool = False) -> tuple[Tensor, Any]:
    """Logits of a batch as `read_logits` gives them, and the model's output, with states where asked for."""
    options: dict[str, Any] = {} if batch.mask is None else {"attention_mask": batch.mask}
    kind: Any = type(network)
    if states and takes(kind, "output_hidden_states"):
        options["output_hidden_states"] = True
    if batch.positions is not None and isinstance(network, StackForCausalLM):
        output = network.model(batch.inputs, **options)
        return network.lm_head(rows_at(output.last_hidden_state, batch.positions)), output
    if takes(kind, "use_cache"):
        options["use_cache"] = False
    output = network(batch.inputs, **options)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return (logits if batch.positions is None else rows_at(logits, batch.positions)), output


def rows_at(values: Tensor, positions: Tensor) -> Tensor:
    """Values (batch, token, width) at the positions (batch, query) of each row: (batch, query, width)."""
    return values.gather(1, positions.long()[..., None].expand(-1, -1, values.shape[-1]))


@functools.cache
def takes(kind: Any, name: str) -> bool:
    """Whether a model's forward pass takes an option by name; states also go through a transformers model's others."""
    parameters = inspect.signature(kind.forward).parameters
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return name in parameters or (name == "output_hidden_states" and passes_on and hasattr(kind, "config_class"))
