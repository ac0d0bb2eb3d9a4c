"""Where the time goes: wall seconds of this process by phase, each second counted once.

Phases nest, and a second belongs to the innermost one: the meters' time is taken out of the forward pass that calls
them. What no phase claims is `other`, so the parts always sum to the whole.

A GPU works on after a call has returned: without `REPFLOW_SYNC_PHASES=1`, which waits at the end of every phase, its
time is counted under whichever phase first waits for a number.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PHASES = (
    "imports",
    "load",
    "checks",
    "digest",
    "prompts",
    "forward",
    "meters",
    "fits",
    "intervals",
    "writing",
    "other",
)
"""Names in the order in which they are shown."""


class Clock:
    """Seconds by phase since a start.

    >>> now = iter([0.0, 1.0, 3.0, 6.0, 10.0, 11.0])
    >>> clock = Clock(lambda: next(now))
    >>> with clock.phase("forward"):
    ...     with clock.phase("meters"):
    ...         pass
    >>> clock.seconds()
    {'forward': 6.0, 'meters': 3.0, 'other': 2.0}
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._spent: dict[str, float] = {}
        self._stack = ["other"]
        self._last = now()
        self._thread = threading.get_ident()

    def _charge(self) -> None:
        now = self._now()
        self._spent[self._stack[-1]] = self._spent.get(self._stack[-1], 0.0) + now - self._last
        self._last = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what runs inside under this name; threads other than the clock's own count nothing."""
        assert name in PHASES, name
        if threading.get_ident() != self._thread:
            yield
            return
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            _wait_for_gpu()
            self._charge()
            self._stack.pop()

    def seconds(self) -> dict[str, float]:
        """Seconds until now, in the order of `PHASES`."""
        self._charge()
        return {name: self._spent[name] for name in PHASES if name in self._spent}


def _wait_for_gpu() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and os.environ.get("REPFLOW_SYNC_PHASES") == "1" and torch.cuda.is_initialized():
        torch.cuda.synchronize()


CLOCK = Clock()
"""The process' own clock; it starts when repflow is imported."""


def phase(name: str) -> Any:
    """A phase of the process' clock, as a context or as a decorator's part; see `timed`."""
    return CLOCK.phase(name)


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a function's calls under a phase."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with CLOCK.phase(name):
                return function(*args, **kwargs)

        return call

    return wrap


def since(before: dict[str, float]) -> dict[str, float]:
    """Seconds by phase since an earlier reading of the clock.

    >>> set(since(CLOCK.seconds())) <= set(PHASES)
    True
    """
    now = CLOCK.seconds()
    return {name: value - before.get(name, 0.0) for name, value in now.items() if value > before.get(name, 0.0)}
