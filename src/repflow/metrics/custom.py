"""A user's own metrics, registered under a name and measured with the built-in ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repflow.core.axes import AXES
from repflow.core.catalogue import METRICS, metric_of
from repflow.core.errors import InputError, nearest, teach

MetricFunction = Callable[[Tensor], Any]
CUSTOM: dict[str, tuple[tuple[str, ...], MetricFunction]] = {}
"""name → (axes without the sample axis, function)."""
TRIAL = {"state": 4, "layer": 3, "token": 6, "width": 5}
"""Sizes of a trial whose axes can be recognised by their lengths."""


def function_name(function: MetricFunction) -> str:
    """Name of a function given as a metric; a new one is registered with the axes that its output shows.

    >>> function_name(lambda hidden: hidden.mean())
    Traceback (most recent call last):
        ...
    repflow.core.errors.InputError: expected a new metric name that is a Python identifier; got '<lambda>'; \
pass name='...' to register_metric
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    known = next((key for key, (_, registered) in CUSTOM.items() if registered is function), None)
    if known is not None:
        return known
    if name in CUSTOM and (axes := shown_axes(function, name)) == CUSTOM[name][0]:
        CUSTOM[name] = (axes, function)  # defined again, as in a notebook
        return name
    register_metric(function, axes=shown_axes(function, name))
    return name


def shown_axes(function: MetricFunction, name: str) -> tuple[str, ...]:
    """Axes of what a function returns, by the lengths they have on a small sample."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TRIAL["state"], TRIAL["token"], TRIAL["width"], generator=generator)
    remedy = f"say what it returns: repflow.register_metric({name}, axes=('state',)), then metrics=[{name!r}]"
    try:
        shape = torch.as_tensor(function(hidden)).shape
    except Exception as error:
        got = f"{type(error).__name__}: {error} on {tuple(hidden.shape)}"
        raise InputError(teach(f"a function {name} of hidden (state, token, width)", got, remedy)) from error
    axes = {size: axis for axis, size in TRIAL.items()}
    if any(size not in axes for size in shape):
        got = f"shape {tuple(shape)} for hidden of {tuple(hidden.shape)}"
        raise InputError(teach(f"states, layers, tokens or channels from {name}", got, remedy))
    return tuple(axes[size] for size in shape)


def register_metric(function: MetricFunction, *, axes: tuple[str, ...], name: str | None = None) -> MetricFunction:
    """Make a function of one sample's states available to `measure(metrics=[NAME])`.

    Args:
        function: takes hidden (state, token, width), float32 at least, real tokens only; returns a tensor, an array
            or a number with the axes given. Such metrics hold all states of a batch in memory.
        axes: axes of what it returns, without the sample axis, such as `("state",)`.
        name: name in the result; the function's own by default.

    >>> def mean_size(hidden):
    ...     return hidden.abs().mean((1, 2))
    >>> register_metric(mean_size, axes=("state",)).__name__
    'mean_size'
    """
    name = name or str(getattr(function, "__name__", ""))
    if not name.isidentifier() or metric_of(name) in METRICS:
        raise InputError(
            teach("a new metric name that is a Python identifier", repr(name), "pass name='...' to register_metric")
        )
    for axis in axes:
        if axis not in AXES or axis in ("sample", "batch"):
            raise InputError(f"unknown axis {axis!r} for metric {name!r}; {nearest(axis, AXES)}; leave sample out")
    CUSTOM[name] = (tuple(axes), function)
    return function
