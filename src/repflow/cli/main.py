"""The `repflow` command. Each command is a module of this folder, imported here; none imports torch at the top."""

from __future__ import annotations

from typing import Annotated

import typer

from repflow.cli import compare, demo, diagnose, doctor, dynamics, grid, measure, probe, reproduce, runs, theory, twins
from repflow.cli.console import guarded
from repflow.version import __version__

app = typer.Typer(
    name="repflow",
    help="Measure how representations flow through the layers and tokens of sequence models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

EXAMPLES = {
    "measure": (
        "repflow measure gpt2 --task text --text corpus.txt --length 512 --samples 16",
        "repflow measure gpt2 state-spaces/mamba-130m-hf    side by side, on the same text",
    ),
    "compare": (
        "repflow compare gpt2 state-spaces/mamba-130m-hf --task text --text corpus.txt",
        "repflow compare gpt2 gpt2 --init-b default    a model with its random twin",
    ),
    "probe": (
        "repflow probe gpt2 --samples 100 --seeds 1    a quick try; the real run has another name",
        "repflow probe gpt2 --task mdqa --twin default",
    ),
    "diagnose": (
        "repflow diagnose gpt2 --task kvpr --length 1K",
        "repflow diagnose --flow runs/MEASURED --probe runs/PROBED    runs that are there",
    ),
    "twins": ("repflow twins gpt2 --inits default,xavier --lengths 128,512 --seeds 3",),
    "run": ("repflow run STUDY.toml --dry-run    what it costs", "repflow run STUDY.toml --part 1/4"),
}
"""Last lines of a command's help."""


def _epilog(name: str) -> str:
    return "\n\n".join(["Examples:", *EXAMPLES[name]])


app.command("measure", epilog=_epilog("measure"))(guarded(measure.command))
app.command("compare", epilog=_epilog("compare"))(guarded(compare.command))
app.command("probe", epilog=_epilog("probe"))(guarded(probe.command))
app.command("diagnose", epilog=_epilog("diagnose"))(guarded(diagnose.command))
app.command("twins", epilog=_epilog("twins"))(guarded(twins.command))
app.command("run", epilog=_epilog("run"))(guarded(grid.command))
app.command("reproduce")(guarded(reproduce.command))
app.command("demo")(guarded(demo.command))
app.add_typer(theory.app, name="theory")
app.add_typer(dynamics.app, name="dynamics")
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
