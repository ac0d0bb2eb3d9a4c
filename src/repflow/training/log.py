"""The log of a training: JSON objects, one a line, never one twice and none missing after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from repflow.core.errors import DamagedRunError, teach
from repflow.store.canonical import without_nan
from repflow.store.disk import NO_FOLLOW, naming_path, read_bytes, refuse_links, write_all

AGAIN = "delete the folder to train from the first step"


class Log:
    """A growing file of lines, or a list alone where there is no file.

    What follows `size` when it is opened was written after the last checkpoint; it is cut off, as the training that
    resumes writes it again.

    Attributes:
        entries: all lines.
        size: bytes of the file.

    >>> log = Log()
    >>> log.write("step", 3, {"loss": 0.5})
    >>> log.entries
    [{'kind': 'step', 'step': 3, 'loss': 0.5}]
    """

    def __init__(self, path: Path | None = None, size: int = 0, sha256: str | None = None) -> None:
        self.entries: list[dict[str, Any]] = []
        self.size = size
        self._path = path
        self._fd = -1
        self._hash = hashlib.sha256()
        if path is None:
            return
        refuse_links(path)
        raw = (read_bytes(path) or b"")[:size]
        self._hash.update(raw)
        if len(raw) != size or (sha256 is not None and self.sha256 != sha256):
            got = f"{len(raw)} bytes" if len(raw) != size else "other bytes"
            raise DamagedRunError(teach(f"the first {size} bytes of {path} as they were logged", got, AGAIN))
        try:
            self.entries = [dict(json.loads(line)) for line in raw.splitlines()]
            if any(not {"kind", "step"} <= entry.keys() for entry in self.entries):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise DamagedRunError(teach(f"a JSON object a line in {path}", "something else", AGAIN)) from None
        with naming_path(path, 0):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | NO_FOLLOW, 0o666)
            os.ftruncate(self._fd, size)
            os.lseek(self._fd, size, os.SEEK_SET)

    @property
    def sha256(self) -> str:
        """Digest of all lines."""
        return self._hash.hexdigest()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line; a number that is not finite becomes null."""
        entry = {"kind": kind, "step": step, **without_nan(values)}
        self.entries.append(entry)
        if self._fd >= 0:
            assert self._path is not None
            data = (json.dumps(entry, allow_nan=False) + "\n").encode()
            with naming_path(self._path, len(data)):
                write_all(self._fd, data)
            self._hash.update(data)
            self.size += len(data)

    def sync(self) -> None:
        """Have all lines on the disk."""
        if self._fd >= 0:
            assert self._path is not None
            with naming_path(self._path, 0):
                os.fsync(self._fd)

    def close(self) -> None:
        """Write no more; harmless when called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
