"""Training: the stored history of a model in training, and two of them side by side.

A history comes from a training loop (`repflow.training.FlowMeter`), so that no command runs this study; it is listed,
drawn, exported and compared as every other run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.core.results import Finding, Result, sample_band
from repflow.store import load_result, read_record
from repflow.store.record import is_run
from repflow.studies.engine.naming import Names
from repflow.studies.engine.parts import Length, Metrics, Spec, StateKind, Task, defaults, option
from repflow.studies.engine.study import BaseStudy, Call

if TYPE_CHECKING:
    pass

NAME = "training"
DIFFERENCE = "difference/"


@dataclass
@defaults(
    {"states": "kind of state", "metrics": "metrics that are read"},
    model=option("", "the model in training"),
    task=option("", "what it reads"),
    length=option(0, "tokens of the longest prompt"),
)
class TrainingHistoryConfig(Metrics, StateKind, Length, Task, Spec):
    """What a meter reads, as its history stores it."""

    prompts: int = option(0, "number of prompts")
    every: int = option(50, "steps between readings")
    autocast: str | None = option(None, "precision of a reading, where it is not that of the weights")


class Training(BaseStudy[TrainingHistoryConfig]):
    """How do representations change while a model trains?"""

    name = NAME
    config = TrainingHistoryConfig
    summary = "The history of a model in training."
    one_model = False

    def check(self, config: TrainingHistoryConfig) -> None:
        """Refuse: a training is not a command."""
        raise _no_command()

    def names(self, config: TrainingHistoryConfig) -> Names:
        """Model and prompts."""
        name = f"{config.model}-{NAME}-{config.task}"
        return Names(name, name, name)

    def conduct(self, config: TrainingHistoryConfig, call: Call) -> Result:
        """Refuse: a training is not a command."""
        raise _no_command()


STUDY = Training()


def _no_command() -> InputError:
    remedy = "call repflow.training.FlowMeter(model, prompts).step(step) in the loop, and it stores its history"
    return InputError(teach("a training loop, which alone can make a history", "a request for one", remedy))


def is_history(path: str | Path) -> bool:
    """Whether a path is the folder of a stored history."""
    folder = Path(path)
    return str(path) != "" and folder.is_dir() and is_run(folder) and read_record(folder).config.get("study") == NAME


def compare_histories(path_a: str | Path, path_b: str | Path) -> Result:
    """Two trainings at the steps that both have read: A − B of every metric, prompt by prompt.

    Raises:
        InputError: Other prompts, other depths, or no step in common.
    """
    a, b = load_result(path_a), load_result(path_b)
    if a.provenance["digests"] != b.provenance["digests"]:
        got = f"{a.config['task']} with {a.config['prompts']} and {b.config['task']} with {b.config['prompts']}"
        raise InputError(teach("two histories on the same prompts", got, "train both with the same prompts"))
    steps, at_a, at_b = np.intersect1d(a["step"], b["step"], return_indices=True)
    if not len(steps):
        got = f"{a['step'].tolist()[:6]} and {b['step'].tolist()[:6]}"
        raise InputError(teach("two histories with steps in common", got, "use the same every=k in both"))
    arrays: dict[str, np.ndarray] = {"step": steps}
    axes: dict[str, tuple[str, ...]] = {"step": ("step",)}
    left_out = []
    for name in [name for name in a if name in b and name != "step"]:
        if a[name].shape[1:] != b[name].shape[1:]:
            left_out.append(name)
            continue
        for side, result, places in (("a/", a, at_a), ("b/", b, at_b)):
            arrays[side + name] = result.mean(name)[places]
            axes[side + name] = tuple(axis for axis in result.axes[name] if axis != "sample")
        arrays[DIFFERENCE + name] = a[name][at_a].astype(np.float64) - b[name][at_b]
        axes[DIFFERENCE + name] = a.axes[name]
    if len(arrays) == 1:
        raise InputError(teach("two histories of models of one depth", f"{left_out} of other shapes", "see the report"))
    names = [Path(path).resolve().name for path in (path_a, path_b)]
    about = {"steps": steps.tolist(), "runs": names, "models": {"a": a.provenance["model"], "b": b.provenance["model"]}}
    findings = [Finding(f.code, f.layer, f"{name}: {f.message}") for name, r in zip(names, (a, b), strict=True)
                for f in r.findings]  # fmt: skip
    result = Result(arrays, axes, {"study": NAME, "task": a.config["task"]}, about, findings)
    for name in arrays:
        if "sample" in axes[name]:
            result.bands[name] = sample_band(arrays[name], axes[name])
    return result
