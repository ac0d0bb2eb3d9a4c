"""`repflow memory`: models one after the other on matched prompts, each stored, then side by side."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import stdout_console
from repflow.cli.measure import RUNS, each_model
from repflow.cli.options import MODEL_HELP, make_config, or_zoo, with_options
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place
from repflow.studies.engine.prompts import matched_models
from repflow.studies.memory.study import STUDY, MemoryConfig, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result

USUAL = ("mamba", "mamba2", "hybrid", "gpt-neox")
"""Of the zoo, where no model is named."""


@with_options(MemoryConfig, skip=("model",))
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help=f"{MODEL_HELP}; none: {', '.join(USUAL)} of the zoo."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of runs; each model's run is a folder in it.")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; by default from model, task and length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model, nothing else.")] = False,
    **options: Any,
) -> None:
    """Look at the memory gates of MODELs: range of decays, half-lives, Theorem 4.2, sharpness through depth.

    A layer without a transition, such as attention, gives the sharpness of its outputs alone. A run that was
    interrupted goes on where it was when the same command is given again.
    """
    from repflow.studies.memory.study import run

    models = or_zoo(models, *USUAL)
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    check_place(out)
    first = make_config(MemoryConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1:
        first = replace(first, match_with=matched_models(models, first))
    configs = [replace(first, model=model) for model in models]
    names = [name or STUDY.find_name(config, out) for config in configs]
    show = functools.partial(_print, maps=bool(first.maps))
    code, results = each_model(run, show, configs, names, out, as_json=as_json)
    if len(results) > 1 and not as_json:
        from repflow.report.terminal.memory import memory_comparison

        stdout_console().print(memory_comparison(results))
    raise typer.Exit(code)


def _print(result: Result, run: Path, *, maps: bool) -> None:
    from repflow.report.terminal.memory import memory_view

    console = stdout_console()
    for part in memory_view(result):
        console.print(part)
    for made in (run, run.with_name(f"{run.name}-maps")) if maps else (run,):
        console.print(f"wrote {made}", markup=False, highlight=False, soft_wrap=True)
