"""What a meter is: it sees every state of a batch once, keeps a small record per sample, and merges with its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from repflow.core.errors import InputError, RepflowError, out_of_memory, teach
from repflow.metrics.drop import DEFAULT_DROP

Record = dict[str, np.ndarray]
"""Arrays of one sample, without the sample axis."""
Table = dict[str, tuple[tuple[str, ...], np.ndarray]]
"""Finished metrics: name → (axes, array)."""

POSITIONS = 256
"""Most token positions a result keeps for every sample; longer prompts are pooled."""
UNPOOLED = 4
"""The first positions, where sinks sit, are never pooled."""


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor to the device; a copy from pageable memory would wait for all work queued on a GPU."""
    if device.type == "cuda" and not tensor.is_cuda and tensor.numel():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class BatchInfo:
    """One right-padded batch.

    Attributes:
        samples: sample ids, one per row.
        lengths: real tokens of each row.
        bos: per row, whether its first token is the model's beginning-of-sequence token.
    """

    samples: tuple[int, ...]
    lengths: tuple[int, ...]
    bos: tuple[bool, ...] = ()

    def mask(self, token: int, device: torch.device) -> Tensor:
        """Real tokens (batch, token)."""
        lengths = on_device(torch.tensor(self.lengths), device)
        return torch.arange(token, device=device) < lengths[:, None]


@dataclass(frozen=True)
class MeterSetting:
    """What a meter may know of a run before it starts.

    Attributes:
        metrics: Requested metrics; a meter sees those that the catalogue says it computes.
        states: States that will come, per batch.
        positions: Tokens of the longest prompt.
        keep: Sample ids whose per-token values are kept.
        group: States that may be reduced together.
        drop: Rule for the second, sink-free set of values.
        grid: Steps of the matched depth; None without.
        embedding: Whether the first state is the embedding.
        unbiased: Which estimator CKA uses.
    """

    metrics: tuple[str, ...]
    states: int
    positions: int
    keep: frozenset[int] = frozenset()
    group: int = 1
    drop: str = DEFAULT_DROP
    grid: int | None = None
    embedding: bool = True
    unbiased: bool = True

    def only(self, metrics: Iterable[str]) -> MeterSetting:
        """The same for these metrics alone."""
        return replace(self, metrics=tuple(metrics))


@dataclass
class Meter(ABC):
    """Streaming form of one or more metrics.

    `begin` a batch, `update` with each state in order, `end` it; then `compute`. Meters of the same settings that saw
    disjoint samples `merge`. Subclasses fill `records` in `end`.

    Attributes:
        deferrable: whether the next batch may start before `end` (with another meter), since nothing large is held.
        restartable: whether a batch that failed in `end` may be restarted with fresh meters.
        free: settings that say how a record is made, not what is in it; they may differ between meters that merge.
    """

    deferrable: ClassVar[bool] = False
    restartable: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ()

    records: dict[int, Record] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def for_run(cls, setting: MeterSetting) -> Meter:
        """A meter for one batch of a run; a meter with settings of its own takes them from `setting`."""
        return cls()

    @abstractmethod
    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""

    @abstractmethod
    def update(self, state: int, hidden: Tensor) -> None:
        """Take state number `state` (batch, token, width)."""

    def final_norm(self, hidden: Tensor) -> None:  # noqa: B027  most meters have no use for it
        """Take the output of the final norm (batch, token, width), after the last state."""

    def close(self) -> None:  # noqa: B027  only meters that are worth overlapping need it
        """All states are in: start bringing the batch's numbers to the CPU. `end` does it otherwise."""

    @abstractmethod
    def end(self) -> None:
        """Finish the batch: one record per sample."""

    def absorb(self) -> None:  # noqa: B027  only meters with sums over samples need it
        """Take the records that are there into sums over samples, before all are: the rest is done by `compute`."""

    @abstractmethod
    def compute(self) -> Table:
        """Metrics over all samples seen, in the order of their ids."""

    def ordered(self) -> list[Record]:
        """Records of all samples seen, in the order of their ids."""
        if not self.records:
            raise InputError(teach("at least one sample", "none", "update the meter before compute()"))
        return [self.records[sample] for sample in sorted(self.records)]

    def merge(self, other: Meter) -> None:
        """Take over the samples of another meter of the same settings; the two must have seen different ones."""
        twice = sorted(self.records.keys() & other.records.keys())
        if type(other) is not type(self) or twice:
            raise InputError(
                teach(
                    "a meter of the same kind over other samples",
                    f"{type(other).__name__} sharing samples {twice[:5]}",
                    "merge meters of disjoint samples",
                )
            )
        for entry in fields(self):
            mine, its = getattr(self, entry.name), getattr(other, entry.name)
            if entry.init and entry.name not in self.free and not _same(mine, its):
                got = f"{entry.name} = {_shown(mine)} and {_shown(its)}"
                raise InputError(teach("meters of the same settings", got, "build both meters with the same settings"))
        self.records.update(other.records)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a.cpu(), b.cpu())
    return bool(a == b)


def _shown(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.80}"


class HostCopy:
    """Many small tensors on their way to the CPU: one copy per dtype, since each costs a round trip.

    From a GPU the copy runs behind the work already queued, into pinned memory, and the next batch can be queued
    behind it; `arrays` waits for this copy alone.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
        self._flat: dict[torch.dtype, Tensor] = {}
        for dtype in {tensor.dtype for tensor in tensors.values()}:
            flat = torch.cat([t.detach().reshape(-1) for t in tensors.values() if t.dtype == dtype])
            if flat.is_cuda:
                flat = torch.empty(flat.shape, dtype=dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._flat[dtype] = flat.cpu()
        on_gpu = any(tensor.is_cuda for tensor in tensors.values())
        self._done: Any = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self._done is not None:
            self._done.record()

    def arrays(self) -> Record:
        """The tensors as NumPy arrays."""
        if self._done is not None:
            self._done.synchronize()
        start = dict.fromkeys(self._flat, 0)
        out: Record = {}
        for name, (dtype, shape) in self._shapes.items():
            part = self._flat[dtype][start[dtype] : start[dtype] + shape.numel()]
            # a view would hold on to the pinned memory; NumPy copies without waking torch's threads
            out[name] = part.view(shape).numpy().copy()
            start[dtype] += shape.numel()
        return out


def stack_samples(records: Sequence[Record], name: str, sample_axis: int) -> np.ndarray:
    """Stack one array over samples; a shorter last axis (fewer tokens) is filled up with NaN."""
    arrays = [record[name] for record in records]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        longest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        dtype = np.result_type(arrays[0].dtype, np.float32)
        padded = [np.full(longest, np.nan, dtype=dtype) for _ in arrays]
        for full, array in zip(padded, arrays, strict=True):
            full[tuple(slice(size) for size in array.shape)] = array
        arrays = padded
    return np.stack(arrays, axis=sample_axis)


def position_bins(tokens: int) -> np.ndarray:
    """First position of each pooled bin: every position up to 256, beyond that the first four and 252 equal spans.

    >>> position_bins(6)
    array([0, 1, 2, 3, 4, 5])
    >>> len(position_bins(5000)), position_bins(5000)[:6]
    (256, array([ 0,  1,  2,  3,  4, 23]))
    """
    if tokens <= POSITIONS:
        return np.arange(tokens)
    spans = POSITIONS - UNPOOLED
    rest = UNPOOLED + np.arange(spans) * (tokens - UNPOOLED) // spans
    return np.concatenate([np.arange(UNPOOLED), rest])


def pool_positions(values: Tensor, bins: np.ndarray, mask: Tensor) -> Tensor:
    """Mean over the real tokens of each bin: (..., batch, token) → (..., batch, bin); NaN where a bin has none."""
    token = values.shape[-1]
    index = torch.from_numpy(np.searchsorted(bins, np.arange(token), side="right") - 1)
    index = on_device(index, values.device)
    shape = (*values.shape[:-1], len(bins))
    total = torch.zeros(shape, dtype=values.dtype, device=values.device)
    total.index_add_(-1, index, torch.where(mask, values, 0))
    count = torch.zeros(*mask.shape[:-1], len(bins), dtype=values.dtype, device=values.device)
    count.index_add_(-1, index, mask.to(values.dtype))
    return total / count.masked_fill(count == 0, torch.nan)


def _call(name: str, function: Callable[[Tensor], Any], hidden: Tensor, sample: int) -> Any:
    """Apply a user's function; what goes wrong inside it is reported with its name."""
    try:
        return function(hidden)
    except Exception as error:
        if out_of_memory(error):
            raise
        shape = f"hidden (state, token, width) = {tuple(hidden.shape)}"
        text = f"metric {name!r} failed on sample {sample} with {shape}: {type(error).__name__}: {error}; fix it"
        raise RepflowError(text) from error


def _check_axes(name: str, axes: tuple[str, ...], array: np.ndarray, hidden: Tensor) -> None:
    """One dimension per axis, and as long as the states say."""
    state, token, width = hidden.shape
    sizes = {"state": state, "layer": state - 1, "token": token, "width": width}
    wrong = array.ndim != len(axes)
    wrong = wrong or any(sizes.get(axis, size) != size for axis, size in zip(axes, array.shape, strict=True))
    if wrong:
        expected = ", ".join(f"{axis} = {sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise InputError(
            teach(f"metric {name!r} with axes ({expected})", f"shape {array.shape}", "declare the axes it returns")
        )


@dataclass
class HeldMeter(Meter):
    """Any function of one sample's states, at the price of holding all states of a batch: for opt-in metrics.

    Attributes:
        functions: name → (axes without the sample axis, function of hidden (state, token, width)).
    """

    functions: Mapping[str, tuple[tuple[str, ...], Callable[[Tensor], Tensor | np.ndarray | float]]]

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch, self._states = batch, list[Tensor]()

    def update(self, state: int, hidden: Tensor) -> None:
        """Keep a reference to the state."""
        self._states.append(hidden)

    def end(self) -> None:
        """Apply the functions to each sample's real tokens."""
        for row, (sample, length) in enumerate(zip(self._batch.samples, self._batch.lengths, strict=True)):
            hidden = torch.stack([state[row, :length] for state in self._states])
            hidden = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
            record = {}
            for name, (axes, function) in self.functions.items():
                value = _call(name, function, hidden, sample)
                array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
                _check_axes(name, axes, array, hidden)
                record[name] = array
            self.records[sample] = record
        self._states = []

    def compute(self) -> Table:
        """Stack the samples; the sample axis follows the state and layer axes."""
        records = self.ordered()
        table: Table = {}
        for name, (axes, _) in self.functions.items():
            at = sum(axis in ("state", "layer") for axis in axes)
            table[name] = ((*axes[:at], "sample", *axes[at:]), stack_samples(records, name, at))
        return table
