"""What a recipe costs, from configurations alone: nothing is loaded, downloaded or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repflow.papers import values as papers
from repflow.studies.engine.cost import FLOPS_PER_PARAMETER
from repflow.studies.engine.size import Size, model_size
from repflow.studies.engine.table import study_for, study_named
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.reproduce.models import TINY, TINY_NAMES, VOCABULARY
from repflow.studies.reproduce.plan import ReproduceCell, ReproducePlan

RATE = 160e12
"""FLOP/s that a run is reckoned with: what a Mamba-2.8B, the slowest of the four large shapes, reached on one NVIDIA
H200 in bfloat16 at n = 2048 with a fused scan. In float32, or without such a scan, it is many times slower."""
FEATURE_BYTES = 4
CHECKPOINT_BYTES = {"EleutherAI/gpt-neo-2.7B": 4, "EleutherAI/pythia-2.8b": 2}
"""Bytes per published parameter; 4 for those not named."""


@dataclass(frozen=True)
class ReproduceCost:
    """What the cells need.

    Attributes:
        runs: number of them.
        prompts: prompts over all runs.
        tokens: tokens over all runs, at most.
        parameters: per model, None where they are not known without downloading.
        flops: of all forward passes whose model's size is known, 2 per parameter and token.
        rate: FLOP/s that `gpu_hours` is reckoned with.
        gpu_hours: forward passes on one GPU.
        run_bytes: disk for results.
        feature_bytes: disk for the states that probes read, which stay in their runs.
        download_bytes: checkpoints that are fetched.
        unknown: models that are missing in the sums.
    """

    runs: int
    prompts: int
    tokens: int
    parameters: dict[str, int | None]
    flops: float
    rate: float
    gpu_hours: float
    run_bytes: int
    feature_bytes: int
    download_bytes: int
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"unknown": list(self.unknown)}


def estimate(plan: ReproducePlan) -> ReproduceCost:
    """Add up the cells of a plan, finished ones included."""
    sizes = {role: size_of(role, model.spec, own=model.own) for role, model in plan.models.items()}
    parameters = {role: None if size is None else size.parameters for role, size in sizes.items()}
    flops = sum(FLOPS_PER_PARAMETER * (parameters[cell.key.model] or 0) * _tokens(cell) for cell in plan.cells)
    return ReproduceCost(
        runs=len(plan.cells),
        prompts=sum(cell.config.samples for cell in plan.cells),
        tokens=sum(_tokens(cell) for cell in plan.cells),
        parameters=parameters,
        flops=float(flops),
        rate=RATE,
        gpu_hours=flops / RATE / 3600,
        run_bytes=sum(_run_bytes(cell, sizes) for cell in plan.cells),
        feature_bytes=sum(_feature_bytes(cell, sizes) for cell in plan.cells),
        download_bytes=sum(
            (parameters[role] or 0) * CHECKPOINT_BYTES.get(model.spec, 4)
            for role, model in plan.models.items()
            if model.own
        ),
        unknown=tuple(role for role, count in parameters.items() if count is None),
    )


def size_of(role: str, spec: str, *, own: bool) -> Size | None:
    """Size of what stands for a model: from its files, or for a published checkpoint from the shape we know it has."""
    if own:
        return shape_size(papers.CHECKPOINTS[role].config)
    if Path(spec).name == TINY_NAMES[role] and not Path(spec).exists():  # made only once the run begins
        return shape_size({**TINY[role], "vocab_size": VOCABULARY})
    return model_size(spec)


def shape_size(config: Mapping[str, Any]) -> Size:
    """Parameters, blocks and width of an architecture, built without memory for its weights."""
    import torch

    from repflow.models.anatomy import declared_layers
    from repflow.models.transformers_own import config_class
    from repflow.models.weights.initialise import random_model

    options = dict(config)
    made = config_class(options.pop("model_type"))(**options)
    with torch.device("meta"):
        network = random_model(made, "default", seed=0)
    count = sum(parameter.numel() for parameter in network.parameters())
    return Size(count, int(declared_layers(made) or 0), int(config["hidden_size"]))


def _tokens(cell: ReproduceCell) -> int:
    """Tokens that pass through the model; prompts are drawn once for all seeds of a probe."""
    return cell.config.samples * cell.config.length


def _run_bytes(cell: ReproduceCell, sizes: Mapping[str, Size | None]) -> int:
    size = sizes[cell.key.model]
    if size is None:
        return 0
    config = cell.config
    if isinstance(config, ProbeConfig):
        return study_named("measure").disk_bytes(MeasureConfig(length=1, samples=1), size)
    return study_for(config).disk_bytes(config, size)


def _feature_bytes(cell: ReproduceCell, sizes: Mapping[str, Size | None]) -> int:
    size = sizes[cell.key.model]
    if size is None or not cell.probes:
        return 0
    return cell.config.samples * (size.layers + 1) * size.width * FEATURE_BYTES
