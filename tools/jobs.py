"""Phases of the laboratories side by side on one GPU: a queue of commands, by rank, until a time.

    python -m tools.jobs start JOBS.toml [--until CLOCK]     begins, and goes on when this command has ended
    python -m tools.jobs show                                what is done, what runs, what waits
    python -m tools.jobs wait --seconds 500 [--keep FOLDER]  until all is done or the time is over; packs runs

JOBS.toml has a table `[[job]]` for each, the most important first:

    name = "depth-seeds"                       of its log in runs/queue
    command = "python -m tools.depth.run seeds --study depth --parallel 4"
    workers = 4                                processes that it has (1)
    gib = 60                                   memory of the GPU that it takes (0)
    after = ["depth-screen"]                   jobs that must be done ([])
    needs = "runs/cifar10/test_batch.bin"      file that must be there, such as one that comes later ("")

A job begins when what it waits for is there, and processes and memory are free beside those that run. One that fails is
tried again, three times in all: the studies go on where they were. The file is read again while the queue runs, so that
jobs can be added; a job whose file never comes keeps the queue waiting until its time. At the time `--until` everything
that runs is ended, and nothing before: under NVIDIA's MPS a process that is killed while its kernels run ends those of
all others. Large models fill the GPU with their kernels, for which those of small ones then wait: have them in queues
of their own, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.carry import pack

FOLDER = Path("runs") / "queue"
STATUS, TIME, OVER = "status.json", "until", "over"
TRIES, POLL, PATIENCE = 3, 0.5, 12.0


@dataclass(frozen=True)
class Job:
    """One command of the queue; the module says what its parts mean."""

    name: str
    command: str
    workers: int = 1
    gib: float = 0.0
    after: Sequence[str] = ()
    needs: str = ""

    def ready(self, done: Sequence[str]) -> bool:
        """Whether what it waits for is there."""
        return set(self.after) <= set(done) and (not self.needs or Path(self.needs).exists())


def read_jobs(file: Path) -> list[Job]:
    """Jobs of a file, in their order.

    Raises:
        SystemExit: two of one name, or one that waits for a job that is not there.
    """
    jobs = [Job(**entry) for entry in tomllib.loads(file.read_text(encoding="utf-8")).get("job", [])]
    names = [job.name for job in jobs]
    for job in jobs:
        missing = [name for name in job.after if name not in names]
        if names.count(job.name) > 1 or missing or _waits_for(job, job.name, jobs):
            raise SystemExit(f"expected jobs of {file} to have names of their own and to wait for earlier ones: {job}")
    return jobs


def _waits_for(job: Job, name: str, jobs: Sequence[Job], seen: frozenset[str] = frozenset()) -> bool:
    """Whether a job waits for another, directly or through others."""
    before = [one for one in jobs if one.name in job.after and one.name not in seen]
    return name in job.after or any(_waits_for(one, name, jobs, seen | {one.name}) for one in before)


@dataclass
class Queue:
    """Commands that run.

    Attributes:
        file: jobs.
        workers: processes at once.
        gib: memory of the GPU.
        folder: of logs and of the status.
        jobs: of the file when it was last read.
        running: processes with the time at which they began.
        ended: what became of each job: exit code, seconds, tries.
    """

    file: Path
    workers: int
    gib: float
    folder: Path = FOLDER
    jobs: list[Job] = field(default_factory=list)
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)

    def run(self) -> None:
        """Until all jobs are done or have failed, or the time is over."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / OVER).unlink(missing_ok=True)
        while not self._turn():
            time.sleep(POLL)
        (self.folder / OVER).touch()

    def _turn(self) -> bool:
        """Look at what runs, begin what may; returns whether nothing is left to do."""
        jobs = self._read()
        until = self.folder / TIME
        late = until.exists() and time.time() > float(until.read_text(encoding="utf-8"))
        if late:
            self._end()
        for name, (process, began) in list(self.running.items()):
            if process.poll() is not None:
                self._note(name, process.returncode, began)
        done = [name for name, entry in self.ended.items() if entry["code"] == 0]
        for job in [] if late else jobs:
            if self._open(job) and job.ready(done) and self._fits(job, jobs):
                self._begin(job)
        self._write(jobs)
        waiting = any(self._open(job) and self._hopeful(job, jobs) for job in jobs)
        return late or not (self.running or waiting)

    def _read(self) -> list[Job]:
        """Jobs of the file; the last ones while it is being written, or is wrong."""
        try:
            jobs = read_jobs(self.file)
        except (OSError, tomllib.TOMLDecodeError, TypeError, SystemExit) as error:
            if not self.jobs:
                raise
            print(f"{self.file} cannot be read, its last jobs stay: {error}", flush=True)
            return self.jobs
        gone = [job for job in self.jobs if job.name in self.running and job.name not in {one.name for one in jobs}]
        self.jobs = [*jobs, *gone]
        return self.jobs

    def _open(self, job: Job) -> bool:
        """Whether it is still to be run."""
        known = self.ended.get(job.name, {"code": None, "tries": 0})
        return job.name not in self.running and known["code"] != 0 and known["tries"] < TRIES

    def _hopeful(self, job: Job, jobs: Sequence[Job]) -> bool:
        """Whether all that it waits for can still be done."""
        by_name = {one.name: one for one in jobs}
        before = [by_name[name] for name in job.after]
        return all(
            self.ended.get(one.name, {}).get("code") == 0
            or ((self._open(one) or one.name in self.running) and self._hopeful(one, jobs))
            for one in before
        )

    def _fits(self, job: Job, jobs: Sequence[Job]) -> bool:
        """Whether processes and memory are free; a job that is too large for the machine runs alone."""
        beside = [one for one in jobs if one.name in self.running]
        free = sum(one.workers for one in beside) + job.workers <= self.workers
        return not beside or (free and sum(one.gib for one in beside) + job.gib <= self.gib)

    def _begin(self, job: Job) -> None:
        words = shlex.split(job.command)
        words[0] = sys.executable if words[0] in ("python", "python3") else words[0]
        with (self.folder / f"{job.name}.log").open("ab") as log:
            try:
                process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            except OSError as error:
                log.write(f"{error}\n".encode())
                self.ended[job.name] = {"code": 127, "seconds": 0, "tries": TRIES}
                return
        self.running[job.name] = process, time.time()

    def _note(self, name: str, code: int, began: float) -> None:
        tries = self.ended.get(name, {"tries": 0})["tries"] + 1
        self.ended[name] = {"code": code, "seconds": round(time.time() - began), "tries": tries}
        del self.running[name]

    def _end(self) -> None:
        """End all that runs, with their processes."""
        for force in (signal.SIGTERM, signal.SIGKILL):
            for process, _ in self.running.values():
                if alive(process):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, force)
            end = time.time() + PATIENCE
            while time.time() < end and any(alive(process) for process, _ in self.running.values()):
                time.sleep(0.1)

    def _write(self, jobs: Sequence[Job]) -> None:
        runs = {name: {"running": round(time.time() - began)} for name, (_, began) in self.running.items()}
        waits = {job.name: {"waits": list(job.after)} for job in jobs if self._open(job)}
        scratch = self.folder / f"{STATUS}.new"
        scratch.write_text(json.dumps({**waits, **self.ended, **runs}), encoding="utf-8")
        scratch.replace(self.folder / STATUS)


def alive(process: subprocess.Popen[bytes]) -> bool:
    """Whether a job or a process that it has started lives; of some that have ended, nobody has asked yet."""
    if process.poll() is None:
        return True
    states = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            states += [fields[0]] if int(fields[3]) == process.pid else []
    return any(state != "Z" for state in states)


def show(folder: Path) -> None:
    """Jobs with what became of them, and the last line of each log."""
    if not (folder / STATUS).exists():
        print("nothing has begun")
        return
    known: Mapping[str, Any] = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    for name, entry in known.items():
        log = folder / f"{name}.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        print(name, json.dumps(entry), lines[-1][:120] if lines else "", sep=" | ")


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("start", "run", "show", "wait"), help="run is start in the foreground")
    parser.add_argument("jobs", type=Path, nargs="?")
    parser.add_argument("--workers", type=int, default=16, help="processes at once, all jobs together")
    parser.add_argument("--gib", type=float, default=120.0, help="memory of the GPU, all jobs together")
    parser.add_argument("--until", type=float, help="end everything at this time, in seconds since 1970")
    parser.add_argument("--seconds", type=float, default=0.0, help="of wait")
    parser.add_argument("--keep", type=Path, help="folder that wait packs runs into")
    parser.add_argument("--leave", nargs="*", default=[], help="folders of runs/ that are not packed, such as texts")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    return parser.parse_args()


def main() -> None:
    """Start a queue, be one, or look at it."""
    options = parsed()
    if options.until is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / TIME).write_text(str(options.until), encoding="utf-8")
    if options.what in ("start", "run"):
        if options.jobs is None:
            raise SystemExit("expected a file of jobs; got none; `python -m tools.jobs --help` shows one")
        read_jobs(options.jobs)
    if options.what == "start":
        options.folder.mkdir(parents=True, exist_ok=True)
        for left in (OVER, STATUS, *([TIME] if options.until is None else [])):  # of an earlier queue
            (options.folder / left).unlink(missing_ok=True)
        words = ["run", str(options.jobs), "--workers", str(options.workers), "--gib", str(options.gib)]
        with (options.folder / "queue.log").open("ab") as log:
            command = [sys.executable, "-m", "tools.jobs", *words, "--folder", str(options.folder)]
            subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    elif options.what == "run":
        Queue(options.jobs, options.workers, options.gib, options.folder).run()
    else:
        end = time.time() + options.seconds
        while options.what == "wait" and time.time() < end and not (options.folder / OVER).exists():
            time.sleep(POLL)
        show(options.folder)
        if options.keep is not None:
            print(pack(options.folder.parent, options.keep, leave=options.leave))


if __name__ == "__main__":
    main()
