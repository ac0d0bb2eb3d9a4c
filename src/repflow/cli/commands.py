"""The table of commands. A command's module is imported when the command is asked for, not for the list of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import typer

from repflow.cli.console import guarded
from repflow.cli.help import Command, Group, Root, epilog, first_line
from repflow.core.studies import PAPERS, STUDIES, row_named

START, KEEP = "Start here", "Keep and show results"
"""Panels of the list, beside those of studies."""


class Entry(NamedTuple):
    """A command, or a group of them.

    Attributes:
        panel: of the list.
        name: the word that is typed.
        at: `module:attribute` of the function or Typer; the name of a study for a command that studies share.
        line: of the list.
        examples: last lines of its help.
    """

    panel: str
    name: str
    at: str
    line: str
    examples: tuple[str, ...] = ()


ENTRIES = (
    Entry(START, "demo", "repflow.cli.demo:command", "all of it on the built-in models"),
    Entry(START, "doctor", "repflow.cli.doctor:command", "what this machine can do"),
    Entry(START, "zoo", "repflow.cli.zoo:app", "the built-in models"),
    *(
        Entry(row.panel, row.command, row.at or row.name, row.line, row.examples)
        for row in STUDIES
        if row.command and " " not in row.command
    ),
    Entry(PAPERS, "theory", "repflow.cli.theory:app", "the papers' theorems, simulated and on your weights"),
    Entry(PAPERS, "dynamics", "repflow.cli.dynamics:app", "token dynamics: simulated, and of a real model"),
    Entry(
        KEEP,
        "run",
        "repflow.cli.grid:command",
        "a grid of studies from a file, cost first",
        (
            "repflow run STUDY.toml --dry-run    what it costs",
            "repflow run STUDY.toml --workers 8    eight processes share the cells",
            "repflow run STUDY.toml --engine slurm --workers 32 --slurm partition=gpu,gpus_per_node=1",
        ),
    ),
    Entry(
        KEEP,
        "report",
        "repflow.cli.report:command",
        "one page of stored runs, to look at and to send",
        (
            "repflow report runs/demo --out demo.html    one page of all runs in a folder",
            "repflow report runs/A runs/B    two runs side by side, into report.html",
        ),
    ),
    Entry(
        KEEP,
        "figures",
        "repflow.cli.figures:command",
        "the same figures for a paper: PDF, SVG or PNG",
        (
            "repflow figures runs --format pdf    every figure of the runs in ./runs, into ./figures",
            "repflow figures runs --figure figure-2 --choose task=kvpr --format svg --width page",
        ),
    ),
    Entry(KEEP, "list", "repflow.cli.runs:list_command", "the runs of a folder"),
    Entry(KEEP, "verify", "repflow.cli.runs:verify_command", "is every stored byte sound?"),
    Entry(KEEP, "export", "repflow.cli.runs:export_command", "results in other formats"),
)
"""In the order of `--help`."""


@cache
def built(entry: Entry) -> Any:
    """The command of an entry, its module imported now."""
    holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    holder.callback()(lambda: None)  # so that a lone command stays one of a group
    what = _imported(entry.at)
    if isinstance(what, typer.Typer):
        holder.add_typer(what, name=entry.name, cls=Group)
    else:
        holder.command(entry.name, cls=Command, epilog=epilog(entry.examples))(guarded(what))
    group: Any = typer.main.get_command(holder)
    return group.commands[entry.name]


def _imported(at: str) -> Any:
    module, _, attribute = at.partition(":")
    if attribute:
        return getattr(importlib.import_module(module), attribute)
    row = row_named(at)
    if row.trains:
        from repflow.cli.laboratory import laboratory_command

        return laboratory_command(row)
    from repflow.cli.study import study_command

    return study_command(row)


class Built(Mapping[str, Any]):
    """Commands by name, each built when it is taken out."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        self.entries = {entry.name: entry for entry in entries}

    def __getitem__(self, name: str) -> Any:
        return built(self.entries[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


class Repflow(Root):
    """`repflow` with every command of the table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": Built(ENTRIES)})

    def list_commands(self, ctx: Any) -> list[str]:
        """Names alone."""
        return [entry.name for entry in ENTRIES]

    def lines(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """As the table has them; only a study without a line is imported for its summary."""
        for entry in ENTRIES:
            yield entry.panel, entry.name, entry.line or first_line(built(entry))
