"""A worker: takes cells of a study, one after the other, until none is left, wherever it runs."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repflow.store.claims.board import Policy
from repflow.store.claims.liveness import new_worker
from repflow.store.disk import UnwritableError
from repflow.studies.engine.cells import Bench, Outcome
from repflow.studies.scale.order import Order, rotated
from repflow.studies.scale.way import Way, next_move, sweep_marks

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.studies.engine.cell import Cell


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

    def count(self, outcome: Outcome | None) -> None:
        """Add a cell.

        Raises:
            UnwritableError: its result could not be written.
        """
        if outcome is None:
            return
        if isinstance(outcome.error, UnwritableError):
            raise outcome.error
        if outcome.here:
            self.finished += outcome.status == "finished"
            self.failed += outcome.status != "finished"


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
    tally = Tally()
    with bench:
        moves, outcome = way_of(order, post, bench).moves(), None
        while (move := next_move(moves, outcome)) is not None:
            outcome = None
            if isinstance(move, float):
                time.sleep(move)
            else:
                outcome = bench.work(move, None if show is None else show(move))
                tally.count(outcome)
    if post.session is None:  # of a command there is one who sweeps when all have ended
        sweep_marks(bench.board.place)
    return tally


def way_of(order: Order, post: Post, bench: Bench) -> Way:
    """Where a worker begins: those of one command at equal distances, one by itself anywhere."""
    cells, worker = order.at_work(), bench.board.worker
    own = post.count > 1
    number = post.number if own else random.Random(worker.token).randrange(max(1, len(cells)))
    blocks = rotated(cells, number, post.count if own else max(1, len(cells)))
    retry = post.policy.retry
    return Way(blocks, bench.board.place, worker.session, retry=retry)


def settle(order: Order, post: Post) -> None:
    """Make the process what its post says: folder, GPU, threads. Before torch is used."""
    if post.gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = post.gpus
    with suppress(OSError):
        os.chdir(order.base)
    if post.threads is not None:
        import torch

        torch.set_num_threads(post.threads)
