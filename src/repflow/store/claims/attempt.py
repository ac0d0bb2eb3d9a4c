"""Where a worker works: a folder of its own, from which a finished run moves to its place in one step.

    STUDY/CELL/                             a finished run
    STUDY/.repflow/claims/CELL/000001 ...   ledger of the cell
    STUDY/.repflow/workers/TOKEN            heartbeat of a worker
    STUDY/.repflow/work/CELL@000001-TOKEN/  work on the cell under the first claim, by that worker alone

A worker that takes a cell over starts from a copy of what the last one had stored: that one may still be alive and
write, and whatever it writes then stays in its own folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from repflow.core.errors import DamagedRunError, RunLockedError, teach
from repflow.store.claims.ledger import Entry, Kind
from repflow.store.claims.liveness import has_ended
from repflow.store.disk import TMP, link_or_copy, make_folder, naming_path, refuse_links, sync_folder
from repflow.store.listing import list_runs
from repflow.store.lock import Lock
from repflow.store.record import is_run
from repflow.store.shard import SHARDS

OWN = ".repflow"
"""Folder in a study's folder where workers meet and work."""
WORK = "work"
OCCUPIED = frozenset([errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR])
UNCHANGED = ("checkpoint-", "result.")
"""Beginnings of names of files that are replaced as a whole and never written in place, as shards are."""


def is_whole(path: Path) -> bool:
    """Whether a finished run that is not visibly damaged is there."""
    if not path.is_dir():
        return False
    summaries = list_runs(path)
    return bool(summaries) and summaries[0].path == path and summaries[0].finished and not summaries[0].damaged


@dataclass(frozen=True)
class Spot:
    """Where the run of a cell goes.

    Attributes:
        target: its folder.
        result: folder with its result, the same or one inside.
        whole: whether a finished one is there.
    """

    target: Path
    result: Path
    whole: Callable[[Path], bool] = is_whole

    @property
    def taken(self) -> bool:
        """Whether the finished run is there."""
        return self.whole(self.result)


class Attempts:
    """Work on the cells of a study in folders of their own, and results at their places.

    Args:
        folder: of the study.
        spots: where runs go that go elsewhere than `folder / cell`, by cell.
    """

    def __init__(self, folder: Path, spots: Mapping[str, Spot] | None = None) -> None:
        self.folder = folder
        self.work = folder / OWN / WORK
        self._spots = spots or {}

    def spot(self, cell: str) -> Spot:
        """Where the run of a cell goes."""
        return self._spots.get(cell) or Spot(self.folder / cell, self.folder / cell)

    def placed(self, cell: str) -> bool:
        """Whether the finished run of a cell is at its place."""
        return self.spot(cell).taken

    def begin(self, cell: str, claim: Entry, before: Entry | None) -> Path:
        """Folder of runs for the work under a claim, with what was stored under the one before or at its place.

        Raises:
            RunLockedError: another command writes to the cell's run at its place.
            DamagedRunError: what is at its place is damaged, and can be repaired there.
        """
        refuse_links(self.folder / OWN, self.work)
        own = self.work / claim.attempt
        make_folder(own)
        if self.spot(cell).target.exists():
            self._take_back(cell, own)
        elif before is not None and before.attempt and before.config == claim.config:
            self._inherit(self.work / before.attempt, own, before)
        return own

    def _take_back(self, cell: str, own: Path) -> None:
        """Move an unfinished or damaged run, left by work in place, to where it is worked on."""
        spot = self.spot(cell)
        place = spot.result
        lock = Lock(place) if place.is_dir() else None
        try:
            summaries = list_runs(place) if place.is_dir() else []
            if summaries and summaries[0].damaged:
                raise DamagedRunError(f"{place}: {summaries[0].damaged}; `repflow verify --repair {place}` repairs it")
            if not spot.taken:
                with naming_path(own, 0):
                    spot.target.rename(own / cell)
        finally:
            if lock is not None:
                lock.release()

    def _inherit(self, source: Path, own: Path, before: Entry) -> None:
        if not source.is_dir():
            return
        with naming_path(own, 0), suppress(FileNotFoundError):
            if before.kind is not Kind.CLAIM or has_ended(before.machine, before.pid, before.born):
                for entry in source.iterdir():
                    entry.rename(own / entry.name)
                source.rmdir()
            else:
                copy_stored(source, own)

    def progress(self, entry: Entry | None) -> str:
        """How far the work under a claim has come: equal for two attempts that were lost at the same step."""
        source = self.work / entry.attempt if entry is not None and entry.kind is Kind.CLAIM and entry.attempt else None
        if source is None or not source.is_dir():
            return ""
        sizes = [f"{path.relative_to(source)} {_size(path)}" for path in sorted(stored_files(source))]
        return hashlib.sha256("\n".join(sizes).encode()).hexdigest()[:12]

    def stage(self, claim: Entry) -> None:
        """Nothing: whoever sees the folder sees the finished run."""

    def fetch(self, cell: str) -> None:
        """Nothing: a finished run is where it is read."""

    def drop(self, cell: str) -> None:
        """Delete a run, and what lies beside it."""
        target = self.spot(cell).target
        with suppress(OSError):
            for entry in target.parent.iterdir():
                if entry.name == cell or entry.name.startswith(f"{cell}."):
                    shutil.rmtree(entry, ignore_errors=True)
            target.parent.rmdir()

    def place(self, done: Entry) -> bool:
        """Move a finished run to its place; False where it is no longer where it was worked on."""
        source = self.work / done.attempt
        main, target = source / done.cell, self.spot(done.cell).target
        if not main.is_dir():
            return False
        make_folder(target.parent)
        with suppress(FileNotFoundError):  # another worker moves them
            for other in [entry for entry in source.iterdir() if entry.name != done.cell]:
                self._place_beside(other, target.parent / other.name)
        with naming_path(target, 0):
            try:
                main.rename(target)
            except FileNotFoundError:
                return False  # another worker moves it
            except OSError as error:
                if error.errno not in OCCUPIED:
                    raise
                self._check_occupied(done.cell)
            sync_folder(target.parent)
        self.discard(done.attempt)
        if done.number > 2:  # there were other claims
            self.clear(done.cell)
        return True

    def _place_beside(self, source: Path, target: Path) -> None:
        """Move what a study stores beside its run; of what is there, only an unfinished run is replaced."""
        if target.is_dir() and is_run(target) and not is_whole(target):
            shutil.rmtree(target, ignore_errors=True)
        if not target.exists():
            source.rename(target)

    def _check_occupied(self, cell: str) -> None:
        if not self.placed(cell):
            expected = f"nothing at {self.spot(cell).target}, where a finished run is to go"
            got = "a run that another command writes there, or other files"
            raise RunLockedError(teach(expected, got, "end that command or move the files; then rerun this one"))

    def discard(self, attempt: str, *, only_empty: bool = False) -> None:
        """Delete the work under a claim, or only where nothing was stored."""
        if attempt and not (only_empty and any(stored_files(self.work / attempt))):
            shutil.rmtree(self.work / attempt, ignore_errors=True)

    def sweep(self) -> None:
        """Delete what is left of work on finished cells, such as by workers that were killed while they cleared it."""
        with suppress(FileNotFoundError):
            for entry in self.work.iterdir():
                if self.placed(entry.name.rpartition("@")[0]):
                    shutil.rmtree(entry, ignore_errors=True)
        self.tidy()

    def tidy(self) -> None:
        """Remove the folder of work once nothing is in it."""
        with suppress(OSError):
            self.work.rmdir()

    def clear(self, cell: str) -> None:
        """Delete what is left of all work on a finished cell; a worker that still writes there gets an error."""
        with suppress(FileNotFoundError):
            for entry in self.work.iterdir():
                if entry.name.rpartition("@")[0] == cell:
                    shutil.rmtree(entry, ignore_errors=True)


def copy_stored(source: Path, target: Path) -> None:
    """Copy what is stored in a folder that may still be written to; shards and checkpoints as links to the same bytes.

    A manifest is copied before the shards that it names, and a record before its checkpoint: a copy may be older than
    what lies beside it, never newer.
    """
    for path in sorted(stored_files(source), key=_unchanging):
        own = target / path.relative_to(source)
        own.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # replaced by a later one meanwhile
            if _unchanging(path):
                link_or_copy(path, own)
            else:
                shutil.copyfile(path, own, follow_symlinks=False)


def stored_files(folder: Path) -> Iterator[Path]:
    """Files of runs and trainings in a folder, without locks and files that were being written; links are left out."""
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and not name.endswith(TMP) and not path.is_symlink():
                yield path


def _unchanging(path: Path) -> bool:
    return path.parent.name == SHARDS or path.name.startswith(UNCHANGED)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
