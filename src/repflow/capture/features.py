"""Features for probes: one vector per prompt and state, taken while the model runs, read back one state at a time.

| reading | vector |
|---|---|
| `last` | the last prompt token, which has seen everything |
| `mean` | the mean over the prompt's real tokens |
| `0.25` | the token at a quarter of the prompt: index round(0.25 (length - 1)), `1` is `last` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from repflow.metrics.meter import BatchInfo, HostCopy, Meter, Record, Table, on_device, stack_samples

FINAL = "final_norm/"
BITS = ":bfloat16"
"""Ends the name of an array that holds the bits of bfloat16 numbers, which NumPy does not know, as uint16."""


def token_index(reading: str, length: int) -> int:
    """Token that a reading takes from a prompt of this many tokens.

    >>> token_index("last", 9), token_index("0.25", 9), token_index("0", 9)
    (8, 2, 0)
    """
    return length - 1 if reading == "last" else round(float(reading) * (length - 1))


@dataclass
class FeatureMeter(Meter):
    """Takes some rows of every state, and copies them to the CPU once per batch.

    Attributes:
        readings: what to take of a prompt, see the head of this file.
    """

    deferrable: ClassVar[bool] = True

    readings: tuple[str, ...] = ("last",)
    _taken: dict[str, list[Tensor]] = field(default_factory=dict, init=False, repr=False)

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch = batch
        self._taken = {}
        self._rows: dict[torch.device, Tensor] = {}  # a model may be spread over several devices
        self._columns: dict[tuple[str, torch.device], Tensor] = {}

    def update(self, state: int, hidden: Tensor) -> None:
        """Take the rows of one state."""
        self._take("", hidden)

    def final_norm(self, hidden: Tensor) -> None:
        """Take the same rows of the final norm's output, kept apart."""
        self._take(FINAL, hidden)

    def _take(self, prefix: str, hidden: Tensor) -> None:
        for reading in self.readings:
            self._taken.setdefault(prefix + reading, []).append(self._read(reading, hidden))

    def _read(self, reading: str, hidden: Tensor) -> Tensor:
        if reading == "mean":
            return _mean(hidden, self._batch.lengths)
        device = hidden.device
        if device not in self._rows:
            self._rows[device] = torch.arange(len(self._batch.lengths), device=device)
        if (reading, device) not in self._columns:
            index = torch.tensor([token_index(reading, length) for length in self._batch.lengths])
            self._columns[reading, device] = on_device(index, device)
        return hidden[self._rows[device], self._columns[reading, device]]

    def close(self) -> None:
        """Start the copy of the batch's rows: (state, batch, width) for every reading."""
        stacked = {}
        for name, states in self._taken.items():
            rows = torch.stack([state.to(states[0].device) for state in states])
            bits = rows.dtype == torch.bfloat16
            # int16 on the device, since torch can do little with uint16
            stacked[name + BITS if bits else name] = rows.view(torch.int16) if bits else rows
        self._taken = {}
        self._copy = HostCopy(stacked)

    def end(self) -> None:
        """One record per sample: (state, width) for every reading."""
        arrays = {
            name: array.view(np.uint16) if name.endswith(BITS) else array for name, array in self._copy.arrays().items()
        }
        for row, sample in enumerate(self._batch.samples):
            self.records[sample] = {name: array[:, row] for name, array in arrays.items()}

    def compute(self) -> Table:
        """All features (state, sample, width), in memory."""
        records = self.ordered()
        return {
            name.removesuffix(BITS): (("state", "sample", "width"), widened(name, stack_samples(records, name, 1)))
            for name in records[0]
        }


def _mean(hidden: Tensor, lengths: tuple[int, ...]) -> Tensor:
    """Mean over real tokens (batch, width), in float32 at least; padding may hold anything, so it is never touched."""
    wide = torch.promote_types(hidden.dtype, torch.float32)
    if all(length == hidden.shape[1] for length in lengths):
        return hidden.mean(1, dtype=wide)
    return torch.stack([hidden[row, :length].mean(0, dtype=wide) for row, length in enumerate(lengths)])


def widened(name: str, array: np.ndarray) -> np.ndarray:
    """Numbers of a stored array in float32 at least.

    >>> widened("last:bfloat16", np.array([0x3F80, 0xC000], dtype=np.uint16))
    array([ 1., -2.], dtype=float32)
    """
    if name.endswith(BITS):
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype == np.float16 else array


@dataclass(frozen=True)
class FeatureShard:
    """Features of one batch.

    Attributes:
        samples: sample ids.
        arrays: name of the reading → (state, sample, width); may be mapped from a file.
    """

    samples: tuple[int, ...]
    arrays: Mapping[str, np.ndarray]

    @classmethod
    def from_records(cls, records: Mapping[int, Record]) -> FeatureShard:
        """Join the records of a batch, so that a state's rows are contiguous."""
        samples = tuple(sorted(records))
        names = records[samples[0]].keys()
        return cls(samples, {name: np.stack([records[s][name] for s in samples], axis=1) for name in names})


class StoredFeatures:
    """Features of many batches, one state at a time: only the requested state is in memory.

    Implements `repflow.probes.Features`.

    Attributes:
        n_states: states, over all requested names.
        n_samples: prompts.
        width: channels.
        dtype: of the states as the model has them; `state` widens them to float32.
    """

    def __init__(self, shards: Sequence[FeatureShard], names: Sequence[str]) -> None:
        """Join shards.

        Args:
            shards: they hold each sample from 0 on once.
            names: readings; several are concatenated along the states, as with `final_norm/last`.
        """
        samples = np.concatenate([shard.samples for shard in shards])
        assert sorted(samples) == list(range(len(samples))), "every sample once"
        self._shards = shards
        self._places = [np.asarray(shard.samples) for shard in shards]
        first = shards[0].arrays
        self._stored = [name + BITS if name + BITS in first else name for name in names]
        self._counts = [first[name].shape[0] for name in self._stored]
        kinds = {
            torch.bfloat16 if n.endswith(BITS) else torch.from_numpy(np.empty(0, first[n].dtype)).dtype
            for n in self._stored
        }
        self.dtype = next(iter(kinds)) if len(kinds) == 1 else torch.float32
        self.n_states = sum(self._counts)
        self.n_samples = len(samples)
        self.width = int(first[self._stored[0]].shape[-1])

    def state(self, index: int) -> Tensor:
        """Features of one state (sample, width), float32, in the order of the sample ids."""
        return torch.from_numpy(self.array(index))

    def array(self, index: int) -> np.ndarray:
        """The same as an array."""
        part = 0
        while index >= self._counts[part]:
            index -= self._counts[part]
            part += 1
        name = self._stored[part]
        out = np.empty((self.n_samples, self.width), dtype=np.float32)
        for shard, places in zip(self._shards, self._places, strict=True):
            out[places] = widened(name, shard.arrays[name][index])
        return out
