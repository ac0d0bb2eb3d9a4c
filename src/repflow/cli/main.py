"""The `repflow` command. Each command is a module of this folder, imported here; none imports torch at the top."""

from __future__ import annotations

from typing import Annotated

import typer

from repflow.cli import (
    compare,
    demo,
    diagnose,
    doctor,
    dynamics,
    figures,
    grid,
    report,
    reproduce,
    runs,
    theory,
    twins,
    zoo,
)
from repflow.cli.console import guarded, prepare_streams, show_timings
from repflow.cli.study import study_command
from repflow.core.studies import STUDIES, row_named
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
        "repflow measure zoo:gpt-neox zoo:mamba2 --task kvpr --length 256    built-in models side by side",
        "repflow measure gpt2 --task text --text corpus.txt --length 512 --samples 16",
    ),
    "compare": (
        "repflow compare zoo:gpt-neox zoo:mamba2 --task kvpr --length 256",
        "repflow compare zoo:mamba2 twin    a model with its random twin",
    ),
    "probe": (
        "repflow probe zoo:gpt-neox --samples 100 --seeds 1    a quick try; the real run has another name",
        "repflow probe gpt2 --task mdqa --twin default",
    ),
    "recency": (
        "repflow recency zoo:mamba2 --task kvpr --length 256 --twin default    a model and its random twin",
        "repflow recency zoo:mamba2 zoo:gpt-neox    and how fast the ratio of the two falls",
    ),
    "needle": (
        "repflow needle zoo:gpt-neox zoo:mamba2 --lengths 256,512    where each finds what was planted",
        "repflow needle gpt2 --haystack essays.txt --skip-told --lengths 512,1000 --samples 32",
    ),
    "memory": (
        "repflow memory zoo:mamba zoo:mamba2 zoo:gpt-neox --task kvpr --length 256    a Transformer beside two SSMs",
        "repflow memory zoo:mamba --init default --attention    the random twin, with hidden attention",
    ),
    "diagnose": (
        "repflow diagnose zoo:hybrid --task kvpr --length 256",
        "repflow diagnose --flow runs/MEASURED --probe runs/PROBED    runs that are there",
    ),
    "twins": ("repflow twins zoo:gpt-neox --inits default,xavier --lengths 128,512 --seeds 3",),
    "report": (
        "repflow report runs/demo --out demo.html    one page of all runs in a folder",
        "repflow report runs/A runs/B    two runs side by side, into report.html",
    ),
    "figures": (
        "repflow figures runs --format pdf    every figure of the runs in ./runs, into ./figures",
        "repflow figures runs --figure figure-2 --choose task=kvpr --format svg --width page",
    ),
    "run": ("repflow run STUDY.toml --dry-run    what it costs", "repflow run STUDY.toml --part 1/4"),
}
"""Last lines of a command's help."""


def _epilog(name: str) -> str:
    return "\n\n".join(["Examples:", *EXAMPLES[name]]) if name in EXAMPLES else ""


app.command("measure", epilog=_epilog("measure"))(guarded(study_command(row_named("measure"))))
app.command("compare", epilog=_epilog("compare"))(guarded(compare.command))
app.command("probe", epilog=_epilog("probe"))(guarded(study_command(row_named("probe"))))
app.command("recency", epilog=_epilog("recency"))(guarded(study_command(row_named("recency"))))
app.command("needle", epilog=_epilog("needle"))(guarded(study_command(row_named("needle"))))
app.command("memory", epilog=_epilog("memory"))(guarded(study_command(row_named("memory"))))
app.command("diagnose", epilog=_epilog("diagnose"))(guarded(diagnose.command))
app.command("twins", epilog=_epilog("twins"))(guarded(twins.command))
app.command("run", epilog=_epilog("run"))(guarded(grid.command))
app.command("reproduce")(guarded(reproduce.command))
app.command("demo")(guarded(demo.command))
app.add_typer(zoo.app, name="zoo")
app.command("report", epilog=_epilog("report"))(guarded(report.command))
app.command("figures", epilog=_epilog("figures"))(guarded(figures.command))
app.add_typer(theory.app, name="theory")
app.add_typer(dynamics.app, name="dynamics")
app.command("list")(guarded(runs.list_command))
app.command("verify")(guarded(runs.verify_command))
app.command("export")(guarded(runs.export_command))
app.command("doctor")(guarded(doctor.command))
_NAMED = {command.name for command in app.registered_commands}
for _row in STUDIES:  # a study whose command has no place above
    if _row.grid and _row.command not in _NAMED and " " not in _row.command:
        app.command(_row.command, epilog=_epilog(_row.command))(guarded(study_command(_row)))


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
    timings: Annotated[
        bool, typer.Option("--timings", help="Print on stderr, at the end, where the time went; before the command.")
    ] = False,
) -> None:
    """Measure how representations flow through the layers and tokens of sequence models."""
    show_timings(timings)


def main() -> None:
    """Entry point."""
    prepare_streams()
    app()
