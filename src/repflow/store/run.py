"""RunFolder: one run on disk, safe against kill -9 at any moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from repflow.core.errors import DamagedRunError, InputError, RepflowError, StoreError, nearest, teach
from repflow.core.results import Finding, Result
from repflow.core.seconds import timed
from repflow.store.canonical import plain
from repflow.store.disk import TMP, link_or_copy, make_folder, naming_path, refuse_links, sync_folder, write_atomic
from repflow.store.identity import Earlier
from repflow.store.lock import LOCK_FILE, Lock
from repflow.store.manifest import MANIFEST, Manifest, is_complete, live_result, read_manifest
from repflow.store.mapped import map_arrays
from repflow.store.name import check_name
from repflow.store.outcome import ARRAYS_FILE, RESULT_FILE, result_files
from repflow.store.record import (
    RUN_FILE,
    STARTED,
    Record,
    check_same,
    existing_run,
    is_run,
    read_record,
    record_in_file,
    record_in_manifest,
)
from repflow.store.shard import SHARDS, pack, read_stamped, shard_path, stamp, unpack

OWN_FILES = (LOCK_FILE, RUN_FILE, MANIFEST, SHARDS, RESULT_FILE, ARRAYS_FILE)
"""A path in a run folder, never through a symbolic link."""
KINDS = frozenset(["run", "shard", "discard", "result", "discard_result", "reopened", "resumed", "lost"])


class RunFolder:
    """A run open for writing; no other process can write to it until `close()` or the death of this one.

    A shard counts once its line is in the manifest, and the line is written after the file is on the disk: a kill
    loses at most the shard being written. Use as a context manager.

    Attributes:
        path: The folder.
        config: What the run computes.
        provenance: What it was first started with.
        resumed_with: Differences in versions, threads or device between the first start and this one.
    """

    def __init__(self, path: Path, record: Record, manifest: Manifest, lock: Lock) -> None:
        """Use `open` or `reopen`."""
        self.path = path
        self.config = record.config
        self.provenance = record.provenance
        self.resumed_with: list[str] = []
        self._manifest = manifest
        self._lock = lock
        self._fresh = False

    @classmethod
    @timed("writing")
    def open(
        cls,
        parent: Path | str,
        name: str,
        *,
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        earlier: Earlier | None = None,
    ) -> RunFolder:
        """Create the run folder `parent/name`, or resume the run in it.

        Args:
            parent: Folder of runs, created where missing.
            name: One safe path component (see `safe_name`).
            config: What is requested; must equal the stored config on resume.
            provenance: Versions, seeds, device and so on; `provenance["digests"]` must be equal on resume, and
                `provenance["identity"]` that of the same models.
            earlier: Digests by an earlier scheme, computed where the folder holds a run that one stored.

        Raises:
            InputError: A bad name or config, or the folder holds something else; nothing was touched.
            ConfigChangedError: The folder holds another run; names the first differing key.
            RunLockedError: Another process is writing to it.
            DamagedRunError: run.json or the manifest is damaged.
        """
        path = Path(parent) / check_name(name)
        request = Record.new(config, provenance)
        _check_place(path)
        fresh = not path.exists()
        make_folder(path)
        run = cls._locked(path, request, fresh=fresh)
        run._fresh = fresh
        try:
            run._compare(request, earlier)
        except BaseException:
            run.close()
            raise
        return run

    @classmethod
    def reopen(cls, path: Path | str) -> RunFolder:
        """Open an existing run for writing whatever its config."""
        return cls._locked(existing_run(path), None)

    @classmethod
    def _locked(cls, path: Path, request: Record | None, *, fresh: bool = False) -> RunFolder:
        refuse_links(*(path / name for name in OWN_FILES))
        lock = Lock(path)
        try:
            _remove_stale(path)
            record = _start_or_read(path, request)
            reading = read_manifest(path)
            if reading.faults():
                raise DamagedRunError(
                    f"{path / MANIFEST}: {reading.faults()[0]}; `repflow verify --repair {path}` repairs it"
                )
            manifest = Manifest(path, reading)
            if not manifest.entries:
                manifest.append("run", record.content())
            lock.seal(len(manifest.entries))
            return cls(path, record, manifest, lock)
        except BaseException:
            if fresh:  # under the lock: the folder of a process that won the race must stay
                _remove_stub(path)
            lock.release()
            raise

    def _compare(self, request: Record, earlier: Earlier | None) -> None:
        self.resumed_with = check_same(Record(self.config, self.provenance, ""), request, self.path, earlier)
        if self.resumed_with and not self.finished:
            self._append("resumed", {"changes": self.resumed_with})

    @property
    def finished(self) -> bool:
        """Whether the result is stored and intact and no shard was discarded since."""
        return is_complete(self._manifest.entries) and self._has_result()

    def _has_result(self) -> bool:
        files = live_result(self._manifest.entries)
        return bool(files) and not any(read_stamped(self.path / name, files[name])[1] for name in files)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Payloads recorded under a kind, oldest first."""
        return [dict(entry.data) for entry in self._manifest.entries if entry.kind == kind]

    def record(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Append one line to the manifest; it is on the disk when this returns."""
        if kind in KINDS:
            raise InputError(teach("a kind of event of your own", f"{kind!r}", "the store writes these lines itself"))
        self._append(kind, plain(payload, f"{kind} event"))

    def shards(self) -> list[str]:
        """Names of stored shards in the order of writing."""
        return list(self._manifest.shards)

    def has_shard(self, name: str) -> bool:
        """Whether the shard is stored; reading it checks its digest."""
        return name in self._manifest.shards

    @timed("writing")
    def write_shard(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Store arrays under a name; they count once this returns.

        Args:
            name: One safe path component.
            arrays: Numbers or booleans of any shape.
            meta: JSON values kept in the manifest; `meta["samples"]` (a count or the ids) feeds `list_runs`.

        Raises:
            InputError: A bad name or dtype, or the shard exists already.
            UnwritableError: No room or no permission; nothing was stored, the run can be resumed.
        """
        self._check_open()
        check_name(name, "shard name")
        if self.has_shard(name):
            raise InputError(teach("a new shard", f"{name!r}, which is stored", "call discard_shard first"))
        plain_meta = plain(meta or {}, "shard meta")
        data = pack(arrays)
        path = shard_path(self.path, name)
        refuse_links(path.parent, path)
        if not path.parent.is_dir():
            make_folder(path.parent)
        write_atomic(path, data)
        line = {"name": name, "file": f"{SHARDS}/{path.name}", **stamp(data), "meta": plain_meta}
        self._append("shard", line)

    def take_shard(self, line: Mapping[str, Any], source: Path) -> None:
        """Store a shard of another run of the same request, under its own name; its digest is checked.

        Args:
            line: what the other run's manifest says of it.
            source: its file, which is linked where the file system can.

        Raises:
            DamagedRunError: the file is missing or differs from what was written.
        """
        self._check_open()
        name = check_name(str(line["name"]), "shard name")
        _, fault = read_stamped(source, line)
        if fault:
            raise DamagedRunError(f"{source}: {fault}; delete its run and run the command again")
        target = shard_path(self.path, name)
        refuse_links(target.parent, target)
        make_folder(target.parent)
        with naming_path(target, int(line["bytes"])):
            target.unlink(missing_ok=True)
            link_or_copy(source, target)
            sync_folder(target.parent)
        self._append("shard", {**line, "file": f"{SHARDS}/{target.name}"})

    def note_changes(self, changes: Sequence[str]) -> None:
        """Note with what else a part of the run was computed; it becomes a finding of the result."""
        self._append("resumed", {"changes": list(changes)})

    def read_shard(self, name: str) -> dict[str, np.ndarray]:
        """Arrays of a stored shard, its digest checked.

        Raises:
            DamagedRunError: The file is missing or differs from what was written.
        """
        return unpack(self._checked(name))

    def map_shard(self, name: str) -> dict[str, np.ndarray]:
        """Arrays of a stored shard mapped from its file, read only; its digest is checked now, not at each access."""
        self._checked(name)
        return map_arrays(shard_path(self.path, name))

    def _checked(self, name: str) -> bytes:
        data, fault = read_stamped(shard_path(self.path, name), self._line(name))
        if fault:
            raise DamagedRunError(
                f"shard {name!r} of {self.path}: {fault}; `repflow verify --repair {self.path}` recomputes it"
            )
        return data

    def shard_meta(self, name: str) -> dict[str, Any]:
        """The meta given to `write_shard`."""
        return dict(self._line(name)["meta"])

    def discard_shard(self, name: str, reason: str) -> None:
        """Forget a shard, so that it is computed again."""
        self._line(name)
        self._append("discard", {"name": name, "reason": reason})
        with suppress(OSError):  # a file without a line is ignored, wherever it lies
            shard_path(self.path, name).unlink()

    @timed("writing")
    def finish(self, result: Result) -> None:
        """Store the result; the run is finished once this returns. A resume with other versions is a finding of it."""
        self._check_open()
        changes = list(dict.fromkeys(change for event in self.events("resumed") for change in event["changes"]))
        if changes and not any(finding.code == "resumed" for finding in result.findings):
            result.findings.append(Finding("resumed", None, f"resumed with {'; '.join(changes)}"))
        files = result_files(result)
        stamps = {name: stamp(data) for name, data in files.items()}
        if stamps != live_result(self._manifest.entries) or not self._has_result():
            self.discard_result("replaced")
            for name, data in files.items():
                write_atomic(self.path / name, data)
        self._append("result", {"files": stamps})

    def discard_result(self, reason: str) -> None:
        """Forget the result, if there is one, so that it is computed again from the shards."""
        if live_result(self._manifest.entries):
            self._append("discard_result", {"reason": reason})

    def mark_unfinished(self, reason: str) -> None:
        """Have the run's command go through its shards again; a stored result stays readable meanwhile."""
        self._append("reopened", {"reason": reason})

    def close(self) -> None:
        """Let other processes write; harmless when called again."""
        self._lock.release()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fresh and isinstance(error, RepflowError) and not self._manifest.shards:
            _remove_start(self.path)  # under the lock: a request that failed at once leaves nothing behind
        self.close()

    def _append(self, kind: str, data: Mapping[str, Any]) -> None:
        self._check_open()
        self._manifest.append(kind, data)
        self._lock.seal(len(self._manifest.entries))

    def _check_open(self) -> None:
        if not self._lock.held:
            raise StoreError(
                teach(
                    f"{self.path} open for writing",
                    "a closed run or a forked copy of it",
                    "open it again with RunFolder",
                )
            )

    def _line(self, name: str) -> dict[str, Any]:
        live = self._manifest.shards
        if name not in live:
            raise InputError(teach(f"a shard of {self.path}", f"{name!r}", nearest(name, live)))
        return live[name]


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise InputError(teach(f"a folder or nothing at {path}", "a file", "use another --name or --out"))
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    if names - STARTED and not is_run(path):
        got = f"one with {len(names)} other entries, such as {min(names - STARTED)!r}"
        raise InputError(teach(f"a run or an empty folder at {path}", got, "use another --name or --out"))


def _start_or_read(path: Path, request: Record | None) -> Record:
    stored, copy = record_in_file(path), record_in_manifest(read_manifest(path))
    if stored is None and (request is None or (path / RUN_FILE).exists() or (path / MANIFEST).exists()):
        read_record(path)  # says so if nothing can be repaired
        raise DamagedRunError(f"{path / RUN_FILE} is damaged; `repflow verify --repair {path}` rebuilds it")
    if stored is None:
        assert request is not None
        write_atomic(path / RUN_FILE, request.to_bytes())
        return request
    if copy is not None and copy != stored:
        raise DamagedRunError(
            f"{path / RUN_FILE} and the first line of {MANIFEST} belong to different runs; "
            "delete the folder and run the command again"
        )
    return stored


def _remove_stale(path: Path) -> None:
    for folder in (path, path / SHARDS):
        for tmp in folder.glob(f"*{TMP}"):
            with suppress(OSError):
                tmp.unlink()


def _remove_start(path: Path) -> None:
    for name in (MANIFEST, RUN_FILE):
        with suppress(OSError):
            (path / name).unlink()
    with suppress(OSError):
        (path / SHARDS).rmdir()
    _remove_stub(path)


def _remove_stub(path: Path) -> None:
    with suppress(OSError):
        (path / LOCK_FILE).unlink()
    with suppress(OSError):  # not empty: something was stored after all
        path.rmdir()
