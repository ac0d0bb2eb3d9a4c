"""Diagnose: one page that joins flow and probes, each statement with its number."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach
from repflow.core.results import Finding
from repflow.core.tasks import LABELLED, UNLABELLED
from repflow.studies import measure
from repflow.studies.diagnose.blocks import block_statements, block_steps
from repflow.studies.diagnose.evidence import ENOUGH, FlowEvidence, ProbeEvidence
from repflow.studies.diagnose.flow import early_signature, homogenise, late_signature, recover
from repflow.studies.diagnose.readout import layout, loss_signature, readout
from repflow.studies.diagnose.statement import Statement, Thresholds
from repflow.studies.engine.loading import identity, load_model
from repflow.studies.engine.naming import Names, is_path, model_word, option_tag
from repflow.studies.engine.opening import keep_result
from repflow.studies.engine.parts import (
    Batches,
    Chat,
    Classes,
    FirstToken,
    FlowSamples,
    Items,
    Length,
    OneModel,
    Sampling,
    Task,
    Templates,
    TextFiles,
    defaults,
    help_of,
    option,
)
from repflow.studies.engine.study import ONE, BaseStudy, Call
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe import study as probe
from repflow.studies.probe.config import (
    LENGTH,
    LENGTHS,
    NAMED,
    TWIN_HELP,
    ProbeConfig,
    Probing,
    prompt_total,
    task_length,
    total_prompts,
)

if TYPE_CHECKING:
    from repflow.core.results import Result

_limits = Thresholds()
SHARED = (
    *("format", "classes", "items", "documents", "distractors", "chat_template", "init", "init_seed", "ablate", "bos"),
    *("tokenizer", "dtype", "device", "device_map", "scan", "batch_size", "allow_float16", "trust_remote_code", "seed"),
)
"""Fields that both studies take as they are."""
PROBED = ("samples", "train", "test", "seeds", "seeds_vary", "label", "twin", "answers", "lens", "allow_leak")
STATED = ("intermediate_beats_final", "lost_in_block", "gained_in_block")
"""Findings of a probe that the statements say as well."""


@dataclass
@defaults(
    {
        "task": f"what the model reads: {', '.join(LABELLED)}; {' and '.join(UNLABELLED)} have flow but no probes",
        "seed": "first seed",
        "twin": TWIN_HELP,
    },
    task="kvpr",
    length=task_length(),
    samples=prompt_total("--probe-samples"),
    seeds=option(5, help_of(Probing, "seeds"), aliases=("--probe-seeds",)),
)
class DiagnoseConfig(
    FlowSamples,
    Batches,
    Probing,
    FirstToken,
    Chat,
    Items,
    Classes,
    Templates,
    Sampling,
    Length,
    TextFiles,
    Task,
    OneModel,
):
    """What to diagnose; the fields are the command line's options."""

    flow_run: str | None = option(
        None, "folder of a run of `repflow measure` to take instead of measuring", flag="--flow"
    )
    probe_run: str | None = option(
        None, "folder of a run of `repflow probe` to take instead of probing", flag="--probe"
    )
    early_similarity: float = option(_limits.early_similarity, "similarity that is high for early states")
    late_similarity: float = option(_limits.late_similarity, "similarity that is high for the last states")
    loss_points: float = option(_limits.loss_points, "points of accuracy lost from peak to last that count as a loss")
    early_depth: float = option(_limits.early_depth, "relative depth up to which states are early")
    late_depth: float = option(_limits.late_depth, "relative depth from which states are late")

    def __post_init__(self) -> None:
        """Set the task's length if it was not requested."""
        self.length = LENGTHS.get(self.task, LENGTH) if self.length is None else self.length
        self.samples = total_prompts(self.samples, self.train, self.test)

    def thresholds(self) -> Thresholds:
        """The thresholds among the options."""
        return Thresholds(**{entry.name: float(getattr(self, entry.name)) for entry in fields(Thresholds)})

    def flow(self) -> MeasureConfig:
        """The part that measures."""
        shared = {name: getattr(self, name) for name in SHARED}
        shared |= {"length": self.length, "samples": self.flow_samples, "text": self.text}
        return MeasureConfig(model=self.model, task=self.task, **shared)

    def probe(self) -> ProbeConfig | None:
        """The part that probes; None for a task without labels."""
        if self.task in UNLABELLED:
            return None
        shared = {name: getattr(self, name) for name in (*SHARED, *PROBED)}
        return ProbeConfig(model=self.model, task=self.task, length=self.length, **shared)


def judge(
    flow: FlowEvidence | None,
    probe: ProbeEvidence | None,
    thresholds: Thresholds | None = None,
    unprobed: str = "no labels, so no probes",
) -> tuple[list[Statement], list[str]]:
    """Statements that the evidence allows, and what was not measured and is therefore not claimed.

    Args:
        flow: numbers of a measured run.
        probe: numbers of a probed run.
        thresholds: where a signature begins.
        unprobed: why there are no probes, where there are none.
    """
    limits = thresholds or Thresholds()
    statements: list[Statement] = []
    missing: list[str] = []
    if flow is None:
        missing.append("flow between tokens (no finite token similarity of residual states)")
    else:
        if flow.partial:
            span = f"states {flow.states} to {flow.all_states - 1}"
            missing.append(f"flow at {span}, which are not finite, and signatures that use them")
        statements += [homogenise(flow), recover(flow)]
        statements += early_signature(flow, limits) + late_signature(flow, limits)
        if flow.excess is None:
            missing.append("excess similarity (needs at least two prompts)")
        if flow.similarity.shape[1] < ENOUGH:
            missing.append(f"intervals of the flow (need {ENOUGH} prompts: --flow-samples {ENOUGH})")
    if probe is None:
        missing.append(f"what can be decoded ({unprobed})")
    else:
        claims, absent = readout(probe)
        statements += claims + loss_signature(probe, limits)
        missing += absent
    statements += block_statements(block_steps(flow, probe), probe)
    if flow is not None:
        statements += layout(flow, probe)
    missing.append("whether the model uses what can be decoded (that needs interventions)")
    return statements, missing


class Diagnose(BaseStudy[DiagnoseConfig]):
    """One page that joins flow and probes. Made of a measured and a probed run, so it has its own way to run."""

    name = "diagnose"
    config = DiagnoseConfig
    named = False

    def check(self, config: DiagnoseConfig) -> None:
        """Refuse what either part would refuse."""
        config.thresholds()
        if config.flow_samples < 1:
            got = f"{config.flow_samples}"
            raise InputError(teach("--flow-samples of at least 1", got, f"{ENOUGH} or more give intervals"))
        if not config.model:
            if config.flow_run is None and config.probe_run is None:
                expected = "a MODEL to measure and probe, or runs of it"
                raise InputError(teach(expected, "neither", "name MODEL, or pass --flow RUN, --probe RUN or both"))
            return
        if config.flow_run is None:
            measure.STUDY.check(config.flow())
        probed = config.probe()
        if probed is not None and config.probe_run is None:
            probe.STUDY.check(probed)

    def conduct(self, config: DiagnoseConfig, call: Call) -> Result:
        """Measure and probe one model, and say what the numbers allow.

        `given` is a Task object; the measured and the probed run are stored beside the diagnosis, as NAME-flow and
        NAME-probe.
        """
        from repflow.store import safe_name

        if call.given is None:
            self.check(config)
        names = {part: safe_name(f"{call.name or _base_name(config)}-{part}") for part in ("flow", "probe")}
        runs = _taken(config)
        live = bool(config.model) or call.models is not None
        if live:
            runs = _worked(config, runs, names, call)
        flow, probed = runs["flow"], runs["probe"]
        result = diagnose_results(flow, probed, config.thresholds())
        keys = ("model", "task") if live else ("model", "task", "length", "init")
        stored = {key: value for key, value in identity(config).items() if not (key.endswith("_run") and value is None)}
        result.config = stored | {key: result.config[key] for key in keys}
        del result.config["allow_leak"]  # no part of what the run is, as with a probe
        if call.out is None:
            return result
        given_runs = {"flow": config.flow_run, "probe": config.probe_run}
        named = {part: None if runs[part] is None else given_runs[part] or names[part] for part in names}
        result.provenance["runs"] = named
        digests = {"digests": _digests(flow, probed)}
        return keep_result(result, call.out, call.name or self.run_name(config), digests, call.begun)

    def reads(self, config: DiagnoseConfig) -> tuple[int, int]:
        """What is measured, and what is probed."""
        probed = config.probe()
        parts = [measure.STUDY.reads(config.flow()), (0, 0) if probed is None else probe.STUDY.reads(probed)]
        return sum(prompts for prompts, _ in parts), sum(tokens for _, tokens in parts)

    def again(self, stored: Mapping[str, Any]) -> DiagnoseConfig:
        """A leak was allowed, or the run would not be there."""
        return replace(super().again(stored), allow_leak=True)

    def names(self, config: DiagnoseConfig) -> Names:
        """As of a probe; other thresholds make another diagnosis of the same runs."""
        from repflow.store import safe_name

        limits = config.thresholds()
        mark = "" if limits == Thresholds() else hashlib.sha256(repr(limits).encode()).hexdigest()[:8]
        name = safe_name("-".join(filter(None, [_base_name(config), mark])))
        return Names(name, name, name)


STUDY = Diagnose()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _base_name(config: DiagnoseConfig) -> str:
    """As of a probe, so that a quick try does not block the real run; or like the runs where both are given."""
    limits = {entry.name for entry in fields(Thresholds)}
    if not config.model:
        first = Path(config.probe_run or config.flow_run or "").resolve().name
        return f"{first}-{option_tag(config, {*NAMED, *limits})}-diagnosis"
    probed = config.probe() is not None
    size = f"{config.samples}x{config.seeds}" if probed else str(config.flow_samples)
    named = {*NAMED, *limits} - {"label"} | (set() if probed else {"flow_samples"})
    tag = option_tag(config, named, **({"model": config.model} if is_path(config.model) else {}))
    flow = measure.STUDY.names(replace(config.flow(), model=model_word(config.model))).bare
    return "-".join(filter(None, [flow, size, tag, "diagnosis"]))


def _taken(config: DiagnoseConfig) -> dict[str, Result | None]:
    """Existing runs, refused if they are of another kind."""
    from repflow.store import load_result

    runs: dict[str, Result | None] = {"flow": None, "probe": None}
    for part, path in (("flow", config.flow_run), ("probe", config.probe_run)):
        if path is None:
            continue
        runs[part] = result = load_result(path)
        if not ("token_similarity" in result if part == "flow" else "probe" in result.provenance):
            command = "measure" if part == "flow" else "probe"
            raise InputError(teach(f"--{part} with a run of `repflow {command}`", path, "see `repflow list`"))
    return runs


def _worked(
    config: DiagnoseConfig, runs: dict[str, Result | None], names: dict[str, str], call: Call
) -> dict[str, Result | None]:
    """Measure and probe what is not there yet."""
    from repflow.studies.engine.prompts import make_prompts

    flow, probed, request = runs["flow"], runs["probe"], config.probe()
    if flow is not None and (probed is not None or request is None):
        return runs
    work: dict[str, Any] = {"out": call.out, "progress": call.progress}
    work["model"] = loaded = load_model(config) if call.models is None else call.models[ONE]
    if flow is None:
        prompts = None if call.given is None else make_prompts(config.flow(), loaded, call.given)
        flow = measure.run(config.flow(), given=prompts, name=names["flow"], **work)
    if probed is None and request is not None:
        probed = probe.run(request, given=call.given, name=names["probe"], **work)
    return {"flow": flow, "probe": probed}


def _digests(flow: Result | None, probe: Result | None) -> dict[str, Any]:
    parts = {"flow": flow, "probe": probe}
    return {name: result.provenance.get("digests", {}) for name, result in parts.items() if result is not None}


def diagnose_results(flow: Result | None, probe: Result | None, thresholds: Thresholds | None = None) -> Result:
    """Diagnosis of existing results, measured or read with `repflow.load_result`.

    Returns:
        A Result whose provenance holds `statements` and `not_measured`, with the curves they rest on.
    """
    from repflow.core.results import Result

    if flow is None and probe is None:
        raise InputError(teach("a measured or a probed result", "neither", "pass repflow.load_result(RUN)"))
    limits = thresholds or Thresholds()
    evidence = None if flow is None else FlowEvidence.of(flow)
    probed = None if probe is None else ProbeEvidence.of(probe)
    why = {} if probe is None else {"unprobed": "no state is finite"}
    statements, missing = judge(evidence, probed, limits, **why)
    _check_same_model(flow, probe)
    arrays, axes, bands = {}, {}, {}
    names_of = (("token_similarity", "token_similarity_excess"), ("probe_accuracy", "probe_step", "probe_chance"))
    for source, names in zip((flow, probe), names_of, strict=True):
        for name in names if source is not None else ():
            if source is not None and name in source:
                arrays[name], axes[name] = source[name], source.axes[name]
                if name in source.bands:
                    bands[name] = source.bands[name]
    first = flow if flow is not None else probe
    assert first is not None
    provenance = {
        "model": first.provenance.get("model", {}),
        "statements": [statement.to_json() for statement in statements],
        "blocks": [step.to_json() for step in block_steps(evidence, probed)],
        "not_measured": missing,
        "thresholds": asdict(limits),
        "digests": _digests(flow, probe),
        "read_out": None if probed is None else probed.read.to_json(),
    }
    findings = [finding for result in (flow, probe) if result is not None for finding in result.findings]
    findings = [finding for finding in dict.fromkeys(findings) if finding.code not in STATED]  # flow and probe: once
    findings += _other_prompts(flow, probe)
    config = {name: first.config.get(name) for name in ("model", "task", "length", "init", "states")}
    return Result({k: np.asarray(v) for k, v in arrays.items()}, axes, config, provenance, findings, bands)


def _check_same_model(flow: Result | None, probe: Result | None) -> None:
    digests = [d for part in (flow, probe) if part and (d := part.provenance.get("digests", {}).get("weights"))]
    schemes = {digest.partition(":")[2] for digest in digests}  # digests of two schemes say nothing about each other
    if len(schemes) == 1 and len(set(digests)) > 1 and flow is not None and probe is not None:
        got = f"{flow.config.get('model')} and {probe.config.get('model')}, whose weights differ"
        raise InputError(teach("flow and probe of one model", got, "name two runs with the same weights"))


def _other_prompts(flow: Result | None, probe: Result | None) -> list[Finding]:
    """Flow and probe of one model may come from different prompts, which the reader must know."""
    if flow is None or probe is None:
        return []
    sources = [(result.config.get("task"), result.config.get("length")) for result in (flow, probe)]
    if sources[0] == sources[1]:
        return []
    texts = [f"{task} at {length} tokens" for task, length in sources]
    return [Finding("different_prompts", None, f"the flow is from {texts[0]}, the probe from {texts[1]}")]


def diagnose(
    model: Any,
    task: Any = "kvpr",
    *,
    out: str | Path | None = None,
    name: str | None = None,
    **options: Any,
) -> Result:
    """Measure and probe a model, and say what the numbers allow.

    Args:
        model: a loaded Model, a spec, or a live transformers model.
        task: `kvpr`, `mdqa`, `FILE.jsonl`, or a Task object; `random` has flow but no probes.
        out: folder of runs to store everything in.
        name: name of the stored diagnosis.
        **options: any field of `DiagnoseConfig`.

    Returns:
        Result: `provenance["statements"]` holds the statements, each with the numbers behind it.
    """
    from repflow.studies.engine.entry import prepared

    known = {f.name for f in fields(DiagnoseConfig)} - {"model", "task"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    config, loaded, chosen = prepared(DiagnoseConfig, model, task, options)
    return run(config, model=loaded, given=chosen, out=out, name=name)


def statements_of(result: Result) -> Sequence[dict[str, Any]]:
    """Statements of a stored diagnosis."""
    return result.provenance["statements"]
