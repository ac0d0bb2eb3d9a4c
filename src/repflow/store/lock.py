"""One writer per run folder: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import errno
import json
import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repflow.core.errors import RunLockedError, StoreError
from repflow.store.disk import NO_FOLLOW, naming_path, read_bytes, refuse_links

LOCK_FILE = ".repflow.lock"
LOCK_BYTES = 160  # a fixed length, so that a reader never sees half of two texts
TAKEN = frozenset([errno.EWOULDBLOCK, errno.EACCES])
_private: list[Path] = []


@contextmanager
def private(folder: Path) -> Iterator[None]:
    """Runs in a folder that nobody else knows, such as that of a claim, need no lock where the file system has none."""
    _private.append(folder.absolute())
    try:
        yield
    finally:
        _private.remove(folder.absolute())


def sealed_lines(folder: Path) -> int:
    """Lines that the manifest of a run has had at least; 0 where nothing says so, as in a run of an older version."""
    with suppress(StoreError, ValueError, TypeError, KeyError):
        lines = json.loads(read_bytes(folder / LOCK_FILE) or b"")["lines"]
        return lines if isinstance(lines, int) else 0
    return 0


def wait_for_writer(folder: Path) -> bool:
    """Wait until no other process writes to a run; False at once where it is this process that does."""
    import fcntl  # POSIX only, as the lock itself

    with suppress(OSError, StoreError, ValueError, TypeError, KeyError):
        holder = json.loads(read_bytes(folder / LOCK_FILE) or b"")
        if (holder["pid"], holder["host"]) == (os.getpid(), socket.gethostname()):
            return False
    with suppress(OSError):  # gone with the folder: nobody writes
        fd = os.open(folder / LOCK_FILE, os.O_RDONLY | NO_FOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
        finally:
            os.close(fd)
    return True


class Lock:
    """Exclusive hold on a run folder from `Lock(folder)` to `release()`.

    The file stays behind: removing it would let two processes hold locks on two files of one name. It also keeps the
    number of lines that the manifest has had, so that it is noticed when lines at its end are cut off.
    """

    def __init__(self, folder: Path, name: str = LOCK_FILE) -> None:
        self.path = folder / name
        refuse_links(self.path)
        with naming_path(self.path, 0):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        try:
            self._take()
            self._check_current()
            self.seal(sealed_lines(folder))
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _take(self) -> None:
        import fcntl  # POSIX only; reading run folders works without it

        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in TAKEN and any(place in self.path.absolute().parents for place in _private):
                return
            if error.errno not in TAKEN:
                raise StoreError(
                    f"cannot lock {self.path}: {error.strerror}; this file system has no locks, choose another --out"
                ) from error
            raise RunLockedError(
                f"expected to be the only writer of {self.path.parent}; {self._holder()} is writing to it; "
                "wait for it to end, stop it, or use another --name"
            ) from None

    def _check_current(self) -> None:
        # A start that failed removes its file: a lock on the removed file would exclude nobody.
        with naming_path(self.path, 0):
            there, ours = self.path.stat(), os.fstat(self._fd)
        if (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
            raise RunLockedError(f"another process is starting or removing {self.path.parent}; run the command again")

    def seal(self, lines: int) -> None:
        """Note how many lines of the manifest are on the disk; written after them, so never more than there are."""
        content = {"pid": os.getpid(), "host": socket.gethostname(), "lines": lines}
        with suppress(OSError):  # not needed to go on; a full disk is told by the first real write
            os.ftruncate(self._fd, os.pwrite(self._fd, json.dumps(content).encode().ljust(LOCK_BYTES), 0))

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock."""
        return self._fd >= 0

    def _holder(self) -> str:
        with suppress(OSError, ValueError, KeyError, TypeError):
            holder = json.loads(os.pread(self._fd, 1000, 0))
            return f"process {holder['pid']} on {holder['host']}"
        return "another process"

    def release(self) -> None:
        """Let others write; harmless when called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _held.discard(self)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _drop_inherited() -> None:
    # A forked child shares the parent's lock: it would keep the folder locked after the parent is killed.
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)
