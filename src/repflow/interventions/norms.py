"""Norms: found by their class, reset to identity or bypassed.

What counts as a norm: a module whose class is named ...Norm, gated or not. Normalisations without a module (the unit
length that a delta rule gives to its keys) are part of the mixer and stay.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.errors import UnsupportedModelError, teach
from repflow.models import Model
from repflow.models.trace import probe_ids

NORM = re.compile(r"Norm(Gated)?$|Norm\d?d$")


@dataclass
class Norm:
    """One norm of a network.

    Attributes:
        name: Its name in the network.
        module: The module.
        scope: block, inner or final.
        call: What it was called with in a probing pass, None if it was not called.
        shape: Shape of what it returned.
    """

    name: str
    module: nn.Module
    scope: str
    call: inspect.BoundArguments | None = None
    shape: tuple[int, ...] = ()


def find_norms(model: Model, network: nn.Module, scope: str | None) -> list[Norm]:
    """Norms of a copy of the model's network, of one scope or all, each with one recorded call.

    Raises:
        UnsupportedModelError: There is none, or one is never called as a module.
    """
    scopes = _scopes(model)
    norms = [Norm(name, module, scopes[name]) for name, module in network.named_modules() if name in scopes]
    norms = [norm for norm in norms if scope in (None, norm.scope)]
    if not norms:
        got = f"{model.model_type}, which has none" if scope is None else f"{model.model_type} without {scope} norms"
        raise UnsupportedModelError(teach("a model with norms", got, "leave the ablation out"))
    _record_calls(model, network, norms)
    if silent := [norm.name for norm in norms if norm.call is None]:
        got = f"{silent[0]} ({len(silent)} in all), which this model never calls as a module"
        raise UnsupportedModelError(teach("norms that the model calls", got, "name the scope of others: block, final"))
    return norms


def has_norms(model: Model, scope: str) -> bool:
    """Whether a model has norms of a scope."""
    return scope in _scopes(model).values()


def _scopes(model: Model) -> dict[str, str]:
    """Scope of each norm by its name: `block` for a direct child of a block, `final` outside the blocks, else inner."""
    direct = {id(child) for block in model.blocks for child in _layers(block)}
    inside = {id(module) for block in model.blocks for module in block.modules()}
    scopes = {}
    for name, module in model.network.named_modules():
        if NORM.search(type(module).__name__) is None:
            continue
        scopes[name] = "block" if id(module) in direct else "inner" if id(module) in inside else "final"
    return scopes


def _layers(block: nn.Module) -> list[nn.Module]:
    """Children of a block; Zamba 2 wraps its layers once more."""
    wrapped = [child for child in block.children() if type(child).__name__.endswith("DecoderLayer")]
    return [*block.children(), *(inner for child in wrapped for inner in child.children())]


def _record_calls(model: Model, network: nn.Module, norms: list[Norm]) -> None:
    def recorder(norm: Norm) -> Callable[..., None]:
        signature = inspect.signature(type(norm.module).forward)

        def hook(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Tensor) -> None:
            norm.call = signature.bind(module, *args, **kwargs)
            norm.shape = tuple(output.shape)

        return hook

    handles = [norm.module.register_forward_hook(recorder(norm), with_kwargs=True) for norm in norms]
    try:
        with torch.inference_mode():
            network(**model.reading.arguments(probe_ids(model.network, model.vocab_size), None))
    finally:
        for handle in handles:
            handle.remove()


def reset_affine(model: Model, network: nn.Module, scope: str | None) -> list[str]:
    """Give every norm the scale one and the bias zero; returns what was changed.

    Gemma's norms multiply by 1 + weight: their identity is a weight of zero. Which of the two a norm does is seen by
    calling it with a weight of zero.
    """
    changed = []
    fresh: dict[int, nn.Parameter] = {}  # by the old one's id, so that tied norms stay tied
    for norm in find_norms(model, network, scope):
        for name, old in list(norm.module.named_parameters(recurse=False)):
            if id(old) not in fresh:
                value = 0.0 if name.endswith("bias") else _identity(norm, name, old)
                fresh[id(old)] = nn.Parameter(torch.full_like(old.detach(), value), requires_grad=old.requires_grad)
            setattr(norm.module, name, fresh[id(old)])
            changed.append(f"{norm.name}.{name}")
    if not changed:
        got = f"{model.model_type}, whose norms have no parameters"
        raise UnsupportedModelError(teach("norms with scales", got, "leave norm-affine out"))
    return changed


def _identity(norm: Norm, name: str, parameter: nn.Parameter) -> float:
    """Value of a scale that leaves the normalised input as it is: 1, or 0 where the norm adds 1 itself."""
    assert norm.call is not None
    biases = {key: torch.zeros_like(p) for key, p in norm.module.named_parameters(recurse=False)}
    zero = biases | {name: torch.zeros_like(parameter)}
    args = [_noise(value) for value in norm.call.args[1:]]
    kwargs = {key: _noise(value) for key, value in norm.call.kwargs.items()}
    with torch.inference_mode():
        output = torch.func.functional_call(norm.module, zero, tuple(args), kwargs)
    return 0.0 if bool(output.any()) else 1.0


def _noise(value: Any) -> Any:
    """Random numbers in the place of a recorded tensor, which may be zero or not finite."""
    if not isinstance(value, Tensor):
        return value
    return torch.randn(value.shape, generator=torch.Generator().manual_seed(0)).to(value)


def bypass(model: Model, network: nn.Module, scope: str | None) -> list[str]:
    """Make every norm return its input; a gated norm still gates it. Returns what was changed."""
    norms = find_norms(model, network, scope)
    for norm in norms:
        forward = _bypassed(norm)
        # on the instance: the module keeps its parameters, whose dtype some blocks read
        norm.module.forward = forward
    return [norm.name for norm in norms]


def _bypassed(norm: Norm) -> Callable[..., Tensor]:
    assert norm.call is not None
    names = list(norm.call.arguments)[1:]
    others = [name for name in names[1:] if isinstance(norm.call.arguments[name], Tensor)]
    if others not in ([], ["gate"]):
        got = f"{norm.name} ({type(norm.module).__name__}) called with {', '.join(names)}"
        raise UnsupportedModelError(teach("norms of one tensor, gated or not", got, "leave the ablation norm out"))
    if others and getattr(norm.module, "activation", "silu") not in ("silu", "swish"):
        got = f"{norm.name} gated by {norm.module.activation}"
        raise UnsupportedModelError(teach("norms gated by silu", got, "leave the ablation norm out"))
    flatten = len(norm.shape) == norm.call.arguments[names[0]].ndim - 1  # xLSTM's norm joins the heads

    def forward(hidden_states: Tensor, gate: Tensor | None = None, *_: Any, **__: Any) -> Tensor:
        output = hidden_states
        if gate is not None and others:
            output = (hidden_states.float() * nn.functional.silu(gate.float())).to(hidden_states.dtype)
        return output.flatten(-2) if flatten else output

    return forward
