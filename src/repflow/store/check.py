"""Verify and heal: name every damaged file of a run, and make the run recompute what was lost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from repflow.store.canonical import unseal
from repflow.store.disk import read_bytes, refuse_links, write_atomic
from repflow.store.lock import Lock, sealed_lines
from repflow.store.manifest import (
    MANIFEST,
    Reading,
    cut_lines,
    decode,
    encode,
    live_result,
    live_shards,
    missing_lines,
    read_manifest,
)
from repflow.store.name import check_name
from repflow.store.record import (
    RUN_FILE,
    Record,
    existing_run,
    is_start,
    read_record,
    record_in_file,
    record_in_manifest,
)
from repflow.store.run import OWN_FILES, RunFolder
from repflow.store.shard import SHARDS, SUFFIX, read_stamped, shard_path

# A lost line of these kinds only costs what it names; any other may have steered the lines after it.
HARMLESS = re.compile(rb'\{"seq":\d+,"kind":"(?:shard|result|resumed|reopened)","at":"')


@dataclass(frozen=True)
class Damage:
    """One fault of a run folder.

    Attributes:
        file: File name relative to the folder.
        what: What is wrong with it.
        shard: Name of the shard that the file is, None for other files.
    """

    file: str
    what: str
    shard: str | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def verify(path: Path | str) -> list[Damage]:
    """Compare every stored byte with its digest. Takes no lock and writes nothing.

    Returns:
        Every damaged, truncated or missing file; empty for a sound run, finished or not, or just begun.

    Raises:
        InputError: There is no run folder at the path.
    """
    folder = existing_run(path)
    sealed = sealed_lines(folder)  # before the manifest, to which a writer may be adding
    reading = read_manifest(folder)
    return [
        *_check_links(folder),
        *_check_run_file(folder, reading),
        *([] if is_start(folder) else _check_manifest(reading, sealed)),
        *_check_shards(folder, reading),
        *_check_result(folder, reading),
    ]


def damaged_shards(path: Path | str) -> list[str]:
    """Names of shards whose files are damaged or missing, in the order of writing."""
    folder = existing_run(path)
    return [damage.shard for damage in _check_shards(folder, read_manifest(folder)) if damage.shard is not None]


def heal(path: Path | str) -> list[Damage]:
    """Make a damaged run sound, so that its command recomputes what was lost; computes nothing itself.

    Damaged shards are discarded, run.json and the manifest's first line are rebuilt from each other, and damaged
    manifest lines are dropped; where such a line may have steered the run, everything after it is dropped too.
    A result that is itself intact stays readable.

    Returns:
        What `verify` had found.

    Raises:
        DamagedRunError: run.json and its copy in the manifest are both damaged.
        RunLockedError: A process is writing to the run.
    """
    folder = existing_run(path)
    refuse_links(*(folder / name for name in OWN_FILES))
    record = read_record(folder)
    damages = verify(folder)
    if not damages:
        return damages
    _mend_files(folder, record)
    with RunFolder.reopen(folder) as run:
        for name in damaged_shards(folder):
            run.discard_shard(name, "damaged")
        if _check_result(folder, read_manifest(folder)):
            run.discard_result("damaged")
        elif any(damage.file != RUN_FILE for damage in damages):
            run.mark_unfinished("repaired")
    return damages


def _check_run_file(folder: Path, reading: Reading) -> list[Damage]:
    raw = read_bytes(folder / RUN_FILE)
    if raw is None:
        return [Damage(RUN_FILE, "missing")]
    if unseal(raw, indent=2) is None:
        return [Damage(RUN_FILE, "content does not match its checksum")]
    copy = record_in_manifest(reading)
    if copy is not None and copy != record_in_file(folder):
        return [Damage(RUN_FILE, "differs from its copy in the manifest")]
    return []


def _check_links(folder: Path) -> list[Damage]:
    stamped = live_result(read_manifest(folder).good)  # said below, with what is wrong with them
    links = [name for name in OWN_FILES if (folder / name).is_symlink() and name not in stamped]
    return [Damage(name, "a symbolic link, which is not followed") for name in links]


def _check_manifest(reading: Reading, sealed: int) -> list[Damage]:
    if not reading.present or not reading.lines:
        return [Damage(MANIFEST, "missing" if not reading.present else "holds no whole line")]
    faults = reading.faults()
    if cut := cut_lines(reading, sealed):
        were = "which was" if cut == 1 else "which were"
        faults.append(f"{missing_lines(cut)} at the end, {were} there when it was last written")
    if reading.torn:
        faults.append("the last line is incomplete (a write that was interrupted or is under way)")
    return [Damage(MANIFEST, fault) for fault in faults]


def _check_shards(folder: Path, reading: Reading) -> list[Damage]:
    damages = []
    for name, line in live_shards(reading.good).items():
        check_name(name, "shard name")  # a folder from elsewhere must not point outside itself
        _, fault = read_stamped(shard_path(folder, name), line)
        if fault:
            damages.append(Damage(f"{SHARDS}/{name}{SUFFIX}", fault, name))
    return damages


def _check_result(folder: Path, reading: Reading) -> list[Damage]:
    files = live_result(reading.good)
    faults = {name: read_stamped(folder / check_name(name), files[name])[1] for name in files}
    return [Damage(name, fault) for name, fault in faults.items() if fault]


def _mend_files(folder: Path, record: Record) -> None:
    lock = Lock(folder)
    try:
        reading = read_manifest(folder)
        if record_in_file(folder) is None:
            write_atomic(folder / RUN_FILE, record.to_bytes())
        lines = _repaired(reading, record)
        if lines != reading.lines or reading.torn:
            write_atomic(folder / MANIFEST, b"".join(lines))
    finally:
        lock.release()


def _repaired(reading: Reading, record: Record) -> list[bytes]:
    """Lines that make a whole manifest: numbered without gaps, harmless losses marked, cut at any other loss."""
    lines: list[bytes] = []
    gap = b""
    for i, (line, entry) in enumerate(zip(reading.lines, reading.entries, strict=True)):
        if i == 0 and entry is None:
            line = encode(0, "run", record.content())
            entry = decode(line)
        if entry is None:
            gap += line
            continue
        missing = entry.seq - len(lines)
        if missing != len(HARMLESS.findall(gap)):
            break
        lines += [encode(len(lines) + j, "lost", {}) for j in range(missing)]
        lines.append(line)
        gap = b""
    return lines or [encode(0, "run", record.content())]
