"""The module inside what trainings wrap around it, and a copy of it to read through.

A training hands out its model inside DistributedDataParallel, torch.compile's OptimizedModule, a LightningModule or a
PEFT adapter. What is read is the transformers model inside, through a copy that shares every tensor
(`repflow.models.identity.live`): hooks, eval mode and caches are the copy's, and the training pass, compiled or not,
never sees any of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from repflow.core.errors import InputError, UnsupportedModelError, teach
from repflow.models import Model
from repflow.models.families import refuse_encoder
from repflow.models.identity.live import shared_copy
from repflow.models.tokenizer import local_tokenizer, open_tokenizer

INNER = ("_orig_mod", "module")
"""Attributes under which torch.compile, DistributedDataParallel, DataParallel and DeepSpeed hold the module."""
WRAPPERS = frozenset({"OptimizedModule", "DistributedDataParallel", "DataParallel", "DeepSpeedEngine"})
"""Classes that have one of these attributes and nothing of their own to add to the states."""


def unwrapped(module: Any) -> PreTrainedModel:
    """The transformers model inside a module.

    Raises:
        InputError: There is none in it, or several; or its weights are not whole in this process.
    """
    network = _inner(module)
    _refuse_shards(network)
    return network


def _inner(module: Any) -> PreTrainedModel:
    while True:
        if isinstance(module, PreTrainedModel):
            return module
        if not isinstance(module, nn.Module):
            got = f"{type(module).__module__}.{type(module).__qualname__}"
            raise InputError(teach("a torch module to watch", got, "pass the model that is trained"))
        _refuse_fsdp(module)
        if hasattr(module, "get_base_model"):
            module = _adapted(module)
        elif type(module).__name__ in WRAPPERS:
            module = next(getattr(module, name) for name in INNER if hasattr(module, name))
        else:
            module = _only_inside(module)


def _adapted(module: Any) -> Any:
    """The model that a PEFT adapter was put into; one that puts tokens before the prompt changes no layer of it."""
    config = getattr(module, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        got = f"{type(config).__name__}, which puts trained tokens before every prompt"
        remedy = "watch a model with LoRA or another adapter inside its layers, or measure the merged checkpoint"
        raise InputError(teach("an adapter inside the model's layers", got, remedy))
    return module.get_base_model()


def _only_inside(module: nn.Module) -> PreTrainedModel:
    inside = list(_outermost(module))
    if len(inside) == 1:
        return inside[0]
    names = ", ".join(type(one).__name__ for one in inside[:4])
    got = f"{type(module).__name__} with {len(inside)} of them: {names}" if inside else f"{type(module).__name__}"
    remedy = "pass the one to watch" if inside else "pass the model itself, or build it as a repflow.models.StackConfig"
    raise InputError(teach("a module with one transformers model inside", got, remedy))


def _outermost(module: nn.Module) -> Iterator[PreTrainedModel]:
    for child in module.children():
        if isinstance(child, PreTrainedModel):
            yield child
        else:
            yield from _outermost(child)


def _refuse_fsdp(module: nn.Module) -> None:
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise _sharded("FullyShardedDataParallel")


def _refuse_shards(network: nn.Module) -> None:
    """FSDP and ZeRO-3 leave a part of each weight in a process: one process alone cannot run the model."""
    _refuse_fsdp(network)
    tensors = sys.modules.get("torch.distributed.tensor")  # nothing is a DTensor before it is imported
    kind: Any = getattr(tensors, "DTensor", ())
    for name, parameter in network.named_parameters():
        if isinstance(parameter, kind) or hasattr(parameter, "ds_status"):
            raise _sharded(f"{name} in shards (FSDP or ZeRO-3)")


def _sharded(got: str) -> UnsupportedModelError:
    remedy = "train with DistributedDataParallel to watch it, or measure its checkpoints: `repflow compare FOLDER`"
    return UnsupportedModelError(teach("weights that are whole in this process", got, remedy))


def reading_copy(network: PreTrainedModel, tokenizer: Any = None) -> Model:
    """A Model of a copy that shares every tensor with the network; compiled parts are plain modules in it."""
    refuse_encoder(network.config)
    copied: Any = _plain(shared_copy(network))
    if "_original_forward" in vars(copied):  # accelerate's, which casts; the class's own forward stands behind it
        vars(copied).pop("forward", None)
    origin = str(getattr(network.config, "name_or_path", "") or "").rstrip("/")
    name = origin.rpartition("/")[2] or str(network.config.model_type)
    if tokenizer is None and origin and Path(origin).is_dir():
        tokenizer = local_tokenizer(Path(origin))
    return Model(copied, spec=f"live:{name}", name=name, tokenizer=open_tokenizer(tokenizer))


def _plain(module: nn.Module) -> nn.Module:
    """Compiled blocks replaced by the modules inside: running them would fill the training's cache of graphs."""
    for name, child in list(module.named_children()):
        inner = _plain(child)
        if type(inner).__name__ == "OptimizedModule":
            inner = inner._orig_mod  # type: ignore[assignment]
        if inner is not child:
            setattr(module, name, inner)
    return module


def held_tensors(network: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers by the names they have without compiled parts; tied ones under each name."""
    tensors = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    return [(name.replace("_orig_mod.", ""), tensor) for name, tensor in tensors]


def shares_tensors(network: nn.Module, model: Model) -> bool:
    """Whether a copy still reads the network's own tensors: a resized embedding or a merged adapter is a new one."""
    mine, its = (dict(held_tensors(one)) for one in (network, model.network))
    return all(mine.get(name) is tensor for name, tensor in its.items() if name in mine) and mine.keys() <= its.keys()
