"""Measure: how do representations flow through this model on these prompts?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.catalogue import DEFAULT_METRICS
from repflow.core.errors import InputError, nearest
from repflow.core.trust import METRIC_FILE, code_files, file_digest
from repflow.spec.request import typed_options
from repflow.spec.zoo import NAMES
from repflow.studies.engine.entry import loaded_model, plain_options
from repflow.studies.engine.loading import check_files, check_measuring, load_model
from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import (
    Batches,
    CkaForm,
    Metrics,
    OneModel,
    Prompting,
    StateKind,
    ablation_names,
    as_list,
    defaults,
    listed,
    option,
    words,
)
from repflow.studies.engine.prompts import check_task, given_task, make_prompts, own_file, prompt_facts
from repflow.studies.engine.study import DESCRIPTION, NUMBER, ONE, Job, Study

if TYPE_CHECKING:
    from repflow.capture.measure import MeasureOptions
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.engine.cell import Share
    from repflow.studies.engine.sink import RunSink
    from repflow.studies.engine.size import Size


__all__ = ["MeasureConfig", "check_request", "check_task", "load_model", "make_prompts", "measure", "run", "run_name"]


KEPT_POSITIONS = 256
"""Positions to which the values of longer prompts are pooled."""


@dataclass
@defaults(
    metrics=listed(
        "metrics to compute, repeated or comma separated: default, cka_matrix, effective_rank, FILE.py:FUNCTION ...",
        DEFAULT_METRICS,
    )
)
class MeasureConfig(Metrics, CkaForm, StateKind, Batches, Prompting, OneModel):
    """What to measure; the fields are the command line's options and the `config` of the Result."""

    drop: str = option("norm>10", "tokens left out of the second set of values: norm>k, first, bos")
    keep_samples: int = option(4, "prompts whose per-token values are kept unpooled")
    grid: int | None = option(None, "steps of the common relative-depth grid (granularity matched)")
    meter_memory: int | None = option(
        None, "MiB the meters may use; default six states of one batch at twice their precision"
    )
    cka_pool: str = option("mean", "CKA over prompts: mean of per-prompt HSIC, or rows (exact, more memory)")
    cka_memory: int = option(2048, "MiB that --cka-pool rows may use")
    calibration: list[str] = listed("text file whose mean state is taken off for centered/token_similarity")

    def __post_init__(self) -> None:
        """Put the default metrics in place of the word `default`, and ablations in their fixed order."""
        named = [m for name in words(self.metrics) for m in (DEFAULT_METRICS if name == "default" else [name])]
        self.metrics = list(dict.fromkeys(named))
        self.ablate = ablation_names(self.ablate)


@dataclass
class MeasureJob(Job[MeasureConfig]):
    """Prompts to be measured, and the part of the config that concerns the meters."""

    options: MeasureOptions | None = None


class Measure(Study[MeasureConfig, MeasureJob]):
    """How do representations flow through this model on these prompts?"""

    name = "measure"
    config = MeasureConfig
    named = False
    summary = """Measure how representations flow through MODELs: run each once and store what its layers do.

    An interrupted run resumes when the same command is rerun.
    """
    usual = NAMES
    usual_words = "all six of the zoo"

    def check(self, config: MeasureConfig) -> None:
        """Refuse wrong options, tasks, files and metrics."""
        from repflow.core.catalogue import ALIASES, METRICS

        self.check_given(config)
        check_task(config)
        check_files(*config.text, *config.calibration, *own_file(config.task))
        own = getattr(sys.modules.get("repflow.metrics.custom"), "CUSTOM", {})  # registered in this process, with torch
        for metric in config.metrics:
            if METRIC_FILE not in metric and metric not in METRICS and metric not in ALIASES and metric not in own:
                raise InputError(f"unknown metric {metric!r}; {nearest(metric, METRICS)}")

    def check_given(self, config: MeasureConfig) -> None:
        """Refuse wrong numbers and words, whatever the prompts."""
        check_measuring(config)

    def prepare(
        self, config: MeasureConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> MeasureJob:
        """Prompts, meters and calibration."""
        model = models[ONE]
        prompts = make_prompts(config, model) if given is None else given
        if given is not None:  # what was given is what the config says
            config = replace(config, task=given.task, length=max(given.lengths, default=0), samples=len(given))
        return MeasureJob(config, models, prompts, len(prompts), options=measure_options(config, model))

    def digests(self, job: MeasureJob) -> dict[str, Any]:
        """Also a user's own metrics, and the calibration's prompts."""
        assert job.options is not None
        calibration = job.options.calibration
        own = {} if calibration is None else {"calibration": calibration.digest()}
        return {**super().digests(job), **_metric_digests(job.config), **own}

    def before(self, job: MeasureJob, out: Path, name: str) -> None:
        """Refuse changed code before it is imported, and options that the model does not take."""
        from repflow.capture.measure import check_options
        from repflow.store.record import check_digests

        assert job.options is not None
        check_digests(out / name, job.options.code)
        job.options = check_options(job.options, job.model, job.prompts)

    def compute(self, job: MeasureJob, sink: Sink, progress: Progress | None) -> Result:
        """Run every batch once."""
        from repflow.capture.measure import measure_prompts

        assert job.options is not None
        config, model = job.config, job.model
        # where nothing is resumed, digests need not be known before the first batch
        result = measure_prompts(
            model, job.prompts, job.options, sink=sink, progress=progress, meanwhile=job.take_digests
        )
        result.provenance = {
            "task": prompt_facts(job.prompts),
            "states": config.states,
            "branch_layers": model.sublayers(config.states) if config.states.startswith("branch") else None,
            **result.provenance,
        }
        return result

    def shares(self, config: MeasureConfig, split: int) -> int:
        """Prompts can be divided at will."""
        return max(1, min(split, config.samples))

    def share(self, job: MeasureJob, sink: RunSink, share: Share, progress: Progress | None) -> None:
        """Run the batches of a share."""
        from repflow.capture.measure import measure_share
        from repflow.studies.engine.sink import ShareSink

        assert job.options is not None
        own = ShareSink(sink.run, share)
        measure_share(job.model, job.prompts, job.options, sink=own, progress=progress)

    def names(self, config: MeasureConfig) -> Names:
        """Model, weights, task, length, kind of state and grid."""
        parts = [*weight_words(config), Path(config.task).stem, str(config.length)]
        parts += [config.states] if config.states != "residual" else []
        parts += [f"grid{config.grid}"] if config.grid is not None else []
        return spell(config, parts, ("init", "init_seed", "ablate", "task", "length", "states", "grid"))

    def disk_bytes(self, config: MeasureConfig, size: Size) -> int:
        """Sums of unit vectors and pooled positions per prompt and state, and the kept prompts."""
        states = size.layers + 1
        per_prompt = states * (2 * size.width + 4 * min(config.length, KEPT_POSITIONS)) * NUMBER
        kept_bytes = min(config.keep_samples, config.samples) * 6 * states * config.length * NUMBER
        return config.samples * per_prompt + kept_bytes + DESCRIPTION

    def together(self, config: MeasureConfig, models: Sequence[str]) -> tuple[MeasureConfig, str]:
        """The same prompts, and smoothness and stability over equally many steps of depth."""
        from repflow.studies.engine.depth_grid import common_grid

        config, text = super().together(config, models)
        if config.grid is None:
            grid = common_grid(models, config.states, trust_remote_code=config.trust_remote_code)
            if grid is not None:
                text = f"comparing smoothness and stability on a grid of {grid} relative-depth steps (--grid)"
            config = replace(config, grid=grid)
        return config, text

    def cell_word(self, config: MeasureConfig) -> str:
        """As it was before names had digits, so that grids of earlier versions resume."""
        return self.names(config).bare


STUDY = Measure()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def measure_options(config: MeasureConfig, model: Model) -> MeasureOptions:
    """The part of the config that concerns the meters."""
    from repflow.capture.measure import MeasureOptions
    from repflow.tasks import Encoder, file_prompts

    calibration = None
    if config.calibration:
        encoder = Encoder(model.tokenizer, config.bos, model.bos_token_id)
        calibration = file_prompts(config.calibration, encoder, length=config.length, samples=config.samples)

    return MeasureOptions(
        metrics=tuple(config.metrics),
        kind=config.states,
        drop=config.drop,
        keep_samples=config.keep_samples,
        grid=config.grid,
        batch_size=config.batch_size,
        meter_memory=None if config.meter_memory is None else config.meter_memory << 20,
        cka_form=config.cka_form,
        cka_pool=config.cka_pool,
        cka_memory=config.cka_memory << 20,
        calibration=calibration,
        allow_float16=config.allow_float16,
        code=_metric_digests(config),
    )


def _metric_digests(config: MeasureConfig) -> dict[str, str]:
    """A user's own metrics are part of what a run is: with another file its shards must not be mixed."""
    files = sorted(code_files({"metrics": config.metrics}))
    return {file: file_digest(Path(file).read_bytes()) for file in files if Path(file).is_file()}


def measure(
    model: Any,
    task: str | Sequence[str] | Any = "text",
    *,
    metrics: Sequence[str | Callable[..., Any]] | Callable[..., Any] = DEFAULT_METRICS,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Measure a model on a task, texts or token ids.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        task: `random`, `text`, `kvpr`, `mdqa`, `FILE.jsonl`; a `Task` object or ready `Prompts`; a text of several
            words or a list of texts; token ids (batch, token), nested or as a tensor; or what the tokenizer returned
            for texts (`input_ids` and `attention_mask`).
        metrics: names from the catalogue, registered metrics, `FILE.py:FUNCTION`, or functions of hidden (state, token,
            width), registered under their own names with axes that follow from the shape of what they return.
        out: folder of runs to store the result in.
        name: name of the stored run.
        **options: any field of `MeasureConfig`. With texts or ids, `length` cuts each of them to its first
            `length` tokens (a shorter one stays whole) and `samples` takes the first `samples`; without these all are
            read, whole.

    Returns:
        Result: a mapping from metric name to array.
    """
    from repflow.capture.given import task_name

    known = {f.name for f in fields(MeasureConfig)} - {"model", "task", "metrics"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    options = typed_options(MeasureConfig, options)
    config = MeasureConfig(**plain_options(MeasureConfig, options), metrics=as_list(_named(metrics)))
    named = task_name(task)
    if named is not None:
        config.task = named
        check_task(config)
    loaded = loaded_model(model, config, options)
    prompts = given_task(task, config, loaded, options) if named is None else None
    return run(config, model=loaded, given=prompts, out=out, name=name)


def _named(metrics: Any) -> Any:
    """Names of metrics; functions among them are registered."""
    if not callable(metrics) and (isinstance(metrics, str) or not any(map(callable, metrics))):
        return metrics
    from repflow.metrics.custom import function_name

    return [function_name(m) if callable(m) else m for m in ([metrics] if callable(metrics) else metrics)]
