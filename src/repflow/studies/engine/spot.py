"""Where runs of cells go: beside one another in the study's folder, and shares of a run into a hidden one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repflow.store.claims.attempt import OWN, Attempts, Spot, is_whole
from repflow.store.claims.board import Results
from repflow.store.claims.bucket import BucketPlace, BucketResults
from repflow.store.claims.place import FolderPlace, Place
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


def meeting(folder: Path, cells: Sequence[Cell], store: str | None) -> tuple[Place, Results]:
    """Where workers meet, and where their results go: the study's folder, or a folder of its name on a store."""
    spots = {cell.name: spot_of(folder, cell) for cell in cells}
    spots |= {share.name: spot_of(folder, share) for cell in cells for share in cell.shares()}
    local = Attempts(folder, spots)
    if store is None:
        return FolderPlace(folder / OWN), local
    url = f"{store.rstrip('/')}/{folder.absolute().name}"
    shares = [share for cell in cells for share in (cell, *cell.shares()) if share.share is not None]
    wholes = {share.name: share.share.of for share in shares if share.share is not None}
    return BucketPlace(f"{url}/{OWN}"), BucketResults(BucketPlace(url), local, wholes)
