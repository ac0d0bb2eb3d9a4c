"""Places where workers meet: five operations, of which one decides: creating a file that is not there yet."""

from __future__ import annotations

import errno
import itertools
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol, runtime_checkable

from repflow.store.disk import NO_FOLLOW, naming_path, read_bytes, refuse_links, write_all

NO_LINKS = frozenset([errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EOPNOTSUPP])
"""What file systems without hard links answer."""


@runtime_checkable
class Place(Protocol):
    """Small files by key, such as `claims/CELL/000001`, that all workers of a study see."""

    def create(self, key: str, data: bytes) -> bool:
        """Create a file with its content in one step; False where the key is taken, whoever took it.

        Of all calls for one key, on all machines, exactly one returns True.
        """

    def write(self, key: str, data: bytes) -> None:
        """Write a file that this worker alone writes; a reader may see the old content or the new."""

    def read(self, key: str) -> bytes | None:
        """Content; None where there is no such file."""

    def names(self, key: str) -> list[str]:
        """Names of the files in a folder, in order; none where there is no such folder."""

    def delete(self, key: str) -> None:
        """Delete a file, if it is there."""


class FolderPlace:
    """A folder, also on a network file system; needs neither locks nor clocks.

    A file is written under a name of its own and then linked to its key: a hard link is made on the server in one step
    and fails where the key is taken. If the answer of a server is lost, the content says who was first. Without hard
    links the key itself is created exclusively, and a reader may see it before its content.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mark = secrets.token_hex(6)
        self._count = itertools.count()
        self._links = True

    def create(self, key: str, data: bytes) -> bool:
        """Link a finished file to the key."""
        target = self.root / key
        with naming_path(target, len(data)):
            try:
                return self._create(target, data)
            except FileNotFoundError:
                refuse_links(self.root, *self.root.glob("*"))
                target.parent.mkdir(parents=True, exist_ok=True)  # not synced: a lost claim is made again
                return self._create(target, data)

    def _create(self, target: Path, data: bytes) -> bool:
        if not self._links:
            return _create_exclusively(target, data)
        own = target.parent / f".{self._mark}-{next(self._count)}"
        _create_exclusively(own, data)
        try:
            os.link(own, target)
        except FileExistsError:
            return read_bytes(target) == data  # an answer was lost: the call that came first was ours
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            self._links = False
            return _create_exclusively(target, data)
        finally:
            with suppress(OSError):
                own.unlink()
        return True

    def write(self, key: str, data: bytes) -> None:
        """Write in place."""
        path = self.root / key
        with naming_path(path, len(data)):
            try:
                _write_over(path, data)
            except FileNotFoundError:
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_over(path, data)

    def read(self, key: str) -> bytes | None:
        """Content of a file."""
        return read_bytes(self.root / key)

    def names(self, key: str) -> list[str]:
        """Files in a folder, without those that are being written."""
        try:
            return sorted(name for name in os.listdir(self.root / key) if not name.startswith("."))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, key: str) -> None:
        """Unlink a file."""
        with naming_path(self.root / key, 0):
            (self.root / key).unlink(missing_ok=True)


def _create_exclusively(path: Path, data: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666)
    except FileExistsError:
        return False
    try:
        write_all(fd, data)
    finally:
        os.close(fd)
    return True


def _write_over(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | NO_FOLLOW, 0o666)
    try:
        os.ftruncate(fd, os.pwrite(fd, data, 0))
    finally:
        os.close(fd)
