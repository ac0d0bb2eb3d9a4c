"""Probe: at which depth can a linear read-out find what the task is about?"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest
from repflow.studies.engine.entry import prepared
from repflow.studies.engine.loading import load_model
from repflow.studies.engine.opening import open_run
from repflow.studies.engine.phase import STORED, tell
from repflow.studies.probe.config import ProbeConfig, check_numbers, check_request, run_name

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.store import RunFolder
    from repflow.studies.probe.prompts import SeedPrompts
    from repflow.tasks import Prompts

__all__ = ["ProbeConfig", "check_request", "probe", "run", "run_name"]

IN_MEMORY = 1 << 30
"""Features of a run that is not stored stay in memory up to this many bytes, and go to a temporary folder beyond."""


def run(
    config: ProbeConfig,
    *,
    model: Model | None = None,
    prompts: Prompts | Sequence[Prompts] | None = None,
    task: Any = None,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Probe one model.

    Args:
        config: what to do.
        model: a loaded model, instead of `config.model`.
        prompts: ready prompts with labels, one set for all seeds or one for each, instead of `config.task`.
        task: a Task object, instead of `config.task`.
        out: folder of runs; None keeps the result in memory only.
        name: name of the run in `out`; by default from model, init and task.
        progress: called after each batch.

    Raises:
        LeakError: a sentinel read the label without the model, and `allow_leak` is not set; nothing was written.
    """
    from repflow.studies.probe.prompts import given_seed_prompts, seed_prompts

    if prompts is None and task is None:
        check_request(config, name)
    else:
        check_numbers(config)
    loaded = load_model(config) if model is None else model
    if prompts is not None:
        made = given_seed_prompts(prompts, config.seeds, join=config.label == "answer")
        first = made.part(0)
        config = replace(config, task=first.task, length=max(first.lengths), samples=len(first))
    else:
        tell(progress, "making prompts")
        made = seed_prompts(config, loaded, task)
        config = config if task is None else replace(config, task=str(task.name))
    return _run(config, loaded, made, out, name, progress)


def _run(
    config: ProbeConfig,
    model: Model,
    prompts: SeedPrompts,
    out: str | Path | None,
    name: str | None,
    progress: Progress | None,
) -> Result:
    from repflow.store import load_result
    from repflow.studies.engine.feature_sink import MemoryKeeper, RunKeeper
    from repflow.studies.probe.part import check_model
    from repflow.studies.probe.steps import ProbeStudy, describe

    for number in range(prompts.n_parts):
        check_model(config, model, prompts.part(number))
    study = ProbeStudy(config, model, prompts, progress)
    study.warn_of_memory()
    if out is None:
        study.check_leaks()
        _begin(progress, study.total)
        if study.feature_bytes <= IN_MEMORY:
            return study.result(MemoryKeeper())
        with tempfile.TemporaryDirectory(prefix="repflow-") as folder:
            return _stored(study, Path(folder), "features")
    run = name or run_name(config)
    if not (Path(out) / run / "result.json").exists():
        study.check_leaks()  # before anything is written
    stored, provenance = describe(config, model, prompts)
    with open_run(out, run, config=stored, provenance=provenance, models={"model": model}) as opened:
        if opened.finished:
            tell(progress, STORED)
            result = load_result(opened.path)
        else:
            _begin(progress, study.total)
            result = study.result(RunKeeper(opened, study.total))
            opened.finish(result)
        if config.drop_features:
            _drop_features(opened, result)
    return result


def _drop_features(run: RunFolder, result: Result) -> None:
    """Forget the shards of features, which hold prompts; fits and answers stay. Reading the result needs neither."""
    names = [name for name in run.shards() if run.shard_meta(name).get("samples")]
    for name in names:
        run.discard_shard(name, "features dropped")
    if names:
        run.finish(result)  # a discarded shard makes a run unfinished


def _begin(progress: Progress | None, total: int) -> None:
    """The model is loaded, the work begins."""
    if progress is not None:
        progress(0, total, 0)


def _stored(study: Any, out: Path, name: str) -> Result:
    """A run whose features would not fit into memory, in a folder that goes away."""
    from repflow.store import RunFolder
    from repflow.studies.engine.feature_sink import RunKeeper

    with RunFolder.open(out, name, config={}, provenance={}) as opened:
        return study.result(RunKeeper(opened, study.total))


def probe(
    model: Any,
    task: Any = "kvpr",
    *,
    seeds: int = 5,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Probe every state of a model for what a task is about.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        task: `kvpr`, `mdqa`, `FILE.jsonl` with labels, a Task object, or ready Prompts (a list: one per seed).
        seeds: repetitions; each redraws split and initialisation, with `seeds_vary="all"` the prompts too.
        out: folder of runs to store features, fits and result in.
        name: name of the stored run.
        **options: any field of `ProbeConfig`.

    Returns:
        Result: `probe_accuracy` (state, seed) on test prompts and what belongs to it.
    """
    from repflow.tasks import Prompts

    known = {f.name for f in fields(ProbeConfig)} - {"model", "task", "seeds"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    ready = isinstance(task, Prompts) or (isinstance(task, (list, tuple)) and all(isinstance(t, Prompts) for t in task))
    config, loaded, chosen = prepared(ProbeConfig, model, None if ready else task, {"seeds": seeds, **options})
    return run(config, model=loaded, prompts=task if ready else None, task=chosen, out=out, name=name)
