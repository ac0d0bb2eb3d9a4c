"""RunSink: capture's records in a run folder, one shard per batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.store import RunFolder

if TYPE_CHECKING:
    from repflow.capture import Plan
    from repflow.capture.run import Records
    from repflow.studies.engine.cell import Share


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


class ShareSink(RunSink):
    """A sink that takes batches of other shares for done, so that a run over all of them computes its own alone.

    Args:
        run: the folder of the share.
        share: which.
    """

    def __init__(self, run: RunFolder, share: Share) -> None:
        super().__init__(run)
        self._share = share
        self._mine: frozenset[int] = frozenset()

    def plan(self, fresh: Callable[[], Plan]) -> Plan:
        """The plan of all prompts, the same in every share."""
        plan = super().plan(fresh)
        self._mine = first_prompts(self.run.events("plan")[0], self._share)
        return plan

    def has(self, name: str) -> bool:
        """True for what is stored, and for batches that are not this share's."""
        return super().has(name) or (name.startswith(BATCH) and first_prompt(name) not in self._mine)


BATCH = "batch-"


def first_prompt(batch: str) -> int:
    """The prompt that a batch begins with, from its name.

    >>> first_prompt("batch-000003-2")
    3
    """
    return int(batch.split("-")[1])


def first_prompts(plan: Mapping[str, Any], share: Share) -> frozenset[int]:
    """Prompts of the batches that are a share's, as planned: batches that were halved since begin with one of them."""
    from repflow.capture import Plan

    batches = enumerate(Plan.from_json(plan).batches)
    return frozenset(prompt for place, batch in batches if share.has(place) for prompt in batch)
