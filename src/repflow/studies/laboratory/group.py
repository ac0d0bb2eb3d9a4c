"""Groups of models of one shape, trained side by side; what cannot be stacked is trained alone, by the same calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from repflow.models.stack.replicas import ReplicaStack
from repflow.studies.laboratory.cell import Cell
from repflow.studies.laboratory.method import Method
from repflow.studies.laboratory.size import fitting
from repflow.studies.laboratory.volume import batch_parts, step_volume
from repflow.training import Callback, OptimiserConfig, TrainingConfig, train
from repflow.training.replicas import ReplicaBatches, ReplicaLoss

if TYPE_CHECKING:
    from repflow.studies.laboratory.config import LaboratoryConfig
    from repflow.training import Moment, TrainingRun


def shape_keys(lab: Method[Any], config: LaboratoryConfig) -> list[Hashable | None]:
    """Of each cell what it must share with those that are trained beside it; None where it is trained alone.

    A model of every kind is outlined for it, once in a process: a worker asks again for every share.
    """
    asked, last = repr(config), _last_keys.get(lab)
    if last is not None and last[0] == asked:
        return last[1]
    known: dict[tuple[Any, ...], Hashable | None] = {}
    for cell in config.grid():
        if cell.variant not in known:
            known[cell.variant] = lab.shape(lab.outline(cell, config), cell, config)
    _last_keys[lab] = asked, [known[cell.variant] for cell in config.grid()]
    return _last_keys[lab][1]


_last_keys: WeakKeyDictionary[Method[Any], tuple[str, list[Hashable | None]]] = WeakKeyDictionary()
"""Of the last request to each laboratory."""


def groups(
    lab: Method[Any], config: LaboratoryConfig, keys: Sequence[Hashable | None] | None = None
) -> list[list[int]]:
    """Numbers of the cells that are trained together: equal shapes, up to `together` of them.

    Args:
        lab: the laboratory.
        config: what was asked for.
        keys: `shape_keys` where they are known already.
    """
    together: list[list[int]] = []
    begun: dict[Hashable, list[int]] = {}
    most: dict[Hashable, int] = {}
    cells = config.grid()
    for number, key in enumerate(shape_keys(lab, config) if keys is None else keys):
        if key is None:
            together.append([number])
            continue
        if key not in most:
            most[key] = fitting(lab, cells[number], config)
        if key not in begun or len(begun[key]) >= most[key]:
            begun[key] = []
            together.append(begun[key])
        begun[key].append(number)
    return together


@dataclass
class Trained:
    """A group after its training.

    Attributes:
        run: what the training gave.
        networks: the models, on their device, ready to be read.
        alone: whether a model was trained by itself, so that its numbers carry no place.
    """

    run: TrainingRun
    networks: Sequence[Any]
    alone: bool

    def history(self, name: str, number: int) -> np.ndarray | None:
        """A number of every step of one model (step,); None where the training had none of that name."""
        values = self.run.history.get(name if self.alone else f"{name} {number}")
        return None if values is None else values.astype(np.float64)

    def watched(self, number: int) -> dict[str, np.ndarray]:
        """What was read of one model on the way: (point, step and value) by name."""
        suffix = "" if self.alone else f" {number}"
        names = {key for line in self.run.log if line["kind"] == "evaluate" for key in line} - {"kind", "step"}
        mine = [name for name in sorted(names) if self.alone or name.endswith(suffix)]
        return {name.removesuffix(suffix): np.stack(self.run.logged(name), 1) for name in mine}


class Watch(Callback):
    """What a laboratory reads of every model on the way."""

    def __init__(self, lab: Method[Any], cells: Sequence[Cell], config: LaboratoryConfig) -> None:
        self.lab, self.cells, self.config = lab, tuple(cells), config

    def on_evaluate(self, moment: Moment) -> dict[str, float]:
        """Numbers by name, behind each the place of its model in a group."""
        stack = moment.network if isinstance(moment.network, ReplicaStack) else None
        networks: Sequence[Any] = [moment.network] if stack is None else stack.put_back()
        values: dict[str, float] = {}
        for number, (network, cell) in enumerate(zip(networks, self.cells, strict=True)):
            network.to(moment.device).eval()
            with torch.no_grad():
                read = self.lab.watch(network, cell, self.config)
            values |= {name if stack is None else f"{name} {number}": value for name, value in read.items()}
        return values


def train_group(
    lab: Method[Any],
    cells: Sequence[Cell],
    config: LaboratoryConfig,
    folder: Path | None,
    device: torch.device,
    *,
    seconds: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Trained:
    """Train the models of some cells side by side, or go on where an earlier call stopped."""
    networks = [lab.build(cell, config) for cell in cells]
    alone = lab.shape(networks[0], cells[0], config) is None
    sources: dict[Hashable, Any] = {}
    for cell in cells:
        key = lab.source_key(cell, config)
        if key not in sources:
            sources[key] = lab.source(cell, config, device)
    mine = [sources[lab.source_key(cell, config)] for cell in cells]
    how = _how(lab, cells, config, device, seconds, networks[0] if alone else None)
    watch = [Watch(lab, cells, config)] if lab.watched(config) else []
    if alone:
        assert len(cells) == 1, "what cannot be stacked is a group of its own"
        options: dict[str, Any] = {"loss": lab.loss(cells[0], config), "within": lab.within}
        run = train(networks[0], mine[0], how, folder=folder, callbacks=watch, say=say, **options)
        trained: Sequence[nn.Module] = networks
    else:
        whole = ReplicaStack(networks, factors=[cell.rate for cell in cells])  # type: ignore[attr-defined]
        source = ReplicaBatches(mine)
        run = train(whole, source, how, loss=ReplicaLoss(), folder=folder, callbacks=watch, say=say)
        trained = whole.put_back()
    ready = [lab.finished(network, cell, config) for network, cell in zip(trained, cells, strict=True)]
    return Trained(run, [network.to(device).eval() for network in ready], alone)


def _how(
    lab: Method[Any],
    cells: Sequence[Cell],
    config: LaboratoryConfig,
    device: torch.device,
    seconds: float | None,
    alone: nn.Module | None,
) -> TrainingConfig:
    """Settings of a training; those beside others have a rate of 1 times their own factor, a large one has parts."""
    optimiser = lab.optimiser(cells[0], config)
    rate = 1.0 if alone is None else cells[0].rate  # type: ignore[attr-defined]
    work = 0.0 if alone is None else step_volume(lab.step_tokens(cells[0], config), alone)
    more = lab.training_options(config)
    return TrainingConfig(
        **{
            "steps": config.steps,
            "optimiser": OptimiserConfig(**{**vars(optimiser), "rate": rate}),
            "schedule": lab.schedule(config),
            "clip": config.clip or None,
            "device": str(device),
            "log_every": 500,
            "checkpoint_every": config.checkpoint,
            "seconds": seconds,
            "evaluate": lab.watched(config),
            "accumulate": batch_parts(work, config.batch),
            **more,
        }
    )
