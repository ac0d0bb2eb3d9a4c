"""What workers are to do: the cells of a study, ordered so that few models are loaded and long cells come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from repflow.store.claims.board import Results
from repflow.store.claims.place import Place
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import model_key
from repflow.studies.engine.spot import meeting
from repflow.studies.engine.table import study_for

BLOCK = 64
"""Cells of which a worker notes together that none is free."""


@dataclass(frozen=True)
class Order:
    """The work of a study.

    Attributes:
        folder: of the study; runs of cells are folders in it.
        cells: in the order of the study's table.
        base: working folder that paths in configs are relative to.
        store: object store where workers meet, instead of the folder.
    """

    folder: Path
    cells: tuple[Cell, ...]
    base: Path = field(default_factory=Path.cwd)
    store: str | None = None

    def meeting(self) -> tuple[Place, Results]:
        """Where workers meet, and where their results go."""
        return meeting(self.folder, self.cells, self.store)

    def stages(self) -> list[Order]:
        """What can be done at once: shares of divided cells, and cells of one piece; then the divided ones."""
        _, results = self.meeting()
        open_ = [cell for cell in self.cells if cell.split > 1 and not results.placed(cell.name)]
        if not open_:
            return [self]
        pieces = [cell for cell in self.cells if cell.split == 1]
        shares = [share for cell in open_ for share in cell.shares()]
        return [replace(self, cells=(*shares, *pieces)), replace(self, cells=tuple(open_))]

    def at_work(self) -> list[Cell]:
        """Cells in the order of working: those of one model in a row, the longest first."""
        groups: dict[Any, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(_model_of(cell), []).append(cell)
        return [cell for group in groups.values() for cell in sorted(group, key=weight, reverse=True)]


def divided(cell: Cell, split: int) -> Cell:
    """A cell with as many shares as its study makes of it."""
    return replace(cell, split=study_for(cell.config).shares(cell.config, split))


def _model_of(cell: Cell) -> Any:
    study = study_for(cell.config)
    return (study.name, model_key(cell.config)) if study.one_model else study.name


def weight(cell: Cell) -> int:
    """What a cell costs beside others of its model: tokens that it reads."""
    tokens = study_for(cell.config).reads(cell.config)[1]
    return tokens if cell.share is None else tokens // cell.share.count


def rotated(cells: Sequence[Cell], number: int, count: int) -> list[list[Cell]]:
    """Blocks of cells as worker `number` of `count` goes through them: each starts elsewhere.

    >>> [[cell.name for cell in block] for block in rotated([Cell(name, None) for name in "abcd"], 1, 2)]
    [['c', 'd', 'a', 'b']]
    """
    start = len(cells) * number // count
    blocks = [list(cells[at : at + BLOCK]) for at in range(0, len(cells), BLOCK)]
    if not blocks:
        return []
    first, inside = divmod(start, BLOCK)
    turned = blocks[first:] + blocks[:first]
    turned[0] = turned[0][inside:] + turned[0][:inside]
    return turned
