"""What options may say, as far as the words alone decide. No torch, so that a wrong request is refused at once."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, nearest, teach
from repflow.core.tasks import NAMES

TASKS = NAMES
"""Tasks by name."""
KINDS = ("residual", "branch", "hf-tuple")
STREAM = re.compile(r"stream:([1-9]\d*)")
"""One of several residual streams, counted from 1."""
SUBLAYER_KINDS = ("attention", "mlp", "ssm", "recurrent", "conv")
DTYPES = ("float32", "bfloat16", "float16", "float64")
DTYPE_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16", "double": "float64"}
SCANS = ("auto", "reference", "fast")
MOST_SEED = 2**63 - 1
"""Largest seed that every generator takes."""


class Typed(str):
    """A word that somebody chose, where the same word is also the default: equal to it, and stored as it.

    The built-in text is a default that gives way to random ids where a model has no tokenizer; asked for by name it
    does not.

    >>> Typed("text") == "text"
    True
    """

    __slots__ = ()


def stream_number(kind: str) -> int | None:
    """Residual stream that a kind of state asks for, counted from 1; None for all others.

    >>> stream_number("stream:2"), stream_number("residual")
    (2, None)
    """
    match = STREAM.fullmatch(kind)
    return None if match is None else int(match[1])


def sublayer_kind(kind: str) -> str | None:
    """Sublayer that a kind of state asks for, None for those of whole blocks; unknown kinds are refused.

    >>> sublayer_kind("branch:ssm"), sublayer_kind("residual"), sublayer_kind("stream:2")
    ('ssm', None, None)
    """
    if kind in KINDS or stream_number(kind) is not None:
        return None
    known = [*KINDS, *(f"branch:{name}" for name in SUBLAYER_KINDS), "stream:1"]
    if kind not in known:
        raise InputError(teach("a kind of state", repr(kind), nearest(kind, known)))
    return kind.removeprefix("branch:")


def dtype_name(dtype: str) -> str:
    """Full name of a floating-point type.

    >>> dtype_name("bf16")
    'bfloat16'
    """
    name = DTYPE_ALIASES.get(dtype, dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InputError(teach("a floating-point dtype", repr(dtype), nearest(name, DTYPES)))
    return name


def check_device(device: str) -> None:
    """Refuse what is not the name of a device."""
    if not re.fullmatch(r"(cpu|cuda|mps|xpu|meta)(:\d+)?", device):
        raise InputError(teach("a device such as cpu or cuda:0", repr(device), "see `repflow doctor`"))


def check_device_map(device_map: str | None) -> None:
    """Refuse a map that is not known; repflow spreads a model in one way."""
    if device_map not in (None, "auto"):
        remedy = "pass --device-map auto, or --device cuda:0 for one device"
        raise InputError(teach("--device-map auto", repr(device_map), remedy))


def check_scan(scan: str) -> None:
    """Refuse a setting of the scans that is not known."""
    if scan not in SCANS:
        raise InputError(teach(f"--scan {', '.join(SCANS)}", repr(scan), nearest(scan, SCANS)))


def check_seed(seed: int | None, option: str = "--seed") -> None:
    """Refuse a seed that a generator would refuse, or take for another."""
    if seed is not None and not 0 <= seed <= MOST_SEED:
        raise InputError(teach(f"{option} from 0 to {MOST_SEED}", f"{seed}", f"pass {option} 0"))


def check_least(values: Sequence[tuple[str, int | None, int]]) -> None:
    """Refuse numbers below their least; None is an option that was left out.

    Args:
        values: option, value and the least that it may be.
    """
    for option, value, least in values:
        if value is not None and value < least:
            raise InputError(teach(f"{option} of at least {least}", f"{value}", "see --help"))


NUMBERS: dict[str, tuple[type, type, str]] = {
    "int": (Integral, int, "a whole number"),
    "float": (Real, float, "a number"),
}
SPELLED = ("dtype", "device", "device_map", "tokenizer")
"""Options that take more than their type says: torch.float32, a live tokenizer."""


def typed_options(config: type, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a call from Python, refused where the config's field has another type; NumPy's numbers become plain.

    >>> from dataclasses import make_dataclass
    >>> typed_options(make_dataclass("C", [("at", "int")]), {"at": -1})
    {'at': -1}
    """
    kinds = {field.name: str(field.type) for field in fields(config)}
    return {
        name: value if name in SPELLED or name not in kinds else _typed(name, value, kinds[name])
        for name, value in options.items()
    }


def _typed(name: str, value: Any, kind: str) -> Any:
    base, _, rest = kind.partition(" | ")
    if (value is None and rest == "None") or (name == "length" and isinstance(value, str)):  # 1K
        return value
    if base in NUMBERS:
        number, plain, words = NUMBERS[base]
        if isinstance(value, number) and not isinstance(value, bool):
            return plain(value)
    elif base == "bool":
        words = "True or False"
        if isinstance(value, bool):
            return value
    elif base.startswith("list"):
        words = "a list"
        if isinstance(value, str | Path | Iterable):
            return value
    elif base == "str":
        words = "a string"
        if isinstance(value, str | Path):
            return value
    else:
        return value
    raise InputError(teach(f"{words} for {name}", repr(value)[:80], f"leave {name} out for its default"))


def parse_drop(drop: str) -> float | None:
    """Return k of `norm>k`, None for the other rules; raise on anything else.

    >>> parse_drop("norm>10")
    10.0
    """
    if drop in ("none", "first", "bos"):
        return None
    match = re.fullmatch(r"norm>(\d+(?:\.\d+)?)", drop)
    if match is None or float(match[1]) < 1:
        raise InputError(
            teach("drop = none, first, bos or norm>k with k >= 1", repr(drop), "for example drop='norm>10'")
        )
    return float(match[1])


def check_readings(readings: Sequence[str]) -> tuple[str, ...]:
    """Readings of a prompt in their canonical spelling, each once; unknown ones are refused.

    >>> check_readings(["last", "0.50", "mean"])
    ('last', '0.5', 'mean')
    """
    spellings = [reading if reading in ("last", "mean") else _fraction(reading) for reading in readings]
    if not spellings:
        raise InputError(teach("at least one reading", "none", "pass last, mean or a relative position"))
    return tuple(dict.fromkeys(spellings))


def _fraction(reading: str) -> str:
    try:
        value = float(reading)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise InputError(
            teach("last, mean or a relative position from 0 to 1", repr(reading), "pass --position last or 0.5")
        )
    return f"{value:g}"
