"""`repflow list --watch`: who works on what, again and again until nobody does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.cli.console import LINE_SECONDS, stdout_console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repflow.store.claims.watching import StudyView

LOOK_SECONDS = 1.0


def follow(folder: Path, *, as_json: bool, wait: Callable[[float], None] = time.sleep) -> None:
    """Show workers until none is left; a live table in a terminal, else a table now and then, or JSON lines.

    Args:
        folder: of runs, or of a study.
        as_json: print one object per look.
        wait: sleeps.
    """
    from repflow.store.claims.watching import Onlooker

    onlooker, console = Onlooker(folder), stdout_console()
    with ExitStack() as stack:
        live: Any = None
        if console.is_terminal and not as_json:
            from rich.live import Live

            live = stack.enter_context(Live(console=console, refresh_per_second=2))
        while True:
            views = onlooker.look()
            if as_json:
                print(json.dumps({"studies": [to_json(view) for view in views]}, allow_nan=False), flush=True)
            elif live is not None:
                live.update(shown(views, folder))
            else:
                console.print(shown(views, folder))
            if not any(view.busy for view in views):
                return
            wait(LOOK_SECONDS if live is not None or as_json else LINE_SECONDS)


def to_json(view: StudyView) -> dict[str, Any]:
    """One study for `--json`."""
    names = ("host", "pid", "cell", "done", "total", "phase")
    return {
        "study": str(view.folder),
        "finished": len(view.ended),
        "failed": view.failed,
        "workers": [{name: beat.get(name) for name in names} for beat in view.workers],
        "silent": view.silent,
    }


def shown(views: Sequence[StudyView], folder: Path) -> RenderableType:
    """All studies, one below the other."""
    from rich.console import Group
    from rich.text import Text

    from repflow.report.terminal.crew import watch_tables

    parts = [
        part
        for view in views
        for part in watch_tables(str(view.folder), view.workers, len(view.ended), view.failed, view.silent)
    ]
    return Group(*parts) if parts else Text(f"no workers have met in {folder}")
