"""Apply: paper 3's idealised prediction beside what the layers of a real Mamba checkpoint do.

Its appendix E.4 asks this of Mambas trained with and without constrained eigenvalues, and with and without norms; here
one checkpoint is looked at as it is, and with the norms at its stream taken out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.errors import InputError, UnsupportedModelError, nearest
from repflow.studies.engine.fields import said, same
from repflow.studies.engine.opening import open_run
from repflow.studies.measure import MeasureConfig, length_option

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.studies.dynamics.layers import MambaLayer
    from repflow.tasks import Prompts

NORMS = "norm:block"
"""The norms at the stream, which the theory leaves out."""
FALLS, RISES = 0.5, 2.0
"""Last norm over first below which the tokens shrink, and above which they grow, through depth."""


@dataclass
class ApplyConfig:
    """What to look at; the fields are the command line's options."""

    model: str = same("model")
    task: str = same("task")
    text: list[str] = field(default_factory=list, metadata=said("text"))
    length: int = length_option(256, "tokens per prompt, at most; 1K is 1000")
    samples: int = same("samples")
    seed: int = same("seed")
    init: str = same("init")
    init_seed: int | None = same("init_seed")
    bos: str = same("bos")
    tokenizer: str | None = same("tokenizer")
    dtype: str | None = same("dtype")
    device: str | None = same("device")
    scan: str = same("scan")
    allow_float16: bool = same("allow_float16")
    trust_remote_code: bool = same("trust_remote_code")

    def measure(self) -> MeasureConfig:
        """The same request to `repflow measure`, which loads the model and makes the prompts."""
        return MeasureConfig(**asdict(self))


def check_request(config: ApplyConfig, name: str | None = None) -> None:
    """Refuse what can be seen to be wrong before a model is loaded."""
    from repflow.studies import measure

    measure.check_request(config.measure(), name)


def run_name(config: ApplyConfig) -> str:
    """Folder name: that of a measurement of the same, marked."""
    from repflow.store import safe_name
    from repflow.studies import measure

    return safe_name(f"{measure.run_name(config.measure())}-dynamics")


def run(
    config: ApplyConfig,
    *,
    model: Model | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Signs of every Mamba layer, x'Mx on the prompts, and the token norm through depth with and without norms.

    Args:
        config: what to do.
        model: a loaded model, instead of `config.model`.
        out: folder of runs; None keeps the result in memory only. A prompt that was read is not read again.
        name: name of the run in `out`.
        progress: called after each prompt.
    """
    from repflow.store import load_result
    from repflow.studies import measure
    from repflow.studies.dynamics.layers import mamba_layers

    loaded = measure.load_model(config.measure()) if model is None else model
    prompts = measure.make_prompts(config.measure(), loaded)
    layers = mamba_layers(loaded)
    stored, provenance = measure.describe(config.measure(), loaded, prompts)
    stored = {"study": "dynamics-apply"} | {f.name: stored[f.name] for f in fields(config) if f.name in stored}
    bare, why = _without_norms(loaded)
    if out is None:
        rows = [_read(loaded, bare, prompts, sample, layers) for sample in range(len(prompts))]
        return _result(loaded, layers, rows, why, stored, provenance)
    with open_run(
        out, name or run_name(config), config=stored, provenance=provenance, models={"model": loaded}
    ) as folder:
        if folder.finished:
            return load_result(folder.path)
        for sample in range(len(prompts)):
            if not folder.has_shard(f"prompt-{sample}"):
                folder.write_shard(f"prompt-{sample}", _read(loaded, bare, prompts, sample, layers))
            if progress is not None:
                progress(sample + 1, len(prompts), sum(prompts.lengths[: sample + 1]))
        rows = [folder.read_shard(f"prompt-{sample}") for sample in range(len(prompts))]
        result = _result(loaded, layers, rows, why, stored, provenance)
        folder.finish(result)
    return result


def _without_norms(model: Model) -> tuple[Model | None, str]:
    from repflow.interventions import ablate

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
    without = np.full_like(norms, np.nan) if bare is None else _norms(bare, ids)
    return {"form_positive": np.array(shares), "token_norm": norms, "token_norm_without_norms": without}


def _norms(model: Model, ids: Any) -> np.ndarray:
    found: dict[int, float] = {}

    def on_state(state: int, hidden: Any) -> None:
        found[state] = float(hidden.double().norm(dim=-1).mean())

    model.stream(ids, on_state=on_state)
    return np.array([found[state] for state in sorted(found)])


def _result(
    model: Model,
    layers: Sequence[MambaLayer],
    rows: Sequence[dict[str, np.ndarray]],
    why: str,
    stored: dict[str, Any],
    provenance: dict[str, Any],
) -> Result:
    from repflow.core.results import Result
    from repflow.studies.engine.provenance import model_facts

    arrays, axes = _signatures(layers)
    for name, axis in (("form_positive", "ssm_layer"), ("token_norm", "state"), ("token_norm_without_norms", "state")):
        arrays[name] = np.stack([row[name] for row in rows], axis=1)
        axes[name] = (axis, "sample")
    facts = {**provenance, "model": model_facts(model), "ssm_layers": [layer.layer for layer in layers]}
    facts["without_norms"] = why or None
    return Result(arrays, axes, stored, facts, _findings(arrays, why))


def _signatures(layers: Sequence[MambaLayer]) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Counts of eigenvalue signs over the groups of each layer, and the ends of their spectra."""
    from repflow.dynamics.projections import signature

    found = [[signature(*pair) for pair in layer.matrices()] for layer in layers]
    arrays = {
        name: np.array([sum(getattr(group, name) for group in groups) for groups in found])
        for name in ("negative", "zero", "positive")
    }
    arrays["lowest"] = np.array([min(group.lowest for group in groups) for groups in found])
    arrays["highest"] = np.array([max(group.highest for group in groups) for groups in found])
    return arrays, dict.fromkeys(arrays, ("ssm_layer",))


def _findings(arrays: dict[str, np.ndarray], why: str) -> list[Finding]:
    """The prediction, what the tokens do, and whether they agree."""
    from repflow.core.results import Finding

    falling = int((arrays["positive"] == 0).sum())
    layers = len(arrays["positive"])
    predicted = "shrink" if falling == layers else "grow" if falling == 0 else "shrink in some layers, grow in others"
    said = [
        Finding(
            "prediction",
            None,
            f"{layers - falling} of {layers} Mamba layers have a positive eigenvalue, {falling} negative ones only: by "
            f"the paper's conjecture, which is false in both directions, tokens {predicted}; x'Mx > 0 for "
            f"{100 * float(arrays['form_positive'].mean()):.0f} % of tokens",
        )
    ]
    for name, words in (("token_norm", "with norms"), ("token_norm_without_norms", "without norms at the stream")):
        course = arrays[name].mean(axis=1)
        if np.isfinite(course[[0, -1]]).all():
            done = _course(float(course[-1] / course[0]))
            agrees = "as predicted" if done == predicted else "not as predicted" if falling in (0, layers) else ""
            numbers = f"from {course[0]:.4g} to {course[-1]:.4g}"
            message = f"{words}, tokens {done} through depth, mean norm {numbers}{', ' if agrees else ''}{agrees}"
            said.append(Finding(f"{name}_course", None, message))
        elif not why:
            said.append(Finding(f"{name}_course", None, f"{words}, the states overflow before the last block"))
    if why:
        said.append(Finding("norms_needed", None, f"without norms: {why}"))
    return said


def _course(ratio: float) -> str:
    return "shrink" if ratio < FALLS else "grow" if ratio > RISES else "keep their length"


def apply(model: Any, task: str = "random", *, out: str | Path | None = None, **options: Any) -> Result:
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
