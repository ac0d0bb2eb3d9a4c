"""Attention: narrowed to a window or made uniform.

Most of transformers' models ask two registries for their mask and their attention function, by the name of their
implementation; a copy of the model gets a name of its own there. GPT-Neo and GPT-J mask with a buffer and compute their
scores themselves: the buffer is narrowed, the query matrix set to zero. So is that of a stack's own attention, which
has a window as an option.

Uniform attention is attention with a query of zero: every score is 0, and the softmax gives each of k allowed tokens
1 / k.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    causal_mask_function,
    sliding_window_overlay,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from repflow.core.errors import UnsupportedModelError, teach
from repflow.mixers.softmax_attention import SoftmaxAttention
from repflow.models import Model
from repflow.models.anatomy import token_mixers
from repflow.models.families import OWN_ATTENTION

SERVED = "_repflow_served"
LOWEST = -1e4
"""An additive mask below this shuts a token out in every floating-point type."""


def restrict_attention(model: Model, network: PreTrainedModel, *, window: int | None, uniform: bool) -> list[str]:
    """Change the attention of a copy of the model's network; returns the attention modules.

    Raises:
        UnsupportedModelError: The model has no attention, or computes it where it cannot be reached.
    """
    mixers = token_mixers(network)
    modules = {name: m for name, m in network.named_modules() if mixers.get(m) == "attention"}
    if not modules:
        kinds = ", ".join(dict.fromkeys(model.layer_kinds))
        got = f"{model.model_type}, whose layers are {kinds}"
        raise UnsupportedModelError(teach("a model with attention", got, "leave the ablation out"))
    if uniform and any(hasattr(module, "sinks") for module in modules.values()):
        got = f"{model.model_type}, whose learned sinks take part in the softmax"
        raise UnsupportedModelError(teach("attention over tokens alone", got, "leave attention-uniform out"))
    own = {name: module for name, module in modules.items() if isinstance(module, SoftmaxAttention)}
    if own:
        for module in own.values():
            _change_own(module, window, uniform)
        return list(own)
    buffered = {name: module for name, module in modules.items() if _is_buffered(module)}
    if buffered:
        for module in buffered.values():
            _change_buffered(module, window, uniform)
        return list(buffered)
    if not network._can_set_attn_implementation():
        got = f"{model.model_type}, which computes its attention in code of its own"
        raise UnsupportedModelError(teach("attention through transformers' registry", got, "leave the ablation out"))
    _set_implementation(network, _registered(_base(network), window, uniform))
    return list(modules)


def check_served(model: Model, network: nn.Module) -> None:
    """Every block that attends must have called our function in the self-check's passes."""
    for index, block in enumerate(model.blocks):
        attending = [m for m in block.modules() if model.reading.mixers.get(m) == "attention"]
        if attending and not any(_is_changed(m) for m in attending):
            got = f"block {index + 1} ({type(block).__name__}), which computes it in another way"
            raise UnsupportedModelError(
                teach("attention through transformers' registry in every block", got, "leave the ablation out")
            )


def _is_changed(module: nn.Module) -> bool:
    return isinstance(module, SoftmaxAttention) or _is_buffered(module) or bool(module.__dict__.get(SERVED))


def _is_buffered(module: nn.Module) -> bool:
    """Whether a module masks by a boolean buffer (1, 1, token, token), as GPT-Neo and GPT-J do."""
    mask = dict(module.named_buffers(recurse=False)).get("bias")
    query = getattr(module, "q_proj", None)
    return mask is not None and mask.ndim == 4 and mask.dtype == torch.bool and isinstance(query, nn.Linear)


def _change_buffered(module: Any, window: int | None, uniform: bool) -> None:
    if window is not None:
        tokens = torch.arange(module.bias.shape[-1], device=module.bias.device)
        module.bias = module.bias & (tokens[None, :] > tokens[:, None] - window)
    if uniform:
        _silence_queries(module)


def _change_own(module: SoftmaxAttention, window: int | None, uniform: bool) -> None:
    """The mixer of a stack: it knows windows itself."""
    if window is not None:
        module.window = window if module.window is None else min(window, module.window)
    if uniform:
        _silence_queries(module)


def _silence_queries(module: Any) -> None:
    for name, parameter in list(module.q_proj.named_parameters()):
        setattr(module.q_proj, name, nn.Parameter(torch.zeros_like(parameter), parameter.requires_grad))


def _base(network: PreTrainedModel) -> str:
    """Implementation to build on: eager stays eager (soft caps need it), every kernel becomes sdpa."""
    return "eager" if network.config._attn_implementation == "eager" else "sdpa"


def _set_implementation(network: nn.Module, name: str) -> None:
    """Give every configuration in the copy the name; they are the copy's own."""
    configs: dict[int, Any] = {id(m.config): m.config for m in network.modules() if hasattr(m, "config")}
    for config in configs.values():
        config._attn_implementation = name


def _registered(base: str, window: int | None, uniform: bool) -> str:
    """Name under which the changed attention is known to transformers; registered at its first use."""
    name = OWN_ATTENTION + base + ("_uniform" if uniform else "") + (f"_window{window}" if window is not None else "")
    if name not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(name, _attention_function(base, window, uniform))
        AttentionMaskInterface.register(name, _mask_function(base, window))
    return name


def _mask_function(base: str, window: int | None) -> Callable[..., Any]:
    make = ALL_MASK_ATTENTION_FUNCTIONS[base]

    def mask(*args: Any, **kwargs: Any) -> Any:
        if window is not None and kwargs["kv_length"] > window:
            inner = kwargs.get("mask_function", causal_mask_function)
            narrowed = and_masks(inner, sliding_window_overlay(window))
            kwargs |= {"mask_function": narrowed, "allow_is_causal_skip": False}
        return make(*args, **kwargs)

    return mask


def _attention_function(base: str, window: int | None, uniform: bool) -> Callable[..., Any]:
    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        if window is not None and key.shape[2] > window:
            _require_narrow(module, attention_mask, query, key)
        if uniform:
            kwargs = {name: option for name, option in kwargs.items() if name not in ("position_bias", "softcap")}
            query = torch.zeros_like(query)
        module.__dict__[SERVED] = True
        own = ALL_ATTENTION_FUNCTIONS["sdpa"] if base == "sdpa" else _eager(module)
        return own(module, query, key, value, attention_mask, **kwargs)

    return attend


def _eager(module: nn.Module) -> Callable[..., Any]:
    function = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if function is None:
        got = f"{type(module).__name__} without an eager form of its own"
        raise UnsupportedModelError(teach("attention through transformers' registry", got, "leave the ablation out"))
    return function


def _require_narrow(module: nn.Module, mask: Tensor | None, query: Tensor, key: Tensor) -> None:
    """A mask that lets the last query see the first key was made elsewhere, without our window."""
    if mask is not None:
        corner = mask[0, 0, query.shape[2] - 1, 0]
        if not bool(corner) if mask.dtype == torch.bool else bool(corner < LOWEST):
            return
    got = f"{type(module).__name__}, whose mask over {key.shape[2]} tokens does not know the window"
    raise UnsupportedModelError(teach("masks made by transformers' mask registry", got, "leave the window out"))
