"""Cells: runs that a study is made of, and shares of a run that can be worked on by themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Share:
    """One of several parts of a run's work.

    Attributes:
        number: from 0.
        count: parts in all.
        of: name of the run.
    """

    number: int
    count: int
    of: str = ""

    def has(self, place: int) -> bool:
        """Whether a piece of the work, by its place, belongs to this share.

        >>> [place for place in range(7) if Share(1, 3).has(place)]
        [1, 4]
        """
        return place % self.count == self.number


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        name: name of its run, unlike that of any other configuration.
        config: what to measure or probe.
        split: shares into which its work is divided, before they are put together.
        share: the part of a run's work; None for all of it.
    """

    name: str
    config: Any
    split: int = 1
    share: Share | None = None

    def shares(self) -> list[Cell]:
        """Its work in parts; none where it is not divided.

        >>> [part.name for part in Cell("a", None, split=2).shares()]
        ['a.1-of-2', 'a.2-of-2']
        """
        if self.split < 2:
            return []
        named = [f"{self.name}.{number}-of-{self.split}" for number in range(1, self.split + 1)]
        return [
            replace(self, name=name, split=1, share=Share(number, self.split, self.name))
            for number, name in enumerate(named)
        ]


@dataclass(frozen=True)
class Work:
    """What of a study's work can be done by many workers, before the study puts it together.

    Attributes:
        folder: where they meet, and where the runs of whole cells are stored.
        cells: what they do.
    """

    folder: Path
    cells: tuple[Cell, ...]
