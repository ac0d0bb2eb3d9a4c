"""What a training gives back: the curve of its losses, what was evaluated, how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import InputError, nearest, teach
from repflow.core.results import Finding, Result


@dataclass(frozen=True)
class TrainingRun:
    """A training, finished or stopped.

    Attributes:
        steps: done.
        history: by name the number of every step (step,): loss, what the loss reports, gradient_norm.
        log: all lines of the log.
        seconds: of training and evaluating, those before a resumption included.
        tokens: trained on.
        stopped: None for a finished training; `time`, `nonfinite`, or the reason that a callback gave.
        findings: what a reader should know, such as a loss that was not finite.
        resumed_from: step of the checkpoint that this call went on from; None for none.
        graph: whether steps were replayed from a CUDA graph.
        identity: model, batches, loss and settings.
        folder: where it is stored; None for nowhere.
    """

    steps: int
    history: dict[str, np.ndarray]
    log: list[dict[str, Any]]
    seconds: float
    tokens: int
    stopped: str | None = None
    findings: tuple[Finding, ...] = ()
    resumed_from: int | None = None
    graph: bool = False
    identity: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def curve(self, name: str = "loss", points: int = 200) -> tuple[np.ndarray, np.ndarray]:
        """Steps done (point,) and the means (point,) of a number over as many equal spans of steps, at most."""
        if name not in self.history:
            raise InputError(teach("the name of a number of every step", repr(name), nearest(name, self.history)))
        values = self.history[name].astype(np.float64)
        every = max(1, -(-len(values) // points))
        starts = np.arange(0, len(values), every)
        means = [values[start : start + every].mean() for start in starts]
        return np.minimum(starts + every, len(values)), np.array(means)

    def logged(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps (point,) and values (point,) of a number that a callback returned; NaN where it was not finite."""
        lines = [line for line in self.log if line["kind"] != "step" and name in line]
        if not lines:
            known = {key for line in self.log if line["kind"] != "step" for key in line} - {"kind", "step"}
            raise InputError(teach("the name of a number that was logged", repr(name), nearest(name, sorted(known))))
        values = [np.nan if line[name] is None else line[name] for line in lines]
        return np.array([line["step"] for line in lines]), np.array(values, dtype=np.float64)

    def result(self) -> Result:
        """The numbers of every step as a Result with the axis `step`."""
        provenance = {"steps": self.steps, "stopped": self.stopped, "seconds": self.seconds, "tokens": self.tokens}
        axes: dict[str, Any] = dict.fromkeys(self.history, ("step",))
        return Result(dict(self.history), axes, dict(self.identity), provenance, list(self.findings))
