"""Probe: at which depth can a linear read-out find what the task is about?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest
from repflow.core.tasks import MADE
from repflow.studies.engine.entry import prepared
from repflow.studies.engine.naming import Names
from repflow.studies.engine.phase import tell
from repflow.studies.engine.study import DESCRIPTION, NUMBER, ONE, Job, Study
from repflow.studies.probe.config import ProbeConfig, check_numbers, check_words, names

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.store import RunFolder
    from repflow.studies.engine.cell import Share
    from repflow.studies.engine.sink import RunSink
    from repflow.studies.engine.size import Size
    from repflow.studies.probe.steps import ProbeStudy

__all__ = ["ProbeConfig", "check_request", "probe", "run", "run_name"]

USUAL = ("gpt-neox", "mamba2", "hybrid")
"""Models of the zoo that the demo probes, too."""
IN_MEMORY = 1 << 30
"""Features of a run that is not stored stay in memory up to this many bytes, and go to a temporary folder beyond."""


@dataclass
class ProbeJob(Job[ProbeConfig]):
    """Prompts of every seed, and the work on them."""

    steps: ProbeStudy | None = None


class Probe(Study[ProbeConfig, ProbeJob]):
    """At which depth can a linear read-out find what the task is about?"""

    name = "probe"
    config = ProbeConfig
    named = False
    summary = """Probe every state of MODELs: where in depth can a linear read-out find what the task is about?

    Features go to the run folder while the model runs once; an interrupted run resumes. Several
    models get the same text (--match).
    """
    usual = USUAL
    usual_words = "gpt-neox, mamba2 and hybrid of the zoo"

    def check(self, config: ProbeConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def check_given(self, config: ProbeConfig) -> None:
        """Refuse wrong numbers and words, whatever the prompts."""
        check_numbers(config)

    def prepare(self, config: ProbeConfig, models: dict[str, Model], given: Any, progress: Progress | None) -> ProbeJob:
        """Prompts of every seed; `given` is a Task, or ready prompts with labels: one set for all seeds or one each."""
        from repflow.studies.probe.part import check_model
        from repflow.studies.probe.prompts import given_seed_prompts, seed_prompts
        from repflow.studies.probe.steps import ProbeStudy
        from repflow.tasks import Task

        model = models[ONE]
        if given is None or isinstance(given, Task):
            tell(progress, "making prompts")
            prompts = seed_prompts(config, model, given)
            config = config if given is None else replace(config, task=str(given.name))
        else:
            prompts = given_seed_prompts(given, config.seeds, join=config.label == "answer")
            first = prompts.part(0)
            config = replace(config, task=first.task, length=max(first.lengths), samples=len(first))
        for number in range(prompts.n_parts):
            check_model(config, model, prompts.part(number))
        steps = ProbeStudy(config, model, prompts, progress)
        steps.warn_of_memory()
        return ProbeJob(config, models, prompts, steps.total, steps=steps)

    def stored(self, job: ProbeJob) -> dict[str, Any]:
        """Without `allow_leak`, with which a stopped run may resume, and without `drop_features`."""
        content = {
            key: value for key, value in super().stored(job).items() if key not in ("allow_leak", "drop_features")
        }
        # runs stored before these options resume as what they are
        return {key: value for key, value in content.items() if key not in ("train", "test") or value is not None}

    def before(self, job: ProbeJob, out: Path, name: str) -> None:
        """Stop at a leak before anything is written."""
        assert job.steps is not None
        if not (out / name / "result.json").exists():
            job.steps.check_leaks()

    def compute(self, job: ProbeJob, sink: Sink, progress: Progress | None) -> Result:
        """Features, fits and controls."""
        from repflow.studies.engine.feature_sink import MemoryKeeper, RunKeeper, passing_keeper
        from repflow.studies.engine.sink import RunSink

        steps = job.steps
        assert steps is not None
        if isinstance(sink, RunSink):
            return steps.result(RunKeeper(sink.run, steps.total))
        steps.check_leaks()
        if steps.feature_bytes <= IN_MEMORY:
            return steps.result(MemoryKeeper())
        with passing_keeper(steps.total) as keeper:
            return steps.result(keeper)

    def shares(self, config: ProbeConfig, split: int) -> int:
        """Prompts can be divided at will; fits, answers and the lens come when the states are together."""
        return max(1, min(split, config.samples))

    def before_share(self, job: ProbeJob, out: Path, name: str, share: Share) -> None:
        """Leaks are a question to all prompts: the first share asks it for all."""
        assert job.steps is not None
        if share.number == 0:
            job.steps.check_leaks()

    def share(self, job: ProbeJob, sink: RunSink, share: Share, progress: Progress | None) -> None:
        """Read the states of a share's batches, the twin's too."""
        from repflow.studies.engine.feature_sink import RunKeeper

        assert job.steps is not None
        job.steps.read(RunKeeper(sink.run, job.steps.total, share))

    def after(self, job: ProbeJob, folder: RunFolder, result: Result) -> Result:
        """Drop features that are not to be kept."""
        if job.config.drop_features:
            _drop_features(folder, result)
        return result

    def reads(self, config: ProbeConfig) -> tuple[int, int]:
        """A probe may draw new prompts for every seed, and runs its twin too.

        >>> few = ProbeConfig(samples=100, seeds=3, length=300)
        >>> STUDY.reads(replace(few, seeds_vary="all"))[0], STUDY.reads(few)[0]
        (300, 100)
        """
        draws = config.seeds if config.seeds_vary == "all" and config.task in MADE else 1
        prompts = config.samples * draws * (1 if config.twin is None else 2)
        return prompts, prompts * config.length

    def feature_bytes(self, config: ProbeConfig, size: Size) -> int:
        """A row of every state per prompt and position read."""
        rows = 0 if config.drop_features else self.reads(config)[0] * (1 + len(config.sweep))
        return rows * (size.layers + 2) * size.width * NUMBER

    def disk_bytes(self, config: ProbeConfig, size: Size) -> int:
        """States that probes read, beside what describes the run."""
        return self.feature_bytes(config, size) + DESCRIPTION

    def again(self, stored: Mapping[str, Any]) -> ProbeConfig:
        """A leak was allowed, or the run would not be there."""
        return replace(super().again(stored), allow_leak=True)

    def names(self, config: ProbeConfig) -> Names:
        """Model, weights, task, length and prompts x seeds."""
        return names(config)

    def cell_word(self, config: ProbeConfig) -> str:
        """As earlier versions spelt it, so that their grids resume."""
        return self.names(config).earlier


STUDY = Probe()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _drop_features(run: RunFolder, result: Result) -> None:
    """Forget the shards of features, which hold prompts; fits and answers stay. Reading the result needs neither."""
    names = [name for name in run.shards() if run.shard_meta(name).get("samples")]
    for name in names:
        run.discard_shard(name, "features dropped")
    if names:
        run.finish(result)  # a discarded shard makes a run unfinished


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
    return run(config, model=loaded, given=task if ready else chosen, out=out, name=name)
