"""`repflow recency`: influence by distance of models one after the other, then the ratio of the first to each other."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import quiet, stdout_console
from repflow.cli.measure import RUNS, each_model
from repflow.cli.options import MODEL_HELP, make_config, or_zoo, with_options
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place
from repflow.studies.engine.prompts import matched_models
from repflow.studies.recency.config import RecencyConfig, check_reach
from repflow.studies.recency.study import STUDY, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result


ZOO = ("mamba2", "gpt-neox", "hybrid")


@with_options(RecencyConfig, skip=("model",))
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...", help=f"{MODEL_HELP}; none: an SSM, a Transformer and a hybrid of the zoo."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of runs; each model's run is a folder in it.")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; by default from model, task and length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model, nothing else.")] = False,
    **options: Any,
) -> None:
    """Measure how far back tokens reach in MODELs: influence of every input on one output, by distance.

    Of several models, the influence of the first over that of each other is fitted too, and stored as a run of its own.
    """
    from repflow.studies.recency.study import run

    models = or_zoo(models, *ZOO)
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    check_place(out)
    first = make_config(RecencyConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1:
        check_reach(first.at % first.length)
        first = replace(first, match_with=matched_models(models, first))
    configs = [replace(first, model=model) for model in models]
    names = [name or STUDY.find_name(config, out) for config in configs]
    code, results = each_model(
        functools.partial(run, compared=len(models) > 1), _print, configs, names, out, as_json=as_json
    )
    if len(results) > 1 and results[0].config["model"] == models[0]:
        _ratios(results, out, first.nearest, as_json=as_json)
    raise typer.Exit(code)


def _print(result: Result, run: Path) -> None:
    from repflow.report.terminal.recency import recency_view

    console = stdout_console()
    for part in recency_view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


def _ratios(results: list[Result], out: Path, nearest: int, *, as_json: bool) -> None:
    """Store and show the ratio of the first model to each other; with --json they are in their runs alone."""
    from repflow.studies.recency.ratio import influence_ratio, ratio_name

    with quiet():
        made = [influence_ratio(results[0], other, nearest=nearest, out=out) for other in results[1:]]
    if as_json:
        return
    from repflow.report.terminal.recency import ratio_table

    console = stdout_console()
    console.print(ratio_table(made))
    for other in results[1:]:
        where = f"wrote {out / ratio_name(results[0], other, nearest)}"
        console.print(where, markup=False, highlight=False, soft_wrap=True)
