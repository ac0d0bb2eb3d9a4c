"""One forward pass with hooks: hands each state to a callback as it appears and keeps none of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.core.seconds import timed
from repflow.models.anatomy import Sublayer, layers_with
from repflow.models.reading import Reading, hidden_of, input_of
from repflow.spec.request import stream_number, sublayer_kind

OnState = Callable[[int, Tensor], Any]
OnFinalNorm = Callable[[Tensor], Any]


@timed("forward")
def stream_states(
    reading: Reading, arguments: dict[str, Any], kind: str, on_state: OnState, on_final_norm: OnFinalNorm | None
) -> None:
    """Run the base model once and call back in order; hooks are removed whatever happens."""
    as_tuple = {"output_hidden_states": True} if kind == "hf-tuple" else {}
    with ExitStack() as stack, torch.inference_mode():
        for handle in _attach(reading, kind, on_state):
            stack.callback(handle.remove)
        for handle in [] if on_final_norm is None else _attach_final_norm(reading, on_final_norm):
            stack.callback(handle.remove)
        output = reading.base(**arguments, **as_tuple)
        if as_tuple:
            _emit_tuple(reading, output, on_state)


def check_kind(reading: Reading, kind: str) -> None:
    """Refuse kinds of state that a model has not, where their tensors would be others than their name says."""
    sublayer, number, streams = sublayer_kind(kind), stream_number(kind), reading.streams
    if streams is None:
        if number is not None:
            raise InputError(teach("a model with several residual streams", f"{kind} of one", "ask for residual"))
        return
    if number is not None and number > streams.count:
        raise InputError(teach(f"a stream from 1 to {streams.count}", repr(kind), "ask for one of these, or residual"))
    if kind == "hf-tuple":
        got = f"transformers' tuple, whose entries hold all {streams.count} streams"
        raise UnsupportedModelError(teach("states of one width", got, "ask for residual, their mixture, or stream:1"))
    if kind == "branch":
        got = f"blocks that mix {streams.count} streams before they add to them"
        raise UnsupportedModelError(teach("blocks that add to their input", got, "ask for residual or stream:1"))
    if sublayer is not None:
        raise UnsupportedModelError(str(reading.sublayer_problem))


def _attach(reading: Reading, kind: str, on_state: OnState) -> list[RemovableHandle]:
    sublayer = sublayer_kind(kind)
    if sublayer is not None:
        return _attach_sublayer(reading, sublayer, on_state)
    if kind == "residual" or stream_number(kind) is not None:
        return _attach_residual(reading, stream_number(kind), on_state)
    return _attach_branch(reading, on_state) if kind == "branch" else []


def _attach_residual(reading: Reading, number: int | None, on_state: OnState) -> list[RemovableHandle]:
    def state_of(hidden: Tensor) -> Tensor:
        one = None if number is None or reading.streams is None else reading.streams.one(hidden, number)
        return reading.residual(hidden) if one is None else one

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        on_state(0, _trusted(reading, 0, state_of(input_of(args, kwargs))))

    def after(state: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            on_state(state, _trusted(reading, state, state_of(hidden_of(output))))

        return hook

    first = reading.blocks[0].register_forward_pre_hook(before, with_kwargs=True)
    return [first, *(block.register_forward_hook(after(i + 1)) for i, block in enumerate(reading.blocks))]


def _trusted(reading: Reading, state: int, hidden: Tensor) -> Tensor:
    """Replace what was made with a non-finite weight by NaN, since relu(-inf) = 0 would look like a value."""
    if reading.first_bad_state is not None and state >= reading.first_bad_state:
        return torch.full_like(hidden, torch.nan)
    return hidden.clone() if reading.overwrites else hidden


def _attach_branch(reading: Reading, on_state: OnState) -> list[RemovableHandle]:
    entering: list[Tensor] = []

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        hidden = input_of(args, kwargs)
        entering.append(hidden.clone() if reading.overwrites else hidden)

    def after(layer: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            branch = difference(hidden_of(output), entering.pop())
            on_state(layer, _trusted(reading, layer + 1, branch))

        return hook

    first = [block.register_forward_pre_hook(before, with_kwargs=True) for block in reading.blocks]
    return first + [block.register_forward_hook(after(i)) for i, block in enumerate(reading.blocks)]


def difference(after: Tensor, before: Tensor) -> Tensor:
    """What a block added, in float32 at least: half precision would round away most of a small branch."""
    wide = torch.promote_types(torch.promote_types(after.dtype, before.dtype), torch.float32)
    return after.to(wide) - before.to(device=after.device, dtype=wide)


def _attach_sublayer(reading: Reading, kind: str, on_state: OnState) -> list[RemovableHandle]:
    """Collect one kind of sublayer; a block with two of them (shared and routed experts) gives their sum."""
    if reading.sublayer_problem is not None:
        raise UnsupportedModelError(reading.sublayer_problem)
    layers = layers_with(kind, reading.parts)
    if not layers:
        present = sorted({f"branch:{part.kind}" for parts in reading.parts for part in parts})
        raise InputError(teach(f"a model with {kind} sublayers", "one without", f"ask for {' or '.join(present)}"))
    handles: list[RemovableHandle] = []
    for entry, layer in enumerate(layers):
        parts = [part for part in reading.parts[layer] if part.kind == kind]
        handles += _attach_parts(reading, entry, layer, parts, on_state)
    return handles


def _attach_parts(
    reading: Reading, entry: int, layer: int, parts: list[Sublayer], on_state: OnState
) -> list[RemovableHandle]:
    added: list[Tensor] = []

    def collect(scale: float) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            added.append(hidden_of(output) if scale == 1.0 else hidden_of(output) * scale)

        return hook

    def finish(_: nn.Module, __: Any, output: Any) -> None:
        shape = hidden_of(output).shape
        total = sum((part.reshape(shape) for part in added[1:]), start=added[0].reshape(shape))
        added.clear()
        on_state(entry, _trusted(reading, layer + 1, total))

    handles = [part.module.register_forward_hook(collect(part.scale)) for part in parts]
    return [*handles, reading.blocks[layer].register_forward_hook(finish)]


def _attach_final_norm(reading: Reading, on_final_norm: OnFinalNorm) -> list[RemovableHandle]:
    behind: list[bool] = []
    # A model without a final norm has an Identity, which its forward may or may not call: its last block stands in.
    absent = isinstance(reading.final_norm, nn.Identity)

    def last(_: nn.Module, __: Any, output: Any) -> None:
        behind.append(True)
        if absent:
            on_final_norm(_trusted_norm(reading, reading.residual(hidden_of(output))))

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        if behind and not absent:  # NanoChat norms its embedding by the same module
            on_final_norm(_trusted_norm(reading, hidden_of(output)))

    return [reading.blocks[-1].register_forward_hook(last), reading.final_norm.register_forward_hook(hook)]


def _trusted_norm(reading: Reading, hidden: Tensor) -> Tensor:
    bad = reading.final_norm_bad or reading.first_bad_state is not None
    return torch.full_like(hidden, torch.nan) if bad else hidden


def _emit_tuple(reading: Reading, output: Any, on_state: OnState) -> None:
    *raw, normed = output.hidden_states
    shift = 1 if reading.tuple_skips_embedding else 0
    for index, hidden in enumerate(raw):
        on_state(index, _trusted(reading, index + shift, hidden))
    on_state(len(raw), _trusted_norm(reading, normed))
