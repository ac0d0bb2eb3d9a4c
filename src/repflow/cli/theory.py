"""`repflow theory`: closed forms beside simulations (verify), and on the weights of a real model (apply)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, ProgressLine, guarded, quiet
from repflow.cli.help import Command, epilog
from repflow.cli.options import AS_JSON, make_config, with_options
from repflow.cli.study import RUNS, show_whole, single_command
from repflow.core.studies import row_named
from repflow.studies.theory.verify import VerifyConfig

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
    with quiet(), ProgressLine("theory") as progress:
        result = run(config, out=out, name=name, progress=progress)
    show_whole(result, [out / name], as_json=as_json)
    raise typer.Exit(FAILED if any(finding.code == "closed_form" for finding in result.findings) else DONE)


def _add(name: str, command: Callable[..., Any]) -> None:
    """Add a command with the examples of its row."""
    app.command(name, cls=Command, epilog=epilog(row_named(f"theory-{name}").examples))(guarded(command))


_add("verify", verify_command)
_add("apply", single_command(row_named("theory-apply")))
