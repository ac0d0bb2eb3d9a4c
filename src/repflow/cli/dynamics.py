"""`repflow dynamics`: paper 3's token dynamics for given parameters, and its prediction beside a real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import ProgressLine, guarded, note, quiet, stdout_console
from repflow.cli.help import Command, complete_model
from repflow.cli.options import AS_JSON, MODEL_HELP, make_config, or_zoo, with_options
from repflow.cli.study import RUNS, short_name
from repflow.store.disk import check_place
from repflow.store.name import check_name
from repflow.studies.dynamics.apply import ApplyConfig
from repflow.studies.dynamics.simulate import SimulateConfig

if TYPE_CHECKING:
    from repflow.core.results import Result

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
    """Simulate tokens under paper 3's dynamics: which scenario, how fast, when and where a token blows up.

    One dimension: --x0 0.5,1.5 --mu 1 --s-delta 1 --a 1. More: --x0 "1,2;3,4" --mu "1,0;0,-1" --s-delta "0,0;0,0".
    """
    from repflow.studies.dynamics.simulate import STUDY, check_request, run

    check_place(out)
    config = make_config(SimulateConfig, options)
    check_request(config)
    place = check_name(STUDY.find_name(config, out) if name is None else name)
    note(f"{place}: simulating")
    result = run(config, out=out, name=place)
    from repflow.report.terminal.dynamics import simulation_view

    show(result, out, place, simulation_view, as_json=as_json, picture=not no_picture)


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
    """Compare MODEL's Mamba layers with paper 3: eigenvalue signs of S_C'S_B, the sign of x'Mx, norms through depth.

    The paper's prediction is of tied weights without norms, gates and convolutions; the table puts it beside what the
    tokens of this model do, with its norms and without those at the stream.
    """
    from repflow.studies.dynamics.apply import STUDY, check_request, run

    check_place(out)
    (model,) = or_zoo(model, "mamba")
    config = make_config(ApplyConfig, {**options, "model": model})
    check_request(config, name)
    place = name or STUDY.find_name(config, out)
    with quiet(), ProgressLine(short_name(model)) as progress:
        result = run(config, out=out, name=place, progress=progress)
    from repflow.report.terminal.dynamics import apply_view

    show(result, out, place, apply_view, as_json=as_json, picture=False)


def show(
    result: Result, out: Path, name: str, view: Callable[[Result], list[Any]], *, as_json: bool, picture: bool
) -> None:
    """Draw and print a result that is stored under a name."""
    file = None
    if picture:
        from repflow.report.draw.dynamics import write_picture

        file = write_picture(result, out / f"{name}.html")
    if as_json:
        content = {"run": str(out / name), "picture": None if file is None else str(file), **result.to_json()}
        print(json.dumps(content, allow_nan=False), flush=True)
        return
    console = stdout_console()
    for part in view(result):
        console.print(part, markup=False, highlight=False)
    for written in [out / name, *([] if file is None else [file])]:
        console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)


app.command("simulate", cls=Command)(guarded(simulate_command))
app.command("apply", cls=Command)(guarded(apply_command))
