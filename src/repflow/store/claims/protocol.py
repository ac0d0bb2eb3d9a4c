"""The state machine by which workers share cells; docs/guarantees.md draws it, the tests walk through all of it.

Every transition does one operation on what workers share, so that the order of these operations is all that can differ
between two runs. `tests/store/claims/test_protocol.py` tries all orders.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

from repflow.store.claims.ledger import Entry, Kind


class Phase(StrEnum):
    """Where a worker is with a cell."""

    START = "start"  # is the result at its place?
    LOOK = "look"  # what does the last entry say?
    WATCH = "watch"  # does its worker live?
    CLAIM = "claim"  # write the next entry
    HOLD = "hold"  # work
    COMMIT = "commit"  # write how the work ended
    PLACE = "place"  # move the result to its place
    CHECK = "check"  # done, and nothing to move: is it at its place?
    LOST = "lost"  # another worker has taken over
    BUSY = "busy"  # another worker works on it
    FINISHED = "finished"
    FAILED = "failed"
    RELEASED = "released"


ENDS = frozenset([Phase.LOST, Phase.BUSY, Phase.FINISHED, Phase.FAILED, Phase.RELEASED])
"""Phases in which there is nothing more to do for now; HOLD ends when the work does."""


@dataclass(frozen=True)
class State:
    """What a worker knows of a cell.

    Attributes:
        phase: what it does next.
        number: number of the entry that it writes or holds.
        entry: the last entry that it has seen.
        ending: the kind of entry with which its work ends.
    """

    phase: Phase = Phase.START
    number: int = 0
    entry: Entry | None = None
    ending: Kind = Kind.DONE

    @property
    def over(self) -> bool:
        """Whether `step` leads no further."""
        return self.phase in ENDS or self.phase is Phase.HOLD

    def ended(self, ending: Kind) -> State:
        """The work of a held cell has ended."""
        assert self.phase is Phase.HOLD
        return replace(self, phase=Phase.COMMIT, number=self.number + 1, ending=ending)


@runtime_checkable
class World(Protocol):
    """One cell as one worker sees it: what is shared, and what the worker knows about others."""

    def placed(self) -> bool:
        """Whether the finished result is at its place."""

    def last(self) -> Entry | None:
        """The last entry of the ledger."""

    def add(self, number: int, kind: Kind, before: Entry | None) -> bool:
        """Write an entry of this worker's, behind `before`; False where the number is taken."""

    def place(self, done: Entry) -> bool:
        """Move the result that an entry speaks of to its place; False where it is not where it was worked on."""

    def stale(self, claim: Entry) -> bool:
        """Whether the worker of a claim seems to be gone. It may be wrong: that costs work, never a result."""

    def hopeless(self, claim: Entry) -> bool:
        """Whether too many workers in a row were lost over this cell."""

    def again(self, failure: Entry) -> bool:
        """Whether a failed cell is to be tried again."""


def step(state: State, world: World) -> State:
    """Do the next operation of a worker on a cell."""
    match state.phase:
        case Phase.START:
            return replace(state, phase=Phase.FINISHED if world.placed() else Phase.LOOK)
        case Phase.LOOK:
            return _looked(world.last(), world)
        case Phase.WATCH:
            return _watched(state, world)
        case Phase.CLAIM:
            won = world.add(state.number, Kind.CLAIM, state.entry)
            return replace(state, phase=Phase.HOLD if won else Phase.LOOK)
        case Phase.COMMIT:
            won = world.add(state.number, state.ending, state.entry)
            return replace(state, phase=_COMMITTED[state.ending] if won else Phase.LOST)
        case Phase.PLACE:
            assert state.entry is not None
            return replace(state, phase=Phase.FINISHED if world.place(state.entry) else Phase.CHECK)
        case Phase.CHECK:  # deleted since, or it could be moved
            placed = world.placed()
            return replace(state, phase=Phase.FINISHED if placed else Phase.CLAIM, number=state.number + (not placed))
    raise AssertionError(f"no step leads from {state.phase}")


_COMMITTED = {Kind.DONE: Phase.LOOK, Kind.FAILED: Phase.LOOK, Kind.RELEASED: Phase.RELEASED}
"""Behind a `done` of its own the worker looks again, as all others do: whoever comes first moves the result."""


def _looked(last: Entry | None, world: World) -> State:
    if last is None:
        return State(Phase.CLAIM, 1)
    match last.kind:
        case Kind.CLAIM:
            return State(Phase.WATCH, last.number, last)
        case Kind.DONE:
            return State(Phase.PLACE, last.number, last)
        case Kind.FAILED if not world.again(last):
            return State(Phase.FAILED, last.number, last)
        case _:
            return State(Phase.CLAIM, last.number + 1, last)


def _watched(state: State, world: World) -> State:
    claim = state.entry
    assert claim is not None
    if not world.stale(claim):
        return replace(state, phase=Phase.BUSY)
    if world.hopeless(claim):
        return replace(state, phase=Phase.COMMIT, number=claim.number + 1, ending=Kind.FAILED)
    return replace(state, phase=Phase.CLAIM, number=claim.number + 1)


def still_held(state: State, world: World) -> bool:
    """Whether a held cell has not been taken over; a worker asks with every heartbeat, to stop in time."""
    last = world.last()
    return last is not None and last.number == state.number
