"""What is kept of one layer's recurrence on one batch: extremes and sums over tokens, never the tokens themselves.

Sharpness E(x) = (n Σ‖x‖² − ‖Σx‖²) / ((n − 1) Σ‖x‖²) needs Σ‖x‖² and Σx alone; the spread of a state over tokens its
least and greatest value alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from repflow.models import SsmQuantities
from repflow.models.recurrence.delta import DeltaRecurrence
from repflow.models.recurrence.layer import BUFFER, Recurrence

PARTS = ("input", "entry", "state")
"""b_t, Δ_t b_t and h_t."""
HALF = math.log(2)
SOURCES = 16
"""Tokens of a prompt's first half, evenly spread, whose entries are followed through the delta rule."""


@dataclass
class Signal:
    """Sums over the tokens of a signal (batch, token, channel, state).

    Attributes:
        square: Σ‖x‖² (batch,).
        total: Σ x (batch, channel, state).
        least: Least value of each entry, None for a complex signal.
        most: Greatest value.
    """

    square: Tensor | None = None
    total: Tensor | None = None
    least: Tensor | None = None
    most: Tensor | None = None

    def add(self, x: Tensor, lengths: Tensor, *, extremes: bool) -> None:
        """Take some tokens.

        Args:
            x: Their values, broadcastable to (batch, token, channel, state).
            lengths: How many of them are real, of each sample.
            extremes: Whether least and greatest values are wanted.
        """
        if bool((lengths == x.shape[1]).all()):
            self._take(slice(None), x, extremes=extremes)
            return
        for row, count in enumerate(lengths.tolist()):  # padding is on the right
            if count > 0:
                self._take(slice(row, row + 1), x[row : row + 1, :count], extremes=extremes)

    def begin(self, batch: int, x: Tensor) -> None:
        """Make room for a batch of signals like x."""
        shape, real = (batch, *x.shape[2:]), not x.is_complex()
        self.square = torch.zeros(batch, dtype=torch.float64, device=x.device)
        self.total = torch.zeros(shape, dtype=torch.float64 if real else torch.complex128, device=x.device)
        if real:
            self.least = torch.full(shape, torch.inf, dtype=x.dtype, device=x.device)
            self.most = torch.full(shape, -torch.inf, dtype=x.dtype, device=x.device)

    def _take(self, rows: slice, x: Tensor, *, extremes: bool) -> None:
        assert self.square is not None
        assert self.total is not None
        # a run of tokens is summed in its own precision, pairwise, and the runs in float64
        self.square[rows] += (x.abs() if x.is_complex() else x).square().sum((1, 2, 3))
        self.total[rows] += x.sum(1)
        if extremes and self.least is not None and self.most is not None:
            least, most = x.aminmax(dim=1)
            self.least[rows] = torch.minimum(self.least[rows], least)
            self.most[rows] = torch.maximum(self.most[rows], most)

    def energy(self) -> tuple[Tensor, Tensor]:
        """Σ‖x‖² and ‖Σx‖² (batch,)."""
        assert self.square is not None
        assert self.total is not None
        return self.square, self.total.abs().square().sum((1, 2))

    def spread(self, *, with_zero: bool) -> Tensor:
        """Largest max_t x − min_t x over entries (batch,), zero among the values if requested; NaN if complex."""
        if self.least is None or self.most is None:
            assert self.square is not None
            return torch.full_like(self.square, torch.nan)
        least, most = (self.least.clamp(max=0), self.most.clamp(min=0)) if with_zero else (self.least, self.most)
        return (most - least).double().amax((1, 2))


@dataclass
class LayerSums:
    """One layer on one batch; the scans of one layer (zamba has one per head) are put side by side.

    Attributes:
        kind: s6, ssd, delta, rwkv, rg_lru, lightning, or own:FAMILY.
        unit: channel or head.
        states: States of a unit that have decays of their own.
        most: Largest |A_t| of each unit (batch, unit), as are least, slow and fast.
        least: Smallest.
        slow: Least −mean_t ln|A_t| over the unit's states.
        fast: Greatest.
        met: Share of steps with A + Δ ≤ 1 (batch,); NaN where the transition is not diagonal, as is spread_bound.
        never: Share of states that no Δ > 0 can meet it with; NaN where the decay has no rate.
        energy: Per part, Σ‖x‖² and ‖Σx‖² (batch,).
        spread_state: max ‖h_t − h_s‖_∞ (batch,).
        spread_bound: What the corrected Theorem 4.2 allows (batch,).
        strength: Mean write strength of the delta rule (batch, unit); None elsewhere, as is trace.
        trace: Tokens after which later steps have left half of an entry's length, median over entries (batch, unit).
    """

    kind: str
    unit: str
    states: int
    most: Tensor
    least: Tensor
    slow: Tensor
    fast: Tensor
    met: Tensor
    never: float
    energy: dict[str, tuple[Tensor, Tensor]]
    spread_state: Tensor
    spread_bound: Tensor
    strength: Tensor | None = None
    trace: Tensor | None = None
    scans: int = field(default=1)

    def beside(self, other: LayerSums) -> LayerSums:
        """Both scans as one layer: units side by side, vectors joined."""
        count = self.scans + 1
        joined = {
            name: torch.cat([getattr(self, name), getattr(other, name)], 1)
            for name in ("most", "least", "slow", "fast")
        }
        energy = {
            part: (self.energy[part][0] + other.energy[part][0], self.energy[part][1] + other.energy[part][1])
            for part in PARTS
        }
        return LayerSums(
            self.kind,
            self.unit,
            self.states,
            **joined,
            met=(self.met * self.scans + other.met) / count,
            never=(self.never * self.scans + other.never) / count,
            energy=energy,
            spread_state=torch.maximum(self.spread_state, other.spread_state),
            spread_bound=torch.maximum(self.spread_bound, other.spread_bound),
            scans=count,
        )


def layer_sums(quantities: SsmQuantities, lengths: Tensor) -> LayerSums:
    """Run over the tokens of a layer once for its decays and once for its states.

    Args:
        quantities: The layer, as `ssm_quantities` hands it out.
        lengths: Real tokens of each sample (batch,).
    """
    recurrence = quantities.recurrence
    lengths = lengths.to(recurrence.log_decay(slice(0, 1)).device)
    most, least, rate = _decays(recurrence, lengths)
    met = torch.zeros(recurrence.batch, dtype=torch.float64, device=lengths.device)
    signals = {part: Signal() for part in PARTS}
    for step in recurrence.walk():
        here = _inside(step.tokens, lengths)
        count = step.tokens.stop - step.tokens.start
        for part, value in zip(PARTS, (step.b, step.entry, step.h), strict=True):
            value = value.expand(recurrence.batch, count, -1, -1)
            if step.tokens.start == 0:
                signals[part].begin(recurrence.batch, value)
            signals[part].add(value, here, extremes=part != "entry")
        real = torch.arange(count, device=here.device) < here[:, None]
        met += torch.where(real, recurrence.met(step.tokens), 0).sum(1)
    rates = recurrence.rates()
    steps = (lengths - 1).clamp(min=0)
    bound = signals["input"].spread(with_zero=True) * -torch.expm1(steps * least.amin(1).log())
    delta = recurrence if isinstance(recurrence, DeltaRecurrence) else None
    return LayerSums(
        kind=quantities.kind if quantities.family is None else f"own:{quantities.family}",
        unit=recurrence.unit,
        states=int(recurrence.log_decay(slice(0, 1)).shape[-1]),
        most=most,
        least=least,
        slow=rate.amin(-1),
        fast=rate.amax(-1),
        met=met / lengths,
        never=math.nan if rates is None else float((rates <= 1).double().mean()),
        energy={part: signal.energy() for part, signal in signals.items()},
        spread_state=signals["state"].spread(with_zero=False),
        spread_bound=bound if recurrence.diagonal else torch.full_like(bound, torch.nan),
        strength=None if delta is None else _strength(delta, lengths),
        trace=None if delta is None else _trace(delta, lengths),
    )


def _strength(recurrence: DeltaRecurrence, lengths: Tensor) -> Tensor:
    """Mean β over the real tokens (batch, unit)."""
    beta = recurrence.strength().double()
    return torch.stack([beta[row, :count].mean(0) for row, count in enumerate(lengths.tolist())])


def _trace(recurrence: DeltaRecurrence, lengths: Tensor) -> Tensor:
    """Tokens until half of an entry is left (batch, unit); inf where more than half is still there at the end."""
    rows = []
    for row, count in enumerate(lengths.tolist()):
        sources = sorted({round(at) for at in torch.linspace(0, max(0, count // 2 - 1), SOURCES).tolist()})
        lengths_left = recurrence.traces(sources, row)[:, :count]
        halved = lengths_left <= 0.5
        first = halved.to(torch.int8).argmax(1).double() - torch.tensor(sources, device=halved.device)[:, None]
        rows.append(torch.where(halved.any(1), first, torch.inf).median(0).values)
    return torch.stack(rows)


def _decays(recurrence: Recurrence, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Largest and smallest |A_t| (batch, unit) and −mean ln|A_t| (batch, unit, state), from the second token on.

    At the first token A multiplies a state of zero, so that its value means nothing.
    """
    first = recurrence.log_decay(slice(0, 1))
    shape = (recurrence.batch, recurrence.units)
    most = torch.full(shape, -torch.inf, dtype=first.dtype, device=first.device)
    least = torch.full(shape, torch.inf, dtype=first.dtype, device=first.device)
    total = torch.zeros(*shape, first.shape[-1], dtype=torch.float64, device=first.device)
    for here in _slices(recurrence):
        log = recurrence.log_decay(here).expand(recurrence.batch, here.stop - here.start, recurrence.units, -1)
        for row, count in enumerate(_inside(here, lengths).tolist()):
            part = log[row, max(0, 1 - here.start) : count]
            if len(part):
                bottom, top = part.amin((0, 2)), part.amax((0, 2))
                most[row], least[row] = torch.maximum(most[row], top), torch.minimum(least[row], bottom)
                total[row] += part.sum(0, dtype=torch.float64)
    count = (lengths - 1)[:, None, None]
    alone = (lengths < 2)[:, None]
    most, least = (torch.where(alone, torch.nan, part.double().exp()) for part in (most, least))
    return most, least, -total / torch.where(count > 0, count, torch.nan)


def _slices(recurrence: Recurrence) -> Iterator[slice]:
    """Runs of tokens whose decays fit into the buffer."""
    size = recurrence.log_decay(slice(0, 1))[0].numel() * recurrence.batch
    chunk = max(1, BUFFER // max(size, 1))
    for first in range(0, recurrence.tokens, chunk):
        yield slice(first, min(first + chunk, recurrence.tokens))


def _inside(tokens: slice, lengths: Tensor) -> Tensor:
    """How many of some tokens are real, of each sample."""
    return (lengths - tokens.start).clamp(0, tokens.stop - tokens.start)


def half_life(rate: Tensor) -> Tensor:
    """Tokens after which exp(−rate t) is 1/2: ln 2 / rate, inf for a rate of 0, 0 for an infinite one.

    >>> [round(tokens, 4) for tokens in half_life(torch.tensor([HALF, 0.1, 0.0])).tolist()]
    [1.0, 6.9315, inf]
    """
    return HALF / rate


def sharpness_of(square: Tensor, joint: Tensor, lengths: Tensor) -> Tensor:
    """E = (n Σ‖x‖² − ‖Σx‖²) / ((n − 1) Σ‖x‖²); NaN with fewer than two tokens or without energy.

    >>> sharpness_of(torch.tensor([4.0]), torch.tensor([8.0]), torch.tensor([3])).tolist()
    [0.5]
    """
    sharpness = (lengths * square - joint) / ((lengths - 1) * square)
    return torch.where((lengths > 1) & (square > 0), sharpness, torch.nan)
