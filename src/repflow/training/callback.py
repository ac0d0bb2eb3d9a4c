"""Callbacks: what looks at a model while it trains, without any effect on the training.

Around every call the random generators, the modes of all modules and torch's gradient mode are kept and put back, so
that weights are bit-equal with and without a callback that only reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repflow.training.config import TrainingConfig
from repflow.training.history import History
from repflow.training.random_state import own_random_state


@dataclass
class Moment:
    """Where a training is, for a callback.

    Attributes:
        network: the model; change nothing of it.
        step: steps done.
        config: how it is trained.
        history: numbers of every step so far.
        device: of the model.
        folder: of the training; None where nothing is stored.
        last: nothing follows.
        stopped: why training ends before its last step, once `stop` was called.
    """

    network: nn.Module
    step: int
    config: TrainingConfig
    history: History
    device: torch.device
    folder: Path | None = None
    last: bool = False
    stopped: str | None = field(default=None)

    @property
    def losses(self) -> dict[str, float]:
        """Loss, metrics and gradient_norm of the last step; waits for the GPU."""
        return self.history.last()

    def stop(self, reason: str) -> None:
        """End the training here, with a checkpoint; it counts as finished."""
        self.stopped = reason


Logged = Mapping[str, float] | None


class Callback:
    """What a training calls; override what is needed. What a call returns is logged.

    An exception ends the training; the last checkpoint stays, and the same call goes on from it.
    """

    @property
    def name(self) -> str:
        """Under which `state` is stored; two callbacks with a state need two names."""
        return type(self).__name__

    def on_step(self, moment: Moment) -> Logged:
        """After every step, inside the context that steps run in."""
        return None

    def on_evaluate(self, moment: Moment) -> Logged:
        """At the steps that `TrainingConfig.evaluate` names, and at the end."""
        return None

    def on_end(self, moment: Moment) -> Logged:
        """Once no step follows."""
        return None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the callback, as plain JSON values."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""


def overrides(callback: Callback, method: str) -> bool:
    """Whether a callback has a method of its own."""
    return getattr(type(callback), method) is not getattr(Callback, method)


@contextmanager
def undisturbed(network: nn.Module) -> Iterator[None]:
    """Inside, read freely: random generators, modes of modules and gradient mode are put back afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    gradients = torch.is_grad_enabled()
    with own_random_state():
        try:
            yield
        finally:
            torch.set_grad_enabled(gradients)
            for module, mode in modes:
                module.training = mode
