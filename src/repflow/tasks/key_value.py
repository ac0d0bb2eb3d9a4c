"""kvpr, key-value pair retrieval (Liu et al. 2024): n pairs of random UUIDs in one JSON object, one of them asked for.

Extract the value corresponding to the specified key in the JSON object below.

JSON data:
{"2a8d601d-…": "a6f2b1c0-…",
 "4f0c3e11-…": "09b7d2aa-…"}

Key: "4f0c3e11-…"
Corresponding value:
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from repflow.core.errors import InputError, nearest
from repflow.tasks.draw import Draw
from repflow.tasks.fit import Draft
from repflow.tasks.gold import Gold

FORMATS = ("liu2024", "paper")
HEXADECIMAL = tuple("0123456789abcdef")
RECORDS = 1  # purpose of a Draw
CHUNK = 16
"""Pairs are drawn this many at a time, each chunk from a stream of its own: more pairs never change the first ones."""

HEAD = "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n"


def key_value_text(pairs: Sequence[tuple[str, str]], gold: int, format: str = "liu2024") -> str:
    r"""Prompt for these pairs.

    `liu2024` holds valid JSON. `paper` is the template printed in appendix B of paper 1: a space behind the brace, an
    indent of two, a comma behind the last pair. The blanks at the ends of its lines and the blank lines around its
    parts come from typesetting and are left out.

    >>> print(key_value_text([("k1", "v1"), ("k2", "v2")], 1, "paper"))
    Extract the value corresponding to the specified key in the JSON object below.
    <BLANKLINE>
    JSON data:
    { "k1": "v1",
      "k2": "v2",
    }
    <BLANKLINE>
    Key: "k2"
    Corresponding value:
    """
    entries = [f'"{key}": "{value}"' for key, value in pairs]
    if format == "paper":
        data = "{ " + ",\n  ".join(entries) + ",\n}"
    elif format == "liu2024":
        data = "{" + ",\n ".join(entries) + "}"
    else:
        raise InputError(f"unknown format {format!r}; {nearest(format, FORMATS)}")
    return f'{HEAD}{data}\n\nKey: "{pairs[gold][0]}"\nCorresponding value:'


@lru_cache(maxsize=1024)
def _chunk(seed: int, sample: int, chunk: int) -> tuple[tuple[str, str], ...]:
    digits = Draw(seed, RECORDS, sample, chunk).hex(64 * CHUNK)
    ids = [str(uuid.UUID(hex=digits[at : at + 32], version=4)) for at in range(0, len(digits), 32)]
    return tuple(zip(ids[::2], ids[1::2], strict=True))


def draw_pairs(seed: int, sample: int, count: int) -> list[tuple[str, str]]:
    """Pairs of a sample; the first one is gold, and asking for more adds to the end.

    >>> draw_pairs(0, 0, 2) == draw_pairs(0, 0, 50)[:2]
    True
    """
    chunks = range(-(-count // CHUNK))
    return [pair for chunk in chunks for pair in _chunk(seed, sample, chunk)][:count]


@dataclass(frozen=True)
class KeyValueDrafts:
    """Prompts of a run, before it is known how many pairs fit.

    Attributes:
        seed: seed of the run.
        gold: where the gold pair goes.
        format: template.
    """

    seed: int
    gold: Gold
    format: str = "liu2024"
    unit = "pairs"
    uneven = False

    def most(self, sample: int) -> int | None:
        """UUIDs never run out."""
        return None

    def draft(self, sample: int, items: int) -> Draft:
        """Prompt of a sample with this many pairs."""
        gold, *others = draw_pairs(self.seed, sample, items)
        place = self.gold.index(sample, items)
        pairs = [*others[:place], gold, *others[place:]]
        text = key_value_text(pairs, place, self.format)
        return Draft(text, place, answers=(gold[1],), key=gold[0], group=gold[0])
