"""`repflow list`, `verify` and `export`: what is stored, whether it is sound, and in other formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from repflow.cli.console import FAILED, ProgressLine, note, quiet, say, stdout_console
from repflow.cli.help import complete_folder
from repflow.cli.options import ALLOW_CODE, AS_JSON, TRUST_REMOTE_CODE
from repflow.cli.study import RUNS
from repflow.cli.watch import follow
from repflow.core.errors import InputError, teach
from repflow.core.studies import row_of
from repflow.core.trust import Trust, check_trust
from repflow.studies.engine.table import study_at

RUN = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", autocompletion=complete_folder, help="folder of a run or of a grid, such as runs/NAME"
    ),
]


def list_command(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", autocompletion=complete_folder, help="folder of runs, or one run")
    ] = RUNS,
    as_json: AS_JSON = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="show who works on what in DIR until nobody does any more")
    ] = False,
) -> None:
    """List the runs in DIR: model, task, how far each has come; a grid is one line.

    --watch follows the workers of DIR and of the studies in it, on whichever machine they run.
    """
    from repflow.report.terminal.listing import list_table
    from repflow.store import list_runs

    if watch:
        follow(folder, as_json=as_json)
        return
    runs = list_runs(folder)
    if as_json:
        print(json.dumps([asdict(run) for run in runs], default=str, allow_nan=False), flush=True)
        return
    if not runs:
        say(f"no runs in {folder}")
        return
    stdout_console().print(list_table(runs))


def verify_command(
    run: RUN,
    repair: Annotated[bool, typer.Option("--repair", help="recompute what is damaged")] = False,
    as_json: AS_JSON = False,
    allow_code: ALLOW_CODE = False,
    trust_remote_code: TRUST_REMOTE_CODE = False,
) -> None:
    """Compare every stored byte of RUN with its digest and name what is damaged; of a grid, every run's.

    --repair runs the stored request again. Code that the request names runs only if this call allows it.
    """
    from repflow.store import is_study, runs_in

    runs = runs_in(run) if is_study(run) else [run]
    trust = Trust(allow_code, trust_remote_code)
    announce = note if as_json else say
    checked = [
        _verified(one, repair=repair, trust=trust, prefix=f"{one.name}/" if len(runs) > 1 else "", announce=announce)
        for one in runs
    ]
    sound = [not damages for damages in checked]
    if len(runs) > 1:
        announce(f"{sum(sound)} of {len(runs)} runs in {run} are sound")
    if as_json:
        rows = [{"run": str(one), "sound": not bad, "damage": bad} for one, bad in zip(runs, checked, strict=True)]
        print(json.dumps({"run": str(run), "sound": all(sound), "runs": rows}), flush=True)
    if not all(sound):
        raise typer.Exit(FAILED)


def _verified(run: Path, *, repair: bool, trust: Trust, prefix: str, announce: Callable[[str], None]) -> list[str]:
    """Check one run and say what is found; what is damaged and was not repaired."""
    from repflow.store import heal, is_start, verify

    if run.is_dir() and is_start(run):
        announce(f"{run} is still empty: it is starting, or was killed right away; rerun its command")
        return []
    damages = verify(run)
    for damage in damages:
        announce(f"damaged: {prefix}{damage}")
    if not damages:
        announce(f"{run} is sound")
        return []
    if not repair:
        note(f"`repflow verify --repair {run}` recomputes what is damaged")
        return [str(damage) for damage in damages]
    trusted_request(run, trust)  # before anything is discarded
    heal(run)
    rerun(run, trust)
    left = verify(run)
    for damage in left:
        announce(f"still damaged: {prefix}{damage}")
    if not left:
        announce(f"{run} is repaired")
    return [str(damage) for damage in left]


def trusted_request(run: Path, trust: Trust) -> dict[str, Any]:
    """The stored request of a run, refused where it names code that this call does not allow or that was changed."""
    from repflow.store import read_record

    record = read_record(run)
    check_trust(record.config, trust, f"the request stored in {run}", record.provenance.get("digests", {}))
    return record.config


def rerun(run: Path, trust: Trust) -> None:
    """Rerun the stored request of a run, so that what was discarded is recomputed."""
    stored = trusted_request(run, trust)
    folder = run.resolve()
    row = row_of(stored)
    models = [stored[name] for name in ("model", "model_a", "model_b") if name in stored]
    if row is None or any(str(model).startswith("live:") for model in models):
        raise _not_again(run)
    study = study_at(row)
    out, name = study.place(folder)
    with quiet(), ProgressLine(folder.name, study.counts) as progress:
        study.run(study.again(stored), out=out, name=name, progress=progress)


def _not_again(run: Path) -> InputError:
    return InputError(
        teach(
            f"a run in {run} whose request can be repeated",
            "a run of another command or of a live model",
            "the damaged parts are deleted; rerun its command to recompute them",
        )
    )


def export_command(
    run: RUN,
    to: Annotated[str, typer.Option("--to", help="format: parquet, npz, csv or netcdf")],
    out: Annotated[Path | None, typer.Option("--out", help="file or folder to write; default RUN.SUFFIX here")] = None,
    as_json: AS_JSON = False,
) -> None:
    """Write the result of RUN in another format; of a grid, the results of all its runs in one file."""
    from repflow.store import export

    path = export(run, to, out if out is not None else Path())
    if as_json:
        print(json.dumps({"run": str(run), "file": str(path)}), flush=True)
        return
    say(f"wrote {path}")
