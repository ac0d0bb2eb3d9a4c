"""Text and numbers of the page as data: nothing that comes from a run can become markup or script."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
DIGITS = 4
_NUMBERS = {float, type(None)}


def plain(value: Any) -> Any:
    """Nested mappings, sequences and numpy values as what JSON knows; NaN and infinities are None.

    >>> plain({"y": (1.0, float("nan")), 3: range(2)})
    {'y': [1.0, None], '3': [0, 1]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # arrays and scalars of numpy
        return plain(value.tolist())
    if isinstance(value, list) and set(map(type, value)) <= _NUMBERS:  # rows of heat maps: most of a page
        return [entry if entry is None or math.isfinite(entry) else None for entry in value]
    if isinstance(value, Sequence | range | set | frozenset):
        return [plain(entry) for entry in value]
    return str(value)


def json_text(value: Any) -> str:
    r"""JSON that may stand inside a script element: no `<`, `>`, `&` or line separator is left in it.

    >>> json_text({"name": "</script>", "y": [float("nan")]})
    '{"name":"\\u003c/script\\u003e","y":[null]}'
    """
    text = json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escaped in _ESCAPES.items():
        text = text.replace(character, escaped)
    # a lone surrogate, as a damaged tokenizer gives, cannot be written as UTF-8
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match.group()):04x}", text)


def packed(value: Any) -> str:
    """JSON, compressed and in base64: a page of six deep models stays small enough to send. Same value, same text.

    >>> packed([1]) == packed([1]), json.loads(gzip.decompress(base64.b64decode(packed({"y": [0.5]}))))
    (True, {'y': [0.5]})
    """
    return base64.b64encode(gzip.compress(json_text(value).encode(), compresslevel=9, mtime=0)).decode()


def number(value: float | int) -> str:
    """A number as a table shows it: whole numbers as they are, others with four significant digits.

    >>> number(0.123456), number(1234567), number(1e-7), number(12345.678), number(2.0)
    ('0.1235', '1234567', '1e-07', '12346', '2')
    """
    if isinstance(value, int):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.{DIGITS}g}"
