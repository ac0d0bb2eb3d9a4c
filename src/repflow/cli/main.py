"""The `repflow` command; `repflow.cli.commands` has the table of its commands. Nothing here imports torch or numpy."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Annotated

import typer

from repflow.cli.commands import Repflow
from repflow.cli.console import prepare_streams, show_timings
from repflow.cli.deferred import deferred
from repflow.version import __version__

app = typer.Typer(
    name="repflow",
    cls=Repflow,
    help="Measure how representations flow through the layers and tokens of sequence models.",
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> bool:
    if asked:
        print(f"repflow {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")
    ] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="print on stderr where the time went (before COMMAND)")
    ] = False,
) -> None:
    """Measure how representations flow through the layers and tokens of sequence models."""
    show_timings(timings)


def main() -> None:
    """Entry point."""
    prepare_streams()
    with deferred("numpy") if "--help" in sys.argv else nullcontext():  # studies import it at their start
        app()
