"""manifest.jsonl: what a run has stored, one checksummed line per step, appended and never changed.

Every prefix of whole lines is a state the run was once in, so a run can always resume from the lines before a fault.
A line is `{"seq": 0, 1, ..., "kind": ..., "at": time, "data": {...}, "sum": checksum of the line}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repflow.store.canonical import seal, unseal
from repflow.store.disk import read_bytes, sync_folder, write_at

MANIFEST = "manifest.jsonl"


@dataclass(frozen=True)
class Entry:
    """One whole line: its number, kind and payload."""

    seq: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """A manifest as found.

    Attributes:
        lines: The raw lines, newline included.
        entries: One per line, None where the line does not match its checksum or repeats an earlier number.
        torn: Bytes after the last newline, left by an interrupted write.
        present: Whether there is a manifest at all.
    """

    lines: list[bytes] = field(default_factory=list)
    entries: list[Entry | None] = field(default_factory=list)
    torn: bytes = b""
    present: bool = True

    @property
    def size(self) -> int:
        """Bytes of whole lines."""
        return sum(map(len, self.lines))

    @property
    def good(self) -> list[Entry]:
        """The undamaged entries."""
        return [entry for entry in self.entries if entry is not None]

    def faults(self) -> list[str]:
        """What is wrong with the whole lines, one sentence per place."""
        messages, expected = [], 0
        for number, entry in enumerate(self.entries, 1):
            if entry is None:
                messages.append(f"line {number} does not match its checksum")
            elif entry.seq != expected and self.entries[number - 2] is not None:
                messages.append(f"{missing_lines(entry.seq - expected)} before line {number}")
            expected = expected if entry is None else entry.seq + 1
        return messages


def missing_lines(count: int) -> str:
    """In words.

    >>> missing_lines(1), missing_lines(2)
    ('1 line is missing', '2 lines are missing')
    """
    return f"{count} line is missing" if count == 1 else f"{count} lines are missing"


def cut_lines(reading: Reading, sealed: int) -> int:
    """Lines missing at the end of a manifest that once had this many; damaged ones there are not counted twice."""
    last = max((place for place, entry in enumerate(reading.entries) if entry is not None), default=-1)
    known = 0 if last < 0 else reading.good[-1].seq + 1
    behind = len(reading.entries) - 1 - last + bool(reading.torn)
    return max(0, sealed - known - behind)


def read_manifest(folder: Path) -> Reading:
    """Read and check every line; nothing is written."""
    raw = read_bytes(folder / MANIFEST)
    if raw is None:
        return Reading(present=False)
    *whole, torn = raw.split(b"\n")
    lines = [line + b"\n" for line in whole]
    entries: list[Entry | None] = []
    last = -1
    for line in lines:
        entry = decode(line)
        entry = entry if entry is not None and entry.seq > last else None
        last = last if entry is None else entry.seq
        entries.append(entry)
    return Reading(lines, entries, torn)


def decode(line: bytes) -> Entry | None:
    """Parse one line, None if it is damaged."""
    value = unseal(line)
    if value is None:
        return None
    entry = Entry(value.get("seq"), value.get("kind"), value.get("data"))  # type: ignore[arg-type]
    return entry if _has_shape(entry) else None


def _has_shape(entry: Entry) -> bool:
    """Whether a line that matches its checksum is one that we wrote: anyone can compute a checksum."""
    if type(entry.seq) is not int or not isinstance(entry.kind, str) or not isinstance(entry.data, dict):
        return False
    if entry.kind == "shard":
        return _is_stamp(entry.data) and isinstance(entry.data.get("meta"), dict) and _is_named(entry.data)
    if entry.kind == "discard":
        return _is_named(entry.data)
    if entry.kind == "resumed":
        return isinstance(entry.data.get("changes"), list)
    if entry.kind == "result":
        files = entry.data.get("files")
        return isinstance(files, dict) and all(map(_is_stamp, files.values()))
    return True


def _is_named(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("name"), str)


def _is_stamp(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def encode(seq: int, kind: str, data: Mapping[str, Any]) -> bytes:
    """Write one line, time included."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return seal({"seq": seq, "kind": kind, "at": now, "data": data})


class Manifest:
    """An undamaged manifest open for appending; the folder's lock must be held."""

    def __init__(self, folder: Path, reading: Reading) -> None:
        self.path = folder / MANIFEST
        self.entries = reading.good
        self.shards = live_shards(self.entries)
        self._size = reading.size
        if reading.torn:
            write_at(self.path, b"", self._size)

    def append(self, kind: str, data: Mapping[str, Any]) -> None:
        """Add a line and wait until it is on the disk."""
        entry = Entry(len(self.entries), kind, dict(data))
        line = encode(entry.seq, kind, data)
        write_at(self.path, line, self._size)
        if not self.entries:
            sync_folder(self.path.parent)
        self._size += len(line)
        self.entries.append(entry)
        _apply(entry, self.shards)


def live_shards(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Shards that were written and not discarded since, in the order of writing."""
    live: dict[str, dict[str, Any]] = {}
    for entry in entries:
        _apply(entry, live)
    return live


def _apply(entry: Entry, live: dict[str, dict[str, Any]]) -> None:
    if entry.kind in ("shard", "discard"):
        live.pop(entry.data["name"], None)
    if entry.kind == "shard":
        live[entry.data["name"]] = entry.data


def live_result(entries: Iterable[Entry]) -> dict[str, dict[str, Any]]:
    """Digests of the result's files by file name; empty where there is none."""
    files: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.kind == "result":
            files = entry.data["files"]
        elif entry.kind == "discard_result":
            files = {}
    return files


def is_complete(entries: Iterable[Entry]) -> bool:
    """Whether a result was stored and nothing was discarded since."""
    complete = False
    for entry in entries:
        if entry.kind in ("result", "discard", "discard_result", "reopened"):
            complete = entry.kind == "result"
    return complete
