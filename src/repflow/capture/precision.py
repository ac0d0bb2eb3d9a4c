"""How far half precision moves the numbers: the beginning of two prompts, once more as they are and in float32.

Two prompts, since the excess over other prompts needs two, and their beginnings, since float32 products take ten times
as long on a GPU: 128 tokens each, or one in 800 of the run's where that is more, cost 48 prompts a few percent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from repflow.capture.run import Records, RunningBatch, Sink, gather, start_batch
from repflow.core.errors import out_of_memory
from repflow.metrics.meter import Meter, Table
from repflow.models import Model
from repflow.models.identity.live import weight_versions
from repflow.tasks import Prompts

HALF, FULL = "precision-half", "precision-float32"
_ran: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, Records]]] = WeakKeyDictionary()
"""Records of a network's last check, with what they depend on."""
SAMPLES = 2
LEAST_TOKENS = 128
SHARE = 800


def beginnings(prompts: Prompts) -> Prompts:
    """The run's prompts with the first two cut to their beginnings; the others are ignored.

    >>> from repflow.tasks import id_prompts
    >>> beginnings(id_prompts([[1] * 300, [2] * 50, [3] * 300], 9)).lengths
    (128, 50, 300)
    """
    most = max(LEAST_TOKENS, sum(prompts.lengths) // SHARE)
    cut = [replace(p, ids=p.ids[:most], tokens=p.tokens[:most]) for p in prompts.samples[:SAMPLES]]
    return replace(prompts, samples=(*cut, *prompts.samples[SAMPLES:]))


@dataclass
class PrecisionCheck:
    """The two passes and what they say.

    Attributes:
        model: in half precision.
        prompts: all prompts of the run.
        meters: makes the meters of a pass.
        sink: keeps the records of both passes, like those of batches.
        kind: of state.
    """

    model: Model
    prompts: Prompts
    meters: Callable[[], Sequence[Meter]]
    sink: Sink
    kind: str
    _running: dict[str, RunningBatch] = field(default_factory=dict)
    _key: Any = None

    def start(self) -> None:
        """Launch both passes; on a GPU they queue behind what it is still computing.

        The same weights on the same beginnings are run once in a process.
        """
        if self.sink.has(HALF) and self.sink.has(FULL):
            return
        self._key = self._what()
        key, before = _ran.get(self.model.network, (None, {}))
        if key is not None and key == self._key:
            for name, records in before.items():
                if not self.sink.has(name):
                    self.sink.write(name, records)
            return
        batch = tuple(range(min(SAMPLES, len(self.prompts))))
        try:
            self._launch(batch)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(batch) == 1:
                raise
            self._launch(batch[:1])

    def _launch(self, batch: tuple[int, ...]) -> None:
        cut = beginnings(self.prompts)
        self._running = {HALF: start_batch(self.model, cut, batch, self.meters(), kind=self.kind)}
        with in_float32(self.model):
            self._running[FULL] = start_batch(self.model, cut, batch, self.meters(), kind=self.kind)

    def changes(self) -> Table:
        """Relative change of every metric between the two passes, per state or layer."""
        by_metric = {name: running.records() for name, running in self._running.items()}
        for name, records in by_metric.items():
            if not self.sink.has(name):
                self.sink.write(name, records)
        if by_metric and self._key is not None:
            _ran[self.model.network] = self._key, by_metric
        return _changes(self._table(HALF), self._table(FULL))

    def _what(self) -> Any:
        """What the passes depend on; None where a change of the weights could not be seen."""
        versions = weight_versions(self.model.network)
        cut = tuple(prompt.ids for prompt in beginnings(self.prompts).samples[:SAMPLES])
        meters = self.meters()
        values = [value for meter in meters for value in vars(meter).values()]
        if versions is None or any(isinstance(value, torch.Tensor) for value in values):
            return None
        return versions, self.kind, cut, tuple(map(repr, meters))

    def tokens(self) -> list[int]:
        """Length of each prompt that was run twice."""
        lengths = beginnings(self.prompts).lengths
        return [lengths[sample] for sample in sorted(self.sink.read(FULL))]

    def _table(self, name: str) -> Table:
        meters = self.meters()
        gather(meters, self.sink.read(name))
        table: Table = {}
        for meter in meters:
            table |= meter.compute()
        return table


def _changes(half: Table, full: Table) -> Table:
    out: Table = {}
    for name in sorted(half.keys() & full.keys()):
        axes, value = half[name]
        if "token" in axes or "rank" in axes or value.dtype.kind != "f" or name.startswith("kept/"):
            continue
        reference = full[name][1]
        over = tuple(i for i, axis in enumerate(axes) if axis == "sample")
        with np.errstate(invalid="ignore", divide="ignore"):
            change = np.abs(value - reference).mean(axis=over) / np.abs(reference).mean(axis=over)
        out[f"float32_change/{name}"] = (tuple(a for a in axes if a != "sample"), np.asarray(change))
    return out


@contextmanager
def in_float32(model: Model) -> Iterator[None]:
    """Widen the weights for a while. The way back is exact, since every half-precision number is a float32 one."""
    tensors = [*model.network.parameters(), *model.network.buffers()]
    kinds = [tensor.dtype for tensor in tensors]
    try:
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.float32)
        yield
    finally:
        for tensor, kind in zip(tensors, kinds, strict=True):
            tensor.data = tensor.data.to(kind)
