"""AdamW with groups of parameters: no decay on norms, biases and a recurrence's own parameters, rates by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from repflow.core.errors import InputError, nearest, teach
from repflow.models.weights.initialise import parameter_groups

KINDS = ("matrices", "convolutions", "embeddings", "norms", "biases", "recurrence")
"""Kinds of parameters, see `repflow.models.weights.initialise`; recurrence has A_log, D, dt_bias and their like."""


@dataclass(frozen=True)
class OptimiserConfig:
    """How weights are updated.

    Attributes:
        rate: greatest learning rate.
        betas: of the mean and of the mean square of the gradient.
        eps: added to the root of the mean square.
        decay: weight decay of the kinds in `decayed`.
        decayed: kinds of parameters that decay.
        rates: factor of the rate by pattern; the first pattern that a parameter's name contains holds.
    """

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    decayed: tuple[str, ...] = ("matrices", "convolutions", "embeddings")
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse numbers that no training can use, unknown kinds and broken patterns."""
        if not 0 < self.rate < float("inf"):
            raise InputError(teach("a learning rate above 0", f"{self.rate}", "give another number, such as 1e-3"))
        if not self.decay >= 0:
            raise InputError(teach("decay of at least 0", f"{self.decay}", "pass 0 for no decay"))
        for kind in self.decayed:
            if kind not in KINDS:
                raise InputError(teach("a kind of parameters in decayed", repr(kind), nearest(kind, KINDS)))
        for pattern, factor in self.rates.items():
            if not 0 <= factor < float("inf"):
                raise InputError(teach(f"a factor of at least 0 for {pattern!r}", f"{factor}", "0 freezes a parameter"))
            try:
                re.compile(pattern)
            except re.error as error:
                got = f"{pattern!r} ({error})"
                raise InputError(
                    teach("a pattern in rates", got, "write a regular expression, such as 'A_log|dt_'")
                ) from None


def make_optimiser(network: nn.Module, config: OptimiserConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW over the parameters that need a gradient; ready for a CUDA graph on a GPU.

    Every group has the key `factor`, by which the schedule's rate is multiplied.
    """
    on_gpu = device.type == "cuda"
    groups: list[dict[str, Any]] = []
    for (decays, factor), names in grouped_names(network, config).items():
        rate: Any = config.rate * factor
        groups.append(
            {
                "params": [network.get_parameter(name) for name in names],
                "lr": torch.tensor(rate, device=device) if on_gpu else rate,
                "weight_decay": config.decay if decays else 0.0,
                "factor": factor,
            }
        )
    return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=on_gpu, capturable=on_gpu)


def grouped_names(network: nn.Module, config: OptimiserConfig) -> dict[tuple[bool, float], list[str]]:
    """Names of the parameters to train, by whether they decay and by the factor of their rate."""
    kinds = parameter_groups(network)
    names = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    if not names:
        raise InputError(teach("a parameter to train", "none that needs a gradient", "set requires_grad on some"))
    for pattern in config.rates:
        if not any(re.search(pattern, name) for name in names):
            got = f"{pattern!r}, which is in none"
            remedy = f"names are such as {', '.join(names[:3])}"
            raise InputError(teach("patterns of rates that names of parameters contain", got, remedy))
    groups: dict[tuple[bool, float], list[str]] = {}
    for name in names:
        factor = next((value for pattern, value in config.rates.items() if re.search(pattern, name)), 1.0)
        groups.setdefault((kinds[name] in config.decayed, float(factor)), []).append(name)
    return groups


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group, in place where a CUDA graph reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].copy_(torch.as_tensor(rate * group["factor"]))
        else:
            group["lr"] = rate * group["factor"]
