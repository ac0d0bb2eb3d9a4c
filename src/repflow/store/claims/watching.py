"""Who works on what: the ledgers and heartbeats of a folder of runs and of the studies in it, read by an onlooker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, StoreError, teach
from repflow.store.claims.attempt import OWN
from repflow.store.claims.ledger import CLAIMS, Entry, Kind, last_entry
from repflow.store.claims.liveness import STALE_SECONDS, WORKERS, Watch, has_ended, read_beat
from repflow.store.claims.place import FolderPlace


@dataclass
class StudyView:
    """One study as it stands.

    Attributes:
        folder: of the study.
        ended: cells that somebody has finished, by name; shares of a run count too.
        failed: reasons of cells that failed, by name.
        held: claims that count, by cell.
        workers: heartbeats of workers that live, as far as can be seen.
        silent: hosts and processes of claims whose worker is gone; another may take over.
    """

    folder: Path
    ended: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    held: dict[str, Entry] = field(default_factory=dict)
    workers: list[Mapping[str, Any]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        """Whether anyone is at work."""
        return bool(self.workers)


class Onlooker:
    """Reads a folder of runs again and again; nothing is written.

    Args:
        folder: of runs, or of a study.
        stale: seconds without a heartbeat after which a worker of another machine counts as gone.

    Raises:
        InputError: there is no such folder.
    """

    def __init__(self, folder: Path, stale: float = STALE_SECONDS) -> None:
        if not folder.is_dir():
            raise InputError(teach("a folder of runs", str(folder), "name one that is there, such as ./runs"))
        self.folder, self._stale = folder, stale
        self._watches: dict[Path, Watch] = {}

    def look(self) -> list[StudyView]:
        """Studies of the folder that workers have met in."""
        folders = [self.folder, *sorted(path for path in self.folder.iterdir() if path.is_dir())]
        return [self._view(path) for path in folders if (path / OWN / CLAIMS).is_dir()]

    def _view(self, study: Path) -> StudyView:
        place, view = FolderPlace(study / OWN), StudyView(study)
        watch = self._watches.setdefault(study, Watch(place, stale=self._stale))
        for cell in place.names(CLAIMS):
            try:
                last = last_entry(place, cell)
            except StoreError as error:  # of a later version: said, and the others are still shown
                view.failed[cell] = str(error)
                continue
            if last is None:
                continue
            if last.kind is Kind.DONE:
                view.ended.append(cell)
            elif last.kind is Kind.FAILED:
                view.failed[cell] = last.reason
            elif last.kind is Kind.CLAIM:
                view.held[cell] = last
                if watch.gone(last):
                    view.silent[cell] = f"{last.host}:{last.pid}"
        for token in place.names(WORKERS):
            beat = read_beat(place, token)
            gone = not beat or has_ended(beat["machine"], beat["pid"], beat["born"])
            if not gone and watch.silent(Entry(0, Kind.CLAIM, token)) < self._stale:
                view.workers.append(beat)
        return view
