"""Tables for terminals that are too narrow for them: a cut number is a wrong one.

`FittedTable` leaves columns out and says which; `SplitTable` has them in further tables below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDE = 1000
NUMBER = 6
FOLDED = 16
"""Width down to which a column of names may be folded before a column of numbers is left out."""


@dataclass(frozen=True)
class FittedTable:
    """Columns in the order in which they matter.

    Where the width is short, headings go over several lines first, then names are folded, then columns are left out.

    Attributes:
        columns: names; the last ones are left out first.
        needed: columns that always stay.
        build: makes the table of some columns, with a caption.
        caption: what stands below it.
        folds: headings of columns of names, which may be folded.
    """

    columns: Sequence[str]
    needed: int
    build: Callable[[Sequence[str], Text], Table]
    caption: str = ""
    folds: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The widest table that fits."""
        for count in range(len(self.columns), self.needed - 1, -1):
            caption = self._caption(self.columns[count:])
            for folded in (False, True):
                table = self.build(self.columns[:count], caption)
                if folded:
                    fold_headings(table)
                    fold_names(table, self.folds)
                least = natural_width(console, options, table, self.folds if folded else ())
                if least <= options.max_width:
                    yield table
                    return
        yield table

    def _caption(self, missing: Sequence[str]) -> Text:
        note = f"not shown in this width: {', '.join(missing)}" if missing else ""
        joined = " " if self.caption.endswith(".") else "; "
        return Text(joined.join(filter(None, [self.caption, note])))


@dataclass(frozen=True)
class SplitTable:
    """Columns of one kind, in as many tables one below the other as the width asks for; none is left out.

    Attributes:
        columns: their names.
        build: makes the table of the columns from one place up to another; the first has the title, the last the
            caption.
    """

    columns: Sequence[str]
    build: Callable[[int, int], Table]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """Few tables, each as wide as fits, and one column at least in each."""
        start = 0
        while start < len(self.columns):
            end = len(self.columns)
            while end > start + 1 and natural_width(console, options, self.build(start, end)) > options.max_width:
                end -= 1
            yield self.build(start, end)
            start = end


def fold_headings(table: Table) -> None:
    """Break headings over two lines, so that a column is hardly wider than its numbers."""
    for column in table.columns:
        column.header = halved(str(column.header))


def fold_names(table: Table, folds: Sequence[str]) -> None:
    """Let words of names go over several lines: two that are cut before they differ look the same."""
    for column in table.columns:
        if str(column.header).replace("\n", " ") in folds:
            column.overflow = "fold"


def halved(text: str) -> str:
    r"""Text broken at the blank that leaves the shorter lines, unless it is as short as a number.

    >>> halved("most alike in B"), halved("state")
    ('most\nalike in B', 'state')
    """
    breaks = [place for place, letter in enumerate(text) if letter == " "]
    if not breaks or len(text) <= NUMBER:
        return text
    at = min(breaks, key=lambda place: max(place, len(text) - place - 1))
    return f"{text[:at]}\n{text[at + 1 :]}"


def natural_width(console: Console, options: ConsoleOptions, table: Table, folds: Sequence[str] = ()) -> int:
    """Columns of text that a table takes where nothing is wrapped; its title and caption may wrap.

    Args:
        console: where it is printed.
        options: of the console.
        table: the table.
        folds: headings of columns that count no more than `FOLDED`.
    """
    title, caption = table.title, table.caption
    table.title = table.caption = None
    limited = [column for column in table.columns if str(column.header).replace("\n", " ") in folds]
    for column in limited:
        column.max_width = FOLDED
    width = Measurement.get(console, options.update(max_width=WIDE), table).maximum
    for column in limited:
        column.max_width = None
    table.title, table.caption = title, caption
    return width


def split_table(
    title: str, kept: Sequence[str], columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> SplitTable:
    """Cells of text in as many tables as the width asks for.

    Args:
        title: above the first table.
        kept: headings of the first columns, which stand in every table.
        columns: headings of the others.
        rows: cells of all of them.
        caption: below the last table.
    """

    def build(start: int, end: int) -> Table:
        words = (title if start == 0 else "", caption if end == len(columns) else "")
        above, below = (Text(part) if part else None for part in words)
        table = Table(box=box.SIMPLE, title=above, title_justify="left", caption=below, caption_justify="left")
        for name in (*kept, *columns[start:end]):
            first = name == kept[0]  # names go over several lines where one column is too wide beside them
            style: dict[str, Any] = {"justify": "left", "overflow": "fold"} if first else {"justify": "right"}
            table.add_column(name, no_wrap=not first, **style)
        for row in rows:
            table.add_row(*map(Text, [*row[: len(kept)], *row[len(kept) + start : len(kept) + end]]))
        return table

    return SplitTable(columns, build)
