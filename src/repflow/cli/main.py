"""The `repflow` command. Each command is a module of this folder, imported here; none imports torch at the top."""

from __future__ import annotations

from typing import Annotated

import typer

from repflow.cli import compare, demo, diagnose, doctor, grid, measure, probe, reproduce, runs, twins
from repflow.cli.console import guarded
from repflow.version import __version__

app = typer.Typer(
    name="repflow",
    help="Measure how representations flow through the layers and tokens of sequence models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("measure")(guarded(measure.command))
app.command("compare")(guarded(compare.command))
app.command("probe")(guarded(probe.command))
app.command("diagnose")(guarded(diagnose.command))
app.command("twins")(guarded(twins.command))
app.command("run")(guarded(grid.command))
app.command("reproduce")(guarded(reproduce.command))
app.command("demo")(guarded(demo.command))
app.command("list")(guarded(runs.list_command))
app.command("verify")(guarded(runs.verify_command))
app.command("export")(guarded(runs.export_command))
app.command("doctor")(guarded(doctor.command))


def _version(asked: bool) -> bool:
    if asked:
        print(f"repflow {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Measure how representations flow through the layers and tokens of sequence models."""


def main() -> None:
    """Entry point."""
    app()
