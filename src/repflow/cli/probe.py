"""`repflow probe`: models one after the other on matched prompts, each stored, then side by side."""

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
from repflow.studies.demo import PROBED
from repflow.studies.engine.prompts import matched_models
from repflow.studies.probe.study import STUDY, ProbeConfig, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result


@with_options(ProbeConfig, skip=("model",))
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help=f"{MODEL_HELP}; none: those of the zoo that the demo probes."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of runs; each model's run is a folder in it.")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; by default from model, task and length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model, nothing else.")] = False,
    **options: Any,
) -> None:
    """Probe every state of MODELs: where in depth can a linear read-out find what the task is about?

    Features go to the run folder while the model runs once; a run that was interrupted goes on where it was. Several
    models get the same text (--match).
    """
    from repflow.studies.probe.study import run

    models = or_zoo(models, *PROBED)
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    check_place(out)
    first = make_config(ProbeConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1:
        first = replace(first, match_with=matched_models(models, first))
    configs = [replace(first, model=model) for model in models]
    names = [name or STUDY.find_name(config, out) for config in configs]
    code, results = each_model(run, _print, configs, names, out, as_json=as_json)
    if len(results) > 1 and not as_json:
        _print_comparison(results)
    raise typer.Exit(code)


def _print(result: Result, run: Path) -> None:
    from repflow.report.terminal.probe import probe_view

    console = stdout_console()
    for part in probe_view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


def _print_comparison(results: list[Result]) -> None:
    from repflow.report.terminal.probe import probe_comparison

    stdout_console().print(probe_comparison(results))
