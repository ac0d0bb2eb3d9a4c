"""Apply: paper 1's theorems on the weights of a real checkpoint, beside what the checkpoint does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.errors import InputError, teach
from repflow.studies.engine.loading import check_files, check_loading
from repflow.studies.engine.naming import Names, spell, weight_words
from repflow.studies.engine.parts import (
    FirstToken,
    Init,
    Length,
    Machine,
    Permissions,
    Sampling,
    Spec,
    Task,
    TextFiles,
    defaults,
)
from repflow.studies.engine.prompts import check_task, make_prompts, own_file
from repflow.studies.engine.study import ONE, Job, Study

if TYPE_CHECKING:
    import numpy as np

    from repflow.capture.run import Progress, Sink
    from repflow.core.results import Finding, Result
    from repflow.models import Model
    from repflow.studies.theory.blocks import BlockFacts
    from repflow.studies.theory.layer import LayerFacts

READING = {
    "transformer": "single-head reading: W_V is W_O W_V of all heads, uniform attention to the past, GELU = x/2",
    "mamba": "F = o ∘ z of the mixer without skip D, before its output projection; A, B, C, Δ as each prompt made them",
}


@dataclass
@defaults({"length": "tokens per prompt, at most; closed forms cost its square"}, length=32, samples=4)
class ApplyConfig(Permissions, Machine, FirstToken, Init, Sampling, Length, TextFiles, Task, Spec):
    """What to look at; the fields are the command line's options."""


class TheoryApply(Study[ApplyConfig, Job[ApplyConfig]]):
    """Paper 1's theorems on the weights of a real checkpoint."""

    name = "theory-apply"
    config = ApplyConfig
    summary = (
        "Apply paper 1's theorems to MODEL: linearisation error, predicted and measured St² by layer, constants, "
        "bounds.\n\n"
        "Reads GPT-2, GPT-Neo, GPT-NeoX, OPT, Phi, Mamba, Falcon-Mamba and Mamba-2 blocks; others have no reading. "
        "The hypotheses that fail are named, and no ordering is stated unless all hold."
    )
    usual = ("gpt-neox",)
    usual_words = "gpt-neox of the zoo"

    def check(self, config: ApplyConfig) -> None:
        """Refuse wrong options, tasks and files."""
        if config.samples < 1 or config.length < 2:
            got = f"{config.samples} prompts of {config.length} tokens"
            raise InputError(teach("at least 1 prompt of 2 tokens", got, "--samples 4 --length 32"))
        check_loading(config)
        check_task(config)
        check_files(*config.text, *own_file(config.task))

    def prepare(
        self, config: ApplyConfig, models: dict[str, Model], given: Any, progress: Progress | None
    ) -> Job[ApplyConfig]:
        """Prompts for a model whose letters can be read."""
        from repflow.studies.theory.reading import check_readable

        check_readable(models[ONE])
        prompts = make_prompts(config, models[ONE])
        return Job(config, models, prompts, len(prompts))

    def compute(self, job: Job[ApplyConfig], sink: Sink, progress: Progress | None) -> Result:
        """Look at every layer."""
        from repflow.studies.theory.reading import check_readable

        return _result(job.model, check_readable(job.model), job.prompts, progress)

    def names(self, config: ApplyConfig) -> Names:
        """As of a measurement, marked."""
        parts = [*weight_words(config), Path(config.task).stem, str(config.length), "theory"]
        return spell(config, parts, ("init", "task", "length"))


STUDY = TheoryApply()
check_request = STUDY.check_request
run = STUDY.run
run_name = STUDY.run_name


def _result(model: Model, kind: str, prompts: Any, progress: Progress | None) -> Result:
    import numpy as np

    from repflow.core.results import Result

    layers, hidden, blocks = _layers(model, kind, prompts, progress)
    arrays = {
        name: np.array([getattr(layer, name) for layer in layers])
        for name in ("sigma", "linearisation", "printed", "predicted", "measured")
    }
    if kind == "mamba":
        arrays["bound"] = np.array([layer.bound for layer in layers])
        arrays["tightness"] = arrays["bound"] / arrays["predicted"]
    for constant in layers[0].constants:
        arrays[f"constants/{constant}"] = np.array([layer.constants[constant] for layer in layers])
    for name in ("kurtosis", "dependence", "lipschitz", "energy"):
        arrays[f"block/{name}"] = np.array([getattr(block, name) for block in blocks])
    axes: dict[str, tuple[str, ...]] = dict.fromkeys(arrays, ("layer",))
    depth = _depth(hidden)
    arrays |= {name: np.asarray(value) for name, value in depth.items()}
    axes |= dict.fromkeys(depth, ())
    rows = [
        {"layer": index, "block": index + 1, **entry._asdict()}
        for index, (layer, block) in enumerate(zip(layers, blocks, strict=True))
        for entry in (*layer.hypotheses, *block.hypotheses())
    ]
    about = {"reading": READING[kind], "kind": kind, "hypotheses": rows}
    return Result(arrays, axes, {}, about, _findings(arrays, rows, len(layers)))


def _layers(
    model: Model, kind: str, prompts: Any, progress: Progress | None
) -> tuple[list[LayerFacts], list[np.ndarray], list[BlockFacts]]:
    """Run every prompt once and put each layer's observations together."""
    import numpy as np
    import torch

    from repflow.studies.theory.blocks import block_facts, block_gains
    from repflow.studies.theory.layer import mamba_layer, transformer_layer
    from repflow.studies.theory.reading import Seen, attention_of, numpy_of, watching

    readings = [attention_of(block, model) for block in model.blocks] if kind == "transformer" else []
    gathered: list[list[Seen]] = [[] for _ in model.blocks]
    hidden: list[np.ndarray] = []
    tokens = 0
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
    # one prompt is enough for a lower bound, and each costs dozens of passes
    gains = block_gains(model, torch.tensor([prompts[0].ids]))
    facts, blocks = [], []
    for index, layer in enumerate(gathered):
        entering = [states[index] for states in hidden]
        inputs, leaving = [observed.arrays["x"] for observed in layer], [states[index + 1] for states in hidden]
        blocks.append(block_facts(inputs, leaving, gains[index]))
        if kind == "transformer":
            steps = [float(((states[index + 1] - states[index]) ** 2).sum()) for states in hidden]
            facts.append(transformer_layer(readings[index], layer, steps, entering))
        else:
            facts.append(mamba_layer(model.blocks[index].mixer, layer, entering))
    return facts, hidden, blocks


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
    findings = [
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
        findings.append(Finding("hypotheses", None, message))
    else:
        findings.append(
            Finding("hypotheses", None, "all hypotheses met; theory.stability_ordering takes the constants")
        )
    return findings


def failing(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Hypotheses that fail somewhere, with the layers where they do."""
    broken: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not row["holds"]:
            broken.setdefault(row["name"], []).append(row)
    return broken
