"""IntermediateSupervision: heads at chosen depths that are trained to give the answer too (Lee et al. 2015)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.mixers.option import one_of
from repflow.models.anatomy import find_blocks, innermost
from repflow.models.stack.network import StackPreTrainedModel
from repflow.training.losses.cross_entropy import batch_targets, rows_at, token_cross_entropy
from repflow.training.losses.states import SLICE, Pass, frugal
from repflow.training.losses.weight import HoldAt, check_weight

HEADS = "intermediate_heads"
"""Under which `attach_heads` adds heads to a model."""
KINDS = ("shared", "own")


@dataclass(frozen=True)
class IntermediateSupervision:
    """Cross entropy of a head at each of some depths, mean over the depths.

    Attributes:
        weight: its factor, or `HoldAt` to hold the cross entropy at a target.
        depths: states that the heads read.
        heads: `shared`, the model's own final norm and head; or `own`, those that `attach_heads` added.
    """

    weight: float | HoldAt
    depths: Sequence[int]
    heads: str = "shared"

    def __post_init__(self) -> None:
        """Check the weight and the kind of heads."""
        check_weight(self.weight)
        one_of("heads", self.heads, KINDS)
        if not self.depths:
            raise InputError(teach("at least one depth", "none", "name the states to supervise, such as depths=(2, 4)"))

    @property
    def name(self) -> str:
        """Under which it is logged."""
        return "intermediate_supervision"

    def __call__(self, seen: Pass) -> Tensor:
        """Mean over depths of the weighted mean cross entropy, ()."""
        chosen = seen.chosen(tuple(self.depths))
        return torch.stack([self._depth(seen, depth, state) for depth, state in chosen.items()]).mean()

    def _depth(self, seen: Pass, depth: int, state: Tensor) -> Tensor:
        targets, weights = batch_targets(seen.batch)
        if targets.ndim == 1:
            got = "one target per row"
            raise InputError(teach("targets per token for intermediate supervision", got, "train a language model"))
        head = own_head(seen.network, depth) if self.heads == "own" else shared_head(seen.network)
        if seen.batch.positions is not None:
            state = rows_at(state, seen.batch.positions)
        rows, tokens = targets.shape
        matrix: Any = head[-1]
        size = max(1, min(tokens, SLICE // max(1, rows * int(matrix.weight.shape[0]))))

        def part(states: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            return (token_cross_entropy(head(states), targets) * weights).sum()

        total = sum(
            frugal(part, state[:, at : at + size], targets[:, at : at + size], weights[:, at : at + size])
            for at in range(0, tokens, size)
        )
        return total / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)


def shared_head(network: nn.Module) -> nn.Sequential:
    """Final norm and head of a language model.

    Raises:
        InputError: The model has none, or scales or bounds its logits behind the head.
    """
    model: Any = network
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        remedy = "train a causal language model, or use heads='own'"
        raise InputError(teach("a model with a head over its vocabulary", type(network).__name__, remedy))
    changed = [
        name for name in ("logits_scaling", "final_logit_softcapping", "logit_scale") if _set(model.config, name)
    ]
    if changed:
        got = f"{type(network).__name__}, which has {changed[0]}"
        raise InputError(teach("a head whose output is the logits", got, "use heads='own'"))
    return nn.Sequential(final_norm(model), head)


def final_norm(network: Any) -> nn.Module:
    """The one norm that a model has behind its blocks.

    Raises:
        InputError: There is none, or several modules might be it.
    """
    if isinstance(network, StackPreTrainedModel):
        inner: Any = getattr(network, "model", network)
        return inner.final_norm
    blocks = find_blocks(network.base_model, network.config)
    base = innermost(network, blocks)
    norms = [child for name, child in base.named_children() if "norm" in type(child).__name__.lower()]
    if len(norms) != 1:
        got = f"{len(norms)} in {type(base).__name__}"
        raise InputError(teach("one norm behind the blocks", got, "use heads='own'"))
    return norms[0]


def attach_heads(network: nn.Module, depths: Sequence[int]) -> None:
    """Add a norm and a head at each depth to a model, to be trained with it; call it before the optimiser is made.

    The heads become part of the model's weights until `detach_heads`. They start as the model's own head does: normal
    with its spread.
    """
    model: Any = network
    like = model.get_output_embeddings().weight
    classes, width = like.shape
    heads = nn.ModuleDict()
    for depth in depths:
        head = nn.Linear(width, classes, bias=False)
        nn.init.normal_(head.weight, std=float(like.detach().float().std()))
        heads[str(depth)] = nn.Sequential(nn.RMSNorm(width), head)
    network.add_module(HEADS, heads.to(device=like.device, dtype=like.dtype))


def detach_heads(network: nn.Module) -> None:
    """Remove the heads that `attach_heads` added."""
    if hasattr(network, HEADS):
        delattr(network, HEADS)


def own_head(network: nn.Module, depth: int) -> nn.Sequential:
    """The head that `attach_heads` added at a depth."""
    heads: Any = getattr(network, HEADS, {})
    if str(depth) not in heads:
        got = f"heads at {sorted(map(int, heads))}" if len(heads) else "none"
        remedy = f"call attach_heads(model, depths=[..., {depth}]) before the optimiser is made"
        raise InputError(teach(f"a head at state {depth}", got, remedy))
    head: nn.Sequential = heads[str(depth)]
    return head


def _set(config: Any, name: str) -> bool:
    value = getattr(config, name, None)
    return value is not None and value != 1
