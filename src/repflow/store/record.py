"""run.json: what a run computes and what it runs with; and when a later request is the same run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from repflow.core.errors import ConfigChangedError, DamagedRunError, InputError, StoreError, teach
from repflow.store.canonical import plain, seal, unseal
from repflow.store.disk import TMP, read_bytes
from repflow.store.identity import Earlier, check_models, differences, same_digests
from repflow.store.lock import LOCK_FILE, sealed_lines
from repflow.store.manifest import MANIFEST, Reading, read_manifest

RUN_FILE = "run.json"
FORMAT = "repflow-run"
VERSION = 1
STARTED = frozenset([LOCK_FILE, RUN_FILE + TMP])
"""The lock comes first and run.json next, so these alone are a run that is starting or was killed at once."""


@dataclass(frozen=True)
class Record:
    """The content of run.json, which the first line of the manifest repeats so that either can be rebuilt.

    Attributes:
        config: What was requested; a resumed run must request the same.
        provenance: Versions, seeds, device; `provenance["digests"]` (weights, prompts) must be the same too.
        created: Time of the first start.
    """

    config: dict[str, Any]
    provenance: dict[str, Any]
    created: str

    @classmethod
    def new(cls, config: Mapping[str, Any], provenance: Mapping[str, Any]) -> Record:
        """Describe a run that starts now."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(plain(config, "config"), plain(provenance, "provenance"), now)

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Record:
        """Inverse of `content`; refuses a format of the future."""
        version = content.get("version", 0)
        if content.get("format") != FORMAT or not isinstance(version, int) or version > VERSION:
            raise StoreError(
                teach(
                    f"{RUN_FILE} of format {FORMAT} version {VERSION} or older",
                    f"{content.get('format')} version {content.get('version')}",
                    "install a newer repflow to read it",
                )
            )
        fields = [content.get(name) for name in ("config", "provenance", "created")]
        if not all(isinstance(value, kind) for value, kind in zip(fields, (dict, dict, str), strict=True)):
            expected = f"{RUN_FILE} with a config and a provenance, both mappings, and a time"
            got = ", ".join(type(value).__name__ for value in fields)
            raise StoreError(teach(expected, got, "delete the folder and run the command again"))
        return cls(*fields)  # type: ignore[arg-type]

    def content(self) -> dict[str, Any]:
        """Plain JSON values, as stored."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "created": self.created,
            "config": self.config,
            "provenance": self.provenance,
        }

    def to_bytes(self) -> bytes:
        """The exact bytes of run.json."""
        return seal(self.content(), indent=2)


def record_in_file(folder: Path) -> Record | None:
    """The record in run.json, None if it is missing or damaged."""
    raw = read_bytes(folder / RUN_FILE)
    content = unseal(raw, indent=2) if raw is not None else None
    return Record.from_content(content) if content is not None else None


def record_in_manifest(reading: Reading) -> Record | None:
    """The copy in the first line of the manifest, None if it is missing or damaged."""
    first = reading.good[0] if reading.good else None
    return Record.from_content(first.data) if first is not None and first.seq == 0 else None


def read_record(path: Path | str) -> Record:
    """The config and provenance of a stored run, from run.json or else from its copy in the manifest.

    Raises:
        InputError: There is no run folder at the path.
        DamagedRunError: Neither copy is intact.
    """
    folder = existing_run(path)
    record = record_in_file(folder) or record_in_manifest(read_manifest(folder))
    if record is None:
        raise DamagedRunError(
            f"neither {folder / RUN_FILE} nor its copy in the manifest is intact; "
            "this cannot be repaired: delete the folder and run the command again"
        )
    return record


def existing_run(path: Path | str) -> Path:
    """Return the path if it is a run folder, else raise InputError."""
    folder = Path(path)
    if not is_run(folder):
        got = "a folder without a run" if folder.is_dir() else "a file" if folder.exists() else "nothing there"
        raise InputError(teach(f"a run folder at {folder}", got, "see `repflow list` for the runs of a folder"))
    return folder


def is_run(folder: Path) -> bool:
    """Whether the folder holds a run of ours, damaged or not."""
    raw = read_bytes(folder / RUN_FILE) if folder.is_dir() else None
    if raw is not None and FORMAT.encode() in raw:
        return True
    reading = read_manifest(folder) if folder.is_dir() else Reading()
    # One damaged file must not make the run look like a stranger's folder.
    return bool(reading.good) or any(FORMAT.encode() in line for line in reading.lines[:1])


def is_start(folder: Path) -> bool:
    """Whether a run there has stored nothing yet: it is starting, or was killed before its manifest's first line.

    Raises:
        StoreError: The folder cannot be read.
    """
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise StoreError(f"cannot read {folder}: {error.strerror}; check its permissions and the disk") from error
    begun = bool(names & {LOCK_FILE, RUN_FILE})
    if not begun or names - STARTED - {RUN_FILE, MANIFEST} or sealed_lines(folder):
        return False
    return not read_manifest(folder).lines


def check_same(stored: Record, request: Record, folder: Path, earlier: Earlier | None = None) -> list[str]:
    """Refuse another config, another model or other digests; return the remaining differences, as sentences.

    Args:
        stored: What the folder holds.
        request: What this run is to compute.
        folder: The folder.
        earlier: Digests by an earlier scheme, for runs that one of its versions stored.

    Raises:
        ConfigChangedError: Names the first differing key with both values.
    """
    for key, before, after in differences(stored.config, request.config):
        raise _changed("config", key, before, after, folder)
    old, new = stored.provenance, request.provenance
    # The key of a configuration says more than the digest of weights that were drawn for it.
    notes = check_models(old.get("identity", {}), new.get("identity", {}), folder)
    digests, schemes = same_digests(old.get("digests", {}), new.get("digests", {}), earlier or {})
    for key, before, after in differences(old.get("digests", {}), digests):
        raise _changed("digest", key, before, after, folder)
    compared = ("digests", "identity")
    return [
        f"{key}: stored {before}, now {after}"
        for key, before, after in differences(old, new)
        if key.partition(".")[0] not in compared
    ] + [*schemes, *notes]


def check_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Refuse files other than those the run there was started with, by some of its digests; does nothing without a run.

    Raises:
        ConfigChangedError: Names the first file that differs.
    """
    if not digests or not is_run(folder):
        return
    stored = read_record(folder).provenance.get("digests", {})
    for key, now in digests.items():
        if key in stored and stored[key] != now:  # a file that is not stored is told by the config
            raise _changed("digest", key, repr(stored[key]), repr(now), folder)


def _changed(what: str, key: str, before: str, after: str, folder: Path) -> ConfigChangedError:
    return ConfigChangedError(
        f"{what} key {key!r}: stored {before}, requested {after}; use another --name or delete the folder {folder}"
    )
