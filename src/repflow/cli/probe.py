"""`repflow probe`: models one after the other on matched prompts, each stored, then side by side."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, WRONG_REQUEST, Progress, complain, quiet, stdout_console
from repflow.cli.measure import RUNS, json_object, short_name
from repflow.cli.options import make_config, with_options
from repflow.errors import InputError, teach
from repflow.studies.probe_config import ProbeConfig, check_request, run_name
from repflow.studies.prompts import matched_models

if TYPE_CHECKING:
    from repflow.results import Result


@with_options(ProbeConfig, skip=("model",))
def command(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL...", help="Folder, hub id with optional @revision, config:FILE.json, FILE.gguf."),
    ],
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
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    first = make_config(ProbeConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1:
        first = replace(first, match_with=matched_models(models, first))
    configs = [replace(first, model=model) for model in models]
    code, results = _probe_each(configs, out, name, as_json=as_json)
    if len(results) > 1 and not as_json:
        _print_comparison(results)
    raise typer.Exit(code)


def _probe_each(configs: list[ProbeConfig], out: Path, name: str | None, *, as_json: bool) -> tuple[int, list[Result]]:
    """Probe models one after the other; one that fails is reported and the others go on."""
    codes, results = set(), []
    for config in configs:
        run = name or run_name(config)
        try:
            result = _probe_one(config, out, run)
        except Exception as error:  # noqa: BLE001  one model must not take the others down
            codes.add(complain(error, config.model if len(configs) > 1 else ""))
            continue
        results.append(result)
        if as_json:
            print(json.dumps(json_object(result, out / run), allow_nan=False), flush=True)
        else:
            _print(result, out / run)
    return FAILED if FAILED in codes else WRONG_REQUEST if codes else DONE, results


def _probe_one(config: ProbeConfig, out: Path, name: str) -> Result:
    from repflow.studies.probe import run

    try:
        with quiet(), Progress(short_name(config.model)) as progress:
            return run(config, out=out, name=name, progress=progress)
    finally:
        gc.collect()


def _print(result: Result, run: Path) -> None:
    from repflow.report.probe_table import probe_view

    console = stdout_console()
    for part in probe_view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


def _print_comparison(results: list[Result]) -> None:
    from repflow.report.probe_table import probe_comparison

    stdout_console().print(probe_comparison(results))
