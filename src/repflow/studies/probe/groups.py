"""Which prompts stay together in a split: those of one group, those that ask the same, and equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from repflow.tasks import Prompt, Prompts


class Groups:
    """Joins prompts that must stay together: a prompt on both sides of a split could be memorised.

    Prompts with equal token ids are one group. To it belong all with the same `group`, or the same `key` where a
    prompt has no group. Groups hold over all parts, so that a bootstrap draws a prompt with all its repetitions.

    >>> from repflow.tasks import Prompt, Prompts
    >>> groups = Groups()
    >>> groups.add(Prompts("t", (Prompt((1, 2), group="a"), Prompt((1, 2)), Prompt((3,)), Prompt((4,), group="a"))))
    >>> groups.parts(), groups.repeated
    ([[0, 0, 1, 0]], 1)
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._parent: dict[Hashable, Hashable] = {}
        self._rows: list[list[Hashable]] = []

    def add(self, prompts: Prompts) -> None:
        """Take the prompts of one part."""
        rows: list[Hashable] = []
        for prompt in prompts:
            own = _same(prompt)
            rows.append(own)
            for other in _given(prompt):
                self._parent[self._root(own)] = self._root(other)
        self.repeated += len(rows) - len(set(rows))
        self._rows.append(rows)

    def parts(self) -> list[list[int]]:
        """Number of each prompt's group, by part; a number means the same group in all parts."""
        numbers: dict[Hashable, int] = {}
        return [[numbers.setdefault(self._root(row), len(numbers)) for row in rows] for rows in self._rows]

    def _root(self, name: Hashable) -> Hashable:
        parent = self._parent.setdefault(name, name)
        while parent != name:
            self._parent[name] = parent = self._parent[parent]  # shorter for the next who asks
            name, parent = parent, self._parent[parent]
        return name


def _same(prompt: Prompt) -> Hashable:
    """Equal for prompts with equal token ids."""
    return ("ids", hashlib.sha256(np.asarray(prompt.ids, dtype=np.int64).tobytes()).digest())


def _given(prompt: Prompt) -> list[Hashable]:
    if prompt.group is not None:
        return [("group", prompt.group)]
    return [("key", prompt.key)] if prompt.key else []
