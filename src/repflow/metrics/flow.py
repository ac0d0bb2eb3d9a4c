"""FlowMeter: every default metric from one look at each state, in memory that does not grow with depth.

It holds the last two states, running sums over depth (mean and squared deviations), and per token a few numbers. What
each metric means is defined by the pure functions; here is only the arrangement that gets them all in few reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from repflow.metrics import fused, reduce
from repflow.metrics.drop import DEFAULT_DROP, token_median
from repflow.metrics.meter import (
    BatchInfo,
    HostCopy,
    Meter,
    MeterSetting,
    Record,
    Table,
    pool_positions,
    position_bins,
    stack_samples,
)
from repflow.metrics.reduce import DepthSums, StepNorms
from repflow.metrics.tokens import BatchContext, TokenStats, TokenSums

HELD_STATES = 6
"""States of one batch, at twice their precision and float32 at least, that make the default memory budget."""
TOKEN_BYTES = 512
"""What the per-token work of one state takes on top of the states themselves (probes, products, sums)."""


def meter_bytes(
    batch: int,
    token: int,
    width: int,
    itemsize: int,
    group: int,
    *,
    direction: bool = False,
    grid: bool = False,
    printed: bool = False,
) -> int:
    """Memory the meter takes for a batch when it handles `group` states at a time.

    Args:
        batch: samples.
        token: tokens of the longest.
        width: channels.
        itemsize: bytes of one entry of a state.
        group: states reduced together; the two before them are held as well, but for the newest the model holds itself.
        direction: whether the direction metrics' sums are kept beside those of the states.
        grid: whether those of the matched depth are, with the three points interpolated last.
        printed: whether those without the embedding are, for Eq. 4 as printed.
    """
    sums = 2 + (2 if direction else 0) + (5 if grid else 0) + (2 if printed else 0)
    return batch * token * (width * (sums * 4 + (group + 1) * itemsize) + group * TOKEN_BYTES)


@dataclass
class FlowMeter(Meter):
    """Streaming form of all default metrics.

    Attributes:
        n_states: states that will come, per batch.
        positions: longest prompt of the run, which fixes how token positions are pooled.
        drop: rule for the second, sink-free set of values.
        keep: sample ids whose per-token values are kept unpooled.
        grid: steps of the matched relative-depth grid; None leaves the `matched/` values out.
        group: states reduced together; more means fewer passes over the running sums and more states held.
        direction: also measure `direction_smoothness` and `direction_stability`.
        printed: also measure `paper_smoothness` and `paper_stability`.
        embedding: the first state is the embedding, which Eq. 4 as printed leaves out.
    """

    deferrable: ClassVar[bool] = True
    free: ClassVar[tuple[str, ...]] = ("keep", "group")
    n_states: int
    positions: int
    drop: str = DEFAULT_DROP
    keep: frozenset[int] = frozenset()
    grid: int | None = None
    group: int = 1
    direction: bool = False
    printed: bool = False
    embedding: bool = True
    _across: dict[str, AcrossPrompts] = field(default_factory=dict, init=False, repr=False)
    _absorbed: set[int] = field(default_factory=set, init=False, repr=False)

    @classmethod
    def for_run(cls, setting: MeterSetting) -> FlowMeter:
        """With the costlier sums only where a metric needs them."""
        return cls(
            setting.states,
            setting.positions,
            setting.drop,
            setting.keep,
            setting.grid,
            setting.group,
            direction=any(name.startswith("direction_") for name in setting.metrics),
            printed=any(name.startswith("paper_") for name in setting.metrics),
            embedding=setting.embedding,
        )

    def begin(self, batch: BatchInfo) -> None:
        """Start a batch."""
        self._batch = batch
        self._window: list[Tensor] = []
        self._new = self._seen = 0
        self._read: TokenSums | None = None
        self._inner: Tensor | None = None
        self._final: TokenSums | None = None
        self._raw: DepthSums | None = None
        self._copy: HostCopy | None = None

    def update(self, state: int, hidden: Tensor) -> None:
        """Take the next state; reduce when `group` states wait or the last has come."""
        self._window.append(hidden)
        self._new += 1
        if self._new >= self.group or state == self.n_states - 1:
            self._reduce(last=state == self.n_states - 1)

    def final_norm(self, hidden: Tensor) -> None:
        """Measure the final norm's output apart from the states."""
        norm = torch.linalg.vector_norm(hidden, dim=-1, dtype=torch.promote_types(hidden.dtype, torch.float32))
        self._final = TokenSums.of([hidden], norm[None], self._about, self.drop)

    def _start(self, like: Tensor) -> None:
        """Make what the batch needs; not before the first reduction, when a GPU already has work to do meanwhile."""
        self._about = BatchContext.of(self._batch, like, self.keep)
        self._raw = DepthSums.start(like)
        self._direction = DepthSums.start(like) if self.direction else None
        self._matched = MatchedDepth.start(self.grid, self.n_states, like)
        self._blocks = DepthSums.start(like) if self.printed and self.embedding else None

    def _reduce(self, *, last: bool) -> None:
        if self._raw is None:
            self._start(self._window[-1])
        assert self._raw is not None
        ops = fused if fused.usable(*self._window) else reduce
        norms = [] if self._read is None else list(self._read.norm[max(0, self._seen - 2) : self._seen])
        steps = ops.add_states(self._window, self._new, norms, self._raw, self._direction, last=last)
        newest = self._window[-self._new :]
        self._keep(steps, TokenSums.of(newest, torch.stack([s.norm for s in steps]), self._about, self.drop))
        if self._matched is not None:
            for state in newest:
                self._matched.add(state)
        self._add_blocks(newest, last=last)
        self._window = self._window[-2:]
        self._new = 0
        if last:  # what is large goes now; `end` may come when the next batch is already running
            self._window = []
            self._raw.release()
            if self._direction is not None:
                self._direction.release()
            if self._matched is not None:
                self._matched.release()

    def _add_blocks(self, newest: list[Tensor], *, last: bool) -> None:
        """Sums over the blocks' outputs alone; `_seen` already counts the newest states."""
        if self._blocks is None:
            return
        first = self._seen - len(newest)
        for state in newest[1:] if first == 0 else newest:
            reduce.add_state([state], [], self._blocks, None)
        if last:
            if self._blocks.count:
                self._blocks.close()
            self._blocks.release()

    def _keep(self, steps: list[StepNorms], part: TokenSums) -> None:
        if self._read is None or self._inner is None:
            self._read = part.room(self.n_states)
            self._inner = part.norm.new_empty(self.n_states - 1, *part.norm.shape[1:])
        self._read.put(self._seen, part)
        for state, step in enumerate(steps, start=self._seen):
            if step.inner is not None:
                self._inner[state - 1] = step.inner
        self._seen += len(steps)

    def close(self) -> None:
        """Turn the batch's sums into metrics and start their way to the CPU."""
        assert self._read is not None
        stats = TokenStats.of(self._read, self._about)
        columns = self._state_columns(stats, "") | self._depth_columns(stats) | self._kept_columns(stats)
        if self._final is not None:
            columns |= self._state_columns(TokenStats.of(self._final, self._about), "final_norm/")
        self._copy = HostCopy(columns)
        self._read = self._inner = self._final = None

    def end(self) -> None:
        """Make one record per sample."""
        if self._copy is None:
            self.close()
        assert self._copy is not None
        arrays = self._copy.arrays()
        kept_arrays = {name: arrays.pop(name) for name in list(arrays) if name.startswith("kept/")}
        for row, sample in enumerate(self._batch.samples):
            self.records[sample] = {name: array[row] for name, array in arrays.items()}
        for at, row in enumerate(self._about.kept_rows):
            length = self._batch.lengths[row]
            record = {name: array[at, :, :length] for name, array in kept_arrays.items()}
            self.records[self._batch.samples[row]] |= record
        self._raw = None

    def _state_columns(self, stats: TokenStats, prefix: str) -> dict[str, Tensor]:
        """Sample-first arrays of the metrics that live on one state."""
        pooled = pool_positions(stats.norm, position_bins(self.positions), self._about.mask)
        out = {f"{prefix}token_norm": pooled.transpose(0, 1)}
        for key in ("gram_share", "gram_share_error", "top_tokens", "channel_share", "top_channels"):
            out[f"{prefix}{key}"] = getattr(stats, key).transpose(0, 1)
        for index, name in enumerate(("", f"{self.drop}/")):
            for key in ("unit_sum", "count", "token_similarity", "common_share", "sharpness"):
                out[f"{prefix}{name}{key}"] = getattr(stats, key)[:, :, index].transpose(0, 1)
        return out

    def _cosine(self, norm: Tensor) -> Tensor:
        """Cosine between successive states (batch, layer, token) of token norms (state, batch, token)."""
        assert self._inner is not None
        return (self._inner / (norm[:-1] * norm[1:])).transpose(0, 1)

    def _depth_columns(self, stats: TokenStats) -> dict[str, Tensor]:
        assert self._raw is not None
        out = {
            "layer_cosine": pool_positions(
                self._cosine(stats.norm), position_bins(self.positions), self._about.mask[:, None]
            )
        }
        for name, keep in (("", self._about.mask), (f"{self.drop}/", stats.kept.all(0))):
            out |= {f"{name}{key}": value for key, value in _depth_values(self._raw, self._direction, keep).items()}
            if self.printed:
                out |= {f"{name}{key}": value for key, value in self._printed_values(keep).items()}
            if self._matched is not None:
                values = _depth_values(self._matched.sums, None, keep)
                out |= {f"{name}matched/{key}": values[key] for key in ("smoothness", "stability") if key in values}
        return out

    def _printed_values(self, keep: Tensor) -> dict[str, Tensor]:
        """Sm and St as Eq. 3 and 4 print them, of the kept tokens of each sample."""
        assert self._raw is not None
        blocks, width = self.n_states - self.embedding, self._raw.width
        spread = self._raw.spread if self._blocks is None else self._blocks.spread
        out = {}
        if blocks >= 2 and spread is not None:
            out["paper_stability"] = _mean_over(keep, spread) / width
        if blocks >= 3:
            out["paper_smoothness"] = _mean_over(keep, self._raw.bend) / ((blocks - 2) * width)
        return out

    def _kept_columns(self, stats: TokenStats) -> dict[str, Tensor]:
        """Unpooled per-token values of the kept samples (kept row, state or layer, token)."""
        rows = self._about.kept_index
        return {
            "kept/layer_cosine": self._cosine(stats.norm)[rows],
            "kept/token_norm": stats.norm[:, rows].transpose(0, 1),
            "kept/token_similarity_by_token": stats.by_token.transpose(0, 1),
        }

    def absorb(self) -> None:
        """Take the prompts that are there into the sums over prompts; on a GPU while the last batch still runs."""
        fresh = [sample for sample in sorted(self.records) if sample not in self._absorbed]
        for prefix in ("", f"{self.drop}/", "final_norm/", f"final_norm/{self.drop}/"):
            for record in (self.records[sample] for sample in fresh):
                if f"{prefix}unit_sum" not in record:
                    continue
                if prefix not in self._across:
                    self._across[prefix] = AcrossPrompts.start(record, prefix)
                self._across[prefix].add(record, prefix)
        self._absorbed |= set(fresh)

    def compute(self) -> Table:
        """All metrics over the samples seen; `token_similarity_excess` needs at least two."""
        records = self.ordered()
        table: Table = {}
        for name in records[0]:
            axes = _record_axes(name)
            if axes is not None and not name.startswith("kept/"):
                table[name] = _with_samples(records, name, axes)
        self.absorb()
        for prefix, across in self._across.items() if len(records) > 1 else ():
            similarity, axes = _with_samples(records, f"{prefix}token_similarity", ("state",))[::-1]
            table[f"{prefix}token_similarity_excess"] = axes, similarity - across.cosine()[:, None]
        kept_records = [r for r in records if "kept/token_norm" in r]
        for name in [n for n in (kept_records[0] if kept_records else {}) if n.startswith("kept/")]:
            table[name] = _with_samples(kept_records, name, _record_axes(name) or ())
        return table


@dataclass
class MatchedDepth:
    """Sums over states interpolated onto an equal relative-depth grid (see `repflow.metrics.resample_depth`)."""

    points: int
    steps: int
    sums: DepthSums
    window: list[Tensor]
    norms: list[Tensor]
    before: Tensor | None = None
    seen: int = 0

    @classmethod
    def start(cls, points: int | None, n_states: int, like: Tensor) -> MatchedDepth | None:
        """None when no grid is requested."""
        if points is None:
            return None
        return cls(points, n_states - 1, DepthSums.start(like), [], [])

    def add(self, state: Tensor) -> None:
        """Emit every grid point between the state before and this one."""
        for point in range(self.points + 1):
            at = point * self.steps / self.points
            if self.seen - 1 < at <= self.seen:
                before = state if self.before is None else self.before
                self._emit(state if at == self.seen else self._between(before, state, at - self.seen + 1))
        self.before = state
        self.seen += 1

    def release(self) -> None:
        """Free what is large; the per-token sums remain."""
        self.sums.release()
        self.window, self.before = [], None

    def _between(self, before: Tensor, state: Tensor, weight: float) -> Tensor:
        """Interpolate in the precision of the sums: half precision would round the point to its own grid."""
        dtype = self.sums.bend.dtype
        return torch.lerp(before.to(dtype), state.to(dtype), weight)

    def _emit(self, state: Tensor) -> None:
        self.window = [*self.window[-2:], state]
        last = self.sums.count == self.points
        step = reduce.add_states(self.window, 1, self.norms, self.sums, None, last=last)[0]
        self.norms = [*self.norms[-1:], step.norm]


def _mean_over(keep: Tensor, value: Tensor) -> Tensor:
    """Mean over the kept tokens of each sample: (batch, token) → (batch,)."""
    return torch.where(keep, value, 0).sum(-1) / keep.sum(-1)


def _depth_values(raw: DepthSums, direction: DepthSums | None, keep: Tensor) -> dict[str, Tensor]:
    """Metrics over depth, averaged over the kept tokens of each sample."""
    width, states = raw.width, raw.count
    count = keep.sum(-1)

    def over_tokens(value: Tensor) -> Tensor:
        return _mean_over(keep, value)

    out = {}
    scale = token_median(raw.size / (states * width), keep)
    if states >= 2 and raw.spread is not None:
        assert raw.variance is not None
        out["stability"] = over_tokens(raw.spread) / width
        out["relative_stability"] = out["stability"] / scale
        out["depth_stability"] = over_tokens(raw.variance) / width
        out["path_energy"] = over_tokens(raw.step) * count
    if states >= 3:
        out["smoothness"] = over_tokens(raw.bend) / ((states - 2) * width)
        out["relative_smoothness"] = out["smoothness"] / scale
    if direction is not None and direction.spread is not None:
        out["direction_stability"] = over_tokens(direction.spread) / width
        if states >= 3:
            out["direction_smoothness"] = over_tokens(direction.bend) / ((states - 2) * width)
    return out


def _record_axes(name: str) -> tuple[str, ...] | None:
    """Axes of a record's entry, without samples; None for entries that only serve others."""
    base = name.rsplit("/", 1)[-1]
    if base in ("unit_sum", "count"):
        return None
    if base in ("layer_cosine",):
        return ("layer", "token")
    if base in ("token_norm", "token_similarity_by_token"):
        return ("state", "token")
    if base in ("top_tokens", "top_channels"):
        return ("state", "rank")
    if base in ("token_similarity", "common_share", "sharpness", "gram_share", "gram_share_error", "channel_share"):
        return ("state",)
    return ()


def _with_samples(records: list[Record], name: str, axes: tuple[str, ...]) -> tuple[tuple[str, ...], np.ndarray]:
    at = sum(axis in ("state", "layer") for axis in axes)
    return (*axes[:at], "sample", *axes[at:]), stack_samples(records, name, at)


@dataclass
class AcrossPrompts:
    """Sums over prompts for `cross_prompt_cosine`, which take one prompt after the other.

    Attributes:
        total: Σ over prompts of Σ_t u_t (state, width), in float64.
        own: Σ over prompts of ‖Σ_t u_t‖² (state,).
        count: tokens (state,).
        squares: Σ over prompts of tokens² (state,).
    """

    total: np.ndarray
    own: np.ndarray
    count: np.ndarray
    squares: np.ndarray

    @classmethod
    def start(cls, record: Record, prefix: str) -> AcrossPrompts:
        """No prompt yet."""
        states, width = record[f"{prefix}unit_sum"].shape
        return cls(np.zeros((states, width)), *(np.zeros(states) for _ in range(3)))

    def add(self, record: Record, prefix: str) -> None:
        """Take one prompt in. Its similarity is (‖Σu‖² - n) / (n (n - 1)) in float64, so ‖Σu‖² is known already."""
        count = record[f"{prefix}count"].astype(np.float64)
        similarity = record[f"{prefix}token_similarity"].astype(np.float64)
        self.total += record[f"{prefix}unit_sum"]
        self.own += count + np.where(count < 2, 0.0, similarity * count * (count - 1))
        self.count += count
        self.squares += count**2

    def cosine(self) -> np.ndarray:
        """Mean cosine of tokens of different prompts (state,)."""
        pairs = self.count**2 - self.squares
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(pairs == 0, np.nan, (np.square(self.total).sum(1) - self.own) / pairs)
