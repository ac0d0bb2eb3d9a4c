"""Lines of JSON, plain or gzipped, each with its number for error messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError
from repflow.tasks.make import read_text

SUFFIXES = (".jsonl", ".jsonl.gz")


def is_jsonl(name: str) -> bool:
    """Whether a name is that of a file of JSON lines.

    >>> is_jsonl("own.jsonl"), is_jsonl("own.jsonl.gz"), is_jsonl("kvpr")
    (True, True, False)
    """
    return name.endswith(SUFFIXES)


def json_lines(
    file: str | Path, expected: str = "an object with a string 'prompt'"
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object of a file with the place to name when it is wrong; empty lines are left out."""
    # splitlines() would also cut at U+2028 and its like, which JSON allows inside a string
    for number, line in enumerate(read_text(Path(file)).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            entry = json.loads(line)
            json.dumps(entry, ensure_ascii=False).encode()  # half a surrogate pair is no text: no tokenizer takes it
        except (ValueError, RecursionError) as error:  # ValueError: bad JSON, a number of 5,000 digits, half a pair
            raise InputError(f"{where}: not a JSON object ({error}); expected {expected} on one line") from None
        if not isinstance(entry, dict):
            raise InputError(f"{where}: expected {expected}; got {line[:80]!r}; write one object per line")
        yield where, entry


def string_of(entry: dict[str, Any], name: str, where: str) -> str:
    """A key that must hold a string."""
    value = entry.get(name)
    if not isinstance(value, str):
        got = f"{value!r:.80}" if name in entry else f"the keys {', '.join(map(repr, entry)) or 'none'}"
        raise InputError(f"{where}: expected an object with a string {name!r}; got {got}; add it or drop the line")
    return value


def strings_of(entry: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    """A key that must hold a string or a list of strings, none of them empty."""
    value = entry.get(name)
    strings = [value] if isinstance(value, str) else value
    if (
        not isinstance(strings, list)
        or not strings
        or not all(isinstance(each, str) and each.strip() for each in strings)
    ):
        got = f"{value!r:.80}"
        raise InputError(f"{where}: expected a string or a list of strings in {name!r}; got {got}; correct the line")
    return tuple(strings)
