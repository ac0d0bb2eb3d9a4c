"""How to train: everything that decides the weights of a training beside the model, its batches and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.spec.request import check_least, check_seed
from repflow.training.optimiser import OptimiserConfig
from repflow.training.schedule import Schedule

PRECISIONS = ("auto", "float32", "bfloat16")
NONFINITE = ("stop", "report", "raise")
FREE = ("seconds", "checkpoint_every", "ahead", "device")
"""Fields that may change between a training and its resumption: they do not decide the weights. Of the device its kind
is compared."""


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    Attributes:
        steps: optimiser steps.
        seed: of everything that is drawn while training, such as dropout; batches have seeds of their own.
        optimiser: AdamW and its groups.
        schedule: learning rate by step.
        clip: greatest norm of the gradient; None for no clipping.
        accumulate: parts that each batch is split into, to save memory; the step is that of the whole batch.
        device: cpu or cuda; None takes the GPU where there is one.
        precision: of products: auto is bfloat16 on a GPU and float32 on a CPU; weights are kept as they are.
        graph: on a GPU, record the step of each shape as a CUDA graph and replay it; where that fails, go on without.
        deterministic: have torch use deterministic algorithms alone, and no graphs, whose kernels may be others: on a
            GPU too a resumed training ends with the same bits.
        evaluate: steps between evaluations, or the steps themselves (0 is before training); 0 for the end alone.
        log_every: steps between lines of the log, each the mean over them.
        checkpoint_every: steps between checkpoints, where there is a folder.
        nonfinite: what follows a loss or gradient that is not finite: `stop` ends the training, `report` goes on,
            `raise` raises an error; each names the step.
        seconds: stop after this many, with a checkpoint; the same call continues from it.
        ahead: batches that a thread draws ahead on the CPU; 0 where they are drawn on the GPU.
    """

    steps: int
    seed: int = 0
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: Schedule = field(default_factory=Schedule)
    clip: float | None = 1.0
    accumulate: int = 1
    device: str | None = None
    precision: str = "auto"
    graph: bool = True
    deterministic: bool = False
    evaluate: int | Sequence[int] = 0
    log_every: int = 10
    checkpoint_every: int = 500
    nonfinite: str = "stop"
    seconds: float | None = None
    ahead: int = 0

    def __post_init__(self) -> None:
        """Refuse what no training can use."""
        least = {"steps": 1, "accumulate": 1, "log_every": 1, "checkpoint_every": 1, "ahead": 0}
        check_least([(name, getattr(self, name), bound) for name, bound in least.items()])
        check_seed(self.seed, "seed")
        for name, fits in (
            ("clip above 0", self.clip is None or self.clip > 0),
            ("seconds of at least 0", self.seconds is None or self.seconds >= 0),
        ):  # NaN is neither
            if not fits:
                raise InputError(teach(name, f"{getattr(self, name.split()[0])}", "pass None for no bound"))
        for name, known in (("precision", PRECISIONS), ("nonfinite", NONFINITE)):
            if getattr(self, name) not in known:
                raise InputError(
                    teach(f"a known {name}", repr(getattr(self, name)), nearest(getattr(self, name), known))
                )
        at = [self.evaluate] if isinstance(self.evaluate, int) else list(self.evaluate)
        if (
            any(not 0 <= step <= self.steps for step in at if not isinstance(self.evaluate, int))
            or min(at, default=0) < 0
        ):
            raise InputError(
                teach(f"evaluate from 0 to steps, {self.steps}", f"{self.evaluate}", "leave out the others")
            )

    def evaluations(self) -> frozenset[int]:
        """Numbers of steps after which the model is evaluated; the last is always among them.

        >>> sorted(TrainingConfig(steps=10, evaluate=4).evaluations())
        [0, 4, 8, 10]
        >>> sorted(TrainingConfig(steps=10).evaluations())
        [10]
        """
        if isinstance(self.evaluate, int):
            every = range(0, self.steps, self.evaluate) if self.evaluate else ()
            return frozenset([*every, self.steps])
        return frozenset([*self.evaluate, self.steps])

    def rate(self, step: int) -> float:
        """Learning rate of a step from 0."""
        return self.schedule.rate(self.optimiser.rate, step, self.steps)

    def identity(self) -> dict[str, Any]:
        """What must not change under a half-done training."""
        return {name: value for name, value in asdict(self).items() if name not in FREE}
