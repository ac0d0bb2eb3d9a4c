"""Live models: read through a copy of their modules, so that nothing of them changes.

Reading a model needs eval mode, hooks in its state-space layers and for a few architectures another configuration;
caches that are filled on the way (rotary tables) would be inference tensors, which no training step could use. All of
this is done to the copy. It shares every tensor with the live model, costs no memory, and sees its later training
steps, which change weights in place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from types import CellType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import InputError, teach
from repflow.models.weights.construct import cast

if TYPE_CHECKING:
    from repflow.models.pretrained import Model

_known: WeakKeyDictionary[PreTrainedModel, tuple[Any, Model]] = WeakKeyDictionary()
"""Live networks that were read before, with the state they were in and the Model built from it. The Model holds the
copy, never the live network, which is free to go."""


def recall(network: PreTrainedModel, scan: str) -> Model | None:
    """The Model of a live network that has not changed since it was checked: a later call need not check it again.

    What is compared is cheap: modules, hooks, configuration, and which tensors they hold in which version (every
    change in place counts one up). Weights written behind torch's back, through `.data`, are not seen here; a run's
    digest, computed in every call, sees them.
    """
    state, model = _known.get(network, (None, None))
    if model is None or model.scans.setting != scan or state != (network_state(network), network_state(model.network)):
        return None
    return copy.copy(model)


def remember(network: PreTrainedModel, model: Model) -> None:
    """Keep what the checks of a live network gave."""
    if weight_versions(network) is not None:
        _known[network] = (network_state(network), network_state(model.network)), model


PLAIN = (int, float, str)
"""Kinds of settings that a module's function may depend on."""


def weight_versions(network: nn.Module) -> tuple[tuple[int, int], ...] | None:
    """Which tensors a network holds, each with the count of its changes in place; None where torch counts none."""
    return _versions([*network.parameters(), *network.buffers()])


def _versions(tensors: Sequence[Tensor | None]) -> tuple[tuple[int, int], ...] | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return None if any(t.is_inference() for t in present) else tuple([(id(t), t._version) for t in present])


def network_state(network: PreTrainedModel) -> Any:
    """What a network's function depends on, as far as it can be seen without reading its weights."""
    modules, tensors = [], []
    for name, module in _modules(network):
        settings = [item for item in vars(module).items() if isinstance(item[1], PLAIN)]
        hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
        modules.append((name, type(module), hooks, id(vars(module).get("forward")), settings))
        tensors += [*module._parameters.values(), *module._buffers.values()]
    return modules, _versions(tensors), network.dtype, network.device, _settings(network.config)


def _modules(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once; torch's own walk passes each of them through as many generators as it is deep."""
    waiting, seen = [("", network)], set()
    while waiting:
        name, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            waiting += [(f"{name}.{key}", child) for key, child in module._modules.items() if child is not None]


def _settings(config: Any) -> str:
    """Everything that a configuration holds, as text; its own JSON takes fifty times as long."""
    return repr({key: _settings(value) if hasattr(value, "to_dict") else value for key, value in vars(config).items()})


def shared_copy(network: PreTrainedModel) -> PreTrainedModel:
    """Copy a network's modules and configuration; parameters, buffers and other tensors are the same ones.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> one = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=4))
    >>> two = shared_copy(one)
    >>> two.transformer.ln_f is one.transformer.ln_f, two.transformer.ln_f.weight is one.transformer.ln_f.weight
    (False, True)
    """
    tensors = [*network.parameters(), *network.buffers()]
    tensors += [value for module in network.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return _copied(network, {id(tensor): tensor for tensor in tensors})


def moved_copy(network: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Copy a network with its tensors, on another device or in another floating-point type."""
    copied = _copied(network, {})
    return (copied if copied.dtype == dtype else cast(copied, dtype)).to(device)


def _copied(network: PreTrainedModel, shared: dict[int, Any]) -> PreTrainedModel:
    try:
        copied = copy.deepcopy(network, shared)
    except (TypeError, RuntimeError) as error:  # a lock or handle, a tensor inside a graph
        got = f"{type(network).__name__}, one part of which cannot be copied: {error}"
        remedy = "detach that part, or save the model with save_pretrained and pass the folder"
        raise InputError(teach("a live model whose modules can be copied", got, remedy)) from error
    for module in copied.modules():
        forward = vars(module).get("forward")
        if isinstance(forward, FunctionType):  # put in place of the class's own: what it closes over is not copied
            object.__setattr__(module, "forward", _rebound(forward, shared))
    return copied


def _rebound(function: FunctionType, copies: dict[int, Any]) -> FunctionType:
    """The function with copies in place of the modules, and of their methods, that it closes over."""

    def moved(value: Any) -> Any:
        if isinstance(value, MethodType) and id(value.__self__) in copies:
            return MethodType(value.__func__, copies[id(value.__self__)])
        if isinstance(value, FunctionType):
            return _rebound(value, copies)
        return copies.get(id(value), value) if isinstance(value, nn.Module) else value

    cells = tuple(CellType(moved(cell.cell_contents)) for cell in function.__closure__ or ())
    bound = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound
