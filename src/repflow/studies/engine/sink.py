"""RunSink: capture's records in a run folder, one shard per batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.store import RunFolder

if TYPE_CHECKING:
    from repflow.capture import Plan
    from repflow.capture.run import Records


class RunSink:
    """Keeps plan, splits and records of a run on disk, so that a killed run resumes."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        """The plan of the first start, with the splits made then; or a fresh one, recorded before the first batch."""
        from repflow.capture import Plan

        stored = self.run.events("plan")
        if not stored:
            plan = fresh()
            self.run.record("plan", plan.to_json())
            return plan
        plan = Plan.from_json(stored[0])
        for split in self.run.events("split"):
            plan = plan.split(split["batch"], split["size"])
        return plan

    def split(self, batch: int, size: int) -> None:
        """Record a split after out-of-memory."""
        self.run.record("split", {"batch": batch, "size": size})

    def has(self, name: str) -> bool:
        """True when the shard is stored."""
        return self.run.has_shard(name)

    def write(self, name: str, records: Records) -> None:
        """Store a shard; keys are SAMPLE:METER:NAME."""
        arrays = {
            f"{sample}:{meter}:{key}": np.asarray(array)
            for sample, per_meter in records.items()
            for meter, record in enumerate(per_meter)
            for key, array in record.items()
        }
        self.run.write_shard(name, arrays, {"samples": sorted(records) if name.startswith("batch-") else []})

    def read(self, name: str) -> Records:
        """Load a shard, its digest checked."""
        records: Records = {}
        for key, array in sorted(self.run.read_shard(name).items()):
            sample, meter, metric = key.split(":", 2)
            per_meter = records.setdefault(int(sample), [])
            while len(per_meter) <= int(meter):
                per_meter.append({})
            per_meter[int(meter)][metric] = array
        return records

    def keep(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Store arrays as a shard."""
        self.run.write_shard(name, arrays, meta or {})

    def load(self, name: str) -> dict[str, np.ndarray]:
        """Load a shard, its digest checked; safetensors gives arrays in any order."""
        return dict(sorted(self.run.read_shard(name).items()))

    def meta(self, name: str) -> dict[str, Any]:
        """What the manifest says of a shard."""
        return self.run.shard_meta(name)

    def announce(self, total: int, **facts: Any) -> None:
        """Note how many prompts there are in total, once."""
        if not self.run.events("plan"):
            self.run.record("plan", {"samples": total, **facts})
