"""`repflow measure`: models one after the other, each stored, then what they have in common in one table."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, WRONG_REQUEST, Progress, complain, note, quiet, stdout_console
from repflow.cli.options import MODEL_HELP, comma_separated, make_config, or_zoo, with_options
from repflow.core.errors import InputError, teach
from repflow.spec.zoo import NAMES
from repflow.store.disk import check_place
from repflow.studies.engine.prompts import matched_models
from repflow.studies.measure import STUDY, MeasureConfig, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result

RUNS = Path("runs")


@with_options(MeasureConfig, skip=("model",))
def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help=f"{MODEL_HELP}; none: all of the zoo."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of runs; each model's run is a folder in it.")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the run; by default from model, task and length.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per model, nothing else.")] = False,
    **options: Any,
) -> None:
    """Measure how representations flow through MODELs: run each once and store what its layers do.

    A run that was interrupted goes on where it was when the same command is given again.
    """
    models = or_zoo(models, *NAMES)
    if name is not None and len(models) > 1:
        raise InputError(teach("--name with one model", f"{len(models)} models", "leave --name out"))
    check_place(out)
    options["metrics"] = comma_separated(options["metrics"])
    first = make_config(MeasureConfig, {**options, "model": models[0]})
    check_request(first, name)
    if len(models) > 1 and first.grid is None:
        first = replace(first, grid=_common_grid(models, first))
    if len(models) > 1:
        first = replace(first, match_with=matched_models(models, first))
    configs = [replace(first, model=model) for model in models]
    code, results = measure_each(configs, out, name, as_json=as_json)
    if len(results) > 1 and not as_json:
        print_comparison(results)
    raise typer.Exit(code)


def measure_each(
    configs: list[MeasureConfig], out: Path, name: str | None = None, *, as_json: bool = False
) -> tuple[int, list[Result]]:
    """Measure models one after the other."""
    from repflow.studies.measure import run

    return each_model(
        run, _print_result, configs, [name or STUDY.find_name(c, out) for c in configs], out, as_json=as_json
    )


def each_model(
    study: Callable[..., Result],
    show: Callable[[Result, Path], None],
    configs: Sequence[Any],
    names: Sequence[str],
    out: Path,
    *,
    as_json: bool,
) -> tuple[int, list[Result]]:
    """Run a study on models one after the other; one that fails is reported and the others go on.

    Args:
        study: `run` of a study; loads, stores and frees one model.
        show: prints a result and where it is stored.
        configs: one per model.
        names: of the runs.
        out: folder of the runs.
        as_json: print a JSON object per model instead.

    Returns:
        The exit code (1 if any work failed, else 2 if any request was wrong, else 0) and the results that came.
    """
    codes, results = set(), []
    for config, name in zip(configs, names, strict=True):
        try:
            with quiet(), Progress(short_name(config.model)) as progress:
                result = study(config, out=out, name=name, progress=progress)
        except Exception as error:  # noqa: BLE001  one model must not take the others down
            codes.add(complain(error, config.model if len(configs) > 1 else ""))
            continue
        finally:
            gc.collect()  # the model is free before the next one is loaded
        results.append(result)
        if as_json:
            print(json.dumps(json_object(result, out / name), allow_nan=False), flush=True)
        else:
            show(result, out / name)
    return FAILED if FAILED in codes else WRONG_REQUEST if codes else DONE, results


def short_name(model: str) -> str:
    """Last part of a model spec.

    >>> short_name("config:models/gpt.json"), short_name("EleutherAI/pythia-70m@step1000")
    ('gpt.json', 'pythia-70m@step1000')
    """
    return model.rstrip("/").rpartition("/")[2] or model


def json_object(result: Result, run: Path) -> dict[str, Any]:
    """What `--json` prints for one model; NaN is null."""
    whole = result.to_json()
    return {
        "run": str(run),
        "model": whole["config"]["model"],
        "task": whole["config"]["task"],
        "metrics": {
            name: {key: entry[key] for key in ("axes", "shape", "values")} for name, entry in whole["metrics"].items()
        },
        "findings": whole["findings"],
        "provenance": whole["provenance"],
    }


def _print_result(result: Result, run: Path) -> None:
    from repflow.report.terminal.states import result_view

    console = stdout_console()
    for part in result_view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


def print_comparison(results: list[Result]) -> None:
    """Print the table over several models."""
    from repflow.report.terminal.states import comparison_table

    stdout_console().print(comparison_table(results))


def _common_grid(models: list[str], config: MeasureConfig) -> int | None:
    from repflow.studies.engine.depth_grid import common_grid

    with quiet():
        grid = common_grid(models, config.states, trust_remote_code=config.trust_remote_code)
    if grid is not None:
        note(f"comparing smoothness and stability on a grid of {grid} relative-depth steps (--grid)")
    return grid
