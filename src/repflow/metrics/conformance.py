"""check_metric: does a metric keep its promises? For the catalogue's and for your own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from repflow.core.catalogue import ALIASES, KEPT, METRICS, Invariance
from repflow.core.errors import InputError, nearest, teach
from repflow.metrics.custom import CUSTOM, shown_axes
from repflow.metrics.factory import feed, function_of, make_meters
from repflow.metrics.meter import HeldMeter, Meter, MeterSetting

TOLERANCE = 1e-7
"""Relative to the value; differences of 1e-9 count as none."""
DIFFERENCE, STEP = 1e-5, 1e-6
"""Tolerance and step of the finite difference."""
STATES, TOKENS, WIDTH = 5, (9, 6, 8), 7
KINDS = ("walk", "sink", "collapsed", "opposite", "tiny", "huge")
"""States on which the range is checked."""


@dataclass(frozen=True)
class MetricReport:
    """What check_metric found.

    Attributes:
        name: The metric.
        axes: Its axes, without the sample's.
        errors: Relative error of each check, in the order they ran.
        also: Changes that leave it as it is although that is not declared; no fault, but worth declaring.
    """

    name: str
    axes: tuple[str, ...]
    errors: dict[str, float]
    also: tuple[str, ...]

    def __str__(self) -> str:
        rows = [f"{self.name} ({', '.join(self.axes) or 'one number'}): {len(self.errors)} checks passed"]
        rows += [f"  {name:<20} {error:.1e}" for name, error in self.errors.items()]
        return "\n".join(rows + [f"  also unchanged by {', '.join(self.also)}"] * bool(self.also))


@dataclass(frozen=True)
class _Subject:
    """A metric and what it promises."""

    name: str
    function: Callable[..., Any]
    axes: tuple[str, ...]
    low: float = -np.inf
    high: float = np.inf
    invariances: frozenset[str] = frozenset()
    scales: int | None = None
    differentiable: bool = False
    pooled: bool = False
    meter: Callable[[], Meter] | None = None

    @property
    def masked(self) -> bool:
        """Whether the function takes batches with a mask."""
        return "mask" in inspect.signature(self.function).parameters


def check_metric(
    metric: Any,
    *,
    axes: Sequence[str] | None = None,
    low: float | int | None = None,
    high: float | int | None = None,
    invariances: Iterable[str] | None = None,
    differentiable: bool | None = None,
    seed: int = 0,
) -> MetricReport:
    """Check a metric's promises on random states in float64.

    | check | what must hold |
    |---|---|
    | axes | one value per entry of the declared axes, the same when called again, the states left as they are |
    | range | values within [low, high] on random, collapsed, opposite, tiny and huge states and beside a sink |
    | invariance | each declared one; `scales` of the catalogue too |
    | padding | garbage and NaN after a prompt change nothing, nor does longer padding |
    | batch | a sample alone, and beside others, unless the metric compares samples |
    | streaming | the meter gives the same in any batches and any order |
    | not finite | a NaN token makes NaN of every value that depends on it, and changes no other; no error, no zero |
    | gradient | if differentiable: finite, equal to a finite difference (1e-5), none at padding |

    Args:
        metric: A name of the catalogue or of `register_metric`, or a function of hidden (state, token, width). A
            function with a parameter `mask` is also called with batches (state, batch, token, width).
        axes: Axes of what it returns, without the sample's; those registered, or those that its output shows.
        low: Smallest value it can take; for the catalogue's own what is declared there, like all that follow.
        high: Largest value.
        invariances: What leaves it as it is: rotation, scale, token_scale, token_order, depth_reversal, shift.
        differentiable: Whether it has a gradient.
        seed: Of the random states.

    Raises:
        InputError: A promise is broken; names the check and the size of the error.

    >>> def size(hidden):
    ...     return hidden.abs().mean((1, 2))
    >>> report = check_metric(size, low=0, invariances=["token_order"], differentiable=True)
    >>> report.axes, sorted(report.errors)[:3]
    (('state',), ['axes', 'batch', 'gradient'])
    """
    subject = _subject(metric, axes, low, high, invariances, differentiable)
    trial = _Trial(subject, torch.Generator().manual_seed(seed))
    checks = [trial.axes, trial.range, trial.invariance, trial.padding, trial.batch, trial.streaming, trial.nonfinite]
    for check in checks + [trial.gradient] * subject.differentiable:
        check()
    return MetricReport(subject.name, subject.axes, trial.errors, trial.also())


def _subject(
    metric: Any, axes: Sequence[str] | None, low: float | int | None, high: float | int | None,
    invariances: Iterable[str] | None, differentiable: bool | None,
) -> _Subject:  # fmt: skip
    base = _of_catalogue(metric) if isinstance(metric, str) and metric not in CUSTOM else _own(metric, axes)
    kinds = base.invariances if invariances is None else frozenset(invariances)
    for kind in kinds - set(get_args(Invariance)):
        raise InputError(f"unknown invariance {kind!r}; {nearest(kind, get_args(Invariance))}")
    return _Subject(
        base.name,
        base.function,
        base.axes if axes is None else tuple(axes),
        base.low if low is None else float(low),
        base.high if high is None else float(high),
        kinds,
        base.scales,
        base.differentiable if differentiable is None else differentiable,
        base.pooled,
        base.meter,
    )


def _of_catalogue(name: str) -> _Subject:
    name = ALIASES.get(name, name)
    if name not in METRICS:
        raise InputError(f"unknown metric {name!r}; {nearest(name, [*METRICS, *CUSTOM])}")
    facts = METRICS[name]
    if facts.inputs > 1:
        raise InputError(teach("a metric of one set of states", f"{name}, which compares two", "check it by its tests"))
    setting = MeterSetting((name,), states=STATES, positions=max(TOKENS), keep=frozenset(range(len(TOKENS))))
    axes = tuple(axis for axis in facts.axes if axis != "sample")
    return _Subject(
        name, function_of(name), axes, facts.low, facts.high,
        facts.invariances, facts.scales, facts.differentiable, facts.samples > 1, lambda: make_meters(setting)[0],
    )  # fmt: skip


def _own(metric: Any, axes: Sequence[str] | None) -> _Subject:
    if not callable(metric) and not isinstance(metric, str):
        raise InputError(
            teach("a metric's name or a function", type(metric).__name__, "pass what register_metric takes")
        )
    if isinstance(metric, str):
        name, (known_axes, function) = metric, CUSTOM[metric]
    else:
        name, function = str(getattr(metric, "__name__", type(metric).__name__)), metric
        registered = next((entry for entry, f in CUSTOM.values() if f is metric), None)
        known_axes = tuple(axes) if axes is not None else registered or shown_axes(metric, name)
    tested_axes = known_axes if axes is None else tuple(axes)
    return _Subject(name, function, tested_axes, meter=lambda: HeldMeter({name: (tested_axes, function)}))


class _Trial:
    """A metric, its states and the errors so far."""

    def __init__(self, subject: _Subject, generator: torch.Generator) -> None:
        self.subject, self.generator = subject, generator
        self.errors: dict[str, float] = {}
        self.samples = [self._walk(tokens) for tokens in TOKENS]

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def _walk(self, tokens: int) -> Tensor:
        """States (state, token, width) that move a little from block to block."""
        return self._draw(STATES, tokens, WIDTH).cumsum(0) + 0.2

    def _apply(self, hidden: Tensor, **options: Any) -> Tensor:
        values = self.subject.function(hidden, **options)
        first = values[0] if isinstance(values, tuple) else values
        return first if isinstance(first, Tensor) else torch.as_tensor(np.asarray(first))

    def values(self, samples: Sequence[Tensor], garbage: float = 0.5, extra: int = 0) -> list[Tensor]:
        """The metric of each sample, each by itself; all in one batch where it compares samples."""
        if not self.subject.pooled:
            return [self._alone(sample, garbage, extra) for sample in samples]
        hidden, mask = _padded(samples, garbage, extra)
        return self._split(self._apply(hidden, mask=mask), samples)

    def _alone(self, sample: Tensor, garbage: float, extra: int) -> Tensor:
        if not extra:
            return self._apply(sample)
        hidden, mask = _padded([sample], garbage, extra)
        return self._split(self._apply(hidden, mask=mask), [sample])[0]

    def _split(self, batch: Tensor, samples: Sequence[Tensor]) -> list[Tensor]:
        """Values without the sample axis and without padding."""
        at = sum(axis in ("state", "layer") for axis in self.subject.axes)
        cut = []
        for row, sample in enumerate(samples):
            value = batch.select(at, row)
            for dim, axis in enumerate(self.subject.axes):
                value = value.narrow(dim, 0, sample.shape[1]) if axis == "token" else value
            cut.append(value)
        return cut

    def note(self, check: str, error: float, what: str, remedy: str, tolerance: float = TOLERANCE) -> None:
        self.errors[check] = max(error, self.errors.get(check, 0.0))
        if not error <= tolerance:
            raise InputError(
                teach(f"{what} (check '{check}' of {self.subject.name})", f"an error of {error:.2g}", remedy)
            )

    def _same(self, check: str, got: Sequence[Tensor], wanted: Sequence[Tensor], what: str, remedy: str) -> None:
        for mine, its in zip(got, wanted, strict=True):
            self.note(check, _error(mine, its), what, remedy)

    def axes(self) -> None:
        for sample in self.samples:
            before = sample.clone()
            value, axes = self._one(sample), self.subject.axes
            sizes = {"state": STATES, "layer": STATES - 1, "token": sample.shape[1], "width": WIDTH}
            wanted = tuple(sizes.get(axis, -1) for axis in axes)
            if value.ndim != len(axes) or any(w not in (-1, n) for w, n in zip(wanted, value.shape, strict=True)):
                text = ", ".join(f"{axis} = {sizes.get(axis, 'any')}" for axis in axes)
                expected = f"values with axes ({text}) (check 'axes' of {self.subject.name})"
                raise InputError(teach(expected, f"shape {tuple(value.shape)}", "declare the axes it returns"))
            if not torch.equal(sample, before):
                expected = f"states left unchanged (check 'axes' of {self.subject.name})"
                raise InputError(teach(expected, "states written to", "work on a copy: hidden = hidden.clone()"))
            self.note("axes", _error(self._one(sample), value), "the same value when called again",
                      "keep no state between calls and draw no random numbers", 0.0)  # fmt: skip

    def _one(self, sample: Tensor) -> Tensor:
        return self.values([sample, *self.samples[1:]])[0] if self.subject.pooled else self._apply(sample)

    def range(self) -> None:
        low, high = self.subject.low, self.subject.high
        for kind in KINDS:
            for value in self.values([_shaped(sample, kind) for sample in self.samples]):
                real = value[value.isfinite()].double()
                outside = torch.cat([low - real.flatten(), real.flatten() - high]).clamp(min=0)
                error = float(outside.max()) if outside.numel() else 0.0
                what = f"values within [{low:g}, {high:g}], also on {kind} states"
                self.note("range", error, what, "correct the range, or clamp what rounding moves out of it", 1e-9)

    def invariance(self) -> None:
        for kind in sorted(self.subject.invariances):
            got, wanted = self._changed(kind)
            self._same(f"invariance to {kind}", got, wanted, f"a value that {kind} does not change",
                       "declare only invariances that hold")  # fmt: skip
        power = self.subject.scales
        if power is not None:
            got = self.values([3.0 * sample for sample in self.samples])
            wanted = [3.0**power * value for value in self.values(self.samples)]
            what = f"a value that grows with power {power} of a factor on all states"
            self._same("scale", got, wanted, what, "correct `scales`; None where there is no such law")

    def also(self) -> tuple[str, ...]:
        """Undeclared invariances that hold."""
        kinds = []
        for kind in get_args(Invariance):
            if kind not in self.subject.invariances:
                got, wanted = self._changed(kind)
                if all(_error(mine, its) <= TOLERANCE for mine, its in zip(got, wanted, strict=True)):
                    kinds.append(kind)
        return tuple(kinds)

    def _changed(self, kind: str) -> tuple[list[Tensor], list[Tensor]]:
        """The metric of changed states, and what it must be."""
        wanted, samples, turn = self.values(self.samples), self.samples, torch.linalg.qr(self._draw(WIDTH, WIDTH))[0]
        if kind == "token_order":
            orders = [torch.randperm(s.shape[1], generator=self.generator) for s in samples]
            dims = [dim for dim, axis in enumerate(self.subject.axes) if axis == "token"]
            for number, order in enumerate(orders):
                for dim in dims:
                    wanted[number] = wanted[number].index_select(dim, order)
            return self.values([s[:, order] for s, order in zip(samples, orders, strict=True)]), wanted
        shift = self._draw(WIDTH)
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "rotation": lambda s: s @ turn,
            "scale": lambda s: 3.0 * s,
            "token_scale": lambda s: s * (0.2 + self._draw(*s.shape[:2], 1).abs()),
            "depth_reversal": lambda s: s.flip(0),
            "shift": lambda s: s + shift,
        }
        return self.values([changes[kind](sample) for sample in samples]), wanted

    def padding(self) -> None:
        """By the function where it takes a mask, by the meter in any case."""
        wanted, remedy = self.values(self.samples), "use `mask`, and read nothing after a prompt's last token"
        if self.subject.masked:
            for garbage, extra in ((0.0, 1), (1e6, 3), (float("nan"), 2)):
                got = self.values(self.samples, garbage, extra)
                self._same("padding", got, wanted, f"a value that padding with {garbage:g} does not change", remedy)
        for garbage in (0.0, float("nan")):
            got = self._streamed([[0, 1, 2]], garbage)
            self._same("padding", got, wanted, f"a meter that padding with {garbage:g} does not change", remedy)

    def batch(self) -> None:
        self.errors["batch"] = 0.0
        if self.subject.pooled:
            return
        remedy = "take no statistic over samples, or declare that it compares them"
        fewest = min(TOKENS)
        louder = [factor * sample[:, :fewest] for factor, sample in zip((1, 10, 100), self.samples, strict=True)]
        wanted = self.values(louder)
        if self.subject.masked:
            hidden, mask = _padded(louder, 0.5, 0)
            got = self._split(self._apply(hidden, mask=mask), louder)
            self._same("batch", got, wanted, "the same value of a sample whatever else is in the batch", remedy)
        got = self._streamed([[0, 1, 2]], 0.5, louder)
        self._same("batch", got, wanted, "the same value of a sample whatever else the meter has seen", remedy)

    def streaming(self) -> None:
        wanted = self.values(self.samples)
        for batches in ([[0], [1], [2]], [[2, 0], [1]], [[1, 2, 0]]):
            what = f"a meter that gives the function's value, in batches {batches}"
            remedy = "compare the meter's sums with the function, state by state"
            self._same("streaming", self._streamed(batches, 0.5), wanted, what, remedy)

    def _streamed(
        self, batches: Sequence[Sequence[int]], garbage: float, samples: Sequence[Tensor] | None = None
    ) -> list[Tensor]:
        """Values from the meter, sample by sample."""
        assert self.subject.meter is not None
        meter, states = self.subject.meter(), self.samples if samples is None else samples
        for batch in batches:
            hidden, _ = _padded([states[number] for number in batch], garbage, 1)
            feed(meter, hidden, batch, [states[number].shape[1] for number in batch])
        table = meter.compute()
        name = self.subject.name if self.subject.name in table else f"{KEPT}{self.subject.name}"
        return self._split(torch.from_numpy(np.asarray(table[name][1])), states)

    def nonfinite(self) -> None:
        wanted, remedy = self.values(self.samples), "let NaN through: no nan_to_num, no nanmean, no zero in its place"
        state, token = STATES // 2, 1
        other, first = self._draw(WIDTH), self.samples[0]

        def with_token(value: Any) -> list[Tensor]:
            changed = first.clone()
            changed[state, token] = value
            try:
                return self.values([changed, *self.samples[1:]])
            except (RuntimeError, ValueError) as error:
                expected = f"NaN for a token that is not finite (check 'not finite' of {self.subject.name})"
                got = f"{type(error).__name__}: {error}"
                raise InputError(teach(expected, got, "return NaN where the states are not finite")) from error

        moved = with_token(other)
        for bad in (float("nan"), float("inf")):
            for before, after, got in zip(wanted, moved, with_token(bad), strict=True):
                depends = ~torch.isclose(before, after, rtol=1e-9, atol=1e-12, equal_nan=True)
                hidden_bad = float((got.isfinite() & depends).sum())
                self.note("not finite", hidden_bad, f"no finite value that depends on a token of {bad:g}", remedy, 0.0)
                spoiled = torch.where(depends | self._touched(got.shape, state, token), before, got)
                what = f"values that do not depend on a token of {bad:g} as they are"
                self.note("not finite", _error(spoiled, before), what, "only what depends on it may become NaN")

    def _touched(self, shape: torch.Size, state: int, token: int) -> Tensor:
        """Entries that a token of a state is part of, whether or not their value depends on it (CKA with itself)."""
        places = {"state": [state], "layer": [state - 1, state], "token": [token]}
        touched = torch.zeros(shape, dtype=torch.bool)
        for dim, axis in enumerate(self.subject.axes):
            if axis in ("state", "layer"):
                touched.index_fill_(dim, torch.tensor(places[axis]), True)
        for dim, axis in enumerate(self.subject.axes):
            if axis == "token":
                others = [place for place in range(shape[dim]) if place != token]
                touched.index_fill_(dim, torch.tensor(others), False)
        return touched

    def gradient(self) -> None:
        sample = self.samples[0].clone().requires_grad_()
        try:
            value, got = self._one(sample), "a value without"
        except RuntimeError as error:  # what torch says of numpy() on a tensor with a gradient
            value, got = torch.zeros(()), f"{type(error).__name__}: {error}"
        if not value.requires_grad:
            expected = f"a value with a gradient to the states (check 'gradient' of {self.subject.name})"
            raise InputError(teach(expected, got, "use torch operations, no detach, no numpy"))
        weight = self._draw(*value.shape)

        def total(value: Tensor) -> Tensor:
            return torch.where(value.isnan(), 0, value * weight).sum()

        (gradient,) = torch.autograd.grad(total(value), sample)
        direction = self._draw(*sample.shape)
        with torch.no_grad():
            ends = [total(self._one(sample + sign * STEP * direction)) for sign in (1, -1)]
        off = _error((ends[0] - ends[1]) / (2 * STEP), (gradient * direction).sum())
        remedy = "look for detach, for in-place writes, and for a root or a division at 0"
        self.note("gradient", off, "a gradient equal to a finite difference", remedy, DIFFERENCE)
        if self.subject.masked:
            hidden, mask = _padded(self.samples, 0.0, 1)
            hidden.requires_grad_()
            values = self._apply(hidden, mask=mask)
            (gradient,) = torch.autograd.grad(torch.where(values.isnan(), 0, values).sum(), hidden)
            leak = float(gradient[:, ~mask].abs().sum()) if bool(gradient.isfinite().all()) else float("inf")
            self.note("gradient", leak, "no gradient at padding, and a finite one elsewhere", "mask before a root", 0.0)


def _padded(samples: Sequence[Tensor], garbage: float, extra: int) -> tuple[Tensor, Tensor]:
    """Right-padded (state, batch, token, width) and mask (batch, token)."""
    longest = max(sample.shape[1] for sample in samples) + extra
    hidden = torch.full((STATES, len(samples), longest, WIDTH), garbage, dtype=torch.float64)
    mask = torch.zeros(len(samples), longest, dtype=torch.bool)
    for row, sample in enumerate(samples):
        hidden[:, row, : sample.shape[1]] = sample
        mask[row, : sample.shape[1]] = True
    return hidden, mask


def _shaped(sample: Tensor, kind: str) -> Tensor:
    """States of one of `KINDS` made from random ones."""
    tokens = sample.shape[1]
    if kind == "sink":
        return torch.cat([1e3 * sample[:, :1], sample[:, 1:]], 1)
    if kind == "collapsed":
        return sample[:, :1] + 1e-6 * sample
    if kind == "opposite":
        return sample[:, :1] * torch.tensor([1.0, -1.0] * tokens, dtype=torch.float64)[:tokens, None]
    return sample * {"walk": 1.0, "tiny": 1e-9, "huge": 1e9}[kind]


def _error(got: Tensor, wanted: Tensor) -> float:
    """Largest difference relative to the value, 1e-2 at least; infinite where only one of them is NaN."""
    if got.shape != wanted.shape:
        return float("inf")
    mine, its = got.detach().double(), wanted.detach().double()
    if not torch.equal(mine.isnan(), its.isnan()):
        return float("inf")
    apart = torch.where(mine == its, 0, (mine - its).abs() / (its.abs() + 1e-2))
    return float(apart.nan_to_num(0).max()) if apart.numel() else 0.0
