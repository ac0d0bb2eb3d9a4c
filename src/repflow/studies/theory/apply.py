"""Apply: paper 1's theorems on the weights of a real checkpoint, beside what the checkpoint does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach
from repflow.studies.engine.fields import option, same
from repflow.studies.engine.opening import open_run
from repflow.studies.measure import MeasureConfig, length_option

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture.run import Progress
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.studies.theory.layer import LayerFacts

READING = {
    "transformer": "single-head reading: W_V is W_O W_V of all heads, uniform attention to the past, GELU = x/2",
    "mamba": "F = o ∘ z of the mixer without skip D, before its output projection; A, B, C, Δ as each prompt made them",
}


@dataclass
class ApplyConfig:
    """What to look at; the fields are the command line's options."""

    model: str = same("model")
    task: str = same("task")
    text: list[str] = field(
        default_factory=list, metadata={"help": "text file for the task text; may be given several times"}
    )
    length: int = length_option(32, "tokens per prompt, at most; closed forms cost its square")
    samples: int = option(4, "number of prompts")
    seed: int = same("seed")
    init: str = same("init")
    bos: str = same("bos")
    tokenizer: str | None = same("tokenizer")
    dtype: str | None = same("dtype")
    device: str | None = same("device")
    allow_float16: bool = same("allow_float16")
    trust_remote_code: bool = same("trust_remote_code")

    def measure(self) -> MeasureConfig:
        """The part that loads the model and makes prompts."""
        return MeasureConfig(**asdict(self))


def check_request(config: ApplyConfig, name: str | None = None) -> None:
    """Refuse what can be seen to be wrong before a model is loaded."""
    from repflow.studies import measure

    if config.samples < 1 or config.length < 2:
        got = f"{config.samples} prompts of {config.length} tokens"
        raise InputError(teach("at least 1 prompt of 2 tokens", got, "--samples 4 --length 32"))
    measure.check_request(config.measure(), name)


def run_name(config: ApplyConfig) -> str:
    """Folder name of a run."""
    from repflow.studies import measure

    return f"{measure.run_name(config.measure())}-theory"


def run(
    config: ApplyConfig,
    *,
    model: Model | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> Result:
    """Look at every layer of one model.

    Args:
        config: what to do.
        model: a loaded model, instead of `config.model`.
        out: folder of runs; None keeps the result in memory only.
        name: name of the run in `out`.
        progress: called after each prompt.
    """
    from repflow.store import load_result
    from repflow.studies import measure
    from repflow.studies.engine.prompts import make_prompts
    from repflow.studies.theory.reading import check_readable

    loaded = measure.load_model(config.measure()) if model is None else model
    kind = check_readable(loaded)
    prompts = make_prompts(config.measure(), loaded)
    stored = {"study": "theory-apply", **asdict(config), "model": config.model or loaded.spec}
    provenance = measure.describe(config.measure(), loaded, prompts)[1]
    if out is None:
        return _result(loaded, kind, prompts, stored, provenance, progress)
    with open_run(
        out, name or run_name(config), config=stored, provenance=provenance, models={"model": loaded}
    ) as folder:
        if folder.finished:
            return load_result(folder.path)
        result = _result(loaded, kind, prompts, stored, provenance, progress)
        folder.finish(result)
    return result


def _result(
    model: Model, kind: str, prompts: Any, config: dict[str, Any], provenance: dict[str, Any], progress: Progress | None
) -> Result:
    import numpy as np

    from repflow.core.results import Result
    from repflow.studies.engine.provenance import model_facts

    layers, hidden = _layers(model, kind, prompts, progress)
    arrays = {
        name: np.array([getattr(layer, name) for layer in layers])
        for name in ("sigma", "linearisation", "printed", "predicted", "measured")
    }
    if kind == "mamba":
        arrays["bound"] = np.array([layer.bound for layer in layers])
        arrays["tightness"] = arrays["bound"] / arrays["predicted"]
    for constant in layers[0].constants:
        arrays[f"constants/{constant}"] = np.array([layer.constants[constant] for layer in layers])
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arrays, ("layer",))
    depth = _depth(hidden)
    arrays |= {name: np.asarray(value) for name, value in depth.items()}
    axes |= dict.fromkeys(depth, ())
    rows = [
        {"layer": index, "block": index + 1, **entry._asdict()}
        for index, layer in enumerate(layers)
        for entry in layer.hypotheses
    ]
    about = {"reading": READING[kind], "kind": kind, "hypotheses": rows, "model": model_facts(model)}
    return Result(arrays, axes, config, {**provenance, **about}, _findings(arrays, rows, len(layers)))


def _layers(
    model: Model, kind: str, prompts: Any, progress: Progress | None
) -> tuple[list[LayerFacts], list[np.ndarray]]:
    """Run every prompt once and put each layer's observations together."""
    import numpy as np
    import torch

    from repflow.studies.theory.layer import mamba_layer, transformer_layer
    from repflow.studies.theory.reading import Seen, attention_of, numpy_of, watching

    readings = [attention_of(block, model) for block in model.blocks] if kind == "transformer" else []
    gathered: list[list[Seen]] = [[] for _ in model.blocks]
    hidden: list[np.ndarray] = []
    tokens = 0
    if progress is not None:
        progress(0, len(prompts), 0)  # the model is loaded, the work begins
    for done, prompt in enumerate(prompts, 1):
        seen: dict[int, Seen] = {}
        states: list[np.ndarray] = []

        def keep(_: int, state: Any, states: list[np.ndarray] = states) -> None:
            states.append(numpy_of(state)[0])

        with watching(model, kind, readings, seen):
            model.stream(torch.tensor([prompt.ids]), on_state=keep)
        hidden.append(np.stack(states))
        for index, observed in seen.items():
            gathered[index].append(observed)
        tokens += len(prompt.ids)
        if progress is not None:
            progress(done, len(prompts), tokens)
    found = []
    for index, layer in enumerate(gathered):
        entering = [states[index] for states in hidden]
        if kind == "transformer":
            steps = [float(((states[index + 1] - states[index]) ** 2).sum()) for states in hidden]
            found.append(transformer_layer(readings[index], layer, steps, entering))
        else:
            found.append(mamba_layer(model.blocks[index].mixer, layer, entering))
    return found, hidden


def _depth(hidden: list[np.ndarray]) -> dict[str, float]:
    """St_L² of the whole stack between its bounds, and what uncorrelated increments would give; means over prompts."""
    import numpy as np

    from repflow import theory

    bounds = np.mean([theory.poincare_bounds(states) for states in hidden], axis=0)
    walks = []
    for states in hidden:
        energy = (np.diff(states, axis=0) ** 2).sum((1, 2))
        walks.append(theory.expected_depth_stability(energy, n=states.shape[1], d=states.shape[2]))
    lower, value, upper = (float(entry) for entry in bounds)
    return {
        "depth_stability": value,
        "depth_lower": lower,
        "depth_upper": upper,
        "depth_uncorrelated": float(np.mean(walks)),
    }


def _findings(arrays: dict[str, np.ndarray], rows: list[dict[str, Any]], layers: int) -> list[Finding]:
    from repflow.core.results import Finding

    error = arrays["linearisation"]
    worst = int(error.argmax())
    found = [
        Finding(
            "linearisation",
            worst,
            f"taking the activation for x/2 changes the update by {error.min():.0%} to {error.max():.0%}, most in "
            f"block {worst + 1}",
        )
    ]
    broken = failing(rows)
    if broken:
        listed = "; ".join(
            f"{name} ({len(where)} of {layers} blocks, such as block {where[0]['layer'] + 1}: {where[0]['found']})"
            for name, where in broken.items()
        )
        message = f"hypotheses not met: {listed}; no ordering of architectures follows for this model"
        found.append(Finding("hypotheses", None, message))
    else:
        found.append(Finding("hypotheses", None, "all hypotheses met; theory.stability_ordering takes the constants"))
    return found


def failing(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Hypotheses that fail somewhere, with the layers where they do."""
    broken: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row["holds"]:
            broken.setdefault(row["name"], []).append(row)
    return broken
