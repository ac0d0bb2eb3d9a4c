"""The command of a study that asks one thing of each model: models one after the other, each stored, then side by side.

Options, help, default models, matching and tables all come from the study (`STUDY`) and from its
view in the terminal, so that a new study has a command as soon as the table of studies has its row. Annotations are not
postponed in this module: those of the command depend on the study.
"""

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, WRONG_REQUEST, ProgressLine, complain, note, quiet, stdout_console
from repflow.cli.help import complete_model
from repflow.cli.options import AS_JSON, MODEL_HELP, make_config, or_zoo, with_options
from repflow.cli.scale import take_part
from repflow.core.errors import InputError, teach
from repflow.core.studies import StudyRow
from repflow.store.disk import check_place
from repflow.studies.engine.table import study_at

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.engine.study import BaseStudy

RUNS = Path("runs")


def study_command(row: StudyRow) -> Callable[..., None]:
    """The command of a study of the table."""
    study = study_at(row)

    @with_options(study.config, skip=("model",))
    def command(
        models: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="[MODEL]...",
                help=f"{MODEL_HELP}; without one: {study.usual_words}" if study.usual else MODEL_HELP,
                autocompletion=complete_model,
            ),
        ] = None,
        out: Annotated[Path, typer.Option("--out", help="folder of runs; each model's run is a folder in it")] = RUNS,
        name: Annotated[
            str | None, typer.Option("--name", help="name of the run; by default from model, task and length")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per model, nothing else")] = False,
        **options: Any,
    ) -> None:
        specs = or_zoo(models, *study.usual)
        if name is not None and len(specs) > 1:
            raise InputError(teach("--name with one model", f"{len(specs)} models", "leave --name out"))
        check_place(out)
        first: Any = make_config(study.config, {**options, "model": specs[0]})
        study.check_request(first, name)
        if len(specs) > 1:
            note(f"{len(specs)} models: reading their configurations")
            with quiet():
                first, text = study.together(first, specs)
            if text:
                note(text)
        configs = [replace(first, model=spec) for spec in specs]
        code, results = run_each(study, configs, out, name, as_json=as_json)
        if len(results) > 1:
            _show_together(study, results, first, out, as_json=as_json)
        raise typer.Exit(code)

    command.__doc__ = study.summary
    return command


def single_command(row: StudyRow) -> Callable[..., None]:
    """The command of a study of the table that is asked of one model and prints its whole Result."""
    study = study_at(row)

    @with_options(study.config, skip=("model",))
    def command(
        model: Annotated[
            str,
            typer.Argument(
                metavar="[MODEL]",
                autocompletion=complete_model,
                help=f"{MODEL_HELP}; without one: {study.usual_words}",
                show_default=False,
            ),
        ] = "",
        out: Annotated[Path, typer.Option("--out", help="folder of runs")] = RUNS,
        name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
        as_json: AS_JSON = False,
        **options: Any,
    ) -> None:
        check_place(out)
        (spec,) = or_zoo(model, *study.usual)
        config: Any = make_config(study.config, {**options, "model": spec})
        study.check_request(config, name)
        called = name or study.find_name(config, out)
        take_part(study, {called: config}, out)
        with quiet(), ProgressLine(short_name(spec), study.counts) as progress:
            result = study.run(config, out=out, name=called, progress=progress)
        show_whole(result, [out / called], as_json=as_json)

    command.__doc__ = study.summary
    return command


def show_whole(result: "Result", written: Sequence[Path], *, as_json: bool, **more: Any) -> None:
    """Print a result as its study's view shows it and where it is stored, or all of it as one JSON object.

    Args:
        result: of a study.
        written: its run, then other files.
        as_json: print the object.
        more: further entries of the object.
    """
    if as_json:
        print(json.dumps({"run": str(written[0]), **more, **result.to_json()}, allow_nan=False), flush=True)
        return
    show_result(str(result.config["study"]), result, written)


def run_each(
    study: "BaseStudy[Any]", configs: Sequence[Any], out: Path, name: str | None = None, *, as_json: bool = False
) -> tuple[int, "list[Result]"]:
    """Run a study on models one after the other; one that fails is reported and the others continue.

    Args:
        study: which.
        configs: one per model.
        out: folder of the runs.
        name: of the run of a lone model.
        as_json: print a JSON object per model instead of its view.

    Returns:
        The exit code (1 if any work failed, else 2 if any request was wrong, else 0) and the results that came.
    """
    codes, results = set(), []
    beside_others = study.of_several() if len(configs) > 1 else study
    names = [name or study.find_name(config, out) for config in configs]
    take_part(beside_others, dict(zip(names, configs, strict=True)), out)
    for place, (called, config) in enumerate(zip(names, configs, strict=True)):
        if place:
            gc.collect()  # the last model is free before the next one is loaded
        try:
            with quiet(), ProgressLine(short_name(config.model), study.counts) as progress:
                result = beside_others.run(config, out=out, name=called, progress=progress)
        except Exception as error:  # noqa: BLE001  one model must not take the others down
            codes.add(complain(error, config.model if len(configs) > 1 else ""))
            continue
        results.append(result)
        if as_json:
            print(json.dumps(json_object(result, out / called), allow_nan=False), flush=True)
        else:
            show_result(study.name, result, [out / called, *(out / more for more in study.further(config, called))])
    return FAILED if FAILED in codes else WRONG_REQUEST if codes else DONE, results


def show_result(study: str, result: "Result", written: Sequence[Path]) -> None:
    """Print a result as its study's view shows it, and where it is stored."""
    from repflow.report.terminal import view_of

    console = stdout_console()
    for part in view_of(study).view(result):
        console.print(part)
    for place in written:
        console.print(f"wrote {place}", markup=False, highlight=False, soft_wrap=True)


def _show_together(study: "BaseStudy[Any]", results: "list[Result]", config: Any, out: Path, *, as_json: bool) -> None:
    """Results side by side, and what only several of them give; with --json that is in its runs alone."""
    from repflow.report.terminal import view_of

    with quiet():
        joint = study.joint(results, config, out)
    if as_json:
        return
    console = stdout_console()
    rows = [result for _, result in joint] if joint else results
    table = view_of(study.name).side_by_side
    if table is not None:
        console.print(table(rows))
    for name, _ in joint:
        console.print(f"wrote {out / name}", markup=False, highlight=False, soft_wrap=True)


def short_name(model: str) -> str:
    """Last part of a model spec.

    >>> short_name("config:models/gpt.json"), short_name("EleutherAI/pythia-70m@step1000")
    ('gpt.json', 'pythia-70m@step1000')
    """
    return model.rstrip("/").rpartition("/")[2] or model


def json_object(result: "Result", run: Path) -> dict[str, Any]:
    """What `--json` prints for one model; NaN is null."""
    whole = result.to_json()
    return {
        "run": str(run),
        "model": whole["config"].get("model"),
        "task": whole["config"].get("task"),
        "metrics": {
            name: {key: entry[key] for key in ("axes", "shape", "values")} for name, entry in whole["metrics"].items()
        },
        "findings": whole["findings"],
        "provenance": whole["provenance"],
    }
