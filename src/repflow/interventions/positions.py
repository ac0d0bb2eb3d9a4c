"""Positions: learned ones set to zero, rotary ones turned by no angle.

The causal mask, recurrences and convolutions still know the order: what is removed is the explicit position.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.errors import UnsupportedModelError, teach
from repflow.mixers.retention import Retention
from repflow.mixers.softmax_attention import SoftmaxAttention
from repflow.models import Model
from repflow.models.anatomy import text_config

LEARNED = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?|pos_embed\w*|position_embed\w*)$")
ROTARY = re.compile(r"Rotary\w*Embedding$")
OTHER = re.compile(r"Position|Rotary|Alibi|Sinusoid|RelativeBias")


def remove_positions(model: Model, network: nn.Module) -> list[str]:
    """Take the explicit positions out of a copy of the model's network; returns what was changed.

    Raises:
        UnsupportedModelError: The architecture has none, or builds them where no module shows them.
    """
    _refuse_biases(model)
    changed = []
    for name, module in network.named_modules():
        if LEARNED.search(name) and isinstance(module, nn.Embedding):
            module.weight = nn.Parameter(torch.zeros_like(module.weight), requires_grad=module.weight.requires_grad)
            changed.append(f"{name}.weight")
        elif ROTARY.search(type(module).__name__):
            module.forward = _unturned(name, module)
            changed.append(name)
        elif isinstance(table := dict(module.named_buffers(recurse=False)).get("embed_positions"), Tensor):
            sine, cosine = table.chunk(2, dim=-1)  # as GPT-J keeps them
            module.embed_positions = torch.cat([torch.zeros_like(sine), torch.ones_like(cosine)], dim=-1)
            changed.append(f"{name}.embed_positions")
        elif isinstance(module, SoftmaxAttention) and module.turned:
            module.turned = 0
            changed.append(name)
        elif isinstance(module, Retention) and module.rotary:
            module.rotary = False
            changed.append(name)
    _refuse_others(model, network, changed)
    if not changed:
        kinds = ", ".join(dict.fromkeys(model.layer_kinds))
        got = f"{model.model_type} ({kinds}), which has none: order enters through recurrence or the causal mask alone"
        raise UnsupportedModelError(teach("a model with learned or rotary positions", got, "leave positions out"))
    return changed


def _refuse_others(model: Model, network: nn.Module, changed: list[str]) -> None:
    """A module of positions that was not changed must not pass for none."""
    for name, module in network.named_modules():
        known = any(part == name or part.startswith(f"{name}.") for part in changed)
        if OTHER.search(type(module).__name__) and not known:
            got = f"{model.model_type} with {name} ({type(module).__name__}), which is neither"
            raise UnsupportedModelError(teach("learned or rotary positions", got, "leave positions out"))


def _refuse_biases(model: Model) -> None:
    """ALiBi and relative biases are added inside the attention code, where no module could be changed."""
    config = text_config(model.network.config)
    nested = getattr(config, "attn_config", None)
    by_config = getattr(config, "alibi", False) or getattr(nested, "alibi", False)
    if by_config or model.model_type in ("bloom", "mpt"):
        got = f"{model.model_type} with ALiBi, whose biases are built inside its attention"
        raise UnsupportedModelError(teach("learned or rotary positions", got, "leave positions out"))


def _unturned(name: str, module: nn.Module) -> Callable[..., Any]:
    """Forward of a rotary embedding at position 0 for every token: no rotation, any attention factor kept."""
    original = module.forward
    parameters = list(inspect.signature(original).parameters)
    if "position_ids" not in parameters:
        got = f"{name} ({type(module).__name__}) with {', '.join(parameters)}"
        raise UnsupportedModelError(teach("a rotary embedding of position_ids", got, "leave positions out"))
    place = parameters.index("position_ids")

    def forward(*args: Any, **kwargs: Any) -> Any:
        if "position_ids" in kwargs:
            return original(*args, **{**kwargs, "position_ids": torch.zeros_like(kwargs["position_ids"])})
        return original(*args[:place], torch.zeros_like(args[place]), *args[place + 1 :], **kwargs)

    return forward
