"""Durable writes: a file is either whole and on the disk or not there, and a full disk says so."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from repflow.core.errors import InputError, StoreError, teach

TMP = ".tmp"
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0)
NO_ROOM = frozenset([errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
FORBIDDEN = frozenset(
    [errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP]
)


class UnwritableError(InputError, StoreError):
    """The place to write to is full, read-only or forbidden; what was stored before is intact."""


def refuse_links(*paths: Path) -> None:
    """Refuse symbolic links where a run keeps its own files: a folder from elsewhere must not reach outside itself.

    Raises:
        StoreError: One of the paths is a link; names it and where it leads.
    """
    for path in paths:
        if path.is_symlink():
            got = f"a symbolic link to {path.readlink()}"
            remedy = "delete the link, or put what it leads to in its place; the folder of the run itself may be a link"
            raise StoreError(teach(f"a file or folder of the run's own at {path}", got, remedy))


def digest(data: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: temporary file, fsync, rename, fsync of the folder."""
    tmp = path.with_name(path.name + TMP)
    with naming_path(path, len(data)):
        try:
            fd = os.open(tmp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_FOLLOW, 0o666)
            try:
                write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            tmp.replace(path)
            sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                tmp.unlink()
            raise


def write_at(path: Path, data: bytes, offset: int) -> None:
    """Write durably at an offset and end the file there; after a failure the file ends at the offset again."""
    refuse_links(path)
    with naming_path(path, len(data)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | NO_FOLLOW, 0o666)
        try:
            if os.fstat(fd).st_size != offset:
                os.ftruncate(fd, offset)
            os.lseek(fd, offset, os.SEEK_SET)
            write_all(fd, data)
            os.fsync(fd)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(fd, offset)
            raise
        finally:
            os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; os.write may take fewer."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that never changes; a durable copy where the file system has no hard links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target, follow_symlinks=False)
        fd = os.open(target, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new entry in the folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_place(folder: Path) -> None:
    """Refuse a folder of runs that cannot be one, because a file is in its place, before any work is done.

    Raises:
        InputError: A file has its name, or that of a folder above it.
    """
    for place in (folder, *folder.parents):
        if place.is_dir():
            return
        if place.exists():
            got = f"{place}, which is a file"
            raise InputError(teach(f"a folder for runs at {folder}", got, "choose another --out"))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably; it may exist already."""
    with naming_path(folder, 0):
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)


def read_bytes(path: Path) -> bytes | None:
    """Whole content, None where there is no such file; a link, a pipe or a device is refused, not read."""
    refuse_links(path)
    try:
        with open(os.open(path, os.O_RDONLY | NO_FOLLOW | NO_WAIT), "rb") as file:  # noqa: PTH123  Path.open has no flags
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StoreError(teach(f"a file at {path}", "a folder, pipe or device", "delete it"))
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}; check its permissions and the disk") from error


@contextmanager
def naming_path(path: Path, needed: int) -> Iterator[None]:
    """Turn an OSError of a write into a StoreError that names the path, the space needed and the remedy."""
    try:
        yield
    except OSError as error:
        raise _explain(error, path, needed) from error


def _explain(error: OSError, path: Path, needed: int) -> StoreError:
    if error.errno in NO_ROOM:
        return UnwritableError(
            f"no room to write {path}: {needed} bytes needed, {_free(path)} free ({error.strerror}); "
            "free some space and run the same command again, it resumes"
        )
    if error.errno in FORBIDDEN:
        return UnwritableError(
            f"cannot write {path}: {error.strerror}; make the place writable or choose another --out"
        )
    return StoreError(f"cannot write {path}: {error.strerror or error}; check the disk and run the same command again")


def _free(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free} bytes"
    except OSError:
        return "unknown"
