"""`repflow list`, `verify` and `export`: what is stored, whether it is sound, and in other formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import FAILED, Progress, note, quiet, stdout_console
from repflow.cli.measure import RUNS
from repflow.errors import InputError, teach
from repflow.studies.compare_config import CompareConfig
from repflow.studies.diagnose import DiagnoseConfig
from repflow.studies.measure import MeasureConfig
from repflow.studies.probe_config import ProbeConfig
from repflow.studies.reproduce import ReproduceConfig

if TYPE_CHECKING:
    from repflow.store import RunSummary

RUN = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, such as runs/NAME.")]


def list_command(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder of runs, or one run.")] = RUNS,
) -> None:
    """List the runs in DIR: model, task, how far each has come."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from repflow.store import list_runs

    runs = list_runs(folder)
    if not runs:
        print(f"no runs in {folder}")
        return
    table = Table(box=box.SIMPLE)
    for title in ("run", "model", "task", "prompts", "state"):
        # folded, not cut: a name must be there to copy
        table.add_column(title, justify="right" if title == "prompts" else "left", overflow="fold")
    for run in runs:
        table.add_row(Text(run.name), Text(run.model), Text(run.task), _prompts(run), Text(_state(run)))
    stdout_console().print(table)


def _prompts(run: RunSummary) -> str:
    return f"{'?' if run.done is None else run.done}/{'?' if run.total is None else run.total}"


def _state(run: RunSummary) -> str:
    if run.damaged:
        return f"damaged: {run.damaged}"
    return "finished" if run.finished else "unfinished"


def verify_command(
    run: RUN,
    repair: Annotated[bool, typer.Option("--repair", help="Recompute what is damaged.")] = False,
) -> None:
    """Compare every stored byte of RUN with its digest and name what is damaged."""
    from repflow.store import heal, verify

    found = verify(run)
    for damage in found:
        print(f"damaged: {damage}")
    if not found:
        print(f"{run} is sound")
        return
    if not repair:
        note(f"`repflow verify --repair {run}` recomputes what is damaged")
        raise typer.Exit(FAILED)
    heal(run)
    rerun(run)
    left = verify(run)
    for damage in left:
        print(f"still damaged: {damage}")
    if left:
        raise typer.Exit(FAILED)
    print(f"{run} is repaired")


def rerun(run: Path) -> None:
    """Give the stored request of a run again, so that what was discarded is computed anew."""
    from repflow.store import read_record
    from repflow.studies import compare, diagnose, measure, probe, reproduce

    stored = read_record(run).config
    folder = run.resolve()
    kinds: list[tuple[Any, Callable[..., Any]]] = [
        (MeasureConfig, measure.run),
        (CompareConfig, compare.run),
        (ReproduceConfig, reproduce.run),
        # a leak was allowed, or the run would not be there
        (ProbeConfig, lambda config, **to: probe.run(replace(config, allow_leak=True), **to)),
        (DiagnoseConfig, lambda config, **to: diagnose.run(replace(config, allow_leak=True), **to)),
    ]
    for kind, study in kinds:
        live = any(str(value).startswith("live:") for value in stored.values())
        if stored.keys() <= {field.name for field in fields(kind)} and not live:
            with quiet(), Progress(folder.name) as progress:
                study(kind(**stored), out=folder.parent, name=folder.name, progress=progress)
            return
    raise InputError(
        teach(
            f"a run of `repflow measure`, `compare`, `probe`, `diagnose` or `reproduce` in {run} to recompute",
            "a run of another command or of a live model",
            "what was damaged is discarded; run its command again, it computes that anew",
        )
    )


def export_command(
    run: RUN,
    to: Annotated[str, typer.Option("--to", help="Format: parquet, npz, csv or netcdf.")],
    out: Annotated[Path | None, typer.Option("--out", help="File or folder to write; default RUN.SUFFIX here.")] = None,
) -> None:
    """Write the result of RUN in another format."""
    from repflow.store import export

    path = export(run, to, out if out is not None else Path())
    print(f"wrote {path}")
