"""`repflow dynamics`: paper 3's token dynamics for given parameters, and its prediction beside a real model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from repflow.cli.console import guarded, note
from repflow.cli.help import Command, epilog
from repflow.cli.options import AS_JSON, make_config, with_options
from repflow.cli.study import RUNS, show_whole, single_command
from repflow.core.studies import row_named
from repflow.store.disk import check_place
from repflow.store.name import check_name
from repflow.studies.dynamics.simulate import SimulateConfig

app = typer.Typer(
    help="Token dynamics of deep selective state-space models: simulate them, or compare a real model with them.",
    no_args_is_help=True,
)
NO_PICTURE = Annotated[bool, typer.Option("--no-picture", help="write no HTML file beside the run")]


@with_options(SimulateConfig)
def simulate_command(
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the picture is a file beside the run")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
    as_json: AS_JSON = False,
    no_picture: NO_PICTURE = False,
    **options: Any,
) -> None:
    """Simulate tokens under paper 3's dynamics: which scenario, how fast, when and where a token blows up."""
    from repflow.studies.dynamics.simulate import STUDY, check_request, run

    check_place(out)
    config = make_config(SimulateConfig, options)
    check_request(config)
    place = check_name(STUDY.find_name(config, out) if name is None else name)
    note(f"{place}: simulating")
    result = run(config, out=out, name=place)
    file = None
    if not no_picture:
        from repflow.report.draw.dynamics import write_picture

        file = write_picture(result, out / f"{place}.html")
    written = [out / place, *([] if file is None else [file])]
    show_whole(result, written, as_json=as_json, picture=None if file is None else str(file))


def _add(name: str, command: Callable[..., Any]) -> None:
    """Add a command with the examples of its row."""
    app.command(name, cls=Command, epilog=epilog(row_named(f"dynamics-{name}").examples))(guarded(command))


_add("simulate", simulate_command)
_add("apply", single_command(row_named("dynamics-apply")))
