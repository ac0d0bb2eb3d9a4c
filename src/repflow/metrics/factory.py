"""Meters by the catalogue: each metric's row names what computes it, and nothing else has to know.

A row's `home` has the pure function; its `meter`, if any, computes the metric as states stream by, else `HeldMeter`
applies the function to each sample. What is requested is computed or refused: `check_computed` puts every meter through
a trial before a run starts, and finds a row whose meter does not give the metric, or gives it with other axes.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from repflow.core.catalogue import KEPT, METRICS, Metric
from repflow.core.errors import InputError, teach
from repflow.metrics.custom import CUSTOM
from repflow.metrics.meter import BatchInfo, HeldMeter, Meter, MeterSetting

TRIAL = (6, 2, 9, 8)
"""States, samples, tokens and channels of a trial, enough for every metric of the catalogue."""


def function_of(name: str) -> Callable[..., Any]:
    """The pure function of a metric of the catalogue.

    >>> function_of("effective_rank").__name__
    'effective_rank'
    """
    function = _at(name, METRICS[name].home, name)
    if not callable(function):
        raise InputError(teach(f"a function {name} in {METRICS[name].home}", f"{function!r:.80}", "correct its `home`"))
    return function


def meter_of(name: str) -> type[Meter] | None:
    """The meter that the catalogue names for a metric; None where its function is applied to held states.

    >>> meter_of("token_norm").__name__, meter_of("effective_rank")
    ('FlowMeter', None)
    """
    place = METRICS[name].meter
    if not place:
        return None
    module, _, attribute = place.partition(":")
    meter = _at(name, module, attribute)
    if not (isinstance(meter, type) and issubclass(meter, Meter)):
        expected = f"a subclass of repflow.metrics.meter.Meter at {place!r}, for metric {name!r}"
        raise InputError(teach(expected, f"{meter!r:.80}", "name the meter, or leave `meter` out"))
    return meter


def _at(name: str, module: str, attribute: str) -> Any:
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        expected = f"{attribute!r} in module {module!r}, where the catalogue says that metric {name!r} is"
        got = f"{type(error).__name__}: {error}"
        raise InputError(teach(expected, got, "correct its row in repflow/core/catalogue.py")) from error


def make_meters(setting: MeterSetting) -> list[Meter]:
    """Meters for one batch: one of each kind that the metrics need, in the catalogue's order, functions last."""
    kinds: dict[type[Meter], list[str]] = {}
    functions: dict[str, tuple[tuple[str, ...], Callable[[Tensor], Any]]] = {
        name: CUSTOM[name] for name in setting.metrics if name in CUSTOM
    }
    for name in METRICS:
        if name not in setting.metrics:
            continue
        meter = meter_of(name)
        if meter is not None:
            kinds.setdefault(meter, []).append(name)
        else:
            axes = tuple(axis for axis in METRICS[name].axes if axis != "sample")
            functions[name] = (axes, function_of(name))
    meters = [_made(kind, setting.only(names)) for kind, names in kinds.items()]
    return [*meters, HeldMeter(functions)] if functions else meters


def _made(kind: type[Meter], setting: MeterSetting) -> Meter:
    try:
        return kind.for_run(setting)
    except TypeError as error:  # most likely settings of its own, or a method that is missing
        expected = f"a meter that {kind.__name__}.for_run(setting) makes"
        raise InputError(teach(expected, str(error), "write for_run: it takes what it needs from setting")) from error


def given(name: str, table: Collection[str]) -> bool:
    """Whether a table of meters has a metric, for all samples or for the kept ones."""
    return name in table or (name in METRICS and METRICS[name].kept and f"{KEPT}{name}" in table)


def check_computed(names: Iterable[str]) -> None:
    """Refuse metrics of the catalogue that their meter does not give as declared, before anything runs."""
    known = tuple(name for name in METRICS if name in set(names))
    table = _trial(tuple(METRICS[name] for name in known))
    for name in known:
        facts = METRICS[name]
        source = facts.meter or f"{facts.home}:{name}"
        remedy = "make it return what the catalogue declares, or correct the row in repflow/core/catalogue.py"
        if not given(name, table):
            raise InputError(teach(f"metric {name!r} from {source}", "a table without it", remedy))
        axes = table.get(name, table.get(f"{KEPT}{name}"))
        if axes != facts.axes:
            raise InputError(teach(f"metric {name!r} from {source} with axes {facts.axes}", f"{axes}", remedy))


@functools.lru_cache(maxsize=16)
def _trial(rows: tuple[Metric, ...]) -> dict[str, tuple[str, ...]]:
    """Axes by name in the table of meters that saw a small batch of random states."""
    states, samples, tokens, width = TRIAL
    setting = MeterSetting(
        tuple(row.name for row in rows), states=states, positions=tokens, keep=frozenset(range(samples))
    )
    hidden = torch.randn(states, samples, tokens, width, generator=torch.Generator().manual_seed(0)).cumsum(0)
    table = run_meters(make_meters(setting), hidden, [tokens] * samples)
    return {name: axes for name, (axes, _) in table.items()}


def run_meters(meters: Sequence[Meter], hidden: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    """Table of meters over one right-padded batch hidden (state, batch, token, width)."""
    table: dict[str, Any] = {}
    for meter in meters:
        feed(meter, hidden, range(hidden.shape[1]), lengths)
        table |= meter.compute()
    return table


def feed(meter: Meter, hidden: Tensor, samples: Iterable[int], lengths: Sequence[int]) -> None:
    """Put one right-padded batch hidden (state, batch, token, width) through a meter."""
    meter.begin(BatchInfo(tuple(samples), tuple(lengths)))
    for state in range(hidden.shape[0]):
        meter.update(state, hidden[state])
    meter.end()
