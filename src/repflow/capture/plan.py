"""Batch plan: which samples run together. Fixed before the first batch, so that a resumed run repeats it exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repflow.core.errors import InputError, teach
from repflow.metrics.flow import HELD_STATES, meter_bytes

BATCH_TOKENS = 16_384
"""Tokens in a batch when the user names no batch size: enough to keep the machine busy, little enough for a laptop."""
MAX_GROUP = 8
"""States reduced together at most: beyond this the running sums no longer dominate the traffic."""


@dataclass(frozen=True)
class Plan:
    """Sample ids per batch, in running order.

    Attributes:
        batches: sample ids of each batch; samples of like length run together.
        group: states the meter reduces together.
    """

    batches: tuple[tuple[int, ...], ...]
    group: int = 1

    def to_json(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        samples = sum(len(batch) for batch in self.batches)
        return {"batches": [list(batch) for batch in self.batches], "group": self.group, "samples": samples}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Rebuild a plan from the manifest."""
        return cls(tuple(tuple(batch) for batch in data["batches"]), int(data["group"]))

    def split(self, batch: int, size: int) -> Plan:
        """Cut this batch and every later one into pieces of at most `size` samples, after out-of-memory."""
        pieces = [b[i : i + size] for b in self.batches[batch:] for i in range(0, len(b), size)]
        return Plan((*self.batches[:batch], *pieces), self.group)


def make_plan(
    lengths: Sequence[int],
    *,
    width: int,
    itemsize: int,
    batch_size: int | None = None,
    meter_memory: int | None = None,
    direction: bool = False,
    grid: bool = False,
    printed: bool = False,
    grouped: bool = False,
) -> Plan:
    """Group samples of like length and choose a batch size that respects the meter's memory.

    Args:
        lengths: tokens of each sample.
        width: channels of a state.
        itemsize: bytes of one entry of a state.
        batch_size: samples per batch; None takes as many as BATCH_TOKENS holds.
        meter_memory: bytes the meters may take on top of the model; None means six states of one batch at twice their
            precision, float32 at least.
        direction: whether the direction metrics are measured.
        grid: whether the metrics over matched depth are.
        printed: whether Eq. 3 and 4 as printed are.
        grouped: whether to reduce as many states together as the memory allows; pays on a GPU.
    """
    longest = max(lengths)
    extra = {"direction": direction, "grid": grid, "printed": printed}
    size = batch_size if batch_size is not None else max(1, min(len(lengths), BATCH_TOKENS // longest))
    if size < 1:
        raise InputError(teach("a batch size of at least 1", f"{size}", "pass --batch-size 1 or more"))
    if meter_memory is not None:
        size = min(size, _fitting_samples(longest, width, itemsize, meter_memory, extra))
    budget = meter_memory if meter_memory is not None else HELD_STATES * size * longest * width * max(4, 2 * itemsize)
    group = 1
    while grouped and group < MAX_GROUP:
        if meter_bytes(size, longest, width, itemsize, group + 1, **extra) > budget:
            break
        group += 1
    # longest first: out-of-memory shows at once, and padding stays small
    order = sorted(range(len(lengths)), key=lambda sample: (-lengths[sample], sample))
    return Plan(tuple(tuple(sorted(order[i : i + size])) for i in range(0, len(order), size)), group)


def _fitting_samples(token: int, width: int, itemsize: int, budget: int, extra: dict[str, bool]) -> int:
    one = meter_bytes(1, token, width, itemsize, 1, **extra)
    if one > budget:
        raise InputError(
            teach(
                f"--meter-memory of at least {-(-one // 2**20)} MiB for one sample of {token} tokens and width {width}",
                f"{budget / 2**20:.0f} MiB",
                "raise it or shorten the prompts",
            )
        )
    return budget // one
