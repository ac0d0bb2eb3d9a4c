"""One training step on fixed buffers, launch by launch or as a CUDA graph.

The same code runs in both cases; a graph only replays what one run of it launched. Batches of several shapes have a
graph each. A step that cannot be recorded (a model that looks at values on the CPU) goes on launch by launch. What a
stack asks of a mask is asked before a replay: a graph does not ask again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from repflow.models.devices import require_dtype
from repflow.models.stack.network import StackPreTrainedModel, check_right_padding
from repflow.models.stack.replicas import ReplicaStack
from repflow.training.batch import Batch
from repflow.training.config import TrainingConfig
from repflow.training.graph import CudaRecorder, Recorded, Recorder
from repflow.training.history import LOSS, NORM
from repflow.training.losses import Loss
from repflow.training.optimiser import make_optimiser, set_rate
from repflow.training.replicas import ReplicaAdamW

WARM = 3
"""Steps before a CUDA graph is recorded."""
GRAPHS = 16
"""Shapes of batches that are recorded at most: each takes some steps without a graph and time to record."""

Shape = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass
class _Slot:
    """Buffers of one shape of batches, and their graph."""

    batch: Batch
    warmed: int = 0
    graph: Recorded | None = None
    tried: bool = False


@dataclass
class Stepper:
    """Trains a network batch by batch.

    Attributes:
        network: on its device, in train mode.
        loss: what is lowered.
        config: how.
        device: of the network.
        optimiser: of its parameters.
        recorder: of steps; None where they run launch by launch.
        names: of the numbers of a step: loss, what the loss reports, gradient_norm.
        notes: why a step was not recorded, once each.
    """

    network: nn.Module
    loss: Loss
    config: TrainingConfig
    device: torch.device
    optimiser: torch.optim.Optimizer = field(init=False)
    recorder: Recorder | None = None
    names: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    _slots: dict[Shape, _Slot] = field(default_factory=dict)
    _parts: Tensor | None = None

    def __post_init__(self) -> None:
        """Make the optimiser; check the precision."""
        if isinstance(self.network, ReplicaStack):
            self.optimiser = ReplicaAdamW(self.network, self.config.optimiser)
        else:
            self.optimiser = make_optimiser(self.network, self.config.optimiser, self.device)
        half = self.config.precision == "bfloat16" or (self.config.precision == "auto" and self.device.type == "cuda")
        if half:
            require_dtype(torch.bfloat16, self.device)
        self._half = half
        self._causal = any(isinstance(part, StackPreTrainedModel) for part in self.network.modules())
        # a recorded step may choose other kernels than a launched one (attention in bfloat16 does), and a resumed
        # training launches a few steps that the uninterrupted one replayed: their bits would differ
        if self.recorder is None and self.config.graph and not self.config.deterministic and self.device.type == "cuda":
            self.recorder = CudaRecorder()

    @property
    def recorded(self) -> bool:
        """Whether any step is replayed from a graph."""
        return any(slot.graph is not None for slot in self._slots.values())

    def step(self, number: int, batch: Batch) -> Tensor:
        """Train on the batch of a step from 0; gives the numbers of the step (name,), overwritten by the next."""
        slot = self._filled(batch)
        set_rate(self.optimiser, self.config.rate(number))
        if slot.graph is not None:
            if self._causal:
                check_right_padding(batch.mask)
            slot.graph.replay()
        elif slot.tried or self.recorder is None or len(self._slots) > GRAPHS:
            self._run(slot.batch)
        else:
            self.recorder.warm(lambda: self._run(slot.batch))
            slot.warmed += 1
            if slot.warmed >= WARM:
                self._record(slot, self.recorder)
        assert self._parts is not None
        return self._parts

    def _filled(self, batch: Batch) -> _Slot:
        """The buffers of this shape, holding the batch."""
        tensors = batch.tensors()
        shape = tuple((name, tuple(value.shape), value.dtype) for name, value in tensors.items())
        if shape not in self._slots:
            self._slots[shape] = _Slot(batch.each(lambda value: torch.empty_like(value, device=self.device)))
        slot = self._slots[shape]
        for name, buffer in slot.batch.tensors().items():
            buffer.copy_(tensors[name], non_blocking=True)
        return slot

    def _run(self, batch: Batch) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        parts = self._accumulated(batch) if self.config.accumulate > 1 else self._backward(batch, None)
        parts[NORM] = self._clipped()
        self.optimiser.step()
        self.names = tuple(parts)
        values = torch.stack([value.detach().float() for value in parts.values()])
        if self._parts is None:
            self._parts = torch.zeros_like(values)
        self._parts.copy_(values)

    def _backward(self, batch: Batch, share: Tensor | None) -> dict[str, Tensor]:
        """Add the gradient of a batch, times its share; gives the loss and what it reports, times the share."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._half):
            loss, metrics = self.loss(self.network, batch)
        if share is not None:
            loss, metrics = loss * share, {name: value * share for name, value in metrics.items()}
        loss.backward()  # type: ignore[no-untyped-call]
        return {LOSS: loss.detach(), **metrics}

    def _accumulated(self, batch: Batch) -> dict[str, Tensor]:
        split = batch.split(self.config.accumulate)
        weights = torch.stack([self.loss.weight(part).float() for part in split])
        shares = weights / weights.sum().clamp(min=torch.finfo(torch.float32).tiny)
        parts = [self._backward(part, share) for part, share in zip(split, shares, strict=True)]
        return {name: torch.stack([part[name] for part in parts]).sum() for name in parts[0]}

    def _clipped(self) -> Tensor:
        """Norm of the gradient; the gradient is clipped to its bound."""
        if isinstance(self.optimiser, ReplicaAdamW):
            return self.optimiser.clip(self.config.clip)
        if self.config.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip).detach()
        return torch.nn.utils.get_total_norm([p.grad for p in self.network.parameters() if p.grad is not None])

    def _record(self, slot: _Slot, recorder: Recorder) -> None:
        """Record the step; recording does not run it. A step that cannot be recorded goes on as it is."""
        slot.tried = True
        try:
            slot.graph = recorder.record(lambda: self._run(slot.batch))
        except Exception as error:  # noqa: BLE001 - whatever stands in the way, training can go on without
            self.optimiser.zero_grad(set_to_none=True)
            words = f"no CUDA graph: {type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
            if words not in self.notes:
                self.notes.append(words)
