"""Size of a model, from its configuration alone: nothing is loaded or downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from repflow.core.errors import InputError


class Size(NamedTuple):
    """A model's size as its configuration gives it."""

    parameters: int | None
    layers: int
    width: int


def model_size(spec: str, *, trust_remote_code: bool = False) -> Size | None:
    """Parameters, blocks and width of a model from its configuration; None where that is not at hand.

    A hub model counts only if its configuration is in the local cache.
    """
    import torch

    from repflow.models.anatomy import declared_layers, text_config
    from repflow.models.load import read_config
    from repflow.models.weights.initialise import random_model

    try:
        source = local_source(spec)
        config = None if source is None else read_config(source, trust_remote_code)
    except (InputError, OSError):
        return None  # the cell itself will say why
    layers = None if config is None else declared_layers(config)
    width = getattr(text_config(config), "hidden_size", None) if config is not None else None
    if not layers or not width:
        return None
    try:
        with torch.device("meta"):
            network = random_model(config, "default", seed=0, trust_remote_code=trust_remote_code)
        parameters = sum(parameter.numel() for parameter in network.parameters())
    except (RuntimeError, NotImplementedError, InputError, TypeError):  # built from values that meta tensors lack
        parameters = None
    return Size(parameters, int(layers), int(width))


def local_source(spec: str) -> Any:
    """Where a model's configuration is on this machine; None where it is not."""
    from huggingface_hub import try_to_load_from_cache

    from repflow.models.load import Source, find_source

    source = find_source(spec)
    if source.form != "hub":
        return None if source.form == "gguf" else source
    cached = try_to_load_from_cache(source.name, "config.json", revision=source.revision)
    return Source("config", Path(cached), source.name) if isinstance(cached, str) else None
