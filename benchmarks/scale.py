"""Workers: what claims cost, and what a cell costs beyond its own work.

python benchmarks/scale.py claims --workers 1000 --cells 10000
python benchmarks/scale.py counts --workers 100 --cells 10000 --before 9000
python benchmarks/scale.py cells --cells 40 --workers 2

`claims` runs the real ledger, the real heartbeat and the real way of a worker through the cells, on a real folder, with
cells that do nothing. Simulated is that a worker has a process: two processes step 500 workers each in turn, one
operation after the other, so that a worker that has claimed a cell publishes it only after all others had their turn.
`counts` does the same in one process with a clock of its own and cells of 1 to 2 s: questions to the store, no times.
`cells` runs the real command on small cells. Prints a table and a JSON object.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from repflow.store.claims.board import Board, Hold, Policy
from repflow.store.claims.ledger import CLAIMS, Entry, Kind, key_of
from repflow.store.claims.liveness import BEAT_SECONDS, Heartbeat, Watch, new_worker
from repflow.store.claims.place import FolderPlace
from repflow.store.claims.protocol import Phase
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import Outcome
from repflow.studies.scale.order import rotated
from repflow.studies.scale.way import Marks, Way, block_name, next_move
from repflow.studies.scale.worker import Post

SESSION, NAME = "benchmark", "study"
ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
COMMAND = [sys.executable, "-m", "repflow", "run", f"{NAME}.toml"]
STUDY = """[study]
kind = "measure"
models = ["zoo:gpt-neox", "zoo:mamba2"]
tasks = ["random"]
lengths = [12, 16]
samples = 2
seeds = {seeds}
"""


class Nothing:
    """Results of cells that do nothing: an empty file each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.looks = folder, 0

    def placed(self, cell: str) -> bool:
        """Whether the file is there."""
        self.looks += 1
        return (self.folder / cell).exists()

    def begin(self, cell: str, claim: Entry, before: Entry | None) -> Path:
        """No work, no folder."""
        return self.folder

    def progress(self, entry: Entry | None) -> str:
        """None."""
        return ""

    def place(self, done: Entry) -> bool:
        """Create the file."""
        (self.folder / done.cell).touch()
        return True

    def stage(self, claim: Entry) -> None:
        """Nothing."""

    fetch = drop = stage

    def discard(self, attempt: str, *, only_empty: bool = False) -> None:
        """Nothing."""

    def tidy(self) -> None:
        """Nothing."""

    sweep = tidy


class Counted(FolderPlace):
    """A folder that counts what is asked of it."""

    asked = 0

    def create(self, key: str, data: bytes) -> bool:
        """As a folder does."""
        self.asked += 1
        return super().create(key, data)

    def write(self, key: str, data: bytes) -> None:
        """As a folder does."""
        self.asked += 1
        super().write(key, data)

    def read(self, key: str) -> bytes | None:
        """As a folder does."""
        self.asked += 1
        return super().read(key)

    def names(self, key: str) -> list[str]:
        """As a folder does."""
        self.asked += 1
        return super().names(key)

    def delete(self, key: str) -> None:
        """As a folder does."""
        self.asked += 1
        super().delete(key)


class Turns(Heartbeat):
    """A heartbeat that beats when it is its turn, not in a thread."""

    def __enter__(self) -> Heartbeat:
        self.beat()
        return self

    def __exit__(self, *error: Any) -> None:
        self._place.delete(self.key)


class Simulated:
    """One worker as if on a machine of its own: the real ledger, heartbeat and way, and cells that do nothing.

    Args:
        place: where workers meet.
        folder: of results.
        post: where it stands.
        cells: of the study.
        clock: of its machine.
        seconds: that a cell takes.
    """

    def __init__(
        self,
        place: FolderPlace,
        folder: Path,
        post: Post,
        cells: list[Cell],
        clock: Callable[[], float] = time.monotonic,
        seconds: float = 0.0,
    ) -> None:
        worker = replace(new_worker(post.session), machine=f"machine {post.number}", host=f"host{post.number}")
        self.results = Nothing(folder)
        self.board = Board(place, self.results, worker, post.policy)
        self.board.heartbeat = Turns(place, worker, each=self.board._check_held)
        self.board.watch = Watch(place, stale=post.policy.stale, clock=clock)
        blocks = rotated(cells, post.number, post.count)
        rng = random.Random(post.number)
        self._moves = Way(blocks, place, worker.session, rng=rng).moves()
        self._hold: tuple[Cell, Hold] | None = None
        self._outcome: Outcome | None = None
        self._seconds = seconds
        self.finished: list[str] = []
        self.holds = False

    def step(self) -> float | None:
        """Do one thing; returns seconds until the next one, None behind the last."""
        if self._hold is not None:
            (cell, hold), self._hold = self._hold, None
            if hold.finish():
                self.finished.append(cell.name)
                self._outcome = Outcome(cell, Path(), "finished", here=True)
            self.holds = False
            return 0.0
        move = next_move(self._moves, self._outcome)
        self._outcome = None
        if move is None or isinstance(move, float):
            return move
        taken = self.board.take(move.name, "digest")
        if isinstance(taken, Hold):
            self._hold, self.holds = (move, taken), True
            return self._seconds
        self._outcome = Outcome(move, Path(), "finished") if taken.phase is Phase.FINISHED else None
        return 0.0

    def beat(self) -> None:
        """Show that it lives."""
        if self.board._begun:
            self.board.heartbeat.beat()


def simulate(
    workers: list[Simulated],
    now: Callable[[], float],
    sleep: Callable[[float], None],
    done: Callable[[], None] = lambda: None,
    lost: Callable[[Simulated], bool] = lambda _: False,
) -> None:
    """Step workers in turn, each when its time has come, until none has anything left to do.

    Args:
        workers: who.
        now: seconds that have passed.
        sleep: lets some pass.
        done: called when a cell was finished.
        lost: whether a worker dies now, with what it holds.
    """
    count, start = itertools.count(), now()
    steps = [(start, next(count), worker) for worker in workers]
    spread = BEAT_SECONDS / max(1, len(workers))
    beats = [(start + number * spread, next(count), worker) for number, worker in enumerate(workers)]
    gone: set[Simulated] = set()
    while steps:
        due, _, worker = steps[0]
        if beats and beats[0][0] <= max(due, now()):
            moment, _, other = heapq.heappop(beats)
            if other not in gone:
                sleep(max(0.0, moment - now()))
                other.beat()
                heapq.heappush(beats, (moment + BEAT_SECONDS, next(count), other))
            continue
        heapq.heappop(steps)
        sleep(max(0.0, due - now()))
        before = len(worker.finished)
        pause = worker.step()
        if len(worker.finished) > before:
            done()
        if pause is None or lost(worker):
            gone.add(worker)
        else:
            heapq.heappush(steps, (now() + pause, next(count), worker))


def _machines(folder: Path, names: list[str], numbers: range, workers: int, out: Any) -> None:
    """The workers of one process."""
    listed = [Cell(name, None) for name in names]
    place = Counted(folder / ".repflow")
    posts = [Post(number, workers, SESSION) for number in numbers]
    crowd = [Simulated(place, folder, post, listed) for post in posts]
    rows: list[tuple[float, float, int]] = []

    def done() -> None:
        rows.append((time.monotonic(), time.process_time(), place.asked))

    began = time.process_time()
    simulate(crowd, time.monotonic, lambda seconds: time.sleep(seconds) if seconds else None, done)
    out.put((rows, began, time.process_time()))


def claims(workers: int, cells: int, processes: int, before: int = 0) -> dict[str, Any]:
    """Claim rate, double work, and what a claim costs at the beginning and at the end."""
    names = [f"cell-{number:05d}" for number in range(cells)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place = FolderPlace(folder / ".repflow")
        finish(place, folder, names, before)
        queue: Any = multiprocessing.Queue()
        share = workers // processes
        posts = [range(at * share, (at + 1) * share) for at in range(processes)]
        crew = [multiprocessing.Process(target=_machines, args=(folder, names, own, workers, queue)) for own in posts]
        began = time.monotonic()
        for process in crew:
            process.start()
        parts = [queue.get() for _ in crew]
        for process in crew:
            process.join()
        ended = time.monotonic()
        double = sum(_double(place, name) for name in names)
    moments = sorted(moment for rows, _, _ in parts for moment, _, _ in rows)
    return {
        "workers": workers,
        "cells": cells,
        "finished_before": before,
        "finished": len(moments),
        "double": double,
        "claims_per_second": round(len(moments) / (moments[-1] - began)),
        "seconds_to_the_last_claim": round(moments[-1] - began, 2),
        "seconds_until_all_have_noticed": round(ended - began, 2),
        "claims_per_cpu_second": round(len(moments) / sum(rows[-1][1] - start for rows, start, _ in parts)),
        **_costs([rows for rows, _, _ in parts]),
    }


def counts(workers: int, cells: int, before: int) -> dict[str, Any]:
    """Questions to the store per claim, tenth by tenth, those with which workers begin included."""
    names, now, asked, rng = [f"cell-{number:05d}" for number in range(cells)], [0.0], [0], random.Random(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        place = Counted(folder / ".repflow")
        finish(place, folder, names, before)
        place.asked, listed = 0, [Cell(name, None) for name in names]
        posts = [Post(number, workers, SESSION) for number in range(workers)]
        crowd = [Simulated(place, folder, post, listed, lambda: now[0], 1 + rng.random()) for post in posts]

        def sleep(seconds: float) -> None:
            now[0] += seconds

        simulate(crowd, lambda: now[0], sleep, lambda: asked.append(place.asked))
        after = round((place.asked - asked[-1]) / workers, 1)
        double = sum(_double(place, name) for name in names)
    ends = [(len(asked) - 1) * tenth // 10 for tenth in range(11)]
    tenths = [round((asked[end] - asked[at]) / (end - at), 1) for at, end in itertools.pairwise(ends)]
    looks = sum(worker.results.looks for worker in crowd)
    facts = {"workers": workers, "cells": cells, "finished_before": before, "double": double}
    facts["results_looked_at"] = looks
    return {**facts, "operations_per_claim_by_tenth": tenths, "operations_per_worker_after_the_last": after}


def _costs(parts: list[list[tuple[float, float, int]]]) -> dict[str, Any]:
    """CPU time and operations of the store per claim: of the first, middle and last tenth of each process's claims."""
    costs: dict[str, Any] = {}
    for label, share in (("first", 0.0), ("middle", 0.45), ("last", 0.9)):
        spans = [(rows[int(share * len(rows))], rows[int((share + 0.1) * len(rows)) - 1]) for rows in parts]
        count = sum(int((share + 0.1) * len(rows)) - 1 - int(share * len(rows)) for rows in parts)
        costs[f"cpu_ms_per_claim_{label}_tenth"] = round(1000 * sum(b[1] - a[1] for a, b in spans) / count, 3)
        costs[f"operations_per_claim_{label}_tenth"] = round(sum(b[2] - a[2] for a, b in spans) / count, 1)
    return costs


def finish(place: FolderPlace, folder: Path, names: list[str], count: int) -> None:
    """As an earlier command leaves a study of which it has finished some cells, here and there."""
    marks, blocks = Marks(place, "earlier"), rotated([Cell(name, None) for name in names], 0, 1)
    block_of = {cell.name: block_name(block) for block in blocks for cell in block}
    with Board(place, Nothing(folder), new_worker("earlier"), Policy()) as board:
        for name in random.Random(0).sample(names, count):
            marks.go_to(block_of[name], name)
            taken = board.take(name, "digest")
            assert isinstance(taken, Hold)
            taken.finish()


def _double(place: FolderPlace, name: str) -> int:
    raw = [place.read(key_of(name, int(number))) or b"" for number in place.names(f"{CLAIMS}/{name}")]
    kinds = [Entry.from_bytes(number, name, content).kind for number, content in enumerate(raw, start=1)]
    return kinds.count(Kind.CLAIM) - 1 + kinds.count(Kind.DONE) - 1


def cells(count: int, workers: int) -> dict[str, Any]:
    """From start to the first cell beyond imports, and seconds per cell beyond a plain call's."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / f"{NAME}.toml").write_text(STUDY.format(seeds=list(range(count // 4))))
        plain = _plain(folder)
        rows: dict[str, Any] = {"cells": count, "plain_ms_per_cell": round(1000 * plain, 1)}
        imports = [_imports()]
        for label, options in {"serial": [], "workers": ["--workers", str(workers)]}.items():
            began = time.time()
            done = subprocess.run(
                [*COMMAND, "--out", label, *options],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
                env=os.environ | ENV,
            )
            assert done.returncode == 0, done.stderr[-2000:]
            stamps = sorted(path.stat().st_mtime for path in (folder / label / NAME).glob("*/result.json"))
            pace = (stamps[-1] - stamps[0]) / (len(stamps) - 1)
            rows[f"{label}_first_cell_s"] = round(stamps[0] - began, 2)
            rows[f"{label}_ms_per_cell"] = round(1000 * pace, 1)
            imports.append(_imports())  # between the two: a machine may be busier now than then
            beyond = stamps[0] - began - sum(imports[-2:]) / 2
            rows |= {f"{label}_imports_s": round(sum(imports[-2:]) / 2, 2), f"{label}_beyond_s": round(beyond, 2)}
        rows["overhead_ms_per_cell"] = round(rows["serial_ms_per_cell"] - rows["plain_ms_per_cell"], 1)
    return rows


def _plain(folder: Path) -> float:
    """Seconds per cell by plain calls of the study with a stored run each, its model loaded once."""
    from repflow.studies.engine.cells import HeldModel, work_on
    from repflow.studies.engine.grid import read_study

    os.chdir(folder)
    listed, holder = read_study(f"{NAME}.toml").cells, HeldModel()
    work_on(listed[0].config, holder, folder / "warm", "warm", None)
    began = time.monotonic()
    for cell in listed:
        work_on(cell.config, holder, folder / "plain", cell.name, None)
    return (time.monotonic() - began) / len(listed)


def _imports() -> float:
    began = time.monotonic()
    code = "import repflow.studies.scale.ready, repflow.cli.grid"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.monotonic() - began


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("claims", "counts", "cells"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--before", type=int, default=0, help="cells that an earlier command has finished")
    args = parser.parse_args()
    if args.what == "claims":
        rows = claims(args.workers or 1000, args.cells or 10_000, args.processes, args.before)
    elif args.what == "counts":
        rows = counts(args.workers or 100, args.cells or 10_000, args.before)
    else:
        rows = cells(args.cells or 40, args.workers or 2)
    for name, value in rows.items():
        print(f"{name:>28}  {value}", file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
