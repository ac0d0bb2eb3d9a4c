"""The ledger of a cell: numbered entries, created once and never changed; the last one says how the cell stands."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from repflow.core.errors import StoreError, teach
from repflow.store.canonical import seal, unseal
from repflow.store.claims.place import Place

FORMAT = 1
CLAIMS = "claims"
DIGITS = 6


class Kind(StrEnum):
    """What an entry says."""

    CLAIM = "claim"
    DONE = "done"
    FAILED = "failed"
    RELEASED = "released"


@dataclass(frozen=True)
class Entry:
    """One entry of a ledger.

    Attributes:
        number: its place, from 1.
        kind: what it says.
        token: the worker that wrote it.
        cell: name of the cell.
        config: digest of the cell's config.
        version: of repflow.
        host: name of the worker's machine, for people.
        machine: what identifies the machine and its processes' numbers; see `repflow.store.claims.liveness`.
        pid: the worker's process.
        born: when that process started, as the machine counts; process numbers are used again.
        session: the command that started the worker.
        attempt: folder of the work, where the entry is a claim or says that it is done.
        tries: claims in a row, this one included, whose work came no further than the one before.
        mark: how far the work was when the claim was made.
        status: `failed` or `cannot run`, of a failure.
        reason: why it failed.
    """

    number: int
    kind: Kind
    token: str
    cell: str = ""
    config: str = ""
    version: str = ""
    host: str = ""
    machine: str = ""
    pid: int = 0
    born: str = ""
    session: str = ""
    attempt: str = ""
    tries: int = 1
    mark: str = ""
    status: str = ""
    reason: str = ""

    def to_bytes(self) -> bytes:
        """As stored."""
        return seal({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, number: int, cell: str, raw: bytes) -> Entry:
        """Inverse of `to_bytes`; what is damaged counts as a claim of nobody, which goes stale.

        Raises:
            StoreError: a later version of repflow wrote it.
        """
        content = unseal(raw)
        if content is not None and isinstance(later := content.get("format"), int) and later > FORMAT:
            got = f"one of format {later}, by repflow {content.get('version')}"
            remedy = "install the same version of repflow on every machine"
            raise StoreError(teach(f"a claim of format {FORMAT} on {cell}", got, remedy))
        if content is None or not _is_entry(content, number, cell):
            return cls(number, Kind.CLAIM, "", cell)
        return cls(**{entry.name: content[entry.name] for entry in fields(cls)} | {"kind": Kind(content["kind"])})


_TYPES: dict[str, type] = {entry.name: int if entry.type == "int" else str for entry in fields(Entry)}


def _is_entry(content: dict[str, Any], number: int, cell: str) -> bool:
    """Whether content with a fitting checksum, which anyone can compute, is an entry that we wrote at this place.

    Its token and the folder of its work become paths, so that they must be what a worker would have written.
    """
    if not all(type(content.get(name)) is kind for name, kind in _TYPES.items()):
        return False
    if content["kind"] not in list(Kind) or (content["number"], content["cell"]) != (number, cell):
        return False
    token, attempt = content["token"], content["attempt"]
    held = number - (content["kind"] != Kind.CLAIM)
    return bool(re.fullmatch("[0-9a-f]{4,64}", token)) and attempt in ("", attempt_name(cell, held, token))


def attempt_name(cell: str, number: int, token: str) -> str:
    """Name of the folder in which a worker works under a claim.

    >>> attempt_name("gpt2-64", 3, "0a1b2c")
    'gpt2-64@000003-0a1b2c'
    """
    return f"{cell}@{number:0{DIGITS}d}-{token}"


def key_of(cell: str, number: int) -> str:
    """Key of an entry.

    >>> key_of("gpt2-64", 3)
    'claims/gpt2-64/000003'
    """
    return f"{CLAIMS}/{cell}/{number:0{DIGITS}d}"


def last_entry(place: Place, cell: str) -> Entry | None:
    """The last entry of a cell's ledger; None for a cell that nobody has claimed."""
    numbers = [int(name) for name in place.names(f"{CLAIMS}/{cell}") if name.isdecimal()]
    if not numbers:
        return None
    raw = place.read(key_of(cell, max(numbers)))
    return Entry.from_bytes(max(numbers), cell, raw or b"")


def add_entry(place: Place, entry: Entry) -> bool:
    """Add an entry; False where its number is taken."""
    return place.create(key_of(entry.cell, entry.number), entry.to_bytes())
