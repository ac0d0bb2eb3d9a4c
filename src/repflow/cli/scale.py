"""Workers of a command: started, watched in one table, ended; see `repflow.studies.scale`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import typer

from repflow.cli.console import DONE, LINE_SECONDS, ProgressLine, clock, note, quiet

if TYPE_CHECKING:
    from repflow.core.trust import Trust
    from repflow.studies.engine.cost import Plan
    from repflow.studies.engine.study import BaseStudy
    from repflow.studies.scale.config import ScaleConfig
    from repflow.studies.scale.crew import Standing
    from repflow.studies.scale.engine import Engine
    from repflow.studies.scale.order import Order
    from repflow.studies.scale.worker import Post


def check_engine(scale: ScaleConfig) -> None:
    """Refuse an engine that is not there, before models are looked at."""
    if scale.engine == "ray":
        from repflow.studies.scale.cluster import check_ray

        check_ray(scale)
    if scale.engine == "slurm":
        from repflow.studies.scale.slurm import check_slurm

        check_slurm(scale)
    if scale.store is not None:
        from repflow.store.claims.bucket import check_store

        check_store(scale.store)


def warm_up(scale: ScaleConfig) -> bool:
    """Begin to import what local workers need, unless this process has it; returns whether they will be forked."""
    if not scale.many or scale.engine != "local":
        return False
    from repflow.studies.scale.gpu import visible_gpus
    from repflow.studies.scale.local import warm
    from repflow.studies.scale.posts import thread_share

    if visible_gpus():
        return False
    warm(thread_share(scale.threads, scale.workers or 1))
    return True


def plan_of(study: Path, part: str, trust: Trust, *, apart: bool) -> Plan:
    """Cells and cost; apart, in a process that has imported torch, so that this one need not before workers start."""
    from repflow.studies.engine.cost import plan

    if not apart or "torch" in sys.modules:
        return plan(study, part, trust)
    from repflow.studies.scale import local

    planned: Plan = local.apart(plan, study, part, trust)
    return planned


SPREAD: ContextVar[ScaleConfig | None] = ContextVar("SPREAD", default=None)
"""How the command that runs now is spread over workers, where `repflow run` has started it."""


def take_part(study: BaseStudy[Any], requests: Mapping[str, Any], out: Path) -> None:
    """Have workers do the work of a command, so that it finds its runs finished; alone it does all of it itself.

    Args:
        study: what is asked.
        requests: configs by names of runs.
        out: folder of runs.
    """
    scale = SPREAD.get()
    if scale is None:
        return
    from repflow.studies.scale.order import Order

    with quiet():
        works = [study.work(config, out, name, scale.split) for name, config in requests.items()]
    for folder in dict.fromkeys(work.folder for work in works):
        cells = [cell for work in works if work.folder == folder for cell in work.cells]
        order = Order(folder, tuple(cells), store=scale.store)
        if scale.worker:
            be_worker(order, scale)
        elif cells:
            spread(order, scale)
            _, results = order.meeting()
            for cell in cells:
                results.fetch(cell.name)
        for cell in cells:  # the command says by itself what went wrong, when it tries again
            (folder / f"{cell.name}.json").unlink(missing_ok=True)
    if scale.worker:
        raise typer.Exit(DONE)


def spread(order: Order, scale: ScaleConfig) -> frozenset[str]:
    """Have workers do every cell of an order, so that each is finished or has failed; returns what was finished now."""
    fresh: set[str] = set()
    for stage in order.stages():
        standing = _crewed(stage, scale)
        fresh |= standing.fresh
        if failed := standing.failed_now():
            # for lack of memory beside other workers, or by a fault of another process: one worker alone would do them
            # one after the other when it puts the cell together
            few = None if scale.workers is None else max(1, scale.workers // 2)
            fewer = "" if few is None else f" by {few} worker{'s' * (few > 1)}"
            note(f"{len(failed)} of {counted(stage)} failed and are tried once more{fewer}")
            again = replace(stage, cells=tuple(cell for cell in stage.cells if cell.name in failed))
            fresh |= _crewed(again, replace(scale, retry_failed=True, workers=few)).fresh
    return frozenset(fresh)


def _crewed(order: Order, scale: ScaleConfig) -> Standing:
    """Have workers do what can be done at once, and say why shares failed."""
    from repflow.studies.scale.crew import run_crew

    engine, posts = engine_for(order, scale)
    note(f"{counted(order)} in {order.folder}: starting {len(posts)} workers ({scale.engine})")
    with CrewTable(len(order.cells)) as table:
        standing = run_crew(order, engine, posts, show=table.show, say=note)
    for line in reason_lines(dict(sorted(standing.reasons().items()))):
        note(line)
    return standing


def reason_lines(reasons: Mapping[str, str]) -> list[str]:
    """Why runs failed: each reason once, with the first run that has it and the number of others.

    >>> reason_lines({"a.1-of-2": "no model", "a.2-of-2": "no model", "b": "no memory"})
    ['a.1-of-2 and 1 more: no model', 'b: no memory']
    """
    alike: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        alike.setdefault(reason, []).append(name)
    return [
        f"{first}{f' and {len(others)} more' if others else ''}: {reason}" for reason, (first, *others) in alike.items()
    ]


def counted(order: Order) -> str:
    """Shares and cells of an order, in words."""
    shares = sum(cell.share is not None for cell in order.cells)
    counts = {"share": shares, "cell": len(order.cells) - shares}
    return " and ".join(f"{count} {word}{'s' * (count != 1)}" for word, count in counts.items() if count)


def engine_for(order: Order, scale: ScaleConfig) -> tuple[Engine, list[Post]]:
    """Who starts workers, and where they stand."""
    from repflow.store.claims.attempt import OWN

    if scale.engine == "ray":
        from repflow.studies.scale.cluster import RayEngine

        note(f"ray: {'joining ' + scale.address if scale.address else 'starting a cluster here'}")
        ray = RayEngine(scale)
        return ray, ray.posts()
    if scale.engine == "slurm":
        from repflow.studies.scale.slurm import SlurmEngine

        slurm = SlurmEngine(scale, order.folder / OWN)
        return slurm, slurm.posts()
    from repflow.studies.scale.local import LOGS, LocalEngine
    from repflow.studies.scale.posts import local_posts

    return LocalEngine(order.folder / OWN / LOGS), local_posts(scale, order)


def be_worker(order: Order, scale: ScaleConfig) -> None:
    """Be one worker of a study that others may work on too."""
    from repflow.studies.engine.table import study_for
    from repflow.studies.scale.posts import policy_of
    from repflow.studies.scale.worker import Post, Tally, work

    def show(cell: Any) -> ProgressLine:
        return ProgressLine(cell.name, study_for(cell.config).counts)

    post, tally = Post(threads=scale.threads, policy=policy_of(scale)), Tally()
    for stage in order.stages():
        with quiet():
            done = work(stage, post, show)
        tally = Tally(tally.finished + done.finished, tally.failed + done.failed)
    note(f"nothing is left in {order.folder}: {tally.finished} cells finished here, {tally.failed} failed here")


class CrewTable:
    """The live table of a crew on stderr; now and then a line where that is not a terminal."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._live: Any = None
        self._stack = ExitStack()
        self._shown, self._line = time.monotonic(), ""

    def __enter__(self) -> CrewTable:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = self._stack.enter_context(
                Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def show(self, standing: Standing) -> None:
        """Show how far it is."""
        from repflow.report.terminal.crew import crew_table, standing_line

        left = standing.seconds_left()
        done, failed, here = len(standing.finished), len(standing.failed), len(standing.workers)
        line = standing_line(done, failed, self._total, here, "" if left is None else clock(left))
        if self._live is not None:
            self._live.update(crew_table(list(standing.workers.values()), line))
        elif time.monotonic() - self._shown > LINE_SECONDS or (standing.complete and line != self._line):
            self._shown, self._line = time.monotonic(), line
            note(line)
