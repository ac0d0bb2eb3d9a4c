"""Train one model of the zoo: seeded, in one piece, equal steps for all.

Weights are kept in float32, products run in bfloat16 on a GPU (float32 on a CPU). AdamW without decay on embeddings,
norms, biases and the recurrence's own parameters; linear warm-up, then a cosine down to a tenth; gradients clipped. The
loop is `repflow.training`; the loss, the batches and what is looked at on the way are the zoo's own.

The flow of representations and the retrieval of held-out prompts are measured on the way and kept; weights are not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.zoo.batches import ZooBatches, window_counts
from tools.zoo.config import TrainConfig
from tools.zoo.data import ZooData, open_data
from tools.zoo.loss import ZooLoss
from tools.zoo.models import build, parameter_count

if TYPE_CHECKING:
    import torch

    from repflow.training import TrainingConfig

__all__ = ["TrainConfig", "begin_record", "read_record", "train", "train_network"]


def train(config: TrainConfig, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Train a model, write its folder, and return what training.json says."""
    from repflow.models.devices import resolve_device
    from repflow.store.disk import make_folder
    from tools.zoo.save import save_model

    data = open_data(config.data)
    resolve_device(config.device)
    make_folder(Path(config.out))  # a place that cannot be written to is refused now, not once all is trained
    network = build(config.name, config.size, data.vocabulary, data.window, config.seed)
    record = train_network(network, config, data, say)
    save_model(network, Path(config.out), record)
    say(f"{config.name}: {record['steps']} steps in {record['seconds']:.1f} s, written to {config.out}")
    return record


def train_network(
    network: Any, config: TrainConfig, data: ZooData, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train a network where it is moved to, and return the record of the training."""
    from repflow.models.devices import resolve_device
    from repflow.training import train as run_training
    from tools.zoo.watch import Watch

    device = resolve_device(config.device)
    network.to(device)
    record = begin_record(config, data, network, device)
    say(f"{config.name}: {record['parameters']:,} parameters, {config.steps} steps on {record['device']}")
    began = time.perf_counter()
    watch = Watch(config, data, record, say)
    loss = ZooLoss(prose=round(config.batches.batch * config.batches.prose))
    with closing(ZooBatches(data, replace(config.batches, seed=config.seed), config.steps, device)) as batches:
        run = run_training(network, batches, loop_config(config), loss=loss, callbacks=[watch], within=watch.fast)
    for finding in run.findings:
        say(finding.message)
    record |= {"steps": run.steps, "graph": run.graph, "stopped_early": run.stopped is not None}
    record["seconds"] = time.perf_counter() - began
    record["tokens"] = record["steps"] * config.batches.batch * data.window
    return record


def loop_config(config: TrainConfig) -> TrainingConfig:
    """The zoo's settings as those of the loop."""
    from repflow.training import OptimiserConfig, Schedule, TrainingConfig
    from tools.zoo.watch import stops

    return TrainingConfig(
        steps=config.steps,
        seed=config.seed,
        optimiser=OptimiserConfig(
            rate=config.rate, betas=(0.9, 0.95), decay=config.decay, decayed=("matrices", "convolutions")
        ),
        schedule=Schedule("cosine", warmup=config.warmup, final=config.final),
        clip=config.clip,
        device=config.device,
        graph=config.graph,
        evaluate=stops(config),
        log_every=config.steps,
        nonfinite="report",
        seconds=config.seconds,
    )


def begin_record(config: TrainConfig, data: ZooData, network: Any, device: torch.device) -> dict[str, Any]:
    """What is known of a training before its first step."""
    from repflow.capture.provenance import machine

    return {
        "name": config.name,
        "config": asdict(config) | {"out": "", "data": Path(config.data).name},
        "parameters": parameter_count(network),
        "data": {key: data.facts_of[key] for key in ("digests", "licences", "seeds", "window", "prose_tokens")},
        "vocabulary": data.vocabulary,
        "windows": window_counts(data, config.batches),
        **machine(str(device)),
        "steps": 0,
        "stopped_early": False,
        "curve": [],
        "retrieval": [],
        "flow": [],
    }


def read_record(folder: str | Path) -> dict[str, Any]:
    """What training.json of a model's folder says."""
    record: dict[str, Any] = json.loads((Path(folder) / "training.json").read_text(encoding="utf-8"))
    return record
