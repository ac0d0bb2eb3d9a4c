"""`repflow diagnose`: measure and probe a model, then one page that says what the numbers allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import ProgressLine, quiet, stdout_console
from repflow.cli.help import complete_model
from repflow.cli.options import AS_JSON, MODEL_HELP, make_config, or_zoo, with_options
from repflow.cli.study import RUNS, short_name
from repflow.store.disk import check_place
from repflow.studies.diagnose.study import STUDY, DiagnoseConfig, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result


@with_options(DiagnoseConfig, skip=("model",))
def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            autocompletion=complete_model,
            help=f"{MODEL_HELP}; without one: gpt-neox of the zoo",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", help="folder of runs; flow, probe and diagnosis are folders in it")
    ] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the diagnosis")] = None,
    as_json: AS_JSON = False,
    **options: Any,
) -> None:
    """Diagnose MODEL: where tokens become alike and separate, where the task's answer can be decoded, what is lost.

    Every statement cites its number; published signatures are judged as published (raw values) and as we judge (excess
    similarity, chance-corrected points, intervals). What was not measured is not claimed.
    """
    check_place(out)
    if model or not (options["flow_run"] or options["probe_run"]):
        (model,) = or_zoo(model, "gpt-neox")
    config = make_config(DiagnoseConfig, {**options, "model": model})
    check_request(config, name)
    run = name or STUDY.find_name(config, out)
    result = _diagnose(config, out, name)
    if as_json:
        from repflow.report.terminal.diagnose import diagnosis_json

        print(json.dumps(diagnosis_json(result, out / run), allow_nan=False), flush=True)
    else:
        _print(result, out / run)


def _print(result: Result, run: Path) -> None:
    from repflow.report.terminal.diagnose import diagnosis_text

    print(diagnosis_text(result, stdout_console().width))
    print(f"\nwrote {run}")


def _diagnose(config: DiagnoseConfig, out: Path, name: str | None) -> Result:
    from repflow.studies.diagnose.study import run

    label = short_name(config.model or str(config.flow_run or config.probe_run))
    with quiet(), ProgressLine(label) as progress:
        return run(config, out=out, name=name, progress=progress)
