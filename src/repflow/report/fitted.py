"""Tables that leave columns out where the terminal is too narrow, and say which: a cut number is a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDE = 1000


@dataclass(frozen=True)
class FittedTable:
    """Columns in the order in which they matter.

    Attributes:
        columns: names; the last ones are left out first.
        needed: columns that always stay.
        build: makes the table of some columns, with a caption.
        caption: what stands below it.
    """

    columns: Sequence[str]
    needed: int
    build: Callable[[Sequence[str], Text], Table]
    caption: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """The widest table that fits."""
        for count in range(len(self.columns), self.needed - 1, -1):
            table = self.build(self.columns[:count], self._caption(self.columns[count:]))
            if count == self.needed or natural_width(console, options, table) <= options.max_width:
                yield table
                return

    def _caption(self, missing: Sequence[str]) -> Text:
        note = f"not shown in this width: {', '.join(missing)}" if missing else ""
        return Text("; ".join(filter(None, [self.caption, note])))


def natural_width(console: Console, options: ConsoleOptions, table: Table) -> int:
    """Columns of text that a table takes where nothing is wrapped; its title and caption may wrap."""
    bare, title, caption = table, table.title, table.caption
    bare.title = bare.caption = None
    width = Measurement.get(console, options.update(max_width=WIDE), bare).maximum
    bare.title, bare.caption = title, caption
    return width
