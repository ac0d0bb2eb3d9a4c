"""Penalised: a loss with penalties beside it, for `repflow.training.train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from repflow.core.errors import InputError, teach
from repflow.training.batch import Batch
from repflow.training.losses.cross_entropy import CrossEntropy, Metrics, read_pass
from repflow.training.losses.states import Pass, Penalty, pass_of
from repflow.training.losses.weight import HoldAt


@dataclass
class Weights:
    """Current weights of penalties; those of a `HoldAt` move with every pass and go into checkpoints."""

    penalties: Sequence[Penalty]
    moving: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse two penalties of one name."""
        names = [penalty.name for penalty in self.penalties]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            remedy = "give one penalty more states, or subclass it with another name"
            raise InputError(teach("penalties of different names", f"{twice[0]!r} twice", remedy))

    def add(self, seen: Pass) -> tuple[Tensor, Metrics]:
        """Weighted sum of all penalties of a pass, and each penalty (and its moving weight) by name."""
        terms, metrics = [], {}
        for penalty in self.penalties:
            value = penalty(seen)
            metrics[f"penalty/{penalty.name}"] = value.detach()
            terms.append(value * self._weight(penalty, value, metrics))
        return torch.stack(terms).sum(), metrics

    def _weight(self, penalty: Penalty, value: Tensor, metrics: Metrics) -> Tensor | float:
        if not isinstance(penalty.weight, HoldAt):
            return penalty.weight
        if penalty.name not in self.moving:
            # float64 survives the trip through a checkpoint's JSON bit by bit
            start = torch.tensor(penalty.weight.start, dtype=torch.float64, device=value.device)
            self.moving[penalty.name] = start
        weight = self.moving[penalty.name] = self.moving[penalty.name].to(value.device)
        used = weight.to(value.dtype, copy=True)
        metrics[f"weight/{penalty.name}"] = used
        penalty.weight.move(weight, value.detach())
        return used

    def state(self) -> dict[str, float]:
        """Moving weights, as plain numbers."""
        return {name: float(weight) for name, weight in self.moving.items()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint's weights."""
        for name, value in state.items():
            weight = self.moving.get(name)
            if weight is None:
                self.moving[name] = torch.tensor(value, dtype=torch.float64)
            else:
                weight.fill_(value)


class Penalised:
    """A loss with penalties: loss + Σ weight · penalty, from one pass.

    Args:
        penalties: terms beside the loss.
        loss: the loss itself; cross entropy by default.

    The log has each term as `penalty/NAME`, a moving weight as `weight/NAME`, and the loss alone as `task_loss`. With
    gradient accumulation a penalty is the mean over the parts of a batch.

    >>> from repflow.models import StackConfig, StackForCausalLM
    >>> from repflow.training.losses import TokenDiversity
    >>> network = StackForCausalLM(StackConfig("s6", num_hidden_layers=3, hidden_size=8, vocab_size=12))
    >>> loss, metrics = Penalised([TokenDiversity(0.1)])(network, Batch(torch.arange(12)[None]))
    >>> sorted(metrics)
    ['penalty/token_diversity', 'task_loss']
    """

    def __init__(self, penalties: Sequence[Penalty], loss: CrossEntropy | None = None) -> None:
        if not penalties:
            raise InputError(teach("at least one penalty", "none", "use the loss itself, CrossEntropy()"))
        self.loss = CrossEntropy() if loss is None else loss
        self.penalties = tuple(penalties)
        self.weights = Weights(self.penalties)

    def __call__(self, network: nn.Module, batch: Batch) -> tuple[Tensor, Metrics]:
        """Loss with its penalties, and its parts."""
        logits, output = read_pass(network, batch, states=True)
        loss, metrics = self.loss.of_logits(logits, batch)
        added, parts = self.weights.add(pass_of(network, batch, output))
        return loss + added, {"task_loss": loss.detach(), **metrics, **parts}

    def weight(self, batch: Batch) -> Tensor:
        """As the loss itself."""
        return self.loss.weight(batch)

    def facts(self) -> dict[str, Any]:
        """Loss and penalties with their settings, for the identity of a training."""
        described = [{"name": type(penalty).__qualname__, **_fields(penalty)} for penalty in self.penalties]
        return {"loss": _fields(self.loss), "penalties": described}

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps: the moving weights."""
        return self.weights.state()

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.weights.restore(state)


def _fields(value: Any) -> dict[str, Any]:
    return {name: list(part) if isinstance(part, tuple | range) else part for name, part in asdict(value).items()}
