"""How far half precision moves the numbers: one batch again in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from repflow.capture.run import Records, Sink, batch_name, gather, out_of_memory, run_batch
from repflow.metrics.meter import Meter, Table
from repflow.models import Model
from repflow.tasks import Prompts

CHECK = "float32-check"


def precision_changes(
    model: Model,
    prompts: Prompts,
    batch: tuple[int, ...],
    meters: Callable[[], Sequence[Meter]],
    sink: Sink,
    kind: str,
) -> Table:
    """Relative change of every metric on one batch when it is rerun in float32, per state or layer.

    Where the wider weights leave no room for the whole batch, its first samples stand for it.
    """
    if not sink.has(CHECK):
        with in_float32(model):
            sink.write(CHECK, _run_fitting(model, prompts, batch, meters, kind))
    full = sink.read(CHECK)
    half = {sample: record for sample, record in sink.read(batch_name(batch)).items() if sample in full}
    return _changes(_table(meters(), half), _table(meters(), full))


def _run_fitting(
    model: Model, prompts: Prompts, batch: tuple[int, ...], meters: Callable[[], Sequence[Meter]], kind: str
) -> Records:
    while True:
        try:
            return run_batch(model, prompts, batch, meters(), kind=kind)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(batch) == 1:
                raise
            batch = batch[: len(batch) // 2]


def _table(meters: Sequence[Meter], records: Records) -> Table:
    gather(meters, records)
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
