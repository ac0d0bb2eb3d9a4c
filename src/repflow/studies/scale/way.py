"""A worker's way through the cells of a study: free ones first, then what others leave; when to look and when to wait.

The way decides and does nothing else: it asks for a cell to be worked on or for seconds to be waited, and hears what
came of it. Simulations step through thousands of ways, with a clock of their own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import TypeAlias

from repflow.core.errors import StoreError
from repflow.store.claims.liveness import WORKERS
from repflow.store.claims.place import Place
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import POLL_SECONDS, Outcome

MARKS = "marks"
BLOCKS = "blocks"
"""Folder with a folder for every block, in it an empty file for every cell that somebody has gone to."""
TAKEN, FINISHED, ENDED = "taken", "finished", "ended"
QUESTIONS = 16
"""To the store, by a waiting worker before it waits again, beside those for the marks and the number of workers."""
HELD_QUESTIONS = 4
"""For a cell that another worker holds: its result, its ledger, the last entry, the heartbeat."""
MOST_SECONDS = 2.0
"""Between two such rounds, in a small crew."""
ROUNDS_PER_SECOND = 200
"""By all waiting workers together: a thousand wait longer each, so that those who work are not held up."""
PATIENCE = 1.5
"""By which a wait is longer than the one before."""

Moves: TypeAlias = Generator[Cell | float, Outcome | None, None]
"""Cells to work on and seconds to wait; answered with what became of a cell, None where another worker has it."""


class Marks:
    """What workers note about blocks of cells, so that not everyone looks at each cell; hints, which may be missing.

    A mark is `marks/WORD-BLOCK-SESSION`. `taken`: somebody has gone to every cell, which stays so. `finished`: every
    result was there. `ended`: every cell was finished or had failed. A result may be deleted and a failure tried again,
    so that the last two count for a worker only if they came after it did, or are of its own command. All are read by
    one listing, and only once between two calls of `expire`.

    `blocks/BLOCK/CELL` says that somebody has gone to a cell, written before it is claimed: one listing shows which
    cells of a block are free, however many are finished. They stay, as claims do. Where a worker was killed before it
    claimed, the cell is found later, with those that others have left.

    Args:
        place: where workers meet.
        session: the command of this worker.
        retry: whether failures of other commands are work to do.
    """

    def __init__(self, place: Place, session: str, *, retry: bool = False) -> None:
        self._place, self._session, self._retry = place, session, retry
        self._known: set[tuple[str, str]] = set()
        self._fresh = False
        self._before: frozenset[str] | None = None
        self._before = frozenset(self._refresh())

    def _refresh(self) -> list[str]:
        names, self._fresh = self._place.names(MARKS), True
        for name in names:
            word, _, rest = name.partition("-")
            block, _, session = rest.partition("-")
            own = session == self._session
            late = self._before is not None and name not in self._before
            if own or word == TAKEN or (late and not (word == ENDED and self._retry)):
                self._known.add((word, block))
        return names

    def has(self, block: str, *words: str) -> bool:
        """Whether a block has one of the marks; all are read again where it is not known and time has passed."""
        marks = {(word, block) for word in words}
        if not self._fresh and not marks & self._known:
            self._refresh()
        return bool(marks & self._known)

    def expire(self) -> None:
        """Time has passed, in which others may have set marks."""
        self._fresh = False

    def gone_to(self, block: str) -> frozenset[str]:
        """Cells of a block that somebody has gone to."""
        return frozenset(self._place.names(f"{BLOCKS}/{block}"))

    def go_to(self, block: str, cell: str) -> None:
        """Note for others that this worker goes to a cell."""
        with suppress(StoreError):  # a disk that is read-only: the cell may be finished
            self._place.create(f"{BLOCKS}/{block}/{cell}", b"")  # never over a file, wherever a link leads

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
        rng: draws waits, and cells where others are faster.
    """

    def __init__(
        self,
        blocks: Sequence[Sequence[Cell]],
        place: Place,
        session: str,
        *,
        retry: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._blocks = {block_name(block): block for block in blocks}
        self._open = {cell.name for block in blocks for cell in block}
        self._failed: set[str] = set()
        self._place, self._rng = place, rng or random.Random()
        self._marks = Marks(place, session, retry=retry)
        self._asked, self._busy, self._pause = 0, False, POLL_SECONDS

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
        """Cells that nobody has gone to, block by block; the block is listed again for each, as others take of it."""
        for name, block in self._blocks.items():
            tried: set[str] = set()
            outrun = False
            while not self._marks.has(name, TAKEN):
                gone = self._marks.gone_to(name) | tried
                free = [cell for cell in block if cell.name not in gone]
                if not free:
                    self._marks.set(name, TAKEN)
                    break
                cell = self._rng.choice(free) if outrun else free[0]  # many who see one free cell would all go to it
                tried.add(cell.name)
                self._marks.go_to(name, cell.name)
                outrun = not (yield from self._do(cell))
            self._marks.expire()

    def _take_rest(self) -> Moves:
        """What others have given up or left when they died; a few questions at a time while others work."""
        for name, block in self._blocks.items():
            here = [cell for cell in block if cell.name in self._open]
            if here and self._marks.has(name, FINISHED, ENDED):
                self._open.difference_update(cell.name for cell in here)
                continue
            for cell in here:
                yield from self._do(cell)
                self._asked += HELD_QUESTIONS if cell.name in self._open else 1
                if self._asked >= QUESTIONS:
                    if self._busy:
                        yield self._wait()
                    self._rest()
            if here and not any(cell.name in self._open for cell in block):
                self._marks.set(name, ENDED if any(cell.name in self._failed for cell in block) else FINISHED)

    def _do(self, cell: Cell) -> Generator[Cell | float, Outcome | None, bool]:
        """Go to a cell; returns whether it was worked on here."""
        outcome = yield cell
        if outcome is None:
            self._busy = True
            return False
        self._open.discard(cell.name)
        if outcome.status != "finished":
            self._failed.add(cell.name)
        if outcome.here:
            self._pause, self._busy = POLL_SECONDS, False
        return outcome.here

    def _rest(self) -> None:
        self._asked, self._busy = 0, False
        self._marks.expire()

    def _wait(self) -> float:
        """Seconds to wait: longer each time, longer in a crowd, and never in step with others."""
        self._rest()
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
