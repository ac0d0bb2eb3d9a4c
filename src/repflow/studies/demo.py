"""Demo: the zoo's six models, trained and random, measured and probed; what paper 1 found and what they say about it.

How far back a token reaches (paper 2) is measured too, on a few prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.catalogue import DEFAULT_METRICS
from repflow.spec.zoo import NAMES, PREFIX
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.recency.config import RecencyConfig

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.models import Model

TASK, LENGTH, SAMPLES = "kvpr", 256, 8
INIT, INITS = "xavier", ("gaussian", "xavier", "he")
"""Random weights, and those of the complete tables: the schemes of the paper."""
GRID = 8
"""Steps of relative depth: the blocks of the shallowest model."""
PROBED = ("gpt-neox", "mamba2", "hybrid")
BRANCHED = ("mamba", "mamba2")
"""Read as what each block adds too, in the complete tables: the paper's values for these models look like that."""
PROBE_SAMPLES, LABEL, LABELS = 300, "answer", ("answer", "index")
"""What is probed for, fixed in advance: the answer. Where in the prompt it stood is for the complete tables."""
LENGTHS = (256, 384, 512)
DOCUMENTS = 512
FULL_SAMPLES, FULL_PROBE_SAMPLES, FULL_SEEDS = 64, 1000, 3
REACH_SAMPLES, REACH_PROBES, REACH_TWIN = 2, 2, "default"
"""Of the influence by distance: a backward pass per prompt and probe. The twin, as in paper 2's Figure 1, is for the
complete tables."""
FULL_REACH = 8
"""Prompts, and probes, of the complete tables."""
PLACE = f"{TASK}/{LENGTH}"
"""Where the findings are judged."""


@dataclass(frozen=True)
class Job:
    """One run of the demo.

    Attributes:
        name: of its run folder.
        label: what is shown while it runs.
        config: what to do.
    """

    name: str
    label: str
    config: MeasureConfig | ProbeConfig | RecencyConfig

    @property
    def probes(self) -> bool:
        """Whether it is a probe."""
        return isinstance(self.config, ProbeConfig)


def jobs(*, full: bool = False, models: Sequence[str] = NAMES) -> list[Job]:
    """Runs in their order, model by model.

    Args:
        full: the complete tables, without a time limit.
        models: names in the zoo.
    """
    if full:
        return sorted(_full(models), key=lambda job: models.index(_name(job.config.model)))
    runs = []
    for name in models:
        spec = f"{PREFIX}{name}"
        runs += [flow_job(spec, "trained"), reach_job(spec)]
        runs += [probe_job(spec, LABEL)] if name in PROBED else []
        runs.append(flow_job(spec, INIT))  # last: the runs before it share the trained weights
    return runs


def by_model(runs: Sequence[Job]) -> dict[str, list[Job]]:
    """Runs of each model, by its name.

    >>> [len(own) for own in by_model(jobs()).values()]
    [3, 4, 3, 4, 4, 3]
    """
    groups: dict[str, list[Job]] = {}
    for job in runs:
        groups.setdefault(_name(job.config.model), []).append(job)
    return groups


def _full(models: Sequence[str]) -> list[Job]:
    """Both tasks, every length, all schemes, branch states, and probes and reach of all models."""
    size = {"samples": FULL_SAMPLES}
    places: list[dict[str, Any]] = [{"task": TASK, "length": length} for length in LENGTHS]
    places.append({"task": "mdqa", "length": DOCUMENTS, "distractors": "random"})
    specs = [f"{PREFIX}{name}" for name in models]
    runs = [flow_job(spec, init, **place, **size) for place in places for init in ("trained", *INITS) for spec in specs]
    runs += [
        flow_job(spec, init, **place, **size, states="branch")
        for place in places
        for init in ("trained", *INITS)
        for spec in specs
        if init == "trained" or _name(spec) in BRANCHED
    ]
    more = {"samples": FULL_PROBE_SAMPLES, "seeds": FULL_SEEDS}
    for spec in specs:
        runs += [probe_job(spec, label, **place, **more) for place in places[:-1] for label in LABELS]
        runs.append(probe_job(spec, "index", **places[-1], **more))
    reach = {"samples": FULL_REACH, "probes": FULL_REACH, "twin": REACH_TWIN}
    return runs + [reach_job(spec, **place, **reach) for place in places for spec in specs]


def flow_job(spec: str, init: str, **options: Any) -> Job:
    """Measurement of one model; the options are fields of `MeasureConfig`."""
    fields: dict[str, Any] = {"task": TASK, "length": LENGTH, "samples": SAMPLES, **options}
    grid = None if "states" in options else GRID
    config = MeasureConfig(model=spec, init=init, metrics=[*DEFAULT_METRICS, "cka_matrix"], grid=grid, **fields)
    weights = "trained" if init == "trained" else f"random ({init})"
    kind = "" if config.states == "residual" else f", {config.states} states"
    return Job(_run_name("flow", config), f"{_name(spec)}, {weights}{kind}", config)


def probe_job(spec: str, label: str, **options: Any) -> Job:
    """Probes of one model for one label; the options are fields of `ProbeConfig`."""
    fields: dict[str, Any] = {"task": TASK, "length": LENGTH, "samples": PROBE_SAMPLES, "seeds": 1, **options}
    config = ProbeConfig(
        model=spec, label=label, recipes=["robust"], controls=["none"], answers=0, lens=0,
        drop_features=True, **fields,
    )  # fmt: skip
    return Job(_run_name(f"probe-{label}", config), f"{_name(spec)}, probes for the {label}", config)


def reach_job(spec: str, **options: Any) -> Job:
    """How far back tokens reach in one model, and in a twin where asked; options are those of `RecencyConfig`."""
    fields: dict[str, Any] = {"task": TASK, "length": LENGTH, "samples": REACH_SAMPLES, "probes": REACH_PROBES}
    config = RecencyConfig(model=spec, **fields | options)
    kind = "reach-trained" if config.twin is None else "reach"  # runs of another version may have the other name
    return Job(_run_name(kind, config), f"{_name(spec)}, reach of tokens", config)


def _run_name(kind: str, config: MeasureConfig | ProbeConfig | RecencyConfig) -> str:
    """Name of a run folder.

    >>> [job.name for job in jobs()][-3:]
    ['hybrid-mirror-flow-kvpr-256-8', 'hybrid-mirror-reach-trained-kvpr-256-2', 'hybrid-mirror-xavier-flow-kvpr-256-8']
    """
    parts = [_name(config.model)]
    parts += [config.init] if config.init != "trained" else []
    parts += [kind, config.task, str(config.length), str(config.samples)]
    parts += [config.states] if config.states != "residual" else []
    return "-".join(parts)


def _name(spec: str) -> str:
    return Path(spec.removeprefix(PREFIX)).name


def load_job(job: Job) -> Model:
    """The weights of a run, which others of the same weights may take too."""
    from repflow.studies.engine.loading import load_model

    return load_model(job.config)


def run_job(job: Job, out: Path | None, progress: Any = None, model: Model | None = None) -> Result:
    """Do one run, or read it where it is stored; without a folder it is kept in memory alone.

    Args:
        job: which.
        out: folder of runs.
        progress: called after every batch.
        model: its loaded weights, from `load_job`.
    """
    from repflow.studies import measure
    from repflow.studies.probe import study as probe
    from repflow.studies.recency import study as recency

    if isinstance(job.config, RecencyConfig):
        return recency.run(job.config, model=model, out=out, name=job.name, progress=progress)
    if isinstance(job.config, ProbeConfig):
        return probe.run(job.config, model=model, out=out, name=job.name, progress=progress)
    return measure.run(job.config, model=model, out=out, name=job.name, progress=progress)
