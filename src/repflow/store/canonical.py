"""JSON with one spelling per value and a checksum inside, so that any changed bit shows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from repflow.core.errors import InputError, teach
from repflow.store.disk import digest

SUM = "sum"
SUM_DIGITS = 16


def plain(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Copy as JSON would give it back: tuples as lists, numpy scalars as numbers.

    Raises:
        InputError: A value that JSON cannot hold, NaN and infinities included.
    """
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False, default=_scalar))
    except (TypeError, ValueError) as error:
        raise InputError(
            teach(f"a {what} of finite numbers, strings, lists and mappings", str(error), "convert it first")
        ) from error


def without_nan(value: Any) -> Any:
    """Copy with null in place of every NaN or infinity."""
    if isinstance(value, Mapping):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seal(value: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """Encode with the checksum as the last field and a newline at the end."""
    return _dump({**value, SUM: _checksum(value)}, indent)


def unseal(raw: bytes, *, indent: int | None = None) -> dict[str, Any] | None:
    """Decode what `seal` wrote; None if any bit of it changed."""
    try:
        value = json.loads(raw.decode("ascii"))
        # The same value has other spellings (capital escapes, spaces), so equal values do not prove equal bytes.
        if not isinstance(value, dict) or _dump(value, indent) != raw:
            return None
    except (ValueError, RecursionError):
        return None
    checksum = value.pop(SUM, None)
    return value if checksum == _checksum(value) else None


def _checksum(value: Mapping[str, Any]) -> str:
    return digest(_dump(value, None))[:SUM_DIGITS]


def _dump(value: Mapping[str, Any], indent: int | None) -> bytes:
    separators = (",", ":") if indent is None else (",", ": ")
    return (json.dumps(value, allow_nan=False, indent=indent, separators=separators) + "\n").encode("ascii")


def _scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a value of type {type(value).__name__}: {value!r}")
