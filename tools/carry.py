"""Runs and half-trained models in parts of a bounded size, to be carried from one machine to another."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from repflow.store.claims.attempt import OWN, WORK

PART, PARTS = 15 << 20, 4
"""Bytes of a part, and parts that one call may bring back."""
NAME = "runs-{:02d}.part"


def pack(runs: Path, folder: Path, *, part: int = PART, parts: int = PARTS) -> str:
    """Write all runs, and the furthest half-trained models that fit beside them; says what was packed.

    Kept models stay.

    Args:
        runs: folder of runs.
        folder: where the parts go; earlier ones are removed.
        part: bytes of a part.
        parts: parts at most.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("runs-*.part"):
        old.unlink()
    whole = [entry for entry in sorted(runs.iterdir()) if entry.is_dir() and not entry.name.endswith(".models")]
    halves = sorted((half for entry in whole for half in _half_trained(entry)), key=_steps)
    data, left = _tar(whole, []), 0
    while len(data) > part * parts and left < len(halves):
        left += 1
        data = _tar(whole, [half.relative_to(runs) for half in halves[:left]])
    words = f"runs and {len(halves) - left} of {len(halves)} half-trained models" if halves else "runs"
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


def _half_trained(entry: Path) -> Iterator[Path]:
    """Half-trained models in a folder: those beside a run, and those that workers have left."""
    place = entry / WORK if entry.name == OWN else entry
    if place.is_dir() and (entry.name == OWN or entry.name.endswith(".training")):
        yield from place.iterdir()


def _steps(half: Path) -> int:
    """How far it is trained."""
    return max((int(step) for file in half.rglob("checkpoint-*") for step in re.findall(r"\d+", file.stem)), default=0)


def _tar(entries: Sequence[Path], without: Sequence[Path]) -> bytes:
    """A tar of folders; `without` are paths in it."""
    names, stream = {str(path) for path in without}, io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in entries:
            archive.add(entry, entry.name, filter=lambda info: None if info.name in names else info)
    return stream.getvalue()
