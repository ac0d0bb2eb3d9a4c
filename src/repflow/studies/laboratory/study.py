"""Laboratory: a study that trains a grid of models, tests each and looks into it.

A laboratory says what its cells are (`repflow.studies.laboratory.cell`) and how they are made, trained and tested
(`repflow.studies.laboratory.method`). The rest is here: groups of one shape side by side, resumption after `kill -9`,
pauses, curves, models that diverged, readings, models that are kept, cost, the Result of all cells with a command for
each.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np

from repflow.core.errors import InputError, PausedError, teach
from repflow.studies.engine.cell import Share
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import Names
from repflow.studies.engine.phase import tell
from repflow.studies.engine.study import Job, Study
from repflow.studies.laboratory.config import HOW, LaboratoryConfig, check_grid, grid_names
from repflow.studies.laboratory.method import C, Method

if TYPE_CHECKING:
    import torch

    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.store import RunFolder
    from repflow.studies.engine.sink import RunSink
    from repflow.studies.engine.size import Size

TRAINING = 6
"""FLOP per parameter and token: a forward pass and twice as much back."""


@dataclass
class LaboratoryJob(Job[C]):
    """A request with the folders of its half-trained and its kept models.

    Attributes:
        folder: of half-trained models, beside the run; None where nothing is stored.
        models_folder: of kept models; None unless they are kept.
    """

    folder: Path | None = None
    models_folder: Path | None = None


class Laboratory(Method[C], Study[C, LaboratoryJob[C]], Generic[C]):
    """Train a grid of models, test each and look into it."""

    one_model = False
    counts = "models"
    pass_kinds = ("training",)
    reads_text: ClassVar[bool] = False
    """Whether its models read text: the rate of large ones was measured on those."""

    def check(self, config: C) -> None:
        """Refuse wrong options; no torch."""
        check_grid(config)

    def names(self, config: C) -> Names:
        """Number of models and steps; eight digits stand for everything else."""
        return grid_names(config)

    def reads(self, config: C) -> tuple[int, int]:
        """Rows and tokens of all models."""
        from repflow.studies.laboratory.cost import total_tokens

        return len(config.grid()) * config.steps * config.batch, round(total_tokens(self, config))

    def size(self, config: C) -> Size:
        """Of the largest model."""
        from repflow.studies.engine.size import Size

        kinds = {cell.variant: cell for cell in config.grid()}.values()
        networks = [self.outline(cell, config) for cell in kinds]
        largest = max(networks, key=lambda network: sum(part.numel() for part in network.parameters()))
        count = sum(part.numel() for part in largest.parameters())
        return Size(count, int(largest.config.num_hidden_layers), int(largest.config.hidden_size))

    def flops(self, config: C, size: Size) -> float:
        """Forward and backward passes of all models, taken to be as large as the largest."""
        return float(TRAINING * (size.parameters or 0) * self.reads(config)[1])

    def pass_seconds(self, config: C, size: Size, rate: float) -> float:
        """From rates that grids of small models reached, which launches and memory bound more than operations.

        Large ones that read text by their operations; they are not built for it.
        """
        from repflow.studies.laboratory.cost import LARGE, LARGE_RATE, START, gpu_seconds

        if self.reads_text and (size.parameters or 0) >= LARGE:
            return START * len(config.grid()) + self.flops(config, size) / min(rate, LARGE_RATE)
        return gpu_seconds(self, config)

    def load(self, config: C) -> dict[str, Model]:
        """Models are built where they are trained."""
        return {}

    def check_data(self, config: C) -> None:
        """Refuse what the data that models are trained on cannot give."""

    def has_data(self, config: C) -> bool:
        """Whether the data are there; what a grid costs can be said without them."""
        return True

    def prepare(self, config: C, models: dict[str, Model], given: Any, progress: Progress | None) -> LaboratoryJob[C]:
        """Build one model of every kind: options that do not fit are refused before anything is written."""
        from repflow.models.devices import resolve_device
        from repflow.studies.laboratory.group import shape_keys
        from repflow.studies.laboratory.size import fitting

        self.check_data(config)
        resolve_device(config.device)
        shape_keys(self, config)
        cells = config.grid()
        for cell in {cell.variant: cell for cell in cells}.values():
            fitting(self, cell, config)
        return LaboratoryJob(config, models, None, len(cells))

    def stored(self, job: LaboratoryJob[C]) -> dict[str, Any]:
        """The request, without what may change under it, and without bounds that were not set."""
        kept = {key: value for key, value in identity(job.config).items() if key not in HOW}
        if kept["memory"] is None:
            del kept["memory"]
        return {"study": self.name, **kept}

    def machine(self, job: LaboratoryJob[C]) -> dict[str, Any]:
        """Models are trained where `device` says, and are not there yet to be asked."""
        from repflow.capture.provenance import machine
        from repflow.models.devices import resolve_device

        return machine(str(resolve_device(job.config.device)))

    def before(self, job: LaboratoryJob[C], out: Path, name: str) -> None:
        """Half-trained and kept models lie beside the run."""
        from repflow.studies.laboratory.kept import models_folder

        job.folder = out / f"{name}.training"
        job.models_folder = models_folder(out, name) if job.config.keep_models else None

    def after(self, job: LaboratoryJob[C], folder: RunFolder, result: Result) -> Result:
        """A finished run needs no half-trained models; kept ones must all be there."""
        from repflow.studies.laboratory.kept import check_kept

        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)
        if job.models_folder is not None:
            check_kept(job.models_folder, job.config.grid())
        return result

    def shares(self, config: C, split: int) -> int:
        """Every group of models that are trained side by side; a pause would leave others waiting.

        Raises:
            InputError: it is to stop after some time.
        """
        from repflow.studies.laboratory.group import groups

        if config.seconds is not None:
            got = f"--seconds {config.seconds:g}"
            remedy = "leave --seconds out: workers may be ended at any time, and the same command goes on"
            raise InputError(teach("a training that workers may finish", got, remedy))
        return len(groups(self, config))

    def share(self, job: LaboratoryJob[C], sink: RunSink, share: Share, progress: Progress | None) -> None:
        """Train the groups of a share."""
        self._train(job, sink, share, progress)
        if job.folder is not None:
            shutil.rmtree(job.folder, ignore_errors=True)

    def join(self, out: Path, name: str, shares: Sequence[Path]) -> None:
        """Kept models of all shares are kept together."""
        from repflow.studies.laboratory.kept import join_models, models_folder

        join_models([models_folder(share.parent, share.name) for share in shares], models_folder(out, name))

    def compute(self, job: LaboratoryJob[C], sink: Sink, progress: Progress | None) -> Result:
        """Train group after group; every model is kept as soon as it is read."""
        self._train(job, sink, Share(0, 1), progress)
        places = range(len(job.config.grid()))
        return self.result(job.config, [(sink.load(shard_name(at)), sink.meta(shard_name(at))) for at in places])

    def _train(self, job: LaboratoryJob[C], sink: Sink, share: Share, progress: Progress | None) -> None:
        from repflow.models.devices import resolve_device
        from repflow.studies.laboratory.cost import cost_words
        from repflow.studies.laboratory.group import groups

        config, began = job.config, time.monotonic()
        bench = _Bench(self, job, sink, progress, resolve_device(config.device), began)
        cells, parts = config.grid(), groups(self, config)
        for number, group in enumerate(parts):
            if not share.has(number) or all(sink.has(shard_name(place)) for place in group):
                continue
            bench.release()
            size = f"{len(group)} model{'s' * (len(group) > 1)}"
            words = f"{cost_words(self, config)}; group {number + 1} of {len(parts)}, {size}"
            tell(progress, words, number, len(parts))
            if bench.left() == 0.0:
                raise PausedError(_paused(config, f"with {number} of {len(parts)} groups trained"))
            bench.group(group, f"group-{number:03d}")
            if progress is not None:
                progress(sum(sink.has(shard_name(place)) for place in range(len(cells))), len(cells), 0)

    def result(self, config: C, cells: list[tuple[dict[str, np.ndarray], Mapping[str, Any]]]) -> Result:
        """Arrays over all cells; what a model has not is NaN."""
        from repflow.core.results import Result
        from repflow.studies.laboratory.cost import cost_words
        from repflow.studies.laboratory.group import groups
        from repflow.studies.laboratory.result import described, training_findings, watched_arrays

        arrays, axes = self.assembled([own for own, _ in cells], config)
        longest = max((own["steps"] for own, _ in cells), key=len)
        facts = {**self.facts(config), "steps": longest.tolist(), "cost": cost_words(self, config)}
        if self.watched(config):
            more, at = watched_arrays([own for own, _ in cells])
            arrays, axes = arrays | more, axes | dict.fromkeys(more, ("cell", "point"))
            facts["watched"] = at
        beside = {place: group for group in groups(self, config) for place in group}
        rows = [described(config, place, meta, beside[place]) for place, (_, meta) in enumerate(cells)]
        facts["groups"] = list(dict.fromkeys(row["command"] for row in rows))
        findings = [*training_findings(config, arrays), *self.findings(config, arrays)]
        return Result(arrays, axes, {}, {self.name: facts, "cells": rows}, findings)


@dataclass
class _Bench:
    """One call's work on a grid."""

    lab: Laboratory[Any]
    job: LaboratoryJob[Any]
    sink: Sink
    progress: Progress | None
    device: torch.device
    began: float

    def left(self) -> float | None:
        """Seconds of this call that are left; None without a bound."""
        bound = self.job.config.seconds
        return None if bound is None else max(0.0, bound - (time.monotonic() - self.began))

    def release(self) -> None:
        """Give back memory of models that are done: other processes may share the GPU, and pieces would not fit."""
        import gc

        import torch

        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def group(self, places: Sequence[int], name: str) -> None:
        """Train some cells side by side, in halves where the device's memory does not hold them all."""
        import torch

        from repflow.studies.laboratory.group import train_group

        config = self.job.config
        cells = [config.grid()[place] for place in places]
        folder = None if self.job.folder is None else self.job.folder / name

        def say(text: str) -> None:  # a loss and an accuracy of each model would fill the screen
            tell(self.progress, f"{text.partition(':')[0]};{text.rpartition(';')[2]}")

        try:
            trained = train_group(self.lab, cells, config, folder, self.device, seconds=self.left(), say=say)
        except torch.OutOfMemoryError as error:
            self.halves(places, name, error)
            return
        if trained.run.stopped == "time":
            raise PausedError(_paused(config, f"at step {trained.run.steps} of {config.steps}"))
        for number, (place, cell) in enumerate(zip(places, cells, strict=True)):
            if not self.sink.has(shard_name(place)):
                if self.left() == 0.0:
                    raise PausedError(_paused(config, f"with {number} of {len(cells)} models of a group tested"))
                tell(self.progress, f"{cell}: testing", number, len(cells))
                self.read(trained, number, place, cell)
        if folder is not None:  # what is carried to another machine stays small
            shutil.rmtree(folder, ignore_errors=True)

    def halves(self, places: Sequence[int], name: str, error: BaseException) -> None:
        """Train each half of a group by itself."""
        if len(places) == 1:
            got = f"out of memory: {str(error).partition(chr(10))[0]}"
            remedy = "pass a smaller --batch; models that are trained already are kept"
            raise InputError(teach(f"memory for {self.job.config.grid()[places[0]]}", got, remedy)) from error
        tell(self.progress, f"{len(places)} models at once do not fit into memory: in halves")
        if self.job.folder is not None:
            shutil.rmtree(self.job.folder / name, ignore_errors=True)
        middle = len(places) // 2
        for half, part in enumerate((places[:middle], places[middle:])):
            self.group(part, f"{name}-{half}")

    def read(self, trained: Any, number: int, place: int, cell: Any) -> None:
        """Test a trained model, look into it, and keep what comes of it."""
        from repflow.studies.laboratory.curve import read_curves
        from repflow.studies.laboratory.kept import keep_model
        from repflow.studies.laboratory.reading import look_into

        lab, config, network = self.lab, self.job.config, trained.networks[number]
        loss = trained.history("task_loss", number)  # without penalties, where there are some
        loss = trained.history("loss", number) if loss is None else loss
        assert loss is not None
        arrays = read_curves(loss, trained.history("accuracy", number))
        arrays |= {f"watched/{name}": values for name, values in trained.watched(number).items()}
        if np.isnan(arrays["diverged_at"]):
            arrays |= lab.evaluate(network, cell, config)
            prompts = lab.prompts(cell, config) if config.flow_samples else None
            if prompts is not None:
                metrics, tokenizer = lab.measured(cell, config), lab.tokenizer(config)
                arrays |= look_into(network, prompts, metrics=metrics, tokenizer=tokenizer)
            if self.job.models_folder is not None:
                keep_model(self.job.models_folder, cell, network, lab.tokenizer(config))
        arrays["parameters"] = np.array(sum(part.numel() for part in network.parameters()))
        arrays |= lab.sizes(network, cell, config)
        facts = {"cell": str(cell), "seconds": trained.run.seconds, "graph": trained.run.graph}
        beside = len(trained.networks)
        facts |= {"beside": beside, "tokens": trained.run.tokens // beside}
        self.sink.keep(shard_name(place), arrays, {"samples": [], **facts})


def shard_name(place: int) -> str:
    """Of a cell by its place in the grid."""
    return f"cell-{place:04d}"


def _paused(config: LaboratoryConfig, where: str) -> str:
    return f"stopped after {config.seconds:g} s, as asked, {where}; nothing is lost: run the same command to go on"
