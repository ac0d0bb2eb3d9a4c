"""Recency: how far back does a token reach? Influence of every input on one output, by distance (paper 2, 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, nearest, teach
from repflow.studies.engine.naming import Names
from repflow.studies.engine.phase import tell
from repflow.studies.engine.study import ONE, Job, Study
from repflow.studies.recency.config import FINAL_NORM, RecencyConfig, check_numbers, check_reach, check_words, names

if TYPE_CHECKING:
    from repflow.capture.influence.batches import InfluenceOptions
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Result
    from repflow.models import Model
    from repflow.studies.engine.size import Size
    from repflow.studies.recency.measured import Measured
    from repflow.tasks import Prompts

__all__ = ["RecencyConfig", "check_request", "influence", "run", "run_name"]


@dataclass
class RecencyJob(Job[RecencyConfig]):
    """Prompts, and the part of the config that concerns the gradients."""

    options: InfluenceOptions | None = None


class Recency(Study[RecencyConfig, RecencyJob]):
    """How far back does a token reach?"""

    name = "recency"
    config = RecencyConfig
    summary = """Measure how far back tokens reach in MODELs: influence of every input on one output, by distance.

    Of several models, the influence of the first over that of each other is fitted too, and stored as a run of its own.
    """
    usual = ("mamba2", "gpt-neox", "hybrid")
    usual_words = "mamba2, gpt-neox and hybrid of the zoo"
    pass_kinds = ("forward", "backward")

    def check(self, config: RecencyConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def check_given(self, config: RecencyConfig) -> None:
        """Refuse wrong numbers and words, whatever the prompts."""
        check_numbers(config)

    def prepare(
        self, config: RecencyConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> RecencyJob:
        """Prompts and targets that the model has."""
        from repflow.studies.engine.prompts import make_prompts

        model = models[ONE]
        prompts = make_prompts(config, model) if given is None else given
        if given is not None:  # what was given is what the config says
            config = replace(config, task=given.task, length=max(given.lengths, default=0), samples=len(given))
        return RecencyJob(config, models, prompts, len(prompts), options=influence_options(config, model, prompts))

    def stored(self, job: RecencyJob) -> dict[str, Any]:
        """Without `checkpointing`, which changes no number."""
        return {key: value for key, value in super().stored(job).items() if key != "checkpointing"}

    def machine(self, job: RecencyJob) -> dict[str, Any]:
        """With the model's facts, as every run was begun: a run of an earlier version goes on without a finding."""
        from repflow.capture.provenance import model_facts

        return {**super().machine(job), "model": model_facts(job.model)}

    def compute(self, job: RecencyJob, sink: Sink, progress: Progress | None) -> Result:
        """Backward passes of the model, and of its twin."""
        from repflow.studies.recency.result import make_result

        assert job.options is not None
        config, model, prompts = job.config, job.model, job.prompts
        main = _side(model, prompts, job.options, sink, "", progress)
        twin = None
        if config.twin is not None:
            tell(progress, "making the random twin")
            twin = _side(_twin(config, model), prompts, job.options, sink, "twin-", progress)
        return make_result(config, model, prompts, main, twin)

    def flops(self, config: RecencyConfig, size: Size) -> float:
        """A forward pass of every token, and a backward pass to its input for each probe of each output.

        Weights get no gradient, so that a backward pass takes as much as a forward pass.
        """
        from repflow.capture.influence.batches import default_probes

        probes = default_probes(size.width) if config.probes is None else config.probes or None
        backward = len(config.to) * (size.width if probes is None else probes)
        again = 2 if config.checkpointing else 1  # blocks are computed once more
        return super().flops(config, size) * (1 + again * backward)

    def names(self, config: RecencyConfig) -> Names:
        """Model, weights, task and length."""
        return names(config)

    def together(self, config: RecencyConfig, models: Sequence[str]) -> tuple[RecencyConfig, str]:
        """The same prompts, long enough for a ratio to be fitted."""
        check_reach(config.at % config.length)
        return super().together(config, models)

    def of_several(self) -> Recency:
        """The ratio to another model comes next."""
        return Compared()

    def joint(self, results: Sequence[Result], config: RecencyConfig, out: Path) -> list[tuple[str, Result]]:
        """The influence of the first model over that of each other; none where the first one failed."""
        from repflow.studies.recency.ratio import influence_ratio, ratio_name

        first, *others = results
        if first.config["model"] != config.model:
            return []
        return [
            (ratio_name(first, other, config.nearest), influence_ratio(first, other, nearest=config.nearest, out=out))
            for other in others
        ]


class Compared(Recency):
    """The ratio to another model comes next: prompts that are too short for it are refused."""

    def prepare(
        self, config: RecencyConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> RecencyJob:
        """As for one model, and long enough for a ratio."""
        from repflow.capture.influence.batches import token_at

        job = super().prepare(config, models, given, progress)
        check_reach(max(token_at(config.at, length) for length in job.prompts.lengths))
        return job


STUDY = Recency()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def influence_options(config: RecencyConfig, model: Model, prompts: Prompts) -> InfluenceOptions:
    """The part of the config that concerns the gradients; what the model or the prompts cannot give is refused."""
    from repflow.capture.influence.batches import InfluenceOptions, default_probes, token_at
    from repflow.capture.influence.jacobian import FINAL
    from repflow.tasks import check_fit

    check_fit(prompts, model.max_length, model.vocab_size)
    for length in prompts.lengths:
        token_at(config.at, length)
    last = model.n_states - 1
    for target in config.to:
        if target != FINAL_NORM and int(target) > last:
            raise InputError(
                teach(f"--to final or a state from 0 to {last}", target, f"{model.name} has {last} blocks")
            )
    probes = default_probes(model.width) if config.probes is None else config.probes or None
    return InfluenceOptions(
        at=config.at,
        targets=tuple(FINAL if target == FINAL_NORM else int(target) for target in config.to),
        probes=probes,
        seed=config.seed,
        batch_size=config.batch_size,
        checkpointing=config.checkpointing,
    )


def _twin(config: RecencyConfig, model: Model) -> Model:
    """The same architecture with random weights, and the same parts taken out."""
    from repflow.interventions import ablate
    from repflow.models import twin

    assert config.twin is not None
    seed = config.seed if config.init_seed is None else config.init_seed
    return ablate(twin(model, config.twin, seed=seed), list(model.ablations))


def _side(
    model: Model, prompts: Prompts, options: InfluenceOptions, sink: Sink, prefix: str, progress: Progress | None
) -> Measured:
    """One model's records, its gradients checked first."""
    import numpy as np
    import torch

    from repflow.capture.decay import readable
    from repflow.capture.influence.batches import run_influence
    from repflow.capture.influence.check import check_gradients
    from repflow.studies.recency.measured import Measured

    tell(progress, "checking gradients")
    first = torch.as_tensor(np.asarray(prompts.samples[0].ids))
    check = check_gradients(model, first)
    hidden = readable(model, first)
    tell(progress, f"{prefix.replace('-', ' ')}backward passes")
    records = run_influence(
        model, prompts, replace(options, decays=hidden is None), sink, prefix=prefix, progress=progress
    )
    return Measured(options, records, check, hidden, list(model.layer_kinds))


def influence(
    model: Any,
    tokens: str | Sequence[str] | Any = "text",
    *,
    at: int = -1,
    to: Any = FINAL_NORM,
    probes: int | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """How much each input token moves the output at one token: |∂y_t/∂x_s| by the distance t − s.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        tokens: token ids (batch, token), nested or as a tensor; a text of several words or a list of texts; the name of
            a task (`random`, `text`, `kvpr`, `mdqa`, `FILE.jsonl`); a `Task` object or ready `Prompts`.
        at: token t, from the end where negative.
        to: `final` (the final norm's output), the number of a state, or a list of them.
        probes: ±1 probes per prompt; 0 for exact Jacobian rows; default exact up to width 64, else 8.
        out: folder of runs to store the result in.
        name: name of the stored run.
        **options: any field of `RecencyConfig`.

    Returns:
        Result: `log_influence` (sample, distance), what is read from it, and the same from every state under `depth/`.
    """
    from repflow.capture.given import task_name
    from repflow.studies.engine.entry import prepared
    from repflow.studies.engine.prompts import given_task

    known = {f.name for f in fields(RecencyConfig)} - {"model", "task", "at", "to", "probes"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], {*known, 'at', 'to', 'probes'})}")
    listed = to if isinstance(to, list | tuple) else [to]
    named = task_name(tokens)
    named_options = {**options, "at": at, "to": listed, "probes": probes}
    config, loaded, _ = prepared(RecencyConfig, model, named, named_options)
    prompts = given_task(tokens, config, loaded, options) if named is None else None
    if named is not None:
        check_request(config)
    return run(config, model=loaded, given=prompts, out=out, name=name)
