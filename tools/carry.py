"""Runs and half-trained models in parts of a bounded size, to be carried from one machine to another.

python -m tools.carry RUNS FOLDER [--results]       packs runs to be kept, compressed, in the same form
python -m tools.carry RUNS FOLDER --halves          with half-trained models, so that another machine goes on
python -m tools.carry RUNS FOLDER --unpack          puts into RUNS what FOLDER has
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import re
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from repflow.store.claims.attempt import OWN, WORK
from repflow.store.claims.ledger import CLAIMS, Kind, key_of, last_entry
from repflow.store.claims.liveness import machine_id
from repflow.store.claims.place import FolderPlace
from repflow.store.shard import SHARDS
from repflow.studies.engine.spot import SHARES

PART, PARTS = 15 << 20, 4
"""Bytes of a part, and parts that one call may bring back."""
NAME = "runs-{:02d}.part"
CARRIED = "carried"
"""Start of a process that is no process of this machine."""
SHARED = (CLAIMS, SHARES)
"""What workers have finished of runs that are not, and which: another machine goes on from there."""
MODELS = ".models"
LEFT = (".training", MODELS)
"""Ends of names of folders beside a run: half-trained models, and kept ones."""


def pack(runs: Path, folder: Path, *, part: int = PART, parts: int = PARTS, leave: Sequence[str] = ()) -> str:
    """Write all runs, and the furthest half-trained models that fit beside them; says what was packed.

    Kept models stay.

    Args:
        runs: folder of runs, or of folders of runs.
        folder: where the parts go; earlier ones are removed.
        part: bytes of a part.
        parts: parts at most.
        leave: names of folders in `runs` that are not packed.
    """
    models = [path.relative_to(runs) for path in runs.rglob(f"*{MODELS}") if path.is_dir()]
    whole = [entry for entry in sorted(runs.iterdir()) if entry.is_dir() and entry.name not in leave]
    halves = sorted((half for entry in whole for half in _half_trained(entry)), key=_steps)
    data, left = _tar(whole, models), 0
    while len(data) > part * parts and left < len(halves):
        left += 1
        data = _tar(whole, [*models, *(half.relative_to(runs) for half in halves[:left])])
    words = f"runs and {len(halves) - left} of {len(halves)} half-trained models" if halves else "runs"
    return f"packed {words}: {_write(data, folder, part)}"


def keep(runs: Path, folder: Path, *, results: bool = False, halves: bool = False) -> str:
    """Write runs to be stored beside a page: compressed, with finished shares of those that are not finished.

    What workers and trainings left beside these is not packed, unless they are to go on.

    Args:
        runs: folder of runs.
        folder: where the parts go; earlier ones are removed.
        results: leave out the shards of runs that have their result, which holds the same numbers; later phases cannot
            be chosen from such runs.
        halves: pack half-trained models too.
    """
    ends = tuple(end for end in LEFT if end == MODELS or not halves)
    entries = [entry for entry in sorted(runs.iterdir()) if entry.is_dir() and not entry.name.endswith(ends)]
    left = [path.relative_to(runs) for path in runs.rglob("*") if path.name.endswith(ends)]
    shared = (*SHARED, WORK) if halves else SHARED
    left += [path.relative_to(runs) for path in runs.rglob(f"{OWN}/*") if path.name not in shared]
    left += [file.parent.relative_to(runs) / SHARDS for file in runs.rglob("result.json") if results]
    return f"kept {_write(lzma.compress(_tar(entries, left)), folder, PART)}"


def _write(data: bytes, folder: Path, part: int) -> str:
    """Cut into parts, in place of those that are there; says how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("runs-*.part"):
        old.unlink()
    count = -(-len(data) // part)
    for number in range(count):
        (folder / NAME.format(number)).write_bytes(data[number * part : (number + 1) * part])
    return f"{len(data) / 2**20:.1f} MiB in {count} part{'' if count == 1 else 's'}"


def unpack(folder: Path, runs: Path) -> None:
    """Put the parts of a folder together again; what is there already stays, unless a part has it too.

    Work that was in hand when it was packed is free: its workers are on another machine, and nobody waits to see that.
    """
    files = sorted(folder.glob("runs-*.part"))
    if not files:
        raise SystemExit(f"no parts in {folder}")
    with tarfile.open(fileobj=io.BytesIO(b"".join(file.read_bytes() for file in files))) as archive:
        archive.extractall(runs, filter="data")
        _free(runs, archive.getnames())


def _free(runs: Path, names: Sequence[str]) -> None:
    """Say of carried claims that their worker has ended: of one of this machine that can be seen at once."""
    claims = {Path(name).parent for name in names if Path(name).parts[-4:-2] == (OWN, CLAIMS)}
    for ledger in claims:
        place = FolderPlace(runs / ledger.parent.parent)
        last = last_entry(place, ledger.name)
        if last is not None and last.kind is Kind.CLAIM:
            place.write(key_of(last.cell, last.number), replace(last, machine=machine_id(), born=CARRIED).to_bytes())


def _half_trained(entry: Path) -> Iterator[Path]:
    """Half-trained models in a folder, however deep: those beside a run, and those that workers have left."""
    for place in (entry, *entry.rglob("*")):
        left = place.name.endswith(".training") and place.parent.parent.name != WORK
        if place.is_dir() and (left or (place.name == WORK and place.parent.name == OWN)):
            yield from place.iterdir()


def _steps(half: Path) -> int:
    """How far it is trained."""
    return max((int(step) for file in half.rglob("checkpoint-*") for step in re.findall(r"\d+", file.stem)), default=0)


def _tar(entries: Sequence[Path], without: Sequence[Path]) -> bytes:
    """A tar of folders; `without` are paths in it. Files that change meanwhile are as they were read, or left out."""
    names, stream = {str(path) for path in without}, io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for entry in entries:
            for folder, inner, files in os.walk(entry):
                place = Path(entry.name) / Path(folder).relative_to(entry)
                if str(place) in names:
                    inner.clear()
                    continue
                info = tarfile.TarInfo(str(place))
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                for name in sorted(files):
                    if str(place / name) not in names:
                        _add(archive, Path(folder) / name, str(place / name))
                inner.sort()
    return stream.getvalue()


def _add(archive: tarfile.TarFile, file: Path, name: str) -> None:
    """Put a file in as it is now, if it is still there."""
    with suppress(FileNotFoundError):
        data, facts = file.read_bytes(), file.stat()
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), int(facts.st_mtime), facts.st_mode & 0o777
        archive.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", action="store_true", help="without shards of runs that have their result")
    parser.add_argument("--halves", action="store_true", help="with half-trained models")
    parser.add_argument("--unpack", action="store_true", help="from FOLDER into RUNS")
    options = parser.parse_args()
    if options.unpack:
        unpack(options.folder, options.runs)
    else:
        print(keep(options.runs, options.folder, results=options.results, halves=options.halves))
