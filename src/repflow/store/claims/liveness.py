"""Which workers live: each writes a heartbeat, and each judges the others' by its own clock alone.

A heartbeat is a file that changes. Whoever waits for a worker remembers its content and when it last saw a change, by
its own monotonic clock: no time of another machine is ever compared, so clocks may be hours apart. On the same machine
a process that has ended is noticed at once.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from repflow.core.errors import StoreError
from repflow.store.claims.ledger import Entry
from repflow.store.claims.place import Place
from repflow.version import __version__

WORKERS = "workers"
BEAT_SECONDS = 2.0
STALE_SECONDS = 60.0
"""A worker is taken for dead when its heartbeat has not changed for this long. Loading a large model may hold
Python's lock for seconds; a network file system may show a change seconds later."""
NO_TIME = ""


@cache
def machine_id() -> str:
    """The running system and its table of processes: where this is equal, a process number means the same process.

    Containers of one machine have tables of their own. Where the system says nothing, the answer is unlike any other.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return secrets.token_hex(16)


def born(pid: int) -> str:
    """When a process started, in the ticks of its machine; empty for one that has ended or where nobody says."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return NO_TIME
    state, *others = text.rpartition(")")[2].split()  # a program's name may hold spaces and brackets
    return NO_TIME if state in "ZX" else others[18]  # a process that only waits to be counted has ended


@dataclass(frozen=True)
class Worker:
    """Who writes an entry.

    Attributes:
        token: unlike that of any other worker, and of this process after a restart.
        session: the command that started it.
        host: for people.
        machine: see `machine_id`.
        pid: process.
        born: see `born`.
        version: of repflow.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(6))
    session: str = field(default_factory=lambda: secrets.token_hex(6))
    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=machine_id)
    pid: int = field(default_factory=os.getpid)
    born: str = field(default_factory=lambda: born(os.getpid()))
    version: str = __version__

    def facts(self) -> dict[str, Any]:
        """As entries and heartbeats hold them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def has_ended(machine: str, pid: int, started: str) -> bool:
    """Whether a process is known to have ended: it ran on this machine, and is not there or is another one."""
    return bool(started) and machine == machine_id() and born(pid) != started


class Heartbeat:
    """Shows that a worker lives, from `with` to its end, in a thread.

    Args:
        place: where workers meet.
        worker: who.
        seconds: between beats.
        each: called with every beat; an error of the store in it is left for the work itself to meet.
    """

    def __init__(
        self,
        place: Place,
        worker: Worker,
        *,
        seconds: float = BEAT_SECONDS,
        each: Callable[[], None] | None = None,
    ) -> None:
        self._place, self._worker, self._seconds, self._each = place, worker, seconds, each
        self._doing: dict[str, Any] = {}
        self._count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repflow heartbeat", daemon=True)

    @property
    def key(self) -> str:
        """Key of the heartbeat's file."""
        return f"{WORKERS}/{self._worker.token}"

    def doing(self, **facts: Any) -> None:
        """What the worker does now, for those who watch; shown with the next beat."""
        self._doing = {**self._doing, **facts}

    def beat(self) -> None:
        """Write the next beat."""
        self._count += 1
        content = {**self._worker.facts(), **self._doing, "beat": self._count}
        self._place.write(self.key, json.dumps(content).encode() + b"\n")

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            with suppress(StoreError, OSError):  # a full disk stops no worker; the work says what is wrong
                self.beat()
                if self._each is not None:
                    self._each()

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(StoreError, OSError):
            self._place.delete(self.key)


def read_beat(place: Place, token: str) -> Mapping[str, Any]:
    """What a worker's last heartbeat says; empty where there is none, it is being written or is not one of ours."""
    try:
        content = json.loads(place.read(f"{WORKERS}/{token}") or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("token") != token or type(content.get("pid")) is not int:
        return {}
    return content if all(isinstance(content.get(name), str) for name in _TEXTS) else {}


_TEXTS = ("session", "host", "machine", "born", "version")


@dataclass(frozen=True)
class _Sight:
    content: bytes
    since: float


class Watch:
    """Judges whether the workers of claims live.

    Args:
        place: where workers meet.
        stale: seconds without a change after which a worker counts as gone.
        clock: seconds that pass here.
    """

    def __init__(
        self, place: Place, *, stale: float = STALE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place, self._stale, self._clock = place, stale, clock
        self._seen: dict[str, _Sight] = {}

    def gone(self, claim: Entry) -> bool:
        """Whether the worker of a claim has ended for certain, or has not shown itself for too long."""
        return has_ended(claim.machine, claim.pid, claim.born) or self.silent(claim) >= self._stale

    def silent(self, claim: Entry) -> float:
        """Seconds since this watch last saw the heartbeat of a claim's worker change."""
        content = (self._place.read(f"{WORKERS}/{claim.token}") or b"") if claim.token else b""
        now, key = self._clock(), claim.token or f"{claim.cell}/{claim.number}"
        seen = self._seen.get(key)
        if seen is None or seen.content != content:
            seen = self._seen[key] = _Sight(content, now)
        return now - seen.since


def new_worker(session: str | None = None) -> Worker:
    """This process as a worker."""
    worker = Worker()
    return worker if session is None else replace(worker, session=session)
