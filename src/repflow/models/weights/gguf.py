"""The header of a .gguf file, walked once before a library reads it.

    magic "GGUF", version u32, tensors u64, pairs u64
    pair:   key string, kind u32, value          string: length u64, bytes; array: kind u32, length u64, entries
    tensor: name string, dimensions u32, u64 each, kind u32, offset u64

The library `gguf` believes every length: an array of 2**60 entries in a file of 1 kB keeps it busy for years. Here a
length must fit into what is left of the file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from repflow.core.errors import InputError, teach

MAGIC, VERSIONS = b"GGUF", (2, 3)
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of each plain kind of value."""
MOST_DIMENSIONS, DEEPEST = 8, 4


def check_gguf(path: Path) -> None:
    """Refuse a file whose header is not that of a whole .gguf file."""
    try:
        with path.open("rb") as file:
            _Walk(file, path.stat().st_size).header()
    except OSError as error:
        raise InputError(teach("a readable .gguf file", f"{path.name}: {error.strerror}", "check the path")) from error
    except _Damaged as damage:
        raise InputError(teach("a whole .gguf file", f"{path.name}: {damage}", "download it again")) from None


class _Damaged(Exception):
    """What is wrong with the header."""


class _Walk:
    """A place in the header that moves forward."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size = file, size

    def header(self) -> None:
        """Walk over all pairs and tensors."""
        if self.file.read(4) != MAGIC:
            raise _Damaged("it does not begin with GGUF")
        if (version := self.number("<I")) not in VERSIONS:
            raise _Damaged(f"version {version}, where {' and '.join(map(str, VERSIONS))} are known")
        tensors, pairs = self.number("<Q"), self.number("<Q")
        self.room(tensors * 24 + pairs * 12, f"{tensors:,} tensors and {pairs:,} entries")
        for _ in range(pairs):
            self.string()
            self.value(self.number("<I"))
        for _ in range(tensors):
            self.string()
            if (dimensions := self.number("<I")) > MOST_DIMENSIONS:
                raise _Damaged(f"a tensor of {dimensions:,} dimensions")
            self.skip(dimensions * 8 + 12, "a tensor's shape")

    def number(self, form: str) -> int:
        """Read one number."""
        raw = self.file.read(struct.calcsize(form))
        if len(raw) < struct.calcsize(form):
            raise _Damaged("it ends within the header")
        return int(struct.unpack(form, raw)[0])

    def string(self) -> None:
        """Pass a string."""
        length = self.number("<Q")
        self.skip(length, f"a string of {length:,} bytes")

    def value(self, kind: int, depth: int = 0) -> None:
        """Pass a value."""
        if kind == STRING:
            self.string()
        elif kind == ARRAY and depth < DEEPEST:
            inner, count = self.number("<I"), self.number("<Q")
            self.room(count * SIZES.get(inner, 8), f"an array of {count:,} entries")
            if inner in SIZES:
                self.skip(count * SIZES[inner], "an array")
            else:
                for _ in range(count):
                    self.value(inner, depth + 1)
        elif kind in SIZES:
            self.skip(SIZES[kind], "a number")
        else:
            raise _Damaged(f"a value of the unknown kind {kind}")

    def skip(self, count: int, what: str) -> None:
        """Move on over bytes that must be there."""
        self.room(count, what)
        self.file.seek(count, 1)

    def room(self, count: int, what: str) -> None:
        """Refuse more bytes than the file has left."""
        if count > (left := self.size - self.file.tell()):
            raise _Damaged(f"{what} where {left:,} bytes are left")
