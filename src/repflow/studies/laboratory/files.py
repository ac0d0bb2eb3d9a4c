"""What the models of a grid read of files, texts and images: read once in a process, and again when files change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class FromFiles(Generic[T]):
    """Content of files by the request for it.

    A request is looked at when it is checked (`look`). Until the next look its content stays the same, so that all
    models of a run read the same, whatever happens to the files meanwhile.

    Args:
        read: reads the content of a request.
        places: gives the files and folders of a request; words that name no file are passed over.
        most: requests whose content is kept, the last ones.
    """

    def __init__(self, read: Callable[..., T], places: Callable[..., Iterable[str | None]], most: int = 2) -> None:
        self._read, self._places, self._most = read, places, most
        self._known: dict[tuple[Any, ...], tuple[Any, T]] = {}

    def look(self, *request: Any) -> bool:
        """Forget what was read of files that have changed since; whether they have."""
        known = self._known.get(request)
        changed = known is not None and known[0] != file_marks(self._places(*request))
        if changed:
            del self._known[request]
        return changed

    def __call__(self, *request: Any) -> T:
        """The content, read if it is not known."""
        if request not in self._known:
            marks = file_marks(self._places(*request))  # before it is read: a change meanwhile is then seen
            content = self._read(*request)
            while len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[request] = marks, content
        return self._known[request][1]


def file_marks(places: Iterable[str | None]) -> list[tuple[Any, ...]]:
    """Name, size and time of last change of every file; a folder's files are all below it, hidden ones too.

    >>> file_marks(["english", None])
    []
    """
    files = (file for place in places if place for file in _files(place))
    return [(str(file), (now := file.stat()).st_size, now.st_mtime_ns, now.st_ino) for file in files]


def _files(place: str) -> Iterator[Path]:
    named = Path(place).expanduser()
    root = Path(named.anchor or ".")
    for path in sorted(root.glob(str(named.relative_to(named.anchor)))) if place.endswith("*") else [named]:
        yield from [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
