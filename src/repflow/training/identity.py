"""What makes two trainings the same: model, first weights, batches, loss and settings, as plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repflow.models.identity.record import normalised
from repflow.models.weights.digest import weights_digest
from repflow.store.canonical import plain
from repflow.training.batch import BatchSource
from repflow.training.config import TrainingConfig
from repflow.training.losses import Loss
from repflow.version import __version__


def training_identity(
    network: nn.Module, source: BatchSource, loss: Loss, config: TrainingConfig, device: torch.device
) -> dict[str, Any]:
    """What must not change under a half-done training; the network has the weights that it starts with."""
    facts = {
        "config": config.identity() | {"device": device.type},
        "model": model_facts(network),
        "first_weights": weights_digest(kept_tensors(network).items()),
        "batches": {"source": type(source).__qualname__, **source.facts()},
        "loss": facts_of(loss),
    }
    return plain(facts, "description of a training")


def versions() -> dict[str, str]:
    """Versions that can change a number."""
    return {"repflow": __version__, "torch": str(torch.__version__)}


def model_facts(network: nn.Module) -> dict[str, Any]:
    """Class, configuration where it has one, and type and shape of every parameter that is trained or frozen."""
    config = getattr(network, "config", None)
    shapes = {
        name: f"{'' if parameter.requires_grad else 'frozen '}{parameter.dtype} {tuple(parameter.shape)}"
        for name, parameter in network.named_parameters()
    }
    facts = {"class": type(network).__qualname__, "parameters": shapes}
    return facts | ({"config": normalised(config)} if hasattr(config, "to_json_string") else {})


def facts_of(value: Any) -> dict[str, Any]:
    """Name of an object's class, with its own facts or fields where it has them."""
    own: Mapping[str, Any] = {}
    if hasattr(value, "facts"):
        own = value.facts()
    elif is_dataclass(value) and not isinstance(value, type):
        own = asdict(value)
    return {"name": getattr(value, "__qualname__", type(value).__qualname__), **own}


def kept_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers by name, tied ones once."""
    lasting = network.state_dict(keep_vars=True)
    buffers = {name: value for name, value in network.named_buffers() if name in lasting}
    return {**dict(network.named_parameters()), **buffers}
