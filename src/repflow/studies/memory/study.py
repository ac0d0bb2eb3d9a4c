"""Memory: what do a model's memory gates look like, how sharp are its signals through depth (paper 2, section 4)?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach
from repflow.spec.request import check_least
from repflow.studies.engine.loading import check_loading
from repflow.studies.engine.naming import Names
from repflow.studies.engine.prompts import check_prompting, make_prompts, prompt_facts
from repflow.studies.engine.study import ONE, Call, Job, Study
from repflow.studies.memory.config import LEAST_TOKENS, MemoryConfig, names

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.tasks import Prompts

__all__ = ["MemoryConfig", "check_request", "run", "run_name"]

HALF = 0.5
"""Range of A below which the paper counts channels in its Figure 6."""
BANDS = ("contractive_share", "sharpness/", "spread_", "attention/", "range_cumulative_sample")


class Memory(Study[MemoryConfig, Job[MemoryConfig]]):
    """What do a model's memory gates look like, how sharp are its signals through depth?"""

    name = "memory"
    config = MemoryConfig
    summary = """Look at the memory gates of MODELs: range of decays, half-lives, Theorem 4.2, sharpness through depth.

    A layer without a transition, such as attention, gives the sharpness of its outputs alone. An interrupted
    run resumes when the same command is rerun.
    """
    usual = ("mamba", "mamba2", "hybrid", "gpt-neox")
    usual_words = "mamba, mamba2, hybrid and gpt-neox of the zoo"

    def check(self, config: MemoryConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_least([("--length", config.length, LEAST_TOKENS), ("--units", config.units, 1)])
        check_least([("--maps", layer, 0) for layer in config.maps])
        check_loading(config)
        check_prompting(config)

    def prepare(
        self, config: MemoryConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> Job[MemoryConfig]:
        """Prompts that are long enough to have a range of decays."""
        prompts = make_prompts(config, models[ONE]) if given is None else given
        _check_prompts(models[ONE], prompts)
        return Job(config, models, prompts, len(prompts))

    def stored(self, job: Job[MemoryConfig]) -> dict[str, Any]:
        """Without the maps, a run of their own."""
        content = {key: value for key, value in super().stored(job).items() if key != "maps"}
        return content | {"text": [str(Path(file)) for file in job.config.text]}

    def before(self, job: Job[MemoryConfig], out: Path, name: str) -> None:
        """Maps of the first prompt, a run of `repflow.hidden_attention`."""
        if job.config.maps:
            _store_maps(job.config, job.model, job.prompts, out, f"{name}-maps")

    def compute(self, job: Job[MemoryConfig], sink: Sink, progress: Progress | None) -> Result:
        """Look at every layer."""
        return _result(job.config, job.model, job.prompts, sink, progress)

    def further(self, config: MemoryConfig, name: str) -> list[str]:
        """The run of maps."""
        return [f"{name}-maps"] if config.maps else []

    def conduct(self, config: MemoryConfig, call: Call) -> Result:
        """As every study; maps are a run, which needs a folder."""
        self.check(config)
        if config.maps and call.out is None:
            remedy = "pass out, or call repflow.hidden_attention"
            raise InputError(teach("a folder for the run of maps", "out=None", remedy))
        return super().conduct(config, call)

    def names(self, config: MemoryConfig) -> Names:
        """As of a measurement, marked."""
        return names(config)


STUDY = Memory()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _store_maps(config: MemoryConfig, model: Model, prompts: Prompts, out: str | Path, name: str) -> None:
    """Maps of the first prompt, a run of `repflow.hidden_attention`."""
    from repflow.studies.hidden_attention import map_prompts

    first = replace(prompts, samples=prompts.samples[:1])
    map_prompts(model, config.maps, first, count=config.units, curves=False, out=out, name=name)


def _check_prompts(model: Model, prompts: Prompts) -> None:
    from repflow.tasks import check_fit

    check_fit(prompts, model.max_length, model.vocab_size)
    if max(prompts.lengths) < LEAST_TOKENS:
        got = f"{max(prompts.lengths)} at most, so that there is one decay and no range"
        raise InputError(teach(f"a prompt of at least {LEAST_TOKENS} tokens", got, "use longer prompts"))


def _result(
    config: MemoryConfig,
    model: Model,
    prompts: Prompts,
    sink: Sink,
    progress: Progress | None,
) -> Result:
    from repflow.capture.memory.statistics import THRESHOLDS, measure_memory
    from repflow.core.results import Result

    units = config.units if config.attention else 0
    table, transitions = measure_memory(
        model, prompts, sink, batch_size=config.batch_size, attention=units, progress=progress
    )
    table = {name: table[name] for name in sorted(table)}  # equal results must be equal bytes
    result = Result({n: array for n, (_, array) in table.items()}, {n: axes for n, (axes, _) in table.items()})
    for name in result:
        if name.startswith(BANDS):
            result.band(name)
    result.provenance = {
        "task": prompt_facts(prompts),
        "lengths": list(prompts.lengths),
        "thresholds": THRESHOLDS.tolist(),
        "transitions": transitions,
    }
    result.findings = [*model.findings, *prompts.findings, *_findings(result, model)]
    return result


def _findings(result: Result, model: Model) -> list[Finding]:
    from repflow.core.results import Finding
    from repflow.core.spans import spans

    findings: list[Finding] = []
    readable = {entry["layer"] for entry in result.provenance["transitions"] if entry["kind"]}
    hidden = [
        i for i, kind in enumerate(model.layer_kinds) if i not in readable and {"ssm", "recurrent"} & {*kind.split("+")}
    ]
    if hidden:
        where = spans([layer + 1 for layer in hidden], "block")
        text = f"{len(hidden)} recurrent layers have no transition that can be read ({where})"
        text += ": mixer and block only"
        findings.append(Finding("unread_transition", hidden[0], text))
    if not readable:
        findings.append(Finding("no_transition", None, "no layer has a transition: sharpness of mixer and block only"))
        return findings
    if short := sum(length < LEAST_TOKENS for length in result.provenance["lengths"]):
        text = f"{short} prompts of fewer than {LEAST_TOKENS} tokens have one decay or none, and no range of them"
        findings.append(Finding("short_prompts", None, text))
    findings += [
        part for part in (_range_finding(result), _contraction_finding(result), _delta_finding(result)) if part
    ]
    if model.reading.sublayer_problem is not None:
        findings.append(
            Finding("mixer_unread", None, f"mixer outputs cannot be read: {model.reading.sublayer_problem}")
        )
    return findings


def range_share(result: Result, at: float = HALF) -> float:
    """Share of units whose A_max − A_min is at most a threshold."""
    import numpy as np

    return float(np.interp(at, result.provenance["thresholds"], result["range_cumulative"]))


def _range_finding(result: Result) -> Finding | None:
    import numpy as np

    from repflow.core.results import Finding

    if "A_range" not in result:
        return None
    known = result["A_range"][np.isfinite(result["A_range"])]
    text = (
        f"A_max - A_min is at most {HALF} in {range_share(result):.0%} of {known.size} units "
        f"(median {np.median(known):.3f}); median half-life {_median(result['half_life']):.3g} tokens"
    )
    return Finding("decay_range", None, text)


def _median(values: np.ndarray) -> float:
    import numpy as np

    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else float("nan")


def _delta_finding(result: Result) -> Finding | None:
    """What the delta rule changes about the numbers above."""
    import numpy as np

    from repflow.core.results import Finding

    if "write_strength" not in result:
        return None
    layers = np.isfinite(result["write_strength"]).any(1)
    text = f"{int(layers.sum())} layers have the delta rule: A is the decay beside it; write strength "
    text += f"{_median(result['write_strength']):.3g} (median), half of an entry is gone after "
    traces, decays = _median(result["trace_half_life"]), _median(result["half_life"][layers])
    text += f"{traces:.3g} tokens, by the decay alone after {decays:.3g}"
    return Finding("delta_rule", int(layers.argmax()), f"{text}; A + Delta <= 1 does not apply to them")


def _contraction_finding(result: Result) -> Finding | None:
    """Theorem 4.2's hypothesis, and how far memories spread against what it allows."""
    import numpy as np

    from repflow.core.results import Finding

    share, never = result.mean("contractive_share"), result["never_contractive"]
    known = share[np.isfinite(share)]
    if not known.size:
        return None
    text = f"A + Delta <= 1 holds in {known.mean():.0%} of steps (by layer {known.min():.0%} to {known.max():.0%})"
    if np.isfinite(never).any():
        text += f"; {np.nanmean(never):.0%} of states have a rate of at most 1, which never meets it"
    inside, state = result.mean("sharpness/input"), result.mean("sharpness/state")
    both = np.isfinite(inside) & np.isfinite(state)
    text += f"; b is sharper than h in {int((inside > state)[both].sum())} of {int(both.sum())} layers"
    return Finding("contraction", None, text)
