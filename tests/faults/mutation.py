"""Changes of files as accidents and attackers make them: bytes anywhere, and values of JSON by their place."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        3.5,
        10**9,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**30,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "x" * 2000,
        "\0",
        "\ud800",
        "\u202e\x1b[2J",
        "../../etc/passwd",
        "/etc/passwd",
        "owner/kernel",
        "__class__",
    ),
    *("$(touch x)", "evil.py:f", [], {}, [[]], [None], {"": None}, [0] * 500, ["x"], {"a": {"b": {"c": 1}}}),
)


def deep(depth: int) -> Any:
    """A list inside a list, and so on."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def mutate_value(data: Any, rng: Random) -> Any:
    """A JSON value with one to four places changed."""
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        way = _place(data, rng)
        if not way:
            data = odd(rng) if rng.random() < 0.1 else data
            continue
        holder, key = way
        _change(holder, key, rng)
    return data


def odd(rng: Random) -> Any:
    """A value that nobody expects."""
    return deep(rng.choice((20, 200))) if rng.random() < 0.03 else copy.deepcopy(rng.choice(ODD))


def _place(data: Any, rng: Random) -> tuple[Any, Any] | None:
    """A random place: what holds it, and its key there."""
    holder: Any = None
    key: Any = None
    while isinstance(data, dict | list) and data:
        holder, key = data, rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
        data = holder[key]
        if rng.random() < 0.4:
            break
    return None if holder is None else (holder, key)


def _change(holder: Any, key: Any, rng: Random) -> None:
    act = rng.randrange(6)
    if act == 0:
        del holder[key]
    elif act == 1 and isinstance(holder, dict):
        holder[str(odd(rng))[:50]] = holder.pop(key)
    elif act == 2:
        other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif act == 3:
        holder[key] = [holder[key]]
    else:
        holder[key] = odd(rng)


def to_json(value: Any) -> bytes:
    """As a file has it; half of a pair of surrogates is kept, as an escape."""
    return json.dumps(value).encode("ascii")


def mutate_bytes(raw: bytes, rng: Random) -> bytes:
    """Bytes with one to four places changed."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(data) + 1)
        act = rng.randrange(7)
        if act == 0:
            del data[at:]
        elif act == 1:
            data[at : at + 1] = bytes([data[at] ^ (1 << rng.randrange(8))]) if at < len(data) else b""
        elif act == 2:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 40)))
        elif act == 3:
            data[at : at + rng.randrange(1, 40)] = b""
        elif act == 4:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        elif act == 5:
            data[at : at + 8] = rng.choice((b"\xff" * 8, b"\0" * 8, (2**40).to_bytes(8, "little")))
        else:
            data[at:at] = rng.choice((b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000, b"\n", b"\xef\xbb\xbf", b'"'))
    return bytes(data)
