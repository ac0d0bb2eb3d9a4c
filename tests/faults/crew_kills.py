"""A real study under real kills: whoever started its workers, the results are those of a serial run.

python -m tests.faults.crew_kills --cells 200 --workers 8 --seconds 5 --engine ray
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from repflow.store.claims.attempt import OWN
from repflow.store.claims.ledger import CLAIMS, Entry, Kind, key_of
from repflow.store.claims.liveness import WORKERS, read_beat
from repflow.store.claims.place import FolderPlace

NAME = "study"
ENV = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def write_study(folder: Path, cells: int) -> None:
    """A tiny Transformer and a tiny Mamba, and a study of small cells of both."""
    from tests.studies.compare.inputs import save

    save("gpt2", folder / "a")
    save("mamba", folder / "b")
    lines = ['kind = "measure"', 'models = ["a", "b"]', 'tasks = ["random"]', "lengths = [12, 16]", "samples = 2"]
    lines.append(f"seeds = {list(range(cells // 4))}")
    (folder / f"{NAME}.toml").write_text("[study]\n" + "\n".join(lines) + "\n")


def command(out: str, *options: str) -> list[str]:
    """The command of a user."""
    return [sys.executable, "-m", "repflow", "run", f"{NAME}.toml", "--out", out, *options]


def serial(folder: Path) -> None:
    """The same study by one process, once."""
    if not (folder / "serial").exists():
        subprocess.run(command("serial"), cwd=folder, check=True, capture_output=True, env=os.environ | ENV)


def killed(
    folder: Path, out: str, options: Sequence[str], moments: Iterator[None], seed: int
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the study with workers, one of which is killed at every moment; returns how it ended and the kills."""
    process = subprocess.Popen(
        command(out, *options), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | ENV,
    )  # fmt: skip
    place, rng, kills = FolderPlace(folder / out / NAME / OWN), random.Random(seed), 0
    for _ in moments:
        if process.poll() is not None:
            break
        at_work = [pid for pid in worker_pids(place) if pid != process.pid]
        if at_work:
            try:
                os.kill(rng.choice(at_work), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                continue
    output, errors = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors), kills


def worker_pids(place: FolderPlace) -> list[int]:
    """Processes that have said that they work on a cell."""
    beats = [read_beat(place, token) for token in place.names(WORKERS)]
    return sorted(beat["pid"] for beat in beats if beat and beat.get("cell"))


def after_cells(folder: Path, out: str, at: Sequence[int], over: Callable[[], bool]) -> Iterator[None]:
    """A moment once each of these numbers of cells is finished."""
    place = folder / out / NAME
    for count in at:
        while not over() and (not place.is_dir() or sum(1 for path in place.glob("*/result.json")) < count):
            time.sleep(0.02)
        yield


def every(seconds: float) -> Iterator[None]:
    """A moment every few seconds."""
    while True:
        time.sleep(seconds)
        yield


def check(folder: Path, out: str, kills: int) -> dict[str, int]:
    """Every result once, equal to the serial one byte by byte, and at most one cell of work lost per kill."""
    place = FolderPlace(folder / out / NAME / OWN)
    names = sorted(path.name for path in (folder / "serial" / NAME).iterdir() if (path / "result.json").is_file())
    here = sorted(path.name for path in (folder / out / NAME).iterdir() if (path / "result.json").is_file())
    assert here == names, set(names) ^ set(here)
    claims = 0
    for name in names:
        for file in ("result.json", "result.safetensors"):
            ours, theirs = (folder / where / NAME / name / file for where in (out, "serial"))
            assert ours.read_bytes() == theirs.read_bytes(), f"{name}/{file}"
        entries = [
            Entry.from_bytes(int(number), name, place.read(key_of(name, int(number))) or b"")
            for number in place.names(f"{CLAIMS}/{name}")
        ]
        assert [entry.kind for entry in entries].count(Kind.DONE) == 1, name
        claims += [entry.kind for entry in entries].count(Kind.CLAIM)
    assert claims - len(names) <= kills, f"{claims} claims of {len(names)} cells with {kills} kills"
    assert not (folder / out / NAME / OWN / "work").exists()
    return {"cells": len(names), "claims": claims, "kills": kills}


def main() -> None:
    """Command line."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0, help="between kills")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--options", default="", help="more options of the command, such as --engine ray")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_study(folder, args.cells)
        serial(folder)
        for number in range(args.runs):
            began = time.monotonic()
            options = ["--workers", str(args.workers), *args.options.split()]
            done, kills = killed(folder, f"out{number}", options, every(args.seconds), args.seed + number)
            assert done.returncode == 0, done.stderr[-3000:]
            facts = check(folder, f"out{number}", kills)
            print(json.dumps({"run": number, "seconds": round(time.monotonic() - began, 1), **facts}), flush=True)


if __name__ == "__main__":
    main()
