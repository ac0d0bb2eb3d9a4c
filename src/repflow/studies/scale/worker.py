"""A worker: takes cells of a study, one after the other, until none is left, wherever it runs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repflow.core.errors import StoreError
from repflow.store.claims.board import Policy
from repflow.store.claims.liveness import Worker, new_worker
from repflow.store.claims.place import Place
from repflow.store.disk import UnwritableError
from repflow.studies.engine.cells import Bench, Outcome
from repflow.studies.scale.order import Order, rotated

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.studies.engine.cell import Cell

MARKS = "marks"
TAKEN, OVER = "taken", "over"


@dataclass(frozen=True)
class Post:
    """Where a worker stands among those of one command.

    Attributes:
        number: from 0.
        count: workers of the command.
        session: the command.
        threads: CPU threads; None leaves them as they are.
        gpus: what CUDA may see, such as "3"; None leaves it as it is.
        policy: how it behaves towards others.
    """

    number: int = 0
    count: int = 1
    session: str | None = None
    threads: int | None = None
    gpus: str | None = None
    policy: Policy = field(default_factory=Policy)


@dataclass
class Tally:
    """What a worker has done.

    Attributes:
        finished: cells that it finished.
        failed: cells that failed in its hands.
    """

    finished: int = 0
    failed: int = 0


def work(order: Order, post: Post, show: Callable[[Cell], Progress] | None = None) -> Tally:
    """Work on a study until every cell is finished or has failed, here or elsewhere.

    Args:
        order: what to do.
        post: where this worker stands.
        show: gives the callback for a cell.

    Raises:
        UnwritableError: the store is full or read-only; what was stored before is intact.
    """
    settle(order, post)
    bench = Bench(order.cells, order.folder, post.policy, new_worker(post.session), order.store)
    with bench:
        round_ = Round(bench, order, post, show)
        round_.take_free()
        round_.take_rest()
        return round_.tally


def settle(order: Order, post: Post) -> None:
    """Make the process what its post says: folder, GPU, threads. Before torch is used."""
    if post.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = post.gpus
    with suppress(OSError):
        os.chdir(order.base)
    if post.threads is not None:
        import torch

        torch.set_num_threads(post.threads)


class Marks:
    """What workers of one command note about blocks of cells, so that nobody looks at each cell again.

    A mark is a hint and lasts as long as its command.
    """

    def __init__(self, place: Place, session: str) -> None:
        self._place, self._folder = place, f"{MARKS}/{session}"
        self._known: set[str] = set()

    def refresh(self) -> None:
        """Read all marks."""
        self._known |= set(self._place.names(self._folder))

    def has(self, word: str, block: str) -> bool:
        """Whether a block is marked; marks are read again only where this one is not known."""
        if f"{word}-{block}" not in self._known:
            self.refresh()
        return f"{word}-{block}" in self._known

    def set(self, word: str, block: str) -> None:
        """Mark a block."""
        if f"{word}-{block}" not in self._known:
            self._known.add(f"{word}-{block}")
            with suppress(StoreError):
                self._place.create(f"{self._folder}/{word}-{block}", b"")


class Round:
    """One worker's way through the cells."""

    def __init__(self, bench: Bench, order: Order, post: Post, show: Callable[[Cell], Progress] | None) -> None:
        worker: Worker = bench.board.worker
        cells = order.at_work()
        number = post.number if post.count > 1 else random.Random(worker.token).randrange(max(1, len(cells)))
        self.bench, self.show, self.tally = bench, show, Tally()
        self.marks = Marks(bench.board.place, worker.session)
        self.blocks = rotated(cells, number, post.count if post.count > 1 else max(1, len(cells)))
        self.open = {cell.name: cell for block in self.blocks for cell in block}

    def take_free(self) -> None:
        """Take cells that nobody has claimed, block by block from this worker's own place on."""
        for block in self.blocks:
            if self.marks.has(TAKEN, _name(block)):
                continue
            for cell in block:
                if not self.bench.claimed(cell):
                    self._do(cell)
            self.marks.set(TAKEN, _name(block))

    def take_rest(self) -> None:
        """Take what others have given up or left when they died; wait for what they work on."""
        while self.open:
            for block in self.blocks:
                here = [cell for cell in block if cell.name in self.open]
                if here and self.marks.has(OVER, _name(block)):
                    self._drop(here)
                    continue
                for cell in here:
                    self._do(cell)
                if here and not any(cell.name in self.open for cell in block):
                    self.marks.set(OVER, _name(block))
            if self.open:
                self.bench.wait(list(self.open))

    def _drop(self, cells: list[Cell]) -> None:
        for cell in cells:
            del self.open[cell.name]

    def _do(self, cell: Cell) -> None:
        outcome = self.bench.work(cell, None if self.show is None else self.show(cell))
        if outcome is None:
            return
        self._count(outcome)
        del self.open[cell.name]

    def _count(self, outcome: Outcome) -> None:
        if isinstance(outcome.error, UnwritableError):
            raise outcome.error
        if outcome.here:
            self.tally.finished += outcome.status == "finished"
            self.tally.failed += outcome.status != "finished"


def _name(block: list[Cell]) -> str:
    """Of a block: the same for every worker, whichever cell it starts with."""
    return min(cell.name for cell in block)
