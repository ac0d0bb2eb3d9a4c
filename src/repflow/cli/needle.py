"""`repflow needle`: models one after the other on the same needles, each stored, then side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import stdout_console
from repflow.cli.measure import RUNS, each_model
from repflow.cli.options import MODEL_HELP, make_config, or_zoo, with_options
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place
from repflow.studies.needle.study import STUDY, NeedleConfig, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result


ZOO = ("gpt-neox", "mamba2", "hybrid")


@with_options(NeedleConfig, skip=("model",))
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help=f"{MODEL_HELP}; none: gpt-neox, mamba2 and hybrid of the zoo."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of runs; each model's run is a folder in it.")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; by default from model, init and length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model, nothing else.")] = False,
    **options: Any,
) -> None:
    """Hide false statements in long documents and see whether MODELs find them, by length and position.

    "The capital of France is Madrid." The question is answered greedily, and the planted word is ranked against the
    true one and others, so that small models give a signal too. A run that was interrupted goes on where it was.
    """
    from repflow.studies.needle.study import run

    models = or_zoo(models, *ZOO)
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    check_place(out)
    first = make_config(NeedleConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1 and first.match == "text":
        first = replace(first, match_with=sorted({*models, *first.match_with}))
    configs = [replace(first, model=model) for model in models]
    names = [name or STUDY.find_name(config, out) for config in configs]
    code, results = each_model(run, _print, configs, names, out, as_json=as_json)
    if len(results) > 1 and not as_json:
        _print_comparison(results)
    raise typer.Exit(code)


def _print(result: Result, run: Path) -> None:
    from repflow.report.terminal.needle import needle_view

    console = stdout_console()
    for part in needle_view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


def _print_comparison(results: list[Result]) -> None:
    from repflow.report.terminal.needle import needle_comparison

    stdout_console().print(needle_comparison(results))
