"""Trace: what every block, the modules after them and the head saw in one short forward pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.models.reading import Reading, hidden_of, input_of

TOKENS = 8


class Call(NamedTuple):
    """One call of a module: the tensors it was given, and the first that it gave."""

    module: nn.Module
    inputs: list[Tensor]
    output: Tensor


@dataclass
class Trace:
    """What one forward pass showed; tensors on the CPU, copied when they appeared.

    Attributes:
        inputs: What each block was given.
        outputs: What each block gave.
        order: Which blocks ran, in order.
        uncopied: The outputs themselves, which a model may change in place.
        added: What the sublayers of each block gave, by block.
        after: Calls of the base model's modules after the last block.
        behind: Calls of modules outside the base model, in the order in which they began.
        last: The base model's last hidden state.
        states: Its tuple of hidden states.
        logits: What the whole model gave.
    """

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    uncopied: list[Tensor] = field(default_factory=list)
    added: dict[int, list[Tensor]] = field(default_factory=dict)
    after: list[Call] = field(default_factory=list)
    behind: list[Call] = field(default_factory=list)
    last: Tensor | None = None
    states: tuple[Tensor, ...] | None = None
    logits: Tensor | None = None


def probe_ids(network: PreTrainedModel, vocab: int) -> Tensor:
    """Two seeded prompts of eight ids that differ in the last token only."""
    generator = torch.Generator().manual_seed(20251006)
    ids = torch.randint(0, vocab, (TOKENS + 1,), generator=generator)
    second = torch.cat([ids[: TOKENS - 1], ids[TOKENS:]])
    if second[-1] == ids[TOKENS - 1]:
        second[-1] = (second[-1] + 1) % vocab
    return torch.stack([ids[:TOKENS], second]).to(network.device)


def copy(tensor: Tensor) -> Tensor:
    """Copy to the CPU in float32 at least, out of reach of later in-place changes."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to(device="cpu", dtype=wide, copy=True)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Equal up to a share of the largest value; NaN equals NaN."""
    if a.shape != b.shape or not torch.equal(torch.isnan(a), torch.isnan(b)):
        return False
    a, b = torch.nan_to_num(a), torch.nan_to_num(b)
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


def record(network: nn.Module, reading: Reading, ids: Tensor) -> Trace:
    """Run the whole network once and note what every block, the modules after them and the head saw."""
    trace = Trace()
    with ExitStack() as stack, torch.inference_mode():
        for hook in [*_of_blocks(reading, trace), *_of_base(reading, trace), *_behind(network, reading, trace)]:
            stack.callback(hook.remove)
        output = network(**{**reading.arguments(ids, None), "output_hidden_states": True})
        logits = getattr(output, "logits", None)
        trace.logits = None if logits is None else copy(logits)
    return trace


def record_calls(reading: Reading, ids: Tensor) -> list[list[Call]]:
    """Run the base model once and list the calls of all modules inside each block, in the order in which they ended."""
    calls: list[list[Call]] = [[] for _ in reading.blocks]
    running = [0]

    def enter(index: int) -> Callable[..., None]:
        return lambda *_: running.__setitem__(0, index)

    def leave(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if isinstance(hidden := _first(output), Tensor) and hidden.is_floating_point():
            calls[running[0]].append(Call(module, _tensors((*args, *kwargs.values())), copy(hidden)))

    inside = {id(module): module for block in reading.blocks for module in block.modules()}
    with ExitStack() as stack, torch.inference_mode():
        for index, block in enumerate(reading.blocks):
            stack.callback(block.register_forward_pre_hook(enter(index)).remove)
        for module in inside.values():
            stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        reading.base(**reading.arguments(ids, None))
    return calls


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, list | tuple) and output else output


def _tensors(values: tuple) -> list[Tensor]:
    return [copy(value) for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def _of_blocks(reading: Reading, trace: Trace) -> list[Any]:
    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        trace.inputs.append(copy(input_of(args, kwargs)))

    def block_hook(index: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            trace.order.append(index)
            trace.outputs.append(copy(hidden_of(output)))
            trace.uncopied.append(hidden_of(output))

        return hook

    def part_hook(index: int, scale: float) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(hidden_of(output), Tensor):
                trace.added.setdefault(index, []).append(copy(hidden_of(output)) * scale)

        return hook

    hooks = [block.register_forward_pre_hook(before, with_kwargs=True) for block in reading.blocks]
    hooks += [block.register_forward_hook(block_hook(i)) for i, block in enumerate(reading.blocks)]
    return hooks + [
        part.module.register_forward_hook(part_hook(i, part.scale))
        for i, parts in enumerate(reading.parts)
        for part in parts
    ]


def _of_base(reading: Reading, trace: Trace) -> list[Any]:
    def after_hook(module: nn.Module, args: tuple, output: Any) -> None:
        last = len(trace.order) == len(reading.blocks)
        if last and args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            trace.after.append(Call(module, [copy(args[0])], copy(output)))

    def base_hook(_: nn.Module, __: Any, output: Any) -> None:
        trace.last = copy(output[0] if not hasattr(output, "last_hidden_state") else output.last_hidden_state)
        states = getattr(output, "hidden_states", None)
        trace.states = None if states is None else tuple(copy(state) for state in states)

    hooks = [module.register_forward_hook(after_hook) for module in _outside_blocks(reading)]
    return [*hooks, reading.base.register_forward_hook(base_hook)]


def _outside_blocks(reading: Reading) -> list[nn.Module]:
    """Modules of the base model that are neither inside a block nor contain one."""
    inside = {id(module) for block in reading.blocks for module in block.modules()}
    blocks = {id(block) for block in reading.blocks}
    return [
        module
        for module in reading.base.modules()
        if id(module) not in inside and not any(id(part) in blocks for part in module.modules())
    ]


def _behind(network: nn.Module, reading: Reading, trace: Trace) -> list[Any]:
    """Hooks on the modules between the base model and the logits; outer ones come before those inside them."""
    within = {id(module) for module in reading.base.modules()}
    modules = [m for m in network.modules() if id(m) not in within and not any(p is reading.base for p in m.modules())]

    def before(module: nn.Module, args: tuple) -> None:
        if trace.last is not None and args and isinstance(args[0], Tensor):
            trace.behind.append(Call(module, [copy(args[0])], args[0]))

    def after(module: nn.Module, _: tuple, output: Any) -> None:
        place = next((at for at in reversed(range(len(trace.behind))) if trace.behind[at].module is module), None)
        if place is None:
            return
        if isinstance(output, Tensor):
            trace.behind[place] = trace.behind[place]._replace(output=copy(output))
        else:
            del trace.behind[place]

    hooks = [module.register_forward_pre_hook(before) for module in modules]
    return hooks + [module.register_forward_hook(after) for module in modules]
