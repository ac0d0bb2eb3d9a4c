"""Checkpoints of one model along a `step` axis: how its flow changes, and how far each is from the last.

Checkpoints are loaded one at a time, the last one first: its states for all prompts are kept in memory (float32,
states x tokens x width, refused over `--reference-memory`), and each of the others is compared with them, batch
by batch. A checkpoint reads its prompts twice, once for the flow and once for CKA. Each checkpoint is a shard, so a
killed run resumes; checkpoints that are stored already are not loaded again, so a change of their files goes unnoticed.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.studies.compare.config import (
    CompareConfig,
    as_measure,
    batches,
    check_words,
    equal_weights,
    in_batches,
    kept_shard,
    load_one,
    names,
    stored_config,
)
from repflow.studies.compare.pair import STATE_BYTES, check_dtype, matched_states
from repflow.studies.engine.naming import Names
from repflow.studies.engine.opening import local_config
from repflow.studies.engine.study import ONE, Job, Study
from repflow.studies.measure import make_prompts, measure_options

if TYPE_CHECKING:
    from torch import Tensor

    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.metrics.meter import Record
    from repflow.models import Model
    from repflow.tasks import Prompts

BRACES = re.compile(r"^([^{}]*)\{([^{}]*)\}([^{}]*)$")
CURVE_AXES = {"state", "layer", "sample"}


@dataclass(frozen=True)
class Checkpoint:
    """One step of training.

    Attributes:
        label: revision or folder name.
        spec: what to load.
    """

    label: str
    spec: str

    @property
    def number(self) -> int | None:
        """The number that the label ends with.

        >>> Checkpoint("checkpoint-500", "x/checkpoint-500").number
        500
        """
        match = re.search(r"(\d+)$", self.label)
        return int(match.group(1)) if match else None


def find_checkpoints(spec: str) -> list[Checkpoint]:
    """Checkpoints that a spec names, the last one being the reference.

    Braces keep their order; the subfolders of a folder are sorted by the number that their names end with.

    >>> [c.spec for c in find_checkpoints("EleutherAI/pythia-70m@{step0,step1000}")]
    ['EleutherAI/pythia-70m@step0', 'EleutherAI/pythia-70m@step1000']
    """
    braces = BRACES.match(spec)
    if braces:
        before, inside, after = braces.groups()
        labels = [part.strip() for part in inside.split(",")]
        checkpoints = [Checkpoint(label, f"{before}{label}{after}") for label in labels]
        if len(checkpoints) < 2 or "" in labels or len(set(labels)) < len(labels):
            raise InputError(teach("two or more different steps in braces", repr(spec), "write 'MODEL@{step0,step10}'"))
        return checkpoints
    folder = Path(spec).expanduser()
    inner = [e for e in folder.iterdir() if (e / "config.json").is_file()] if folder.is_dir() else []
    checkpoints = [Checkpoint(entry.name, str(entry)) for entry in sorted(inner)]
    if len(checkpoints) < 2:
        raise InputError(
            teach(
                "a second model, or several checkpoints",
                f"{spec!r} alone"
                + (f", a folder with {len(checkpoints)} checkpoint folders" if folder.is_dir() else ""),
                "write `repflow compare A B`, `compare A twin`, `compare 'A@{step0,step10}'` or name such a folder",
            )
        )
    return sorted(checkpoints, key=lambda c: -1 if c.number is None else c.number)


@dataclass
class StepsJob(Job[CompareConfig]):
    """The checkpoints, and what all of them read; the last is the reference."""

    steps: Sequence[Checkpoint] = ()


class Steps(Study[CompareConfig, StepsJob]):
    """Checkpoints of one model along a `step` axis."""

    name = "compare"
    config = CompareConfig
    one_model = False

    def check(self, config: CompareConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_words(config)

    def load(self, config: CompareConfig) -> dict[str, Model]:
        """The last checkpoint; the others are loaded one after the other, and must be there now."""
        from repflow.models.load import config_file, find_source

        steps = find_checkpoints(config.model_a)
        for step in steps:
            config_file(find_source(step.spec))  # a missing one is refused before anything is written
        last = load_one(config, steps[-1].spec, config.init, config.tokenizer, config.seed, config.ablate)
        return {ONE: last}

    def prepare(
        self, config: CompareConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> StepsJob:
        """Prompts that the last checkpoint can read."""
        prompts = make_prompts(as_measure(config), models[ONE])
        check(config, models[ONE], prompts)
        steps = find_checkpoints(config.model_a)
        return StepsJob(config, models, prompts, len(prompts) * len(steps), steps=steps)

    def stored(self, job: StepsJob) -> dict[str, Any]:
        """With the name that lists show."""
        return stored_config(job.config, job.prompts.task, len(job.prompts))

    def machine(self, job: StepsJob) -> dict[str, Any]:
        """What the last checkpoint ran with."""
        from repflow.capture.provenance import machine, model_facts

        return {
            **machine(str(job.model.device)),
            "dtype": str(job.model.dtype).removeprefix("torch."),
            "model": model_facts(job.model),
            "steps": [step.label for step in job.steps],
        }

    def identities(self, job: StepsJob) -> dict[str, Any]:
        """Configurations of the checkpoints, which may be stored already."""
        return _step_identities(job.config, job.steps)

    def compute(self, job: StepsJob, sink: Sink, progress: Progress | None) -> Result:
        """Measure each checkpoint and compare it with the last."""
        sink.announce(job.total, steps=[step.label for step in job.steps])
        work = StepWork(job.config, list(job.steps), job.prompts, job.model, progress)
        job.take_digests()
        job.models.clear()  # the reference is dropped once its states are taken
        return work.result(sink)

    def names(self, config: CompareConfig) -> Names:
        """Model, task and length."""
        return names(config)


def _step_identities(config: CompareConfig, steps: Sequence[Checkpoint]) -> dict[str, Any]:
    """Configurations of the checkpoints, which are loaded one after the other and may be stored already."""
    identities = {step.label: local_config(step.spec, config.trust_remote_code) for step in steps}
    return {label: identity for label, identity in identities.items() if identity is not None}


def check(config: CompareConfig, last: Model, prompts: Prompts) -> None:
    """Refuse what cannot be compared, before anything is written."""
    from repflow.capture.measure import check_options
    from repflow.metrics.cka import MIN_TOKENS

    check_dtype(last, config)
    check_options(measure_options(as_measure(config), last), last, prompts)
    if min(prompts.lengths) < MIN_TOKENS:
        raise InputError(
            teach(f"prompts of at least {MIN_TOKENS} tokens", f"{min(prompts.lengths)}", "use longer ones")
        )
    need = last.state_count(config.states) * sum(prompts.lengths) * last.width * 4
    if need > config.reference_memory << 20:
        raise InputError(
            teach(
                f"the last checkpoint's states within {config.reference_memory} MiB (--reference-memory)",
                f"{need / 2**20:.0f} MiB",
                "raise it, or take fewer or shorter prompts",
            )
        )


@dataclass
class StepWork:
    """One comparison of checkpoints under way.

    Attributes:
        config: what to do.
        steps: the checkpoints; the last is the reference.
        prompts: what all of them read.
        last: the reference, dropped once its states are taken.
        progress: called after each checkpoint.
        reference: its states, per prompt.
    """

    config: CompareConfig
    steps: list[Checkpoint]
    prompts: Prompts
    last: Model | None
    progress: Progress | None
    reference: list[list[Tensor]] = field(default_factory=list, init=False, repr=False)

    def result(self, sink: Sink) -> Result:
        """Go through the checkpoints that are not stored yet, and put all together."""
        records: dict[int, Record] = {}
        notes: dict[int, dict[str, Any]] = {}
        order = [len(self.steps) - 1, *range(len(self.steps) - 1)]  # the reference while it is loaded
        for done, index in enumerate(order, start=1):
            shard = f"step-{index:06d}"
            fresh: dict[str, Any] = {}
            records[index] = kept_shard(sink, shard, partial(self._measure, index, fresh), fresh)
            notes[index] = sink.meta(shard)
            if self.progress is not None:
                tokens = sum(self.prompts.lengths)
                self.progress(done * len(self.prompts), len(order) * len(self.prompts), done * tokens)
        in_order = range(len(self.steps))
        return put_together(self.steps, [records[i] for i in in_order], [notes[i] for i in in_order])

    def _measure(self, index: int, fresh: dict[str, Any]) -> Record:
        """Arrays of one checkpoint; `fresh` receives what its shard's line says beside them."""
        step = self.steps[index]
        model = self._model(index)
        states, width = len(self.reference[0]), self.reference[0][0].shape[1]
        if model.state_count(self.config.states) != states or model.width != width:
            expected = f"checkpoints of one architecture ({states} states of width {width})"
            got = f"{step.label} with {model.state_count(self.config.states)} of width {model.width}"
            raise InputError(teach(expected, got, "compare different models as `repflow compare A B`"))
        record, findings = flow_record(self.config, model, self.prompts)
        record |= distance_record(self.config, model, self.prompts, self.reference)
        fresh |= {
            "samples": len(self.prompts),
            "label": step.label,
            "weights": model.digest(),
            "scan": model.scans.at_load,
            "findings": [asdict(replace(finding, message=f"{step.label}: {finding.message}")) for finding in findings],
        }
        return record

    def _model(self, index: int) -> Model:
        """Take the reference's states if that is still to do, then hold one checkpoint only."""
        last, self.last = self.last, None
        if last is not None:
            by_sample = {
                sample: [state.cpu() for state in states]
                for sample, states in _all_states(self.config, last, self.prompts)
            }
            self.reference = [by_sample[sample] for sample in range(len(self.prompts))]
            if index == len(self.steps) - 1:
                return last
        del last
        gc.collect()
        config = self.config
        return load_one(config, self.steps[index].spec, config.init, config.tokenizer, config.seed, config.ablate)


def put_together(steps: list[Checkpoint], records: list[Record], notes: list[dict[str, Any]]) -> Result:
    """Stack the checkpoints' arrays along a first axis `step`."""
    from repflow.core.results import Finding, Result

    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, tuple[str, ...]] = {}
    for key in records[0]:
        name, _, own = key.partition("|")
        arrays[name] = np.stack([record[key] for record in records])
        axes[name] = ("step", *own.split())
    numbers = [step.number for step in steps]
    if None not in numbers:
        arrays["step_number"], axes["step_number"] = np.array(numbers, dtype=np.int64), ("step",)
    facts = {name: {note["label"]: note.get(name) for note in notes} for name in ("weights", "scan")}
    result = Result(arrays, axes, provenance=facts)
    for name in [name for name in axes if "sample" in axes[name]]:
        result.band(name)
    result.findings = [
        *equal_weights(result.provenance["weights"]),
        *(Finding(**finding) for note in notes for finding in note["findings"]),
    ]
    return result


def flow_record(config: CompareConfig, model: Model, prompts: Prompts) -> tuple[Record, list[Finding]]:
    """Flow curves of one checkpoint: every default metric without a token axis. Keys are NAME|AXES."""
    from repflow.capture.measure import measure_prompts

    options = replace(measure_options(as_measure(config), model), keep_samples=0)
    result = measure_prompts(model, prompts, options)
    curves = {f"{name}|{' '.join(result.axes[name])}": result[name] for name in result if _is_curve(result.axes[name])}
    return curves, result.findings


def _is_curve(axes: tuple[str, ...]) -> bool:
    return set(axes) <= CURVE_AXES


def distance_record(config: CompareConfig, model: Model, prompts: Prompts, reference: list[list[Tensor]]) -> Record:
    """CKA of each state with the same state of the reference, per prompt and pooled, with its null."""
    from repflow.metrics.meter import BatchInfo
    from repflow.metrics.streaming_cka import CkaMeter

    meters = [CkaMeter(unbiased=config.cka_form == "unbiased") for _ in reference[0]]
    for sample, states in _all_states(config, model, prompts):
        for meter, own, other in zip(meters, states, reference[sample], strict=True):
            meter.begin(BatchInfo((sample,), (prompts.lengths[sample],)))
            meter.update(0, own[None])
            meter.update(1, other.to(own.device)[None])
            meter.end()
    tables = [meter.compute() for meter in meters]
    record: Record = {}
    for new, old, axes in (
        ("cka_to_last", "cka_matrix", "state sample"),
        ("cka_to_last_null_mean", "cka_null_mean", "state sample"),
        ("cka_to_last_null_sd", "cka_null_sd", "state sample"),
        ("cka_to_last_pooled", "cka_pooled", "state"),
        ("cka_to_last_pooled_null_mean", "cka_pooled_null_mean", "state"),
        ("cka_to_last_pooled_null_sd", "cka_pooled_null_sd", "state"),
    ):
        record[f"{new}|{axes}"] = np.stack([table[old][1][0, 1] for table in tables])
    return record


def _all_states(config: CompareConfig, model: Model, prompts: Prompts) -> Iterator[tuple[int, list[Tensor]]]:
    """Every prompt's number and its states, batch by batch."""
    wide = model.state_count(config.states) * model.width * STATE_BYTES

    def work(batch: Sequence[int]) -> list[list[Tensor]]:
        rows = [np.arange(prompts.lengths[sample]) for sample in batch]
        return matched_states(model, prompts, batch, rows, config.states)

    for batch in batches(config, prompts.lengths, [length * wide for length in prompts.lengths]):
        yield from zip(batch, in_batches(batch, work), strict=True)
