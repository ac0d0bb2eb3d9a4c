"""Which form of a scan runs where nobody asked for one: set around a forward pass, per thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Note = Callable[[str, str], object]


@dataclass(frozen=True)
class Preference:
    """What `path="auto"` means for now.

    Attributes:
        path: A form of the scan, or auto for the fastest that can run.
        note: Called with the form that ran and the reason.
    """

    path: str = "auto"
    note: Note | None = None


class _Held(threading.local):
    def __init__(self) -> None:
        self.stack: list[Preference] = []


_held = _Held()


def current() -> Preference:
    """The innermost preference of this thread."""
    return _held.stack[-1] if _held.stack else Preference()


def push(preference: Preference) -> None:
    """Begin a preference; hooks, which cannot be context managers, pair it with `pop`."""
    _held.stack.append(preference)


def pop() -> None:
    """End the innermost preference."""
    _held.stack.pop()


@contextmanager
def prefer(path: str, note: Note | None = None) -> Iterator[None]:
    """Let `path="auto"` mean a given form inside the block.

    >>> with prefer("reference"):
    ...     current().path
    'reference'
    """
    push(Preference(path, note))
    try:
        yield
    finally:
        pop()
