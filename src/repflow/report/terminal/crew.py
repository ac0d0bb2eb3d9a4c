"""Workers of a study at a glance: who works on what, how far it is, and how much is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from repflow.core.visible import one_line


def crew_table(workers: Sequence[Mapping[str, Any]], caption: str = "") -> Table:
    """One row per worker, as their heartbeats say."""
    table = Table(box=box.SIMPLE, caption=one_line(caption) or None, caption_justify="left")
    for name in ("worker", "cell", "prompts"):
        table.add_column(name, justify="right" if name == "prompts" else "left", overflow="fold")
    table.add_column("doing", overflow="fold")
    for beat in workers:
        table.add_row(*(Text(one_line(text)) for text in worker_row(beat)))
    return table


def worker_row(beat: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Host and process, cell, prompts done, and what is done now.

    >>> worker_row({"host": "a", "pid": 7, "cell": "x", "done": 2, "total": 8, "phase": "loading"})
    ('a:7', 'x', '2/8', 'loading')
    """
    done = f"{beat.get('done', 0)}/{beat['total']}" if beat.get("total") else ""
    return f"{beat.get('host')}:{beat.get('pid')}", str(beat.get("cell", "")), done, str(beat.get("phase", ""))


def standing_line(done: int, failed: int, total: int, workers: int, left: str = "") -> str:
    """How far a study is, in a line.

    >>> standing_line(3, 1, 8, 2, "1:20")
    '3 of 8 cells finished, 1 failed, 2 workers, about 1:20 left'
    """
    parts = [f"{done} of {total} cells finished", f"{failed} failed" if failed else ""]
    parts += [f"{workers} worker{'s' * (workers != 1)}", f"about {left} left" if left else ""]
    return ", ".join(filter(None, parts))


def watch_tables(
    study: str,
    workers: Sequence[Mapping[str, Any]],
    finished: int,
    failed: Mapping[str, str],
    silent: Mapping[str, str],
) -> list[RenderableType]:
    """A study as an onlooker sees it: who works on what, what failed and why, who has gone silent.

    Args:
        study: its folder.
        workers: heartbeats.
        finished: cells that are finished.
        failed: reasons by cell.
        silent: workers that are gone, by the cell that they held.
    """
    count = len(workers)
    head = f"{study}: {finished} finished, {len(failed)} failed, {count} worker{'s' * (count != 1)}"
    lines = [f"{cell}: {reason}" for cell, reason in sorted(failed.items())]
    lines += [f"{cell}: {who} is gone; the next worker takes over" for cell, who in sorted(silent.items())]
    table = [crew_table(workers)] if workers else []
    return [Text(one_line(head)), *table, *(Text(one_line(line)) for line in lines)]
