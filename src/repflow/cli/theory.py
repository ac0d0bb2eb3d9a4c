"""`repflow theory`: closed forms beside simulations (verify), and on the weights of a real model (apply)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, ProgressLine, guarded, quiet, stdout_console
from repflow.cli.help import Command, complete_model
from repflow.cli.options import AS_JSON, MODEL_HELP, make_config, or_zoo, with_options
from repflow.cli.study import RUNS, short_name
from repflow.studies.theory.apply import ApplyConfig
from repflow.studies.theory.verify import VerifyConfig

if TYPE_CHECKING:
    from repflow.core.results import Result

app = typer.Typer(
    help="Closed forms of the papers' theorems: beside simulations (verify), on a real model (apply).",
    no_args_is_help=True,
)


@with_options(VerifyConfig)
def verify_command(
    out: Annotated[Path, typer.Option("--out", help="folder of runs")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
    as_json: AS_JSON = False,
    **options: Any,
) -> None:
    """Verify the papers' theorems: each printed and corrected form beside a simulation, with the gap and a verdict.

    Theorems 5 and 6 of paper 1 are set against its own Table 1. Exit code 1 if a corrected form disagrees with its
    simulation by more than 1 % (or more than its noise). An interrupted run resumes.
    """
    from repflow.studies.theory.verify import STUDY, check_request, run

    config = make_config(VerifyConfig, options)
    check_request(config)
    name = name or STUDY.find_name(config, out)
    place = out / name
    with quiet(), ProgressLine("theory") as progress:
        result = run(config, out=out, name=name, progress=progress)
    from repflow.report.terminal.theory import verify_view

    _print(result, place, verify_view, as_json=as_json)
    raise typer.Exit(FAILED if any(finding.code == "closed_form" for finding in result.findings) else DONE)


@with_options(ApplyConfig, skip=("model",))
def apply_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL]",
            autocompletion=complete_model,
            help=f"{MODEL_HELP}; none: one of the zoo",
            show_default=False,
        ),
    ] = "",
    out: Annotated[Path, typer.Option("--out", help="folder of runs")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
    as_json: AS_JSON = False,
    **options: Any,
) -> None:
    """Apply paper 1's theorems to MODEL: linearisation error, predicted and measured St² by layer, constants, bounds.

    Reads GPT-2, GPT-Neo, GPT-NeoX, OPT, Phi, Mamba, Falcon-Mamba and Mamba-2 blocks; others have no reading. The
    hypotheses that fail are named, and no ordering is stated unless all hold.
    """
    from repflow.studies.theory.apply import STUDY, check_request, run

    (model,) = or_zoo(model, "gpt-neox")
    config = make_config(ApplyConfig, {**options, "model": model})
    check_request(config, name)
    name = name or STUDY.find_name(config, out)
    place = out / name
    with quiet(), ProgressLine(short_name(model)) as progress:
        result = run(config, out=out, name=name, progress=progress)
    from repflow.report.terminal.theory import apply_view

    _print(result, place, apply_view, as_json=as_json)


def _print(result: Result, run: Path, view: Any, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"run": str(run), **result.to_json()}, allow_nan=False), flush=True)
        return
    console = stdout_console()
    for part in view(result):
        console.print(part, markup=False, highlight=False)
    console.print(f"wrote {run}", markup=False, highlight=False, soft_wrap=True)


app.command("verify", cls=Command)(guarded(verify_command))
app.command("apply", cls=Command)(guarded(apply_command))
