"""Where runs of cells go: beside one another in the study's folder, and shares of a run into a hidden one."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from repflow.store.claims.attempt import OWN, Spot, is_whole
from repflow.store.manifest import read_manifest
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.study import SHARE
from repflow.studies.engine.table import study_for

SHARES = "shares"


def spot_of(folder: Path, cell: Cell) -> Spot:
    """Where the run of a cell goes; a share is not missing once the run that it belongs to is whole."""
    study = study_for(cell.config)
    if cell.share is None:
        return Spot(folder / cell.name, study.result_place(folder / cell.name))
    whole, target = study.result_place(folder / cell.share.of), folder / OWN / SHARES / cell.name
    return Spot(target, target, lambda path: is_share(path) or is_whole(whole))


def is_share(path: Path) -> bool:
    """Whether a finished share of a run is there."""
    return path.is_dir() and any(entry.kind == SHARE for entry in read_manifest(path).good)


def stored_shares(folder: Path, cell: Cell) -> list[Path]:
    """Folders of the finished shares of a cell."""
    return [place for share in cell.shares() if is_share(place := spot_of(folder, share).target)]


def clear_shares(folder: Path, cell: Cell) -> None:
    """Delete the shares of a finished cell, and what lies beside them."""
    place, names = folder / OWN / SHARES, [share.name for share in cell.shares()]
    with suppress(OSError):
        for entry in place.iterdir() if names else ():
            if any(entry.name == name or entry.name.startswith(f"{name}.") for name in names):
                shutil.rmtree(entry, ignore_errors=True)
        place.rmdir()
