"""Whose code may run: a request that was read from a file, stored or written by hand, grants nothing itself.

What is typed in a call (`--metrics FILE.py:FUNCTION`, `--trust-remote-code`) is trusted by typing it. A run folder or a
study file may come from anyone: Python that it names runs only with a flag in the very call that reads it, and a file
whose digest is stored only if it is still the file of that digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, teach

METRIC_FILE = ".py:"
"""In a metric's name: `FILE.py:FUNCTION`."""


@dataclass(frozen=True)
class Trust:
    """What this call allows.

    Attributes:
        code: Python files that the request names as metrics may run (`--allow-code`).
        remote_code: Python that comes with a model may run (`--trust-remote-code`).
    """

    code: bool = False
    remote_code: bool = False


def check_trust(
    request: Mapping[str, Any], trust: Trust, source: str, digests: Mapping[str, Any] | None = None
) -> None:
    """Refuse a request from a file that needs more trust than the call grants, before anything of it is imported.

    Args:
        request: options as read; nested ones count.
        trust: what the call allows.
        source: where the request was read, for the message.
        digests: SHA-256 of code files as stored with the request; each file must still have its own. None for a
            request that stores none.

    Raises:
        InputError: the request names code that this call does not allow, or a file that was changed since.

    >>> check_trust({"metrics": ["m.py:f"]}, Trust(), "study.toml")
    Traceback (most recent call last):
        ...
    repflow.core.errors.InputError: expected allow_code=True in this call to run the Python in m.py, which study.toml \
names; got none; read m.py, and add allow_code=True if you trust it
    """
    files = code_files(request)
    if files and not trust.code:
        names = ", ".join(files)
        expected = f"--allow-code in this call to run the Python in {names}, which {source} names"
        raise InputError(teach(expected, "none", f"read {names}, and add --allow-code if you trust it"))
    if _asks_remote_code(request) and not trust.remote_code:
        expected = f"--trust-remote-code in this call to run code that comes with a model, as {source} asks"
        raise InputError(teach(expected, "none", "read the model's .py files, and add --trust-remote-code"))
    if digests is not None:
        for file in files:
            _check_file(file, digests.get(file), source)


def code_files(request: Any) -> list[str]:
    """Python files that the request names, in any place: what is stored may have any shape, and a metric any place.

    >>> code_files({"metrics": ["token_norm", "a.py:f", "a.py:g"], "flow": {"b.py:h": 1}})
    ['a.py', 'b.py']
    """
    return list(dict.fromkeys(text.rpartition(":")[0] for text in _strings(request) if METRIC_FILE in text))


def file_digest(source: bytes) -> str:
    """SHA-256 of a code file's bytes, in hexadecimal, as runs store it."""
    return hashlib.sha256(source).hexdigest()


def _asks_remote_code(value: Any) -> bool:
    if isinstance(value, Mapping):
        # anything but false or null counts: a stored "yes" or [false] would be taken for true by what reads it
        here = value.get("trust_remote_code") not in (False, None)
        return here or any(map(_asks_remote_code, value.values()))
    return isinstance(value, list | tuple) and any(map(_asks_remote_code, value))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from _strings(list(value))
        yield from _strings(list(value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _strings(entry)
    elif isinstance(value, str):
        yield value


def _check_file(file: str, stored: Any, source: str) -> None:
    try:
        now = file_digest(Path(file).read_bytes())
    except OSError as error:
        expected, got = f"the Python file {file} that {source} was made with", error.strerror or str(error)
        raise InputError(teach(expected, got, "put it back there, or run the whole command again")) from None
    if now != stored:
        expected = f"{file} as {source} was made with it, sha256 {str(stored)[:12]}"
        remedy = "put that version back, or run the whole command again under another --name"
        raise InputError(teach(expected, f"sha256 {now[:12]}", remedy))
