"""`repflow twins`: a model against its random twins, over inits, seeds and lengths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, ProgressLine, import_torch, note, quiet, stdout_console
from repflow.cli.help import complete_model
from repflow.cli.options import AS_JSON, MODEL_HELP, make_config, or_zoo, with_options
from repflow.cli.scale import take_part
from repflow.cli.study import RUNS, json_object, short_name
from repflow.store.disk import check_place
from repflow.studies.twins.study import STUDY, SUMMARY, TwinsConfig, judged, study_name

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.engine.cell import Cell


@with_options(TwinsConfig, skip=("model",))
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
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the study is a folder in it")] = RUNS,
    name: Annotated[
        str | None, typer.Option("--name", help="name of the study's folder; by default from model and task")
    ] = None,
    as_json: AS_JSON = False,
    **options: Any,
) -> None:
    """Compare MODEL with random twins: is the shape of token similarity over depth architecture or training?

    Late minus early similarity of every cell, with intervals over prompts and seeds. It is called architectural only
    where its sign is the same in every cell, for all schemes and n = 128 … 2K; else the cells that break are named.
    Cells that are finished are skipped when the command is run again.
    """
    check_place(out)
    (model,) = or_zoo(model, "gpt-neox")
    config = make_config(TwinsConfig, {**options, "model": model})
    STUDY.check_request(config, name)
    folder = out / (name or study_name(config, out))

    def progress(cell: Cell) -> ProgressLine:
        return ProgressLine(cell.name)

    take_part(STUDY, {folder.name: config}, out)
    note(f"{short_name(config.model)}: loading")
    with quiet():
        import_torch()
        result = judged(config, out, name, progress=progress, note=note)
    if as_json:
        print(json.dumps(json_object(result, folder / SUMMARY), allow_nan=False), flush=True)
    else:
        _print(result, folder)
    raise typer.Exit(FAILED if result.provenance["failed"] else DONE)


def _print(result: Result, folder: Path) -> None:
    from repflow.report.terminal.twins import view

    console = stdout_console()
    for part in view(result):
        console.print(part)
    console.print(f"wrote {folder}", markup=False, highlight=False, soft_wrap=True)
