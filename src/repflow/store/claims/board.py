"""The board of a study: one worker's way to take cells, keep them while it works, and say how the work ended."""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from repflow.core.errors import ConfigChangedError, InputError, StoreError, teach
from repflow.store.claims.ledger import Entry, Kind, add_entry, attempt_name, last_entry
from repflow.store.claims.liveness import (
    BEAT_SECONDS,
    STALE_SECONDS,
    WORKERS,
    Heartbeat,
    Watch,
    Worker,
    has_ended,
    read_beat,
)
from repflow.store.claims.place import Place
from repflow.store.claims.protocol import Phase, State, step, still_held

VERSIONS = "versions"
"""Folder with a name for every version of repflow that has worked on the study."""
MOST_TRIES = 5
"""Workers that may be lost in a row over one cell without storing anything new: the next one gives it up."""
WATCHED = 32
"""Claims of others that a waiting worker looks at in one round: a thousand waiting workers must not read a thousand
files each, again and again."""


class ClaimLostError(StoreError):
    """Another worker has taken the cell over; what this one has done of it is not used."""


@runtime_checkable
class Results(Protocol):
    """Where cells are worked on, and where their results go; see `repflow.store.claims.attempt.Attempts`."""

    def placed(self, cell: str) -> bool:
        """Whether the finished run of a cell is at its place."""

    def begin(self, cell: str, claim: Entry, before: Entry | None) -> Path:
        """Folder of runs for the work under a claim."""

    def progress(self, entry: Entry | None) -> str:
        """How far the work under a claim has come."""

    def stage(self, claim: Entry) -> None:
        """Let all workers see a finished run, before it is said to be done."""

    def place(self, done: Entry) -> bool:
        """Move a finished run to its place."""

    def fetch(self, cell: str) -> None:
        """Bring a finished run to where it is read."""

    def drop(self, cell: str) -> None:
        """Delete a run that was put into another one."""

    def sweep(self) -> None:
        """Delete what is left of work on finished cells."""

    def discard(self, attempt: str, *, only_empty: bool = False) -> None:
        """Delete the work under a claim, or only where nothing was stored."""

    def tidy(self) -> None:
        """Remove what is empty when a worker ends."""


@dataclass(frozen=True)
class Policy:
    """How a worker behaves towards others.

    Attributes:
        retry: try cells again that failed under an earlier command.
        stale: seconds without a heartbeat after which a worker counts as gone.
        beat: seconds between heartbeats.
    """

    retry: bool = False
    stale: float = STALE_SECONDS
    beat: float = BEAT_SECONDS


def config_digest(config: Mapping[str, Any]) -> str:
    """Digest of a cell's config.

    >>> config_digest({"a": 1, "b": 2}) == config_digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


class Board:
    """The cells of a study as one worker sees them. Use as a context manager: it keeps the heartbeat.

    Nothing is written before the first claim: a study that is finished may be on a disk that is read-only.

    Args:
        place: where workers meet.
        results: where cells are worked on.
        worker: this one.
        policy: how it behaves.
    """

    def __init__(self, place: Place, results: Results, worker: Worker, policy: Policy | None = None) -> None:
        self.place, self.results, self.worker = place, results, worker
        self.policy = policy or Policy()
        self.watch = Watch(place, stale=self.policy.stale)
        self.heartbeat = Heartbeat(place, worker, seconds=self.policy.beat, each=self._check_held)
        self._held: Hold | None = None
        self._begun = False

    def __enter__(self) -> Board:
        return self

    def begin(self) -> None:
        """Show that this worker lives, from its first claim on."""
        if self._begun:
            return
        with ExitStack() as stack:  # seen before it looks: of two that begin at once, one sees the other
            stack.enter_context(self.heartbeat)
            self.check_versions()
            stack.pop_all()
        self._begun = True

    def __exit__(self, *error: Any) -> None:
        if not self._begun:
            return
        if self._held is not None:
            self._held.release()
        self.heartbeat.__exit__(*error)
        self.results.tidy()

    def _check_held(self) -> None:
        held = self._held
        if held is not None and not still_held(held.state, held.world):
            held.lost.set()

    def check_versions(self, wait: Callable[[float], None] = time.sleep) -> None:
        """Refuse to work beside workers of another version of repflow, whose numbers may differ.

        Raises:
            InputError: names the other worker.
        """
        self.place.write(f"{VERSIONS}/{self.worker.version}", b"")
        if self.place.names(VERSIONS) == [self.worker.version]:  # a thousand workers need not read each other's files
            return
        for token in self.place.names(WORKERS):
            other = read_beat(self.place, token)
            if not other or other["version"] == self.worker.version or not self._shows_life(other, wait):
                continue
            there = f"workers of one version of repflow, such as {other['version']} on {other['host']}"
            remedy = "install the same version everywhere, or wait until that worker has ended"
            raise InputError(teach(f"{there} (process {other['pid']})", f"{self.worker.version} here", remedy))

    def _shows_life(self, other: Mapping[str, Any], wait: Callable[[float], None]) -> bool:
        """Whether a heartbeat changes; a file that a killed worker left does not."""
        claim = Entry(0, Kind.CLAIM, other["token"])
        if has_ended(other["machine"], other["pid"], other["born"]):
            return False
        before = self.place.read(f"{WORKERS}/{claim.token}")
        while self.watch.silent(claim) < self.policy.stale:
            now = self.place.read(f"{WORKERS}/{claim.token}")
            if now != before:
                return now is not None  # one that ends takes its file away
            wait(self.policy.beat)
        return False

    def take(self, cell: str, config: str) -> Hold | State:
        """Claim a cell if it is free, or complete what a dead worker has left of its publication.

        Args:
            cell: name of the cell.
            config: digest of its config.

        Returns:
            A `Hold` to work under, or the state that says why there is none: finished, failed or busy.
        """
        assert self._held is None, "one cell at a time"
        world = CellWorld(self, cell, config)
        state = State()
        while not state.over:
            state = step(state, world)
        if state.phase is not Phase.HOLD:
            return state
        self._held = Hold(self, world, state)
        return self._held

    def done_with(self) -> None:
        """No cell is held any more."""
        self._held = None

    def first_to_change(
        self, cells: Iterable[str], poll: float, wait: Callable[[float], None] = time.sleep
    ) -> list[str]:
        """Wait until a cell that others hold may be free or finished; returns those to look at.

        Args:
            cells: cells that are busy.
            poll: seconds between two looks.
            wait: sleeps.
        """
        waiting = list(cells)
        while True:
            round_ = random.sample(waiting, min(WATCHED, len(waiting)))
            changed = [cell for cell in round_ if self._may_have_changed(cell)]
            if changed or not waiting:
                return changed
            wait(poll)

    def _may_have_changed(self, cell: str) -> bool:
        last = last_entry(self.place, cell)
        return last is None or last.kind is not Kind.CLAIM or self.watch.gone(last)


class CellWorld:
    """One cell in the eyes of a worker; see `repflow.store.claims.protocol.World`."""

    def __init__(self, board: Board, cell: str, config: str) -> None:
        self._board, self.cell, self._config = board, cell, config
        self.own: Entry | None = None
        self.before: Entry | None = None
        self.status = self.reason = ""

    def placed(self) -> bool:
        """Whether the result is at its place."""
        return self._board.results.placed(self.cell)

    def last(self) -> Entry | None:
        """The last entry of its ledger."""
        return last_entry(self._board.place, self.cell)

    def add(self, number: int, kind: Kind, before: Entry | None) -> bool:
        """Write an entry."""
        self._board.begin()
        worker, results = self._board.worker, self._board.results
        entry = Entry(number, kind, cell=self.cell, config=self._config, **worker.facts())
        if kind is Kind.CLAIM:
            mark = results.progress(before)
            stuck = before is not None and before.kind is Kind.CLAIM and mark == before.mark
            tries = before.tries + 1 if before is not None and stuck else 1
            attempt = attempt_name(self.cell, number, worker.token)
            entry = replace(entry, attempt=attempt, tries=tries, mark=mark)
        elif self.own is not None:
            entry = replace(entry, attempt=self.own.attempt, status=self.status, reason=self.reason)
        else:  # what workers were lost over is not started from again
            status, reason = given_up(before)
            entry = replace(entry, status=status, reason=reason)
        won = add_entry(self._board.place, entry)
        if won and kind is Kind.CLAIM:
            self.own, self.before = entry, before
        return won

    def place(self, done: Entry) -> bool:
        """Move the result to its place."""
        return self._board.results.place(done)

    def stale(self, claim: Entry) -> bool:
        """Whether a claim's worker seems to be gone.

        Raises:
            ConfigChangedError: a living worker works on another config under the same name.
        """
        gone = self._board.watch.gone(claim)
        if not gone and claim.config and claim.config != self._config:
            raise ConfigChangedError(
                f"cell {self.cell!r}: {claim.host} (process {claim.pid}) works on another config of that name; "
                "wait for it to end, or use another --name"
            )
        return gone

    def hopeless(self, claim: Entry) -> bool:
        """Whether this cell seems to end its workers."""
        return claim.tries >= MOST_TRIES

    def again(self, failure: Entry) -> bool:
        """Whether a failed cell is tried again: once by every command that asks for it."""
        return self._board.policy.retry and failure.session != self._board.worker.session


def given_up(last: Entry | None) -> tuple[str, str]:
    """Status and reason of a cell over which workers were lost."""
    where = "" if last is None else f", the last on {last.host} (process {last.pid})"
    reason = (
        f"{MOST_TRIES} workers in a row ended over this cell without storing anything new{where}: they were killed, "
        "perhaps for lack of memory; see their logs, then run the command with --retry-failed"
    )
    return "failed", reason


@dataclass
class Hold:
    """A claimed cell, until one of `finish`, `fail` and `release` is called.

    Attributes:
        board: its board.
        world: the cell.
        state: that of the protocol.
        lost: set once another worker has taken over.
    """

    board: Board
    world: CellWorld
    state: State
    lost: threading.Event = field(default_factory=threading.Event)

    @property
    def claim(self) -> Entry:
        """The entry that holds the cell."""
        assert self.world.own is not None
        return self.world.own

    @property
    def inherits(self) -> bool:
        """Whether the work starts from what another worker has stored."""
        return self.world.before is not None and bool(self.world.before.attempt)

    def begin(self, *, fresh: bool = False) -> Path:
        """Folder of runs to work in, with what an earlier worker has stored; a fresh one has nothing in it."""
        before = None if fresh else self.world.before
        if fresh:
            self.board.results.discard(self.claim.attempt)
        return self.board.results.begin(self.world.cell, self.claim, before)

    def check(self) -> None:
        """Stop work that nobody will use.

        Raises:
            ClaimLostError: another worker has taken over.
        """
        if self.lost.is_set():
            raise ClaimLostError(f"{self.world.cell}: another worker has taken over, this one was silent for too long")

    def finish(self) -> bool:
        """Publish the result; False where another worker has taken over."""
        self.board.results.stage(self.claim)
        state = self._ended(Kind.DONE)
        while state.phase in (Phase.LOOK, Phase.PLACE):
            state = step(state, self.world)
        return state.phase is not Phase.LOST

    def fail(self, status: str, reason: str) -> bool:
        """Keep why the cell has no result; False where another worker has taken over."""
        self.world.status, self.world.reason = status, reason
        return self._ended(Kind.FAILED).phase is not Phase.LOST

    def release(self) -> bool:
        """Leave the cell to others; what is stored of it stays. False where another worker has taken over already."""
        try:
            return self._ended(Kind.RELEASED).phase is not Phase.LOST
        except StoreError:  # a full disk: the claim ends when this process does
            return True

    def _ended(self, ending: Kind) -> State:
        self.board.done_with()
        state = step(replace(self.state.ended(ending), entry=self.claim), self.world)
        if state.phase is Phase.LOST:
            self.board.results.discard(self.claim.attempt)
        elif ending is Kind.FAILED:
            self.board.results.discard(self.claim.attempt, only_empty=True)
        return state
