"""A crew: workers of one command on one study, kept at work until every cell is finished or has failed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from repflow.core.errors import RepflowError, StoreError
from repflow.store.claims.attempt import OWN
from repflow.store.claims.ledger import CLAIMS, Entry, Kind, last_entry
from repflow.store.claims.liveness import WORKERS, has_ended, read_beat
from repflow.studies.scale.engine import Ended, Engine
from repflow.studies.scale.order import Order, weight
from repflow.studies.scale.service import DEVICE_LOST, INTERRUPTED
from repflow.studies.scale.way import sweep_marks
from repflow.studies.scale.worker import Post

POLL_SECONDS = 0.25
PATIENCE = 15.0
"""Seconds that workers have to notice that nothing is left."""
MOST_LOSSES = 5
"""Workers per post that may be lost in a row while no cell comes to its end: then something ends them all."""


@dataclass
class Standing:
    """How far a study is.

    Attributes:
        order: what is to be done.
        retry: whether failures of earlier commands count as work to do.
        session: the command that asks.
        finished: names of finished cells.
        failed: names of failed ones.
        workers: heartbeats of workers that seem to live, by token.
        began: when this command began, by its own clock.
        before: weight of the cells that were finished before it.
    """

    order: Order
    session: str
    retry: bool = False
    finished: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    workers: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    before: int = 0

    def __post_init__(self) -> None:
        """Look at what is there."""
        self._place, results = self.order.meeting()
        self._weights = {cell.name: max(1, weight(cell)) for cell in self.order.cells}
        self.finished |= {cell.name for cell in self.order.cells if results.placed(cell.name)}
        self.refresh()
        self.before = sum(self._weights[name] for name in self.over)
        self._earlier = frozenset(self.finished)

    @property
    def over(self) -> set[str]:
        """Cells on which nobody will work any more."""
        return self.finished | self.failed

    @property
    def fresh(self) -> set[str]:
        """Cells that were finished since this command began."""
        return self.finished - self._earlier

    @property
    def complete(self) -> bool:
        """Whether every cell is over."""
        return len(self.over) == len(self._weights)

    def refresh(self) -> None:
        """Look at claims that were not over, and at heartbeats."""
        for name in self._place.names(CLAIMS):
            if name not in self._weights or name in self.over:
                continue
            last = last_entry(self._place, name)
            if last is not None and last.kind is Kind.DONE:
                self.finished.add(name)
            elif last is not None and last.kind is Kind.FAILED and not (self.retry and last.session != self.session):
                self.failed.add(name)
        beats = {token: read_beat(self._place, token) for token in self._place.names(WORKERS)}
        self.workers = {
            token: beat
            for token, beat in beats.items()
            if beat and not has_ended(beat["machine"], beat["pid"], beat["born"])
        }

    def reasons(self) -> dict[str, str]:
        """Why shares failed, by name: no later table shows them, as it does cells."""
        return {name: entry.reason for name, entry in self._failed_shares().items()}

    def failed_now(self) -> set[str]:
        """Shares that failed under this command, not under an earlier one."""
        return {name for name, entry in self._failed_shares().items() if entry.session == self.session}

    def _failed_shares(self) -> dict[str, Entry]:
        shares = [cell.name for cell in self.order.cells if cell.share is not None and cell.name in self.failed]
        entries = {name: last_entry(self._place, name) for name in shares}
        return {name: entry for name, entry in entries.items() if entry is not None}

    def seconds_left(self, now: float | None = None) -> float | None:
        """Time until all is done if cells go on at the pace of this command; None before the first has ended."""
        done = sum(self._weights[name] for name in self.over) - self.before
        if not done:
            return None
        spent = (time.monotonic() if now is None else now) - self.began
        return spent * (sum(self._weights.values()) - self.before - done) / done


def run_crew(
    order: Order,
    engine: Engine,
    posts: Sequence[Post],
    *,
    show: Callable[[Standing], None],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> Standing:
    """Have workers do an order; returns once every cell is over.

    Args:
        order: what to do.
        engine: starts workers.
        posts: one per worker.
        show: called with the standing, again and again.
        say: called with a line when a worker was lost.
        wait: sleeps.

    Raises:
        RepflowError: a worker cannot go on (a full disk), or workers are lost again and again.
    """
    session = secrets.token_hex(6)
    policy = posts[0].policy
    posts = [replace(post, session=session) for post in posts]
    standing = Standing(order, session, policy.retry)
    if standing.complete:
        return standing
    losses, known = 0, len(standing.over)
    try:
        engine.start(order, posts)
        while not standing.complete:
            show(standing)
            for ended in engine.ended():
                standing.refresh()
                losses = 0 if len(standing.over) > known else losses + 1
                known = len(standing.over)
                _answer(ended, order, engine, standing, say, hopeless=losses > MOST_LOSSES * len(posts))
            wait(POLL_SECONDS)
            standing.refresh()
        show(standing)
    finally:
        engine.stop(PATIENCE if standing.complete else 0.0)
        _sweep(order, session)
    return standing


def _answer(
    ended: Ended, order: Order, engine: Engine, standing: Standing, say: Callable[[str], None], *, hopeless: bool
) -> None:
    # interrupted by somebody else: a machine that shuts down terminates first
    lost = ended.lost or ended.error in (INTERRUPTED, DEVICE_LOST)
    if ended.error and not lost:
        raise RepflowError(f"worker {ended.post.number} cannot go on: {ended.error}")
    if standing.complete or not lost:
        return
    if hopeless:
        raise RepflowError(
            "workers end again and again before a cell is finished: they are killed, perhaps for lack of memory; "
            f"start fewer with --workers, and see {order.folder / OWN / 'logs'}"
        )
    words = DEVICE_LOST if ended.error == DEVICE_LOST else "was lost"
    say(f"worker {ended.post.number} {words}; another takes its post")
    engine.replace(order, ended.post)


def _sweep(order: Order, session: str) -> None:
    """Delete what only living workers need: marks, heartbeats of killed ones, what is left of finished work."""
    place, results = order.meeting()
    results.sweep()
    try:
        sweep_marks(place, session)
        for token in place.names(WORKERS):
            beat = read_beat(place, token)
            if beat and has_ended(beat["machine"], beat["pid"], beat["born"]):
                place.delete(f"{WORKERS}/{token}")
    except StoreError:
        return
