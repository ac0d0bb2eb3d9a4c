"""Metrics of a user's own, registered under a name and measured beside the built-in ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from repflow.axes import AXES
from repflow.catalogue import METRICS
from repflow.errors import InputError, nearest, teach

MetricFunction = Callable[[Tensor], Any]
CUSTOM: dict[str, tuple[tuple[str, ...], MetricFunction]] = {}
"""name → (axes without the sample axis, function)."""
COMPANIONS = {"gram_share_error": "gram_share", "top_tokens": "gram_share", "top_channels": "channel_share"}
"""Values that come with a metric → that metric; CKA's all begin with `cka_`."""


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
    if not name.isidentifier() or name in METRICS or name in COMPANIONS or name.startswith("cka_"):
        raise InputError(
            teach("a new metric name that is a Python identifier", repr(name), "pass name='...' to register_metric")
        )
    for axis in axes:
        if axis not in AXES or axis in ("sample", "batch"):
            raise InputError(f"unknown axis {axis!r} for metric {name!r}; {nearest(axis, AXES)}; leave sample out")
    CUSTOM[name] = (tuple(axes), function)
    return function
