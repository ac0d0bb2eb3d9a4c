"""Apply: paper 3's idealised prediction beside what the layers of a real Mamba checkpoint do.

Its appendix E.4 asks this of Mambas trained with and without constrained eigenvalues, and with and without norms; here
one checkpoint is looked at as it is, and with the norms at its stream taken out. Beside the norms stand the rates of
the paper's three scenarios (`repflow.dynamics.rates`), and block by block whether tokens become longer or shorter as
the signs of that block's eigenvalues say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, UnsupportedModelError, nearest
from repflow.studies.engine.loading import check_loading
from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import (
    FirstToken,
    Init,
    InitSeed,
    Length,
    Machine,
    Permissions,
    Sampling,
    Scans,
    Spec,
    Task,
    TextFiles,
    defaults,
)
from repflow.studies.engine.prompts import check_prompting, make_prompts
from repflow.studies.engine.study import ONE, Job, Study

if TYPE_CHECKING:
    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.studies.dynamics.layers import MambaLayer
    from repflow.tasks import Prompts

NORMS = "norm:block"
"""The norms at the stream, which the theory leaves out."""
FALLS, RISES = 0.5, 2.0
"""Last norm over first below which the tokens shrink, and above which they grow, through depth."""


@dataclass
@defaults(length=256)
class ApplyConfig(Permissions, Scans, Machine, FirstToken, InitSeed, Init, Sampling, Length, TextFiles, Task, Spec):
    """What to look at; the fields are the command line's options."""


@dataclass
class ApplyJob(Job[ApplyConfig]):
    """Prompts, the layers whose signs are read, and the model without norms (or why there is none)."""

    layers: Sequence[MambaLayer] = ()
    bare: Model | None = None
    why: str = ""

    @property
    def own(self) -> bool:
        """Whether the model has no norms at its stream by itself."""
        return self.bare is self.model


class DynamicsApply(Study[ApplyConfig, ApplyJob]):
    """Paper 3's prediction beside what a model's tokens do."""

    name = "dynamics-apply"
    config = ApplyConfig
    summary = (
        "Compare MODEL's Mamba layers with paper 3: eigenvalue signs of S_C'S_B, the sign of x'Mx, norms through "
        "depth.\n\n"
        "The paper's prediction is of tied weights without norms, gates and convolutions; the table puts it beside "
        "what the tokens of this model do, with its norms and without those at the stream."
    )
    usual = ("mamba",)
    usual_words = "mamba of the zoo"

    def check(self, config: ApplyConfig) -> None:
        """Refuse wrong options, tasks and files."""
        check_loading(config)
        check_prompting(config)

    def prepare(self, config: ApplyConfig, models: dict[str, Model], given: Any, progress: Progress | None) -> ApplyJob:
        """Prompts for a model with Mamba layers."""
        from repflow.studies.dynamics.layers import mamba_layers

        model = models[ONE]
        prompts = make_prompts(config, model)
        layers = mamba_layers(model)
        bare, why = _without_norms(model)
        return ApplyJob(config, models, prompts, len(prompts), layers=layers, bare=bare, why=why)

    def compute(self, job: ApplyJob, sink: Sink, progress: Progress | None) -> Result:
        """Read prompt after prompt."""
        rows = []
        for sample in range(len(job.prompts)):
            name = f"prompt-{sample}"
            if not sink.has(name):
                sink.keep(name, _read(job.model, job.bare, job.prompts, sample, job.layers))
            rows.append(sink.load(name))
            if progress is not None:
                progress(sample + 1, len(job.prompts), sum(job.prompts.lengths[: sample + 1]))
        return _result(job, rows)

    def names(self, config: ApplyConfig) -> Names:
        """As of a measurement, marked."""
        parts = [*weight_words(config), Path(config.task).stem, str(config.length), "dynamics"]
        return spell(config, parts, ("init", "init_seed", "task", "length"))


STUDY = DynamicsApply()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _without_norms(model: Model) -> tuple[Model | None, str]:
    """The model without the norms at its stream: itself where it has none; or why there is no such model."""
    from repflow.interventions import ablate
    from repflow.interventions.norms import has_norms

    if not has_norms(model, NORMS.partition(":")[2]):
        return model, ""
    try:
        return ablate(model, NORMS), ""
    except UnsupportedModelError as error:
        return None, str(error)


def _read(
    model: Model, bare: Model | None, prompts: Prompts, sample: int, layers: Sequence[MambaLayer]
) -> dict[str, np.ndarray]:
    """One prompt: share of tokens with x'Mx > 0 per layer, and the mean token norm per state."""
    import torch

    from repflow.studies.dynamics.layers import reading_forms

    ids = torch.as_tensor(np.asarray(prompts.samples[sample].ids))[None]
    with reading_forms(list(layers)) as forms:
        norms = _norms(model, ids)
    shares = [float((forms[layer.layer] > 0).double().mean()) for layer in layers]
    without = np.full_like(norms, np.nan) if bare is None else norms if bare is model else _norms(bare, ids)
    return {"form_positive": np.array(shares), "token_norm": norms, "token_norm_without_norms": without}


def _norms(model: Model, ids: Any) -> np.ndarray:
    norms: dict[int, float] = {}

    def on_state(state: int, hidden: Any) -> None:
        norms[state] = float(hidden.double().norm(dim=-1).mean())

    model.stream(ids, on_state=on_state)
    return np.array([norms[state] for state in sorted(norms)])


def _result(job: ApplyJob, rows: Sequence[dict[str, np.ndarray]]) -> Result:
    from repflow.core.results import Result
    from repflow.dynamics.rates import REGIMES

    arrays, axes = _signatures(job.layers)
    for name, axis in (("form_positive", "ssm_layer"), ("token_norm", "state"), ("token_norm_without_norms", "state")):
        arrays[name] = np.stack([row[name] for row in rows], axis=1)
        axes[name] = (axis, "sample")
    more, rates = _rates(arrays)
    facts: dict[str, Any] = {"ssm_layers": [layer.layer for layer in job.layers], "without_norms": job.why or None}
    facts |= {"regimes": list(REGIMES), "followed": rates, "own_norms": not job.own}
    findings = _findings(arrays, job, rates)
    return Result(arrays | more, axes | dict.fromkeys(more, ("regime", "state")), {}, facts, findings)


def _rates(arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Curves of the three scenarios beside the norms, and which of them each course follows, with the errors."""
    from repflow.dynamics.rates import fit_rates

    curves, rates = {}, {}
    for name in ("token_norm", "token_norm_without_norms"):
        fit = fit_rates(arrays[name].mean(axis=1))
        curves[f"{name}_rates"] = fit.curves
        errors = [round(float(error), 6) if np.isfinite(error) else None for error in fit.errors]
        moved = round(fit.constant, 6) if np.isfinite(fit.constant) else None
        rates[name] = {"scenario": fit.followed, "errors": errors, "moved": moved}
    return curves, rates


def _signatures(layers: Sequence[MambaLayer]) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Counts of eigenvalue signs over the groups of each layer, and the ends of their spectra."""
    from repflow.dynamics.projections import signature

    signatures = [[signature(*pair) for pair in layer.matrices()] for layer in layers]
    arrays = {
        name: np.array([sum(getattr(group, name) for group in groups) for groups in signatures])
        for name in ("negative", "zero", "positive")
    }
    arrays["lowest"] = np.array([min(group.lowest for group in groups) for groups in signatures])
    arrays["highest"] = np.array([max(group.highest for group in groups) for groups in signatures])
    return arrays, dict.fromkeys(arrays, ("ssm_layer",))


def _findings(arrays: dict[str, np.ndarray], job: ApplyJob, rates: dict[str, Any]) -> list[Finding]:
    """The prediction, what the tokens do, which rate they follow, and whether they agree."""
    from repflow.core.results import Finding

    falling = int((arrays["positive"] == 0).sum())
    layers = len(arrays["positive"])
    predicted = "shrink" if falling == layers else "grow" if falling == 0 else "shrink in some layers, grow in others"
    findings = [
        Finding(
            "prediction",
            None,
            f"{layers - falling} of {layers} Mamba layers have a positive eigenvalue, {falling} negative ones only: by "
            f"the paper's conjecture, which is false in both directions, tokens {predicted}; x'Mx > 0 for "
            f"{100 * float(arrays['form_positive'].mean()):.0f} % of tokens",
        )
    ]
    courses = {"token_norm": "with norms", "token_norm_without_norms": "without norms at the stream"}
    if job.own:
        courses = {"token_norm": "without norms at the stream, as the model is"}
    for name, words in courses.items():
        course = arrays[name].mean(axis=1)
        if np.isfinite(course[[0, -1]]).all():
            done = _course(float(course[-1] / course[0]))
            agrees = "as predicted" if done == predicted else "not as predicted" if falling in (0, layers) else ""
            numbers = f"from {course[0]:.4g} to {course[-1]:.4g}"
            message = f"{words}, tokens {done} through depth, mean norm {numbers}{', ' if agrees else ''}{agrees}"
            findings.append(Finding(f"{name}_course", None, f"{message}; {_rate_words(rates[name])}"))
        elif not job.why:
            findings.append(Finding(f"{name}_course", None, f"{words}, the states overflow before the last block"))
    findings.append(Finding("blocks", None, _block_words(arrays, job)))
    if job.why:
        findings.append(Finding("norms_needed", None, f"without norms: {job.why}"))
    return findings


def _rate_words(rate: dict[str, Any]) -> str:
    """Which of the theory's rates a course follows."""
    from repflow.dynamics.rates import MOVED, REGIMES

    if rate["moved"] is None:
        return "too few states for a rate"
    if rate["moved"] < MOVED:
        return f"too little to distinguish the theory's rates ({rate['moved']:.2g} in ln, read from {MOVED:g} on)"
    parts = [f"{name} {error:.2f}" for name, error in zip(REGIMES, rate["errors"], strict=True) if error is not None]
    said = f"follows {rate['scenario']}" if rate["scenario"] else "follows none of the theory's rates"
    return f"{said} (errors in ln: {', '.join(parts)})"


def _block_words(arrays: dict[str, np.ndarray], job: ApplyJob) -> str:
    """How many Mamba blocks change the norm in the direction that their eigenvalues predict."""
    from repflow.core.intervals import bracketed, proportion_interval

    name = "token_norm_without_norms" if job.bare is not None else "token_norm"
    course = arrays[name].mean(axis=1)
    right = known = 0
    for place, layer in enumerate(job.layers):
        before, after = course[layer.layer], course[layer.layer + 1]
        if np.isfinite(after) and np.isfinite(before) and after != before:
            known += 1
            right += bool((after > before) == (arrays["positive"][place] > 0))
    band = proportion_interval(right, known)
    words = "without norms" if job.bare is not None else "with norms"
    interval = bracketed(float(band.low), float(band.high), ".0f", scale=100.0)
    share = f" ({100 * right / known:.0f} %{interval})" if known else ""
    said = f"{right} of {known} Mamba blocks change the norm as their signs predict"
    return f"block by block, {words}: {said}{share}"


def _course(ratio: float) -> str:
    return "shrink" if ratio < FALLS else "grow" if ratio > RISES else "neither halve nor double"


def apply(model: Any, task: str = "text", *, out: str | Path | None = None, **options: Any) -> Result:
    """Paper 3's prediction beside what a model's tokens do.

    Args:
        model: a loaded Model or a spec.
        task: `random`, `text`, `kvpr`, `mdqa` or `FILE.jsonl`.
        out: folder of runs to store the result in.
        **options: any field of `ApplyConfig`.
    """
    known = {f.name for f in fields(ApplyConfig)} - {"model", "task"}
    if unknown := sorted(options.keys() - known):
        raise InputError(f"unknown option {unknown[0]!r}; {nearest(unknown[0], known)}")
    spec = model if isinstance(model, str) else model.spec
    config = ApplyConfig(model=spec, task=task, **options)
    return run(config, model=None if isinstance(model, str) else model, out=out)
