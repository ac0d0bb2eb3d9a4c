"""`repflow compare`: two models on the same text, a model and its random twin, or the checkpoints of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import ProgressLine, quiet, stdout_console
from repflow.cli.help import complete_model
from repflow.cli.options import AS_JSON, make_config, or_zoo, with_options
from repflow.cli.study import RUNS, json_object
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place
from repflow.studies.compare.config import CompareConfig
from repflow.studies.compare.study import STUDY, check_request

if TYPE_CHECKING:
    from repflow.core.results import Result


@with_options(CompareConfig, skip=("model_a", "model_b"))
def command(
    model_a: Annotated[
        str,
        typer.Argument(
            metavar="[A]",
            autocompletion=complete_model,
            help="model; or, without B, several checkpoints: 'MODEL@{step0,step1000}' (quoted) or a folder of them; or "
            "the stored history of a training. Without A and B: gpt-neox and mamba2 of the zoo.",
            show_default=False,
        ),
    ] = "",
    model_b: Annotated[
        str,
        typer.Argument(
            metavar="[B]",
            autocompletion=complete_model,
            help="second model, or twin: A with random weights (--init-b)",
            show_default=False,
        ),
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the comparison is a folder in it")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run; by default from models and task")] = None,
    as_json: AS_JSON = False,
    **options: Any,
) -> None:
    """Compare every state of A with every state of B on the same text: CKA and shared nearest neighbours.

    Tokens are matched one to one where both tokenizers agree, else where both end a token at the same character; under
    50 % matched tokens is refused. Without B, A names several checkpoints, each compared with the last.
    Stored histories of trainings (repflow.training.FlowMeter) are put side by side at the steps that both have.
    """
    from repflow.studies.training import is_history

    if is_history(model_a) or is_history(model_b):
        _show_histories(model_a, model_b, as_json=as_json)
        return
    check_place(out)
    if model_a:
        or_zoo([model_a, *([model_b] if model_b and model_b != "twin" else [])])
    else:
        model_a, model_b = or_zoo(None, "gpt-neox", "mamba2")
    config = make_config(CompareConfig, {**options, "model_a": model_a, "model_b": model_b})
    check_request(config, name)
    run = name or STUDY.find_name(config, out)
    result = _compare(config, out, run)
    if as_json:
        print(json.dumps(json_object(result, out / run), allow_nan=False), flush=True)
    else:
        _print(result, out / run)


def _show_histories(run_a: str, run_b: str, *, as_json: bool) -> None:
    """One history, or two at the steps that both have; both are stored already."""
    from repflow.store import load_result
    from repflow.studies.training import compare_histories, is_history

    for run in filter(None, (run_a, run_b)):
        if not is_history(run):
            raise InputError(teach("two histories of trainings", f"{run!r} beside one", "name the folders of both"))
    result = compare_histories(run_a, run_b) if run_b else load_result(run_a)
    if as_json:
        print(json.dumps(json_object(result, Path(run_a)), allow_nan=False), flush=True)
        return
    from repflow.report.terminal.training import view

    console = stdout_console()
    for part in view(result):
        console.print(part)


def _compare(config: CompareConfig, out: Path, name: str) -> Result:
    from repflow.studies.compare.study import run

    label = f"{config.model_a} | {config.model_b}" if config.model_b else config.model_a
    with quiet(), ProgressLine(label) as progress:
        return run(config, out=out, name=name, progress=progress)


def _print(result: Result, run: Path) -> None:
    from repflow.report.terminal.compare import view

    console = stdout_console()
    for part in view(result):
        console.print(part)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)
