"""What a recipe costs, from configurations alone: nothing is loaded, downloaded or written."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from repflow.studies.engine.cost import passes_of, trained_tokens
from repflow.studies.engine.size import Size, model_size
from repflow.studies.engine.study import DESCRIPTION
from repflow.studies.engine.table import study_for
from repflow.studies.reproduce.models import ROLES, TINY, VOCABULARY, StandIn
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan

RATES = {"gpt_neox": 506e12, "mamba2": 464e12, "mamba": 379e12}
"""FLOP/s of bare passes by the shapes of paper 1 in bfloat16 on one NVIDIA H200, 48 prompts of 2,048 tokens, as in
docs/benchmarks.md; other models are reckoned with the recipe's own rate."""
METERS = 1.18
"""A pass with the default meters over a bare one: the largest of these three."""
FEATURE_RATE = 0.55e9
"""Bytes of features a second: written, digested, read, and fitted for five seeds with both controls."""
PROBE_TOKENS = 1e6
"""Tokens of key-value prompts that are made in a second."""
CELL_SECONDS = 7.0
"""Of a cell whose model is loaded, whatever its size: splits, sentinels, results. With the three above it comes from
cells of 5,500 and 22,000 prompts of Mamba2-2.7B, 114 s of work for the larger one, for which this says 117."""


@dataclass(frozen=True)
class ReproduceCost:
    """What the cells need.

    Attributes:
        runs: number of them; 1 for a recipe that computes at once.
        prompts: prompts over all runs.
        tokens: tokens over all runs, at most.
        trained: those of them that runs train on.
        passes: kinds of passes that `flops` adds up: forward, backward, training.
        parameters: per model, None where they are not known without downloading.
        flops: of all passes whose model's size is known.
        rate: FLOP/s that `pass_hours` comes to.
        pass_hours: these passes on one GPU, bare.
        gpu_hours: the same with what measures and probes do beside them, in paper 1's recipes; else the passes.
        run_bytes: disk for results.
        feature_bytes: disk for the states that probes read, which stay in their runs.
        download_bytes: checkpoints that are fetched.
        unknown: models that are missing in the sums.
    """

    runs: int
    prompts: int
    tokens: int
    trained: int
    passes: tuple[str, ...]
    parameters: dict[str, int | None]
    flops: float
    rate: float
    pass_hours: float
    gpu_hours: float
    run_bytes: int
    feature_bytes: int
    download_bytes: int
    unknown: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"passes": list(self.passes), "unknown": list(self.unknown)}


def estimate(plan: ReproducePlan, cells: Sequence[ReproduceCell] | None = None) -> ReproduceCost:
    """Add up the cells of a plan, or some of them."""
    chosen = plan.cells if cells is None else cells
    sizes = {role: stand_in_size(model) for role, model in plan.models.items()}
    requests = [(study_for(cell.config), cell) for cell in chosen]
    sizes |= {cell.key: study.size(cell.config) for study, cell in requests if cell.role not in plan.models}
    parameters = {str(name): None if size is None else size.parameters for name, size in sizes.items()}
    known = [
        (study, cell, size)
        for study, cell in requests
        if (size := sizes[cell.role if cell.role in plan.models else cell.key]) is not None
    ]
    reads = [study.reads(cell.config) for study, cell in requests]
    flops = sum(study.flops(cell.config, size) for study, cell, size in known)
    features = sum(study.feature_bytes(cell.config, size) for study, cell, size in known)
    whole = sum(study.disk_bytes(cell.config, size) for study, cell, size in known)
    seconds = [cell_seconds(study, cell, size, plan.recipe.rate) for study, cell, size in known]
    passes = sum(bare for bare, _ in seconds)
    return ReproduceCost(
        runs=len(chosen) if plan.cells else 1,
        prompts=sum(prompts for prompts, _ in reads),
        tokens=sum(tokens for _, tokens in reads),
        trained=trained_tokens([(study, cell.config) for study, cell in requests]),
        passes=passes_of([(study, cell.config) for study, cell in requests]),
        parameters=parameters,
        flops=float(flops),
        rate=flops / passes if passes else plan.recipe.rate,
        pass_hours=passes / 3600,
        gpu_hours=sum(all_of_it for _, all_of_it in seconds) / 3600,
        run_bytes=whole - features if plan.cells else DESCRIPTION,
        feature_bytes=features,
        download_bytes=sum(_download_bytes(model, parameters[role]) for role, model in plan.models.items()),
        unknown=tuple(name for name, count in parameters.items() if count is None),
    )


def cell_seconds(study: Any, cell: ReproduceCell, size: Size, rate: float) -> tuple[float, float]:
    """Seconds of a cell's bare passes on one GPU, and of the whole cell.

    Args:
        study: of the cell.
        cell: what runs.
        size: of its model.
        rate: FLOP/s where none was measured for the family.
    """
    role = ROLES.get(cell.role)
    if role is None or role.family != "flow":
        seconds = float(study.pass_seconds(cell.config, size, rate))
        return seconds, seconds
    bare = study.flops(cell.config, size) / RATES.get(str(role.config["model_type"]), rate)
    features = study.feature_bytes(cell.config, size)
    if not features:
        return bare, bare * METERS + CELL_SECONDS
    tokens = study.reads(cell.config)[1]
    return bare, bare + features / FEATURE_RATE + tokens / PROBE_TOKENS + CELL_SECONDS


def _download_bytes(model: StandIn, parameters: int | None) -> int:
    return (parameters or 0) * ROLES[model.role].parameter_bytes if model.own else 0


def stand_in_size(model: StandIn) -> Size | None:
    """Size of what stands for a model: from its files, or for a published checkpoint from the shape we know it has."""
    if model.own:
        return shape_size(ROLES[model.role].config)
    if model.made_here and not Path(model.spec).exists():  # made only once the run begins
        return shape_size({**TINY[model.made_here], "vocab_size": VOCABULARY})
    return model_size(model.spec)


def shape_size(config: Mapping[str, Any]) -> Size:
    """Parameters, blocks and width of an architecture, built without memory for its weights."""
    return _shape_size(json.dumps(config, sort_keys=True))


@functools.cache
def _shape_size(config: str) -> Size:
    """The same of a configuration as text; recipes share their models."""
    import torch

    from repflow.models.anatomy import declared_layers
    from repflow.models.transformers_own import config_class
    from repflow.models.weights.initialise import random_model

    options = json.loads(config)
    width = int(options["hidden_size"])
    architecture = config_class(options.pop("model_type"))(**options)
    with torch.device("meta"):
        network = random_model(architecture, "default", seed=0)
    count = sum(parameter.numel() for parameter in network.parameters())
    return Size(count, int(declared_layers(architecture) or 0), width)
