"""What a grid costs, from configuration files alone: nothing is loaded, downloaded or written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from repflow.core.errors import InputError
from repflow.studies.engine.grid import Cell, CellConfig
from repflow.studies.measure import MeasureConfig

FLOPS_PER_PARAMETER = 2
"""One multiplication and one addition per parameter and token; attention's own share is left out."""
POSITIONS = 256
BYTES = 4
DESCRIPTION = 150_000
"""Bytes of run.json, manifest and result.json, which depend little on the cell."""


class Size(NamedTuple):
    """A model's size as its configuration gives it."""

    parameters: int | None
    layers: int
    width: int


@dataclass(frozen=True)
class Cost:
    """What the cells need.

    Attributes:
        cells: number of them.
        prompts: prompts over all cells.
        tokens: tokens over all cells, at most.
        parameters: per model, None where they are not known without downloading.
        flops: of all cells whose model's parameters are known.
        disk_bytes: of all cells whose model's size is known.
        unknown: models that are missing in `flops` and `disk_bytes`.
    """

    cells: int
    prompts: int
    tokens: int
    parameters: dict[str, int | None]
    flops: float
    disk_bytes: int
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"unknown": list(self.unknown)}


def estimate(cells: Sequence[Cell]) -> Cost:
    """Add up the cells."""
    configs = [cell.config for cell in cells]
    trusted = {config.model: config.trust_remote_code for config in configs}
    sizes = {model: model_size(model, trust_remote_code=trust) for model, trust in trusted.items()}
    parameters = {model: None if size is None else size.parameters for model, size in sizes.items()}
    return Cost(
        cells=len(cells),
        prompts=sum(map(prompt_count, configs)),
        tokens=sum(prompt_count(config) * config.length for config in configs),
        parameters=parameters,
        flops=float(
            sum(FLOPS_PER_PARAMETER * (parameters[c.model] or 0) * prompt_count(c) * c.length for c in configs)
        ),
        disk_bytes=sum(disk_bytes(config, size) for config in configs if (size := sizes[config.model]) is not None),
        unknown=tuple(model for model, count in parameters.items() if count is None),
    )


def prompt_count(config: CellConfig) -> int:
    """Prompts that run through a model: a probe may draw new ones for every seed, and runs its twin too.

    >>> from repflow.studies.probe.config import ProbeConfig
    >>> prompt_count(ProbeConfig(samples=100, seeds=3, seeds_vary="all")), prompt_count(ProbeConfig(samples=100))
    (300, 100)
    """
    if isinstance(config, MeasureConfig):
        return config.samples
    drawn = config.seeds if config.seeds_vary == "all" and config.task in ("kvpr", "mdqa") else 1
    return config.samples * drawn * (1 if config.twin is None else 2)


def disk_bytes(config: CellConfig, size: Size) -> int:
    """Rough size of a run: sums of unit vectors and pooled positions per prompt and state, and the kept prompts.

    A probe keeps a row of every state per prompt and position read.
    """
    states = size.layers + 1
    if not isinstance(config, MeasureConfig):
        kept = 0 if config.drop_features else prompt_count(config) * (1 + len(config.sweep))
        return kept * (states + 1) * size.width * BYTES + DESCRIPTION
    per_prompt = states * (2 * size.width + 4 * min(config.length, POSITIONS)) * BYTES
    kept = min(config.keep_samples, config.samples) * 6 * states * config.length * BYTES
    return config.samples * per_prompt + kept + DESCRIPTION


def model_size(spec: str, *, trust_remote_code: bool = False) -> Size | None:
    """Parameters, blocks and width of a model from its configuration; None where that is not at hand.

    A hub model counts only if its configuration is in the local cache.
    """
    import torch

    from repflow.models.anatomy import declared_layers, text_config
    from repflow.models.load import read_config
    from repflow.models.weights.initialise import random_model

    try:
        source = _local_source(spec)
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


def _local_source(spec: str) -> Any:
    from huggingface_hub import try_to_load_from_cache

    from repflow.models.load import Source, find_source

    source = find_source(spec)
    if source.form != "hub":
        return None if source.form == "gguf" else source
    cached = try_to_load_from_cache(source.name, "config.json", revision=source.revision)
    return Source("config", Path(cached), source.name) if isinstance(cached, str) else None
