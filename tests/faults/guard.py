"""What reading a file from elsewhere must never do, watched by an audit hook: run code, connect, write elsewhere.

Python's own actions raise audit events; what a compiled library does inside (the tokenizers' and safetensors' reading
of files) raises none and is not seen.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import repflow

FORBIDDEN = (
    *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "pty.spawn"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"),
    *("ctypes.dlopen", "webbrowser.open", "urllib.Request", "code.__new__", "marshal.loads", "pickle.find_class"),
)
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
OWN = Path(__file__).resolve().parents[2]
ROOTS = tuple(
    f"{os.path.realpath(place)}{os.sep}"
    for place in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *(sys.prefix, sys.base_prefix, Path(repflow.__file__).parent, OWN / "tests"),
    )
)
"""Where code may come from: Python, installed packages, repflow itself and its tests."""
LOADED = frozenset({"ctypes.dlopen", "marshal.loads", "code.__new__"})
"""Events of every import of an installed module; forbidden unless such an import is under way."""


class ForbiddenError(BaseException):
    """Something that must never happen; not an Exception, so that no handler swallows it."""


class Guard:
    """Watches everything that happens inside `watching`."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        """Watch; files may be changed below this folder alone."""
        self.folder, self.seen = os.path.realpath(folder) + os.sep, []
        try:
            yield
        finally:
            self.folder = None

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        folder, self.folder = self.folder, None  # what the check itself does is not watched
        try:
            fault = self._fault(event, args, folder)
        finally:
            self.folder = folder
        if fault:
            self.seen.append(fault)
            raise ForbiddenError(fault)

    def _fault(self, event: str, args: tuple[Any, ...], folder: str) -> str | None:
        if event in FORBIDDEN and not (event in LOADED and _importing()):
            return f"{event} {args!r:.200}"
        if event == "exec" and isinstance(args[0], CodeType) and not _known(args[0].co_filename):
            return f"execution of {args[0].co_filename}"
        if event == "import" and args[1] and not _known(str(args[1])):
            return f"import of {args[0]} from {args[1]}"
        if event in CHANGES and any(isinstance(part, str) and not _below(part, folder) for part in args[:2]):
            return f"{event} {args!r:.200}"
        if event == "open" and isinstance(args[0], str | bytes):
            return _opened(os.fsdecode(args[0]), args[1], args[2], folder)
        return None


def _opened(path: str, mode: Any, flags: Any, folder: str) -> str | None:
    real = os.path.realpath(path)
    writes = any(letter in str(mode or "") for letter in "wax+") or bool(int(flags or 0) & WRITES)
    if writes and real != os.devnull and not _below(real, folder):
        return f"a write to {real}"
    return f"reading of {real}" if real.startswith("/etc/passwd") else None


def _below(path: str, folder: str) -> bool:
    return (os.path.realpath(path) + os.sep).startswith(folder)


def _known(file: str) -> bool:
    """Code of a known place; code without a file is what dataclasses and their like write, called from such a place."""
    if not file.startswith("<"):
        return os.path.realpath(file).startswith(ROOTS)
    frame = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.startswith("<"):
        frame = frame.f_back
    return frame is not None and os.path.realpath(frame.f_code.co_filename).startswith(ROOTS)


def _importing() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
