"""Runs and half-trained models in parts of a bounded size, to be carried from one machine to another."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from repflow.store.claims.attempt import OWN
from repflow.studies.engine.spot import SHARES

PART, PARTS = 15 << 20, 4
"""Bytes of a part, and parts that one call may bring back."""
NAME = "runs-{:02d}.part"


def pack(runs: Path, folder: Path, *, part: int = PART, parts: int = PARTS) -> str:
    """Write all runs, and half-trained models if they fit beside them; says what was packed. Kept models stay.

    Args:
        runs: folder of runs.
        folder: where the parts go; earlier ones are removed.
        part: bytes of a part.
        parts: parts at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("runs-*.part"):
        old.unlink()
    folders = [entry for entry in sorted(runs.iterdir()) if entry.is_dir()]
    whole = [entry for entry in folders if not entry.name.endswith(".models")]
    data, words = _tar(whole), "runs and half-trained models"
    if len(data) > part * parts:
        words = f"runs alone: half-trained models would take {len(data) / 2**20:.0f} MiB"
        data = _tar([entry for entry in whole if not entry.name.endswith(".training")], trained=True)
    count = -(-len(data) // part)
    for number in range(count):
        (folder / NAME.format(number)).write_bytes(data[number * part : (number + 1) * part])
    return f"packed {words}: {len(data) / 2**20:.1f} MiB in {count} parts"


def unpack(folder: Path, runs: Path) -> None:
    """Put the parts of a folder together again; what is there already stays, unless a part has it too."""
    files = sorted(folder.glob("runs-*.part"))
    if not files:
        raise SystemExit(f"no parts in {folder}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(file.read_bytes() for file in files))) as archive:
        archive.extractall(runs, filter="data")


def _tar(entries: list[Path], *, trained: bool = False) -> bytes:
    """A tar of folders; of what workers do at the same time (`OWN`) the finished shares alone where `trained`."""
    entries = [entry / SHARES if trained and entry.name == OWN else entry for entry in entries]
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in entries:
            if entry.exists():
                archive.add(entry, f"{OWN}/{SHARES}" if entry.parent.name == OWN else entry.name)
    return stream.getvalue()
