"""A worker's way through the cells of a study: free ones first, then what others leave; when to look and when to wait.

The way decides and does nothing else: it asks for a cell to be worked on or for seconds to be waited, and hears what
came of it. Simulations step through thousands of ways, with a clock of their own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TypeAlias

from repflow.core.errors import StoreError
from repflow.store.claims.liveness import WORKERS
from repflow.store.claims.place import Place
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import POLL_SECONDS, Outcome

MARKS = "marks"
TAKEN, FINISHED, ENDED = "taken", "finished", "ended"
LOOKS = 16
"""Cells that a waiting worker looks at before it waits again."""
MOST_SECONDS = 2.0
"""Between two such rounds, in a small crew."""
ROUNDS_PER_SECOND = 200
"""By all waiting workers together: a thousand wait longer each, so that those who work are not held up."""
PATIENCE = 1.1
"""By which a wait is longer than the one before: it adds a tenth of the time that was waited anyway."""

Moves: TypeAlias = Generator[Cell | float, Outcome | None, None]
"""Cells to work on and seconds to wait; answered with what became of a cell, None where another worker has it."""


class Marks:
    """What workers note about blocks of cells, so that not everyone looks at each cell; hints, which may be missing.

    A mark is `marks/WORD-BLOCK-SESSION`. `taken`: every cell was claimed by somebody, which stays so. `finished`: every
    result was there. `ended`: every cell was finished or had failed. A result may be deleted and a failure tried again,
    so that the last two count for a worker only if they came after it did, or are of its own command.

    Args:
        place: where workers meet.
        session: the command of this worker.
        retry: whether failures of other commands are work to do.
    """

    def __init__(self, place: Place, session: str, *, retry: bool = False) -> None:
        self._place, self._session, self._retry = place, session, retry
        self._known: set[tuple[str, str]] = set()
        self._before: frozenset[str] | None = None
        self._before = frozenset(self._refresh())

    def _refresh(self) -> list[str]:
        names = self._place.names(MARKS)
        for name in names:
            word, _, rest = name.partition("-")
            block, _, session = rest.partition("-")
            own = session == self._session
            late = self._before is not None and name not in self._before
            if own or word == TAKEN or (late and not (word == ENDED and self._retry)):
                self._known.add((word, block))
        return names

    def has(self, block: str, *words: str) -> bool:
        """Whether a block has one of the marks; all are read again only where it is not known."""
        marks = {(word, block) for word in words}
        if not marks & self._known:
            self._refresh()
        return bool(marks & self._known)

    def set(self, block: str, word: str) -> None:
        """Mark a block, unless it is."""
        if (word, block) not in self._known:
            self._known.add((word, block))
            with suppress(StoreError):
                self._place.write(f"{MARKS}/{word}-{block}-{self._session}", b"")


def sweep_marks(place: Place, session: str | None = None) -> None:
    """Delete the marks of a command that has ended; without one, all of them where no worker is left."""
    with suppress(StoreError):
        if session is None and place.names(WORKERS):
            return
        for name in place.names(MARKS):
            if session is None or name.rpartition("-")[2] == session:
                place.delete(f"{MARKS}/{name}")


class Way:
    """One worker's way through blocks of cells.

    Args:
        blocks: in the order in which this worker comes to them.
        place: where workers meet.
        session: its command.
        retry: whether failures of other commands are work to do.
        claimed: whether anyone has ever claimed a cell; a cheap look.
        rng: draws waits.
    """

    def __init__(
        self,
        blocks: Sequence[Sequence[Cell]],
        place: Place,
        session: str,
        *,
        claimed: Callable[[Cell], bool],
        retry: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._blocks = {block_name(block): block for block in blocks}
        self._open = {cell.name for block in blocks for cell in block}
        self._failed: set[str] = set()
        self._place, self._claimed, self._rng = place, claimed, rng or random.Random()
        self._marks = Marks(place, session, retry=retry)
        self._looks, self._busy, self._pause = 0, False, POLL_SECONDS

    def moves(self) -> Moves:
        """All moves, until every cell is finished or has failed, here or elsewhere."""
        yield from self._take_free()
        if self._open:  # of a crowd, some look at what is left and mark it for the others
            yield self._crowd() * self._rng.uniform(0.5, 1.5)
        while self._open:
            yield from self._take_rest()
            if self._open:
                yield self._wait()

    def _take_free(self) -> Moves:
        """Cells that nobody has claimed, block by block."""
        for name, block in self._blocks.items():
            if self._marks.has(name, TAKEN):
                continue
            for cell in block:
                if not self._claimed(cell):
                    yield from self._do(cell)
            self._marks.set(name, TAKEN)

    def _take_rest(self) -> Moves:
        """What others have given up or left when they died; a few looks at a time while others work."""
        for name, block in self._blocks.items():
            here = [cell for cell in block if cell.name in self._open]
            if here and self._marks.has(name, FINISHED, ENDED):
                self._open.difference_update(cell.name for cell in here)
                continue
            for cell in here:
                yield from self._do(cell)
                self._looks += 1
                if self._looks >= LOOKS:
                    if self._busy:
                        yield self._wait()
                    self._looks, self._busy = 0, False
            if here and not any(cell.name in self._open for cell in block):
                self._marks.set(name, ENDED if any(cell.name in self._failed for cell in block) else FINISHED)

    def _do(self, cell: Cell) -> Moves:
        outcome = yield cell
        if outcome is None:
            self._busy = True
            return
        self._open.discard(cell.name)
        if outcome.status != "finished":
            self._failed.add(cell.name)
        if outcome.here:
            self._pause, self._busy = POLL_SECONDS, False

    def _wait(self) -> float:
        """Seconds to wait: longer each time, longer in a crowd, and never in step with others."""
        self._looks, self._busy = 0, False
        seconds = max(self._pause, self._crowd())
        self._pause = min(self._pause * PATIENCE, MOST_SECONDS)
        return seconds * self._rng.uniform(0.5, 1.5)

    def _crowd(self) -> float:
        """Seconds in which each of the workers that are there may look once."""
        return len(self._place.names(WORKERS)) / ROUNDS_PER_SECOND


def next_move(moves: Moves, outcome: Outcome | None) -> Cell | float | None:
    """The next move after what came of the last one; None behind the last."""
    try:
        return moves.send(outcome)
    except StopIteration:
        return None


def block_name(block: Sequence[Cell]) -> str:
    """Of a block: the same for every worker, whichever cell it starts with, and another for other cells."""
    return hashlib.sha256("\n".join(sorted(cell.name for cell in block)).encode()).hexdigest()[:12]
