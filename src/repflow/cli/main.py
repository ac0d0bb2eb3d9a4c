"""The `repflow` command. Each command is a module of this folder, imported here; none imports torch at the top."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from repflow.cli import (
    compare,
    demo,
    diagnose,
    doctor,
    dynamics,
    figures,
    grid,
    recall,
    report,
    reproduce,
    runs,
    theory,
    twins,
    zoo,
)
from repflow.cli.console import guarded, prepare_streams, show_timings
from repflow.cli.help import Command, Group, Root
from repflow.cli.study import study_command
from repflow.core.studies import STUDIES, row_named
from repflow.version import __version__

app = typer.Typer(
    name="repflow",
    cls=Root,
    help="Measure how representations flow through the layers and tokens of sequence models.",
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
    "recall": (
        "repflow recall --rows none/16,both/16,placebo/16 --layers 2,4 --rates 0.001,0.002 --dry-run    what it costs",
        "repflow recall --rows none/18,both+/16 --seeds 0,1,2 --seconds 540    stops in time, goes on next time",
    ),
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


START, LOOK, PAPERS, KEEP = "Start here", "Look at a model", "Check a paper", "Keep and show results"
COMMANDS: tuple[tuple[str, str, Any, str], ...] = (
    (START, "demo", demo.command, "all of it on the built-in models"),
    (START, "zoo", zoo.app, "the built-in models"),
    (START, "doctor", doctor.command, "what this machine can do"),
    (LOOK, "measure", "measure", "what layers do to prompts: similarity, norms, CKA"),
    (LOOK, "probe", "probe", "where the answer can be read, and where it is lost"),
    (LOOK, "recency", "recency", "how far back a token reaches"),
    (LOOK, "twins", twins.command, "trained or random weights: is it the architecture?"),
    (LOOK, "compare", compare.command, "two models state by state: CKA, shared neighbours"),
    (LOOK, "diagnose", diagnose.command, "flow and probes together: what is lost, and where"),
    (LOOK, "needle", "needle", "is a planted statement found, and where?"),
    (LOOK, "memory", "memory", "gates and decays of state-space layers"),
    (PAPERS, "reproduce", reproduce.command, "figures and tables of three papers, beside ours"),
    (PAPERS, "recall", recall.command, "train a grid of stacks to look things up"),
    (PAPERS, "theory", theory.app, "the papers' theorems, simulated and on your weights"),
    (PAPERS, "dynamics", dynamics.app, "token dynamics: simulated, and of a real model"),
    (KEEP, "run", grid.command, "a grid of studies from a file, cost first"),
    (KEEP, "report", report.command, "one page of stored runs, to look at and to send"),
    (KEEP, "figures", figures.command, "the same figures for a paper: PDF, SVG or PNG"),
    (KEEP, "list", runs.list_command, "the runs of a folder"),
    (KEEP, "verify", runs.verify_command, "is every stored byte sound?"),
    (KEEP, "export", runs.export_command, "results in other formats"),
)
"""Group, name, what runs (a study by its name) and one line, in the order of `--help`."""


def _epilog(name: str) -> str:
    return "\n\n".join(["Examples:", *EXAMPLES[name]]) if name in EXAMPLES else ""


def _add(group: str, name: str, what: Any, line: str | None = None) -> None:
    if isinstance(what, typer.Typer):
        app.add_typer(what, name=name, cls=Group, rich_help_panel=group, short_help=line)
        return
    command = study_command(row_named(what)) if isinstance(what, str) else what
    app.command(name, cls=Command, epilog=_epilog(name), rich_help_panel=group, short_help=line)(guarded(command))


for _group, _name, _what, _line in COMMANDS:
    _add(_group, _name, _what, _line)
_NAMED = {_name for _, _name, _, _ in COMMANDS}
for _row in STUDIES:  # a study whose command has no place above
    if _row.grid and _row.command not in _NAMED and " " not in _row.command:
        _add(LOOK, _row.command, _row.name)


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
    app()
