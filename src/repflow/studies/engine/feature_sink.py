"""FeatureSink: features in a run folder, a shard per batch whose states are contiguous, read back memory-mapped."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from repflow.capture.run import BatchSink, MemorySink, Sink
from repflow.store import RunFolder
from repflow.studies.engine.sink import RunSink, first_prompt, first_prompts

if TYPE_CHECKING:
    from repflow.capture import Plan
    from repflow.capture.features import FeatureShard
    from repflow.capture.run import Records
    from repflow.studies.engine.cell import Share


READERS = min(8, os.cpu_count() or 1)
"""Shards whose digests are checked side by side."""


@runtime_checkable
class PartSink(BatchSink, Protocol):
    """What `run_plan` needs to keep batches of features, and the way back to them."""

    def shards(self, names: Sequence[str]) -> list[FeatureShard]:
        """Batches as they are probed."""


@runtime_checkable
class Keeper(Sink, Protocol):
    """A sink with a part for the features of each model, or its twin, under one seed of prompts."""

    def features(self, part: str) -> PartSink:
        """Sink for the batches of one part."""


class RunKeeper(RunSink):
    """Keeps everything in a run folder.

    Args:
        run: the folder, open for writing.
        total: prompts of the whole study, for `repflow list`.
        share: the part of the batches that is to be computed; None for all.
    """

    def __init__(self, run: RunFolder, total: int, share: Share | None = None) -> None:
        super().__init__(run)
        self.total, self.share = total, share

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Store a shard that holds no prompts of its own, unless `meta` says which."""
        super().keep(name, arrays, meta or {"samples": []})

    def features(self, part: str) -> PartSink:
        """Sink for one part."""
        return _RunPart(self.run, part, self.total, self.share)


@contextmanager
def passing_keeper(total: int) -> Iterator[RunKeeper]:
    """Keeps features that memory is too small for in a run folder that goes away."""
    with (
        tempfile.TemporaryDirectory(prefix="repflow-") as folder,
        RunFolder.open(Path(folder), "features", config={}, provenance={}) as run,
    ):
        yield RunKeeper(run, total)


@dataclass
class _RunPart:
    run: RunFolder
    part: str
    total: int
    share: Share | None = None

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        from repflow.capture import Plan

        stored = [event for event in self.run.events("plan") if event["part"] == self.part]
        if not stored:
            plan = fresh()
            self.run.record("plan", plan.to_json() | {"part": self.part, "samples": self.total})
            return plan
        plan = Plan.from_json(stored[0])
        for split in self.run.events("split"):
            if split["part"] == self.part:
                plan = plan.split(split["batch"], split["size"])
        return plan

    def split(self, batch: int, size: int) -> None:
        self.run.record("split", {"part": self.part, "batch": batch, "size": size})

    def has(self, name: str) -> bool:
        return self.run.has_shard(f"{self.part}-{name}") or first_prompt(name) not in self._mine

    @cached_property
    def _mine(self) -> Container[int]:
        """Prompts that batches of this share begin with, once there is a plan."""
        if self.share is None:
            return range(self.total)
        plan = next(event for event in self.run.events("plan") if event["part"] == self.part)
        return first_prompts(plan, self.share)

    def write(self, name: str, records: Records) -> None:
        from repflow.capture.features import FeatureShard

        shard = FeatureShard.from_records({sample: record for sample, (record,) in records.items()})
        self.run.write_shard(f"{self.part}-{name}", shard.arrays, {"samples": list(shard.samples)})

    def read(self, name: str) -> Records:
        (shard,) = self.shards([name])
        return _records(shard)

    def shards(self, names: Sequence[str]) -> list[FeatureShard]:
        from repflow.capture.features import FeatureShard

        full = [f"{self.part}-{name}" for name in names]
        with ThreadPoolExecutor(READERS) as pool:  # reading and digests leave the interpreter's lock alone
            mapped = pool.map(self.run.map_shard, full)
            return [
                FeatureShard(tuple(self.run.shard_meta(name)["samples"]), arrays)
                for name, arrays in zip(full, mapped, strict=True)
            ]


@dataclass
class MemoryKeeper(MemorySink):
    """Keeps everything in this process.

    Attributes:
        sinks: batches by part; a second study of the same prompts, for another label, may be given those of a first.
    """

    sinks: dict[str, PartSink] = field(default_factory=dict)

    def features(self, part: str) -> PartSink:
        """Sink for one part."""
        return self.sinks.setdefault(part, _MemoryPart())


@dataclass
class _MemoryPart:
    kept: dict[str, FeatureShard] = field(default_factory=dict)

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        return fresh()

    def split(self, batch: int, size: int) -> None:
        pass

    def has(self, name: str) -> bool:
        return name in self.kept

    def write(self, name: str, records: Records) -> None:
        from repflow.capture.features import FeatureShard

        self.kept[name] = FeatureShard.from_records({sample: record for sample, (record,) in records.items()})

    def read(self, name: str) -> Records:
        return _records(self.kept[name])

    def shards(self, names: Sequence[str]) -> list[FeatureShard]:
        return [self.kept[name] for name in names]


def _records(shard: FeatureShard) -> Records:
    return {
        sample: [{name: np.asarray(array[:, place]) for name, array in shard.arrays.items()}]
        for place, sample in enumerate(shard.samples)
    }
