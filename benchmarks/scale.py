"""Workers: what claims cost, and what a cell costs beyond its own work.

python benchmarks/scale.py claims --workers 1000 --cells 10000
python benchmarks/scale.py cells --cells 40 --workers 2

`claims` runs the real ledger and the real way of a worker through the cells, with cells that do nothing: every
simulated worker is a thread with a heartbeat of its own, spread over a few processes. `cells` runs the real command on
small cells. Prints a table and a JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repflow.store.claims.board import Board, Hold, Policy
from repflow.store.claims.ledger import CLAIMS, Entry, Kind, key_of
from repflow.store.claims.liveness import new_worker
from repflow.store.claims.place import FolderPlace
from repflow.store.claims.protocol import Phase
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import POLL_SECONDS, Outcome
from repflow.studies.scale.worker import Post, Round

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
        self.folder = folder

    def placed(self, cell: str) -> bool:
        """Whether the file is there."""
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


class Bench:
    """What `Round` needs of a bench, with cells that do nothing."""

    def __init__(self, board: Board, times: list[float]) -> None:
        self.board, self.times = board, times

    def claimed(self, cell: Cell) -> bool:
        """As the real one."""
        return bool(self.board.place.names(f"{CLAIMS}/{cell.name}"))

    def work(self, cell: Cell, progress: Any) -> Outcome | None:
        """Claim, do nothing, say that it is done."""
        taken = self.board.take(cell.name, "digest")
        if isinstance(taken, Hold):
            taken.finish()
            self.times.append(time.monotonic())
            return Outcome(cell, Path(), "finished", here=True)
        return Outcome(cell, Path(), "finished") if taken.phase is Phase.FINISHED else None

    def wait(self, cells: list[str]) -> list[str]:
        """As the real one."""
        return self.board.first_to_change(cells, POLL_SECONDS)


def _machine(folder: Path, names: list[str], numbers: range, workers: int, out: Any) -> None:
    """Workers of one process."""
    cells = [Cell(name, None) for name in names]
    order: Any = SimpleNamespace(at_work=lambda: cells)
    times: list[float] = []

    def be_worker(number: int) -> None:
        place = FolderPlace(folder / ".repflow")
        with Board(place, Nothing(folder), new_worker(SESSION), Policy()) as board:
            bench: Any = Bench(board, times)
            way = Round(bench, order, Post(number, workers, SESSION), None)
            way.take_free()
            way.take_rest()

    threads = [threading.Thread(target=be_worker, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = resource.getrusage(resource.RUSAGE_SELF)
    out.put((times, spent.ru_utime + spent.ru_stime))


def claims(workers: int, cells: int, processes: int) -> dict[str, Any]:
    """Claim rate, double work, and what a claim costs at the beginning and at the end."""
    names = [f"cell-{number:05d}" for number in range(cells)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        queue: Any = multiprocessing.Queue()
        share = workers // processes
        posts = [range(at * share, (at + 1) * share) for at in range(processes)]
        crew = [multiprocessing.Process(target=_machine, args=(folder, names, own, workers, queue)) for own in posts]
        began = time.monotonic()
        for process in crew:
            process.start()
        parts = [queue.get() for _ in crew]
        times = sorted(moment for own, _ in parts for moment in own)
        spent = sum(seconds for _, seconds in parts)
        for process in crew:
            process.join()
        place = FolderPlace(folder / ".repflow")
        double = sum(_double(place, name) for name in names)
    tenth = max(1, len(times) // 10)
    middle = times[len(times) // 2 + tenth // 2] - times[len(times) // 2 - tenth // 2]
    return {
        "workers": workers,
        "cells": cells,
        "finished": len(times),
        "double": double,
        "claims_per_second": round(len(times) / (times[-1] - began)),
        "claims_per_cpu_second": round(len(times) / spent),
        "ms_per_claim_first_tenth": round(1000 * (times[tenth] - times[0]) / tenth, 3),
        "ms_per_claim_middle": round(1000 * middle / tenth, 3),
        "ms_per_claim_last_tenth": round(1000 * (times[-1] - times[-tenth]) / tenth, 3),
    }


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
        rows["imports_s"] = round(_imports(), 2)
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
    parser.add_argument("what", choices=("claims", "cells"))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--cells", type=int)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    if args.what == "claims":
        rows = claims(args.workers or 1000, args.cells or 10_000, args.processes)
    else:
        rows = cells(args.cells or 40, args.workers or 2)
    for name, value in rows.items():
        print(f"{name:>28}  {value}", file=sys.stderr)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
