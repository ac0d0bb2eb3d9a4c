"""Blocks and branches taken out: the stream passes as if they were not there, everything else stays.

"Which block carries the key?" is asked by taking one out and probing again. A linear read-out that finds less after it
shows that what it read came through that block or was made from what did; that is more than decodability, and less than
a mechanism: later blocks meet a stream that they were not trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.models import Model
from repflow.models.additions import silent
from repflow.models.anatomy import Sublayer, find_blocks
from repflow.models.reading import input_of
from repflow.spec.ablation import Ablation


def silence(model: Model, network: PreTrainedModel, ablation: Ablation) -> list[str]:
    """Take a block, or one kind of branch of one or all blocks, out of a copy of the network; returns what was.

    A branch adds zeros instead. A block does so with all its branches where these are known to sum
    to what it adds, else it passes on its input.

    Raises:
        InputError: There is no such block, or it has no such branch.
        UnsupportedModelError: The model's branches cannot be distinguished.
    """
    blocks = find_blocks(network.base_model, network.config)
    numbers = range(1, len(blocks) + 1) if ablation.block is None else [ablation.block]
    if numbers[0] > len(blocks):
        got = f"{ablation} of {model.name}"
        raise InputError(teach(f"a block from 1 to {len(blocks)}", got, "state s is the output of block s"))
    if ablation.kind == "block":
        return _silence_block(model, network, blocks, numbers[0])
    if model.reading.ablation_problem is not None:
        raise UnsupportedModelError(f"{ablation}: {model.reading.ablation_problem}")
    parts_of = {number: _copied(model, network, number) for number in numbers}
    by_block = {number: [part for part in parts if part.kind == ablation.part] for number, parts in parts_of.items()}
    if not any(by_block.values()):
        present = sorted({part.kind for some in parts_of.values() for part in some})
        got = f"{ablation} in {model.name}"
        raise InputError(teach("a kind of branch that is there", got, f"there are {', '.join(present)}"))
    parts = [part for some in by_block.values() for part in some]
    _check_unshared(model, network, blocks, parts, numbers)
    for part in parts:
        part.module.register_forward_hook(silent)
    return [f"block {number} {part.kind}" for number, some in by_block.items() for part in some]


def _silence_block(model: Model, network: PreTrainedModel, blocks: list[nn.Module], number: int) -> list[str]:
    block = blocks[number - 1]
    parts = _copied(model, network, number)
    others = {id(m) for place, other in enumerate(blocks) if place != number - 1 for m in other.modules()}
    readable = model.reading.sublayer_problem is None and model.reading.ablation_problem is None
    if readable and parts and not any(id(part.module) in others for part in parts):
        for part in parts:
            part.module.register_forward_hook(silent)
    else:
        before, after = _passing()
        block.register_forward_pre_hook(before, with_kwargs=True)
        block.register_forward_hook(after)
    return [f"block {number} ({model.layer_kinds[number - 1]})"]


def _check_unshared(
    model: Model, network: PreTrainedModel, blocks: list[nn.Module], parts: list[Sublayer], numbers: Any
) -> None:
    """A module that several blocks call cannot be silenced in one of them."""
    chosen = {id(part.module) for part in parts}
    for place, block in enumerate(blocks, start=1):
        if place not in numbers and any(id(module) in chosen for module in block.modules()):
            got = f"{model.model_type}, whose blocks share it"
            raise UnsupportedModelError(teach("a branch of one block alone", got, "take it out of all blocks"))


def _copied(model: Model, network: PreTrainedModel, number: int) -> list[Sublayer]:
    """Sublayers of a block that the self-check settled, in a copy of the network."""
    names = {id(module): name for name, module in model.network.named_modules()}
    parts = model.reading.parts[number - 1]
    return [replace(part, module=network.get_submodule(names[id(part.module)])) for part in parts]


def _passing() -> tuple[Callable[..., None], Callable[..., Any]]:
    """Hooks that make a block return its input, saved before it runs: some blocks add to it in place."""
    entering: list[Tensor] = []

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        entering[:] = [input_of(args, kwargs).clone()]

    def after(_: nn.Module, __: Any, output: Any) -> Any:
        hidden = entering.pop()
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    return before, after
