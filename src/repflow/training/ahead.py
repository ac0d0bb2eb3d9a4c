"""Draw ahead: a thread of its own draws what the training will need next, so that a GPU never waits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

Drawn = TypeVar("Drawn")
_WAIT = 0.1
"""Seconds after which a thread that waits for room looks whether it is still wanted."""


def ahead(draw: Callable[[int], Drawn], numbers: Iterable[int], depth: int) -> Generator[Drawn, None, None]:
    """Draw for every number in turn, up to `depth` before they are asked for.

    The function runs in one thread, in order; what it raises is raised where the value is taken. With a depth of 0 it
    runs where it is asked. While a CUDA graph is recorded no other thread may use the GPU: draw on the CPU.

    >>> list(ahead(lambda number: number**2, range(4), depth=2))
    [0, 1, 4, 9]
    """
    if depth < 1:
        for number in numbers:
            yield draw(number)
        return
    values: queue.Queue[tuple[Drawn | None, BaseException | None]] = queue.Queue(maxsize=depth)
    stop = threading.Event()
    order = list(numbers)
    thread = threading.Thread(target=_work, args=(draw, order, values, stop), daemon=True)
    thread.start()
    try:
        for _ in order:
            value, error = values.get()
            if error is not None:
                raise error
            yield value  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()


def _work(draw: Callable[[int], Drawn], numbers: Iterable[int], values: queue.Queue, stop: threading.Event) -> None:
    try:
        for number in numbers:
            if not _put(values, (draw(number), None), stop):
                return
    except BaseException as error:  # noqa: BLE001 - it is raised where the value is taken
        _put(values, (None, error), stop)


def _put(values: queue.Queue, item: tuple, stop: threading.Event) -> bool:
    """Wait for room; False once nobody wants any more."""
    while not stop.is_set():
        try:
            values.put(item, timeout=_WAIT)
        except queue.Full:
            continue
        return True
    return False
