"""Recall: which stacks learn to look up, how far back, and what that has to do with their decays?"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import PausedError
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names
from repflow.studies.engine.phase import tell
from repflow.studies.engine.study import Job, Study
from repflow.studies.recall.config import RecallConfig, check, names

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.store import RunFolder

HOW = ("seconds", "checkpoint")
"""Options that may change between a run and its resumption."""
SCALARS = ("half_step", "loss_drop", "diverged_at", "half_reach", "kappa", "parameters", "state_bytes")


@dataclass
class RecallJob(Job[RecallConfig]):
    """A request with the folder of its half-trained models.

    Attributes:
        folder: beside the run; None where nothing is stored.
    """

    folder: Path | None = None


class Recall(Study[RecallConfig, RecallJob]):
    """Train a grid of stacks on associative recall, and look at each."""

    name = "recall"
    config = RecallConfig
    one_model = False
    summary = "Train a grid of stacks on multi-query associative recall: accuracy by pairs and by distance."

    def check(self, config: RecallConfig) -> None:
        """Refuse wrong options; no torch."""
        check(config)

    def load(self, config: RecallConfig) -> dict[str, Model]:
        """Models are built where they are trained."""
        return {}

    def prepare(
        self, config: RecallConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> RecallJob:
        """Build one model of every row: options that do not fit are refused before anything is written."""
        from repflow.models.devices import resolve_device
        from repflow.studies.recall.group import build

        resolve_device(config.device)
        seen = {(cell.row, cell.layers, cell.width, cell.init): cell for cell in config.grid()}
        for cell in seen.values():
            build(cell, config)
        return RecallJob(config, models, None, len(config.grid()))

    def stored(self, job: RecallJob) -> dict[str, Any]:
        """The request, without what may change under it."""
        kept = {key: value for key, value in identity(job.config).items() if key not in HOW}
        return {"study": self.name, **kept}

    def before(self, job: RecallJob, out: Path, name: str) -> None:
        """Half-trained models lie beside the run."""
        job.folder = out / f"{name}.training"

    def after(self, job: RecallJob, folder: RunFolder, result: Result) -> Result:
        """A finished run needs no half-trained models."""
        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
        return result

    def compute(self, job: RecallJob, sink: Sink, progress: Progress | None) -> Result:
        """Train group after group; every model is kept as soon as it is read."""
        from repflow.models.devices import resolve_device
        from repflow.studies.recall.group import groups

        config, began = job.config, time.monotonic()
        device, cells = resolve_device(config.device), config.grid()
        parts = groups(config)
        for number, group in enumerate(parts):
            if all(sink.has(_shard(place)) for place in group):
                continue
            words = f"{cost_words(config)}; group {number + 1} of {len(parts)}, {len(group)} models"
            tell(progress, words, number, len(parts))
            left = None if config.seconds is None else max(0.0, config.seconds - (time.monotonic() - began))
            if left == 0.0:
                raise PausedError(_paused(config, number, len(parts)))
            folder = None if job.folder is None else job.folder / f"group-{number:03d}"
            self._group([cells[place] for place in group], group, config, folder, device, left, sink, progress)
            if progress is not None:
                progress(min(len(cells), group[-1] + 1), len(cells), 0)
        return _result(config, [(sink.load(_shard(place)), sink.meta(_shard(place))) for place in range(len(cells))])

    def _group(
        self, cells: Any, places: list[int], config: RecallConfig, folder: Path | None, device: Any,
        left: float | None, sink: Sink, progress: Progress | None,
    ) -> None:  # fmt: skip
        from repflow.studies.recall.group import look_into, read_curves, state_bytes, test_model, train_group

        def say(text: str) -> None:  # a loss and an accuracy of each model would fill the screen
            tell(progress, f"{text.partition(':')[0]};{text.rpartition(';')[2]}")

        trained = train_group(cells, config, folder, device, seconds=left, say=say)
        if trained.run.stopped == "time":
            raise PausedError(_paused(config, None, None, trained.run.steps))
        for number, (place, cell, network) in enumerate(zip(places, cells, trained.networks, strict=True)):
            if sink.has(_shard(place)):
                continue
            arrays = read_curves(trained.run, number)
            tell(progress, f"{cell}: testing", number, len(cells))
            if np.isnan(arrays["diverged_at"]):
                arrays |= test_model(network, config.tests(), config.test_rows)
                arrays |= look_into(network, config) if config.flow_samples else {}
            arrays["parameters"] = np.array(sum(part.numel() for part in network.parameters()))
            arrays["state_bytes"] = np.array(state_bytes(network, config.tests()[0].length))
            facts = {"cell": str(cell), "seconds": trained.run.seconds, "graph": trained.run.graph}
            facts |= {"beside": len(cells), "tokens": trained.run.tokens // len(cells)}
            sink.keep(_shard(place), arrays, {"samples": [], **facts})

    def names(self, config: RecallConfig) -> Names:
        """Number of models and steps; eight digits stand for everything else."""
        return names(config)


def _shard(place: int) -> str:
    return f"cell-{place:04d}"


def _paused(config: RecallConfig, group: int | None, count: int | None, step: int | None = None) -> str:
    where = f"at step {step} of {config.steps}" if group is None else f"with {group} of {count} groups trained"
    return f"stopped after {config.seconds:g} s, as asked, {where}; nothing is lost: run the same command to go on"


def cost_words(config: RecallConfig) -> str:
    """Tokens of all models together."""
    lengths = [setting.length for setting in config.settings()]
    tokens = len(config.grid()) * config.steps * config.batch * sum(lengths) / len(lengths)
    return f"{len(config.grid())} models, {tokens / 1e9:.3g} billion tokens"


def _result(config: RecallConfig, cells: list[tuple[dict[str, np.ndarray], Mapping[str, Any]]]) -> Result:
    """Arrays over all cells; what a model has not is NaN."""
    from repflow.core.results import Result
    from repflow.studies.recall.group import distance_edges, groups

    tests = config.tests()
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, Any] = {}
    for name in SCALARS:
        values = [float(arrays_[name]) if name in arrays_ else np.nan for arrays_, _ in cells]
        arrays[name], axes[name] = np.array(values), ("cell",)
    right, seen = (_padded([part.get(name) for part, _ in cells]) for name in ("right", "queries"))
    with np.errstate(invalid="ignore", divide="ignore"):
        arrays["accuracy"], axes["accuracy"] = right.sum(2) / seen.sum(2), ("cell", "pairs")
        arrays["accuracy_by_distance"] = right / np.where(seen > 0, seen, np.nan)
    axes["accuracy_by_distance"] = ("cell", "pairs", "gap")
    kinds = {"loss": "step", "train_accuracy": "step", "token_similarity": "state", "half_life": "layer"}
    for name, axis in {**kinds, "A_range": "layer"}.items():
        parts = [part.get(name) for part, _ in cells]
        if any(value is not None for value in parts):
            arrays[name], axes[name] = _padded(parts), ("cell", axis)
    facts: dict[str, Any] = {
        "pairs": [setting.pairs for setting in tests],
        "length": tests[0].length,
        "gaps": distance_edges(tests[0].length),
        "steps": cells[0][0]["steps"].tolist(),
        "cost": cost_words(config),
    }
    rows = [_described(config, place, meta) for place, (_, meta) in enumerate(cells)]
    grid = config.grid()
    facts["groups"] = [config.command(*(grid[place] for place in group)) for group in groups(config)]
    return Result(arrays, axes, {}, {"recall": facts, "cells": rows}, _findings(config, arrays))


def _described(config: RecallConfig, place: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    cell = config.grid()[place]
    kept = {key: meta[key] for key in ("seconds", "graph", "beside", "tokens") if key in meta}
    own = {name: getattr(cell, name) for name in ("row", "layers", "width", "init", "rate", "seed")}
    return {"cell": str(cell), **own, **kept, "command": config.command(cell)}


def _padded(values: list[np.ndarray | None]) -> np.ndarray:
    """Arrays of unlike sizes as one, NaN where one has nothing."""
    there = [np.asarray(value, dtype=np.float64) for value in values if value is not None]
    shape = tuple(max(sizes) for sizes in zip(*(value.shape for value in there), strict=True)) if there else (1, 1)
    whole = np.full((len(values), *shape), np.nan)
    for place, value in enumerate(values):
        if value is not None:
            array = np.asarray(value, dtype=np.float64)
            part: Any = (place, *(slice(size) for size in array.shape))
            whole[part] = array
    return whole


def _findings(config: RecallConfig, arrays: Mapping[str, np.ndarray]) -> list[Finding]:
    from repflow.core.results import Finding
    from repflow.studies.recall.group import FALLING

    findings = []
    cells = config.grid()
    for place, step in enumerate(arrays["diverged_at"]):
        if np.isfinite(step):
            text = f"{cells[place]}: the loss of step {step:.0f} is not finite; the others went on; lower its rate"
            findings.append(Finding("diverged", None, text))
    falling = [place for place, drop in enumerate(arrays["loss_drop"]) if drop > FALLING]
    if falling:
        text = f"the loss of {len(falling)} of {len(cells)} models was still falling: more steps may change their order"
        findings.append(Finding("still_falling", None, text))
    return findings


STUDY = Recall()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name
