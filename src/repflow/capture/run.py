"""Run a model over a plan: one forward pass per batch, each state to the meters, records to a sink."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from repflow.capture.forecast import warn_of_batches
from repflow.capture.plan import Plan
from repflow.core.errors import OutOfMemoryError, out_of_memory, teach, words_of
from repflow.core.seconds import phase, timed
from repflow.metrics.meter import BatchInfo, Meter, Record
from repflow.models import Model
from repflow.tasks import Prompts

Progress = Callable[[int, int, int], None]
"""Called with samples done, samples in total, tokens done."""
MeterFactory = Callable[[], Sequence[Meter]]
Records = dict[int, list[Record]]
"""Per sample, one record for each meter."""


@runtime_checkable
class BatchSink(Protocol):
    """Keeps the records of finished batches: in memory, or in a run folder."""

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        """Return the stored plan with its splits, or store and return a fresh one."""

    def split(self, batch: int, size: int) -> None:
        """Note that batches from this one on were cut to `size` samples."""

    def has(self, name: str) -> bool:
        """True when records are kept under this name."""

    def write(self, name: str, records: Records) -> None:
        """Keep records under a new name."""

    def read(self, name: str) -> Records:
        """Records kept under this name."""


@runtime_checkable
class Sink(BatchSink, Protocol):
    """Where a study keeps what it has finished: records of batches, and arrays by name."""

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Keep arrays under a new name; `meta` says what they are, such as the `samples` they belong to."""

    def load(self, name: str) -> dict[str, np.ndarray]:
        """Arrays kept under this name."""

    def meta(self, name: str) -> dict[str, Any]:
        """What was said of them."""

    def announce(self, total: int, **facts: Any) -> None:
        """Note how many prompts there are in total, for lists of runs."""


@dataclass
class MemorySink:
    """Keeps records in this process."""

    kept: dict[str, Records] = field(default_factory=dict)
    arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        """Make the plan."""
        return fresh()

    def split(self, batch: int, size: int) -> None:
        """Nothing to remember."""

    def has(self, name: str) -> bool:
        """True when it is stored."""
        return name in self.kept or name in self.arrays

    def write(self, name: str, records: Records) -> None:
        """Keep the records."""
        self.kept[name] = records

    def read(self, name: str) -> Records:
        """Return the records."""
        return self.kept[name]

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Keep the arrays."""
        self.arrays[name] = dict(sorted(arrays.items()))
        self.said[name] = dict(meta or {})

    def load(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays."""
        return self.arrays[name]

    def meta(self, name: str) -> dict[str, Any]:
        """Return their `meta`."""
        return self.said[name]

    def announce(self, total: int, **facts: Any) -> None:
        """No listing shows this process."""


def run_plan(
    model: Model,
    prompts: Prompts,
    plan: Plan,
    meters: MeterFactory,
    sink: BatchSink,
    *,
    kind: str = "residual",
    progress: Progress | None = None,
    at_last: Callable[[], None] | None = None,
) -> Plan:
    """Run every batch that the sink does not hold yet; returns the plan with its splits.

    On a GPU the records of a batch are copied and written while the next batch already runs. `at_last` is called
    when the last batch is launched and before its records are waited for.
    """
    warn_of_batches(model, plan.batches, prompts.lengths, plan.group)
    with Writer(sink, behind=model.device.type == "cuda") as writer:
        return _run_batches(model, prompts, plan, meters, writer, kind=kind, progress=progress, at_last=at_last)


def _run_batches(
    model: Model,
    prompts: Prompts,
    plan: Plan,
    meters: MeterFactory,
    writer: Writer,
    *,
    kind: str,
    progress: Progress | None,
    at_last: Callable[[], None] | None,
) -> Plan:
    sink, waiting = writer.sink, list[RunningBatch]()

    def settle(most: int) -> None:
        while len(waiting) > most:
            writer.write(waiting.pop(0))
        if not most:
            writer.wait()

    at = done = tokens = 0
    while at < len(plan.batches):
        batch = plan.batches[at]
        if not sink.has(batch_name(batch)):
            try:
                running = start_batch(model, prompts, batch, meters(), kind=kind)
                overlapped = model.device.type == "cuda" and all(m.deferrable for m in running.meters)
                if not overlapped:
                    running.finish()
            except (RuntimeError, MemoryError) as error:
                settle(0)
                if not out_of_memory(error):
                    raise
                plan = _halve(plan, at, sink, error)
                continue
            waiting.append(running)
            settle(1 if overlapped else 0)
        at += 1
        done += len(batch)
        tokens += sum(prompts.lengths[sample] for sample in batch)
        if progress is not None:
            progress(done, len(prompts), tokens)
    if at_last is not None:
        at_last()
    settle(0)
    return plan


class Writer:
    """Brings a batch's records in and writes them: at once, or behind the launching of the next batch.

    A GPU's batch is over sooner than the host has written 37 MB of features with their digest, waited for the disk and
    launched the next one's kernels; disk and digest leave the interpreter's lock alone. One batch is written at a time,
    in order, and what went wrong is raised by the next call.

    Args:
        sink: keeps the records.
        behind: write in a thread.
    """

    def __init__(self, sink: BatchSink, *, behind: bool) -> None:
        self.sink = sink
        self._pool = ThreadPoolExecutor(1) if behind else None
        self._last: Future[None] | None = None

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def write(self, running: RunningBatch) -> None:
        """Write one batch, once the one before is written."""
        if self._pool is None:
            self._write(running)
            return
        self.wait()
        self._last = self._pool.submit(self._write, running)

    def wait(self) -> None:
        """Until all is written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _write(self, running: RunningBatch) -> None:
        self.sink.write(batch_name(running.batch), running.records())


def _halve(plan: Plan, at: int, sink: BatchSink, error: Exception) -> Plan:
    size = len(plan.batches[at]) // 2
    if size == 0:
        remedy = "use shorter prompts, --dtype bfloat16 or a larger device"
        raise OutOfMemoryError(f"out of memory on a single sample: {words_of(error)}; {remedy}") from error
    sink.split(at, size)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return plan.split(at, size)


@dataclass
class RunningBatch:
    """A batch whose forward pass is launched; on a GPU it may still be computing."""

    batch: tuple[int, ...]
    meters: Sequence[Meter]
    device: torch.device
    _finished: bool = False

    @timed("meters")
    def finish(self) -> None:
        """Let the meters make their records; waits for the device."""
        try:
            with _as_written(self.device):
                for meter in self.meters:
                    meter.end()
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or all(meter.restartable for meter in self.meters):
                raise
            got = f"a batch of {len(self.batch)}"
            remedy = "pass a smaller --batch-size or leave an opt-in metric out"
            raise OutOfMemoryError(teach("room for the meters' sums", f"{got}: {words_of(error)}", remedy)) from error
        self._finished = True

    def records(self) -> Records:
        """Records of its samples, one per meter."""
        if not self._finished:
            self.finish()
        return {sample: [meter.records[sample] for meter in self.meters] for sample in self.batch}


def run_batch(
    model: Model, prompts: Prompts, batch: tuple[int, ...], meters: Sequence[Meter], *, kind: str = "residual"
) -> Records:
    """One forward pass; the records of its samples, one per meter."""
    return start_batch(model, prompts, batch, meters, kind=kind).records()


def start_batch(
    model: Model, prompts: Prompts, batch: tuple[int, ...], meters: Sequence[Meter], *, kind: str = "residual"
) -> RunningBatch:
    """Launch one forward pass with its meters."""
    ids, mask = pad(prompts, batch)
    info = BatchInfo(batch, tuple(prompts.lengths[s] for s in batch), tuple(prompts.samples[s].begins for s in batch))
    for meter in meters:
        meter.begin(info)

    def on_state(state: int, hidden: Tensor) -> None:
        with phase("meters"), _as_written(hidden.device):
            for meter in meters:
                meter.update(state, hidden)

    def on_final_norm(hidden: Tensor) -> None:
        with phase("meters"), _as_written(hidden.device):
            for meter in meters:
                meter.final_norm(hidden)

    final = on_final_norm if kind == "residual" else None
    model.stream(ids, mask, kind=kind, on_state=on_state, on_final_norm=final)
    with _as_written(model.device):
        for meter in meters:
            meter.close()
    return RunningBatch(batch, meters, model.device)


def _as_written(device: torch.device) -> torch.autocast:
    """Context in which meters compute in their own precision, where a model in training is read under autocast."""
    return torch.autocast(device.type, enabled=False)


def pad(prompts: Prompts, batch: Sequence[int]) -> tuple[Tensor, Tensor | None]:
    """Right-padded ids (batch, token) and their mask; None when nothing is padded.

    Padding repeats the last real id: any id will do after a causal model's last token, and that one is surely in the
    vocabulary.
    """
    rows = [np.asarray(prompts.samples[sample].ids) for sample in batch]
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    ids = torch.from_numpy(np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows]))
    padded = bool((lengths < longest).any())
    return ids, torch.arange(longest) < lengths[:, None] if padded else None


def batch_name(batch: tuple[int, ...]) -> str:
    """Name of a batch's records.

    >>> batch_name((3, 4, 9))
    'batch-000003-3'
    """
    return f"batch-{batch[0]:06d}-{len(batch)}"


def gather(meters: Sequence[Meter], records: Records) -> None:
    """Hand stored records back to fresh meters, so that they can compute."""
    for sample, per_meter in records.items():
        for meter, record in zip(meters, per_meter, strict=True):
            meter.records[sample] = record


def collect_states(model: Model, prompts: Prompts, *, kind: str = "residual") -> tuple[Tensor, Tensor, Tensor | None]:
    """All states of a few prompts: hidden (state, batch, token, width), mask (batch, token), final norm."""
    ids, mask = pad(prompts, range(len(prompts)))
    states: list[Tensor] = []
    final: list[Tensor] = []
    model.stream(ids, mask, kind=kind, on_state=lambda _, hidden: states.append(hidden), on_final_norm=final.append)
    hidden = torch.stack([state.to(states[0].device) for state in states])
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return hidden, real.to(hidden.device), final[0] if final else None
