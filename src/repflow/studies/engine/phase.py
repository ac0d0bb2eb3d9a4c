"""Phases of a study, reported to the progress display: a bar that does not move should say what is being done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STORED = "finished before, reading the stored result"


def tell(progress: Any, text: str, done: int = 0, total: int | None = None) -> None:
    """Name the phase that begins, or how far it is.

    A progress is a function of prompts done, prompts in total and tokens done; one that shows phases also has a method
    `phase(text, done, total)`, `total` None where the steps are not counted.

    >>> class Shown:
    ...     def phase(self, text, done, total):
    ...         print(text, done, total)
    >>> tell(Shown(), "fitting probes", 2, 7)
    fitting probes 2 7
    >>> tell(print, "fitting probes"), tell(None, "fitting probes")
    (None, None)
    """
    show = getattr(progress, "phase", None)
    if show is not None:
        show(text, done, total)


def steps_of(progress: Any, text: str) -> Callable[[int, int], None]:
    """A callback for the steps of one phase."""

    def call(done: int, total: int) -> None:
        tell(progress, text, done, total)

    return call
