"""`repflow reproduce`: a figure or table of the three papers, ours beside what is printed."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import (
    DONE,
    FAILED,
    WRONG_REQUEST,
    ProgressLine,
    import_torch,
    note,
    quiet,
    say,
    stdout_console,
)
from repflow.cli.options import AS_JSON, make_config, with_options
from repflow.cli.scale import reason_lines, take_part
from repflow.cli.study import RUNS
from repflow.core.errors import InputError, teach
from repflow.store.disk import check_place
from repflow.studies.engine.parts import help_of, words
from repflow.studies.reproduce.config import ReproduceConfig

if TYPE_CHECKING:
    from repflow.core.results import Result
    from repflow.studies.reproduce.cost import ReproduceCost
    from repflow.studies.reproduce.preflight import Preflight
    from repflow.studies.reproduce.recipe import ReproduceCell

HELP = {name: help_of(ReproduceConfig, name) for name in ("recipe", "models", "tasks", "lengths")}
PICTURES = {"dynamics-figure": "repflow.report.draw.dynamics"}
"""Stored study whose comparison has a picture beside it → module with `write_picture`."""


def _list(*, as_json: bool) -> None:
    """Print all recipes."""
    from repflow.core.recipes import RECIPES
    from repflow.report.terminal.reproduce import recipe_tables

    if as_json:
        print(json.dumps({"recipes": [asdict(row) for row in RECIPES]}, allow_nan=False), flush=True)
        return
    for part in recipe_tables(RECIPES):
        stdout_console().print(part)


@with_options(ReproduceConfig, skip=("recipe", "models", "tasks", "lengths"))
def command(
    recipe: Annotated[str, typer.Argument(metavar="[RECIPE]", help=HELP["recipe"], show_default=False)] = "",
    model: Annotated[list[str] | None, typer.Option("--model", help=HELP["models"])] = None,
    task: Annotated[list[str] | None, typer.Option("--task", help=HELP["tasks"])] = None,
    length: Annotated[list[str] | None, typer.Option("--length", help=HELP["lengths"])] = None,
    out: Annotated[Path, typer.Option("--out", help="folder of runs")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run that holds the comparison")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="start at scale paper, having seen what it costs")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="check and print what will run, its cost, and stop")
    ] = False,
    as_json: AS_JSON = False,
    listing: Annotated[bool, typer.Option("--list", help="print all recipes and stop")] = False,
    **options: Any,
) -> None:
    """Reproduce a figure or table of three papers: run the study behind it, print ours beside what is printed.

    flow-*: paper 1 (arXiv 2510.06640, representation flow), ours beside the printed values; flow-check runs no model,
    it recomputes Table 1 from Table 2 and lists where tables, text and summaries disagree.
    recency-*: paper 2 (arXiv 2501.00658, recency and over-smoothing), its statements beside ours.
    dynamics-*: paper 3 (token dynamics of S6), simulated, with a picture; they need no model.
    Verdicts are holds, partly holds, does not hold and open. Runs are stored and shared between recipes; an interrupted
    command resumes.
    """
    from repflow.spec.length import parse_length
    from repflow.store.name import check_name
    from repflow.studies.engine.table import study_for
    from repflow.studies.reproduce.study import STUDY, reproduce, run_name

    if listing:
        _list(as_json=as_json)
        return
    if not recipe:
        raise InputError(teach("a RECIPE", "none", "see `repflow reproduce --list`"))
    check_place(out)
    options["states"] = None if options["states"] is None else words(options["states"])
    config = make_config(ReproduceConfig, {**options, "recipe": recipe})
    config = replace(
        config,
        models=list(model or []),
        tasks=words(task or []),
        lengths=[parse_length(word) for word in words(length or [])],
    )
    called = check_name(run_name(config) if name is None else name)
    if not _may_start(config, out, yes=yes, dry_run=dry_run, as_json=as_json):
        return

    def label(number: int, count: int, cell: ReproduceCell) -> ProgressLine:
        return ProgressLine(f"{number}/{count} {cell.name}", study_for(cell.config).counts)

    take_part(STUDY, {called: config}, out)
    with quiet():
        result = reproduce(config, out, called, label)
    _print(result, out, called, as_json=as_json)
    raise typer.Exit(_code(result))


def _may_start(config: ReproduceConfig, out: Path, *, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """Print what will run and its cost; refuse a start without room on the disk, or at scale paper without --yes."""
    from repflow.studies.reproduce.cost import estimate
    from repflow.studies.reproduce.preflight import preflight
    from repflow.studies.reproduce.study import plan

    with quiet():
        work = plan(config, out)
    if work.cells:
        note(f"{config.recipe}: looking at models and cost")
        import_torch()
    with quiet():
        cost = estimate(work)
        checked = preflight(work, cost)
    if dry_run and as_json:
        print(json.dumps(cost.to_json() | checked.to_json(), allow_nan=False), flush=True)
    elif dry_run or work.cells:
        lines = [*checked.lines(), *(_cost_lines(cost) if work.cells else []), *_check_lines(checked)]
        _print_lines(lines, to_stderr=as_json or not dry_run)
    if dry_run:
        if checked.problems:
            raise typer.Exit(WRONG_REQUEST)
        return False
    if work.cells and config.scale == "paper" and not yes:
        raise InputError(teach("--yes to start at scale paper", "none", "the cost is above; --dry-run prints it alone"))
    if not checked.room:
        got = f"{_size(checked.free)} free, {_size(checked.needed)} needed"
        raise InputError(
            teach(f"room for the runs in {out}", got, "free some, choose another --out or fewer --samples")
        )
    return True


def _code(result: Result) -> int:
    """1 if a run failed, else 2 if one could not be run as asked."""
    statuses = {cell["status"] for cell in result.provenance.get("cells", [])}
    return FAILED if "failed" in statuses else WRONG_REQUEST if "cannot run" in statuses else DONE


def _print(result: Result, out: Path, name: str, *, as_json: bool) -> None:
    from repflow.report.terminal import view_of

    study, run = str(result.config.get("study", "reproduce")), out / name
    unfinished = [cell for cell in result.provenance.get("cells", []) if cell["status"] != "finished"]
    for line in reason_lines({cell["run"]: f"{cell['status']}: {cell['reason']}" for cell in unfinished}):
        note(line)
    written = [] if unfinished else [run]
    if study in PICTURES and not unfinished:
        written.append(importlib.import_module(PICTURES[study]).write_picture(result, out / f"{name}.html"))
    if as_json:
        content = {"run": None if unfinished else str(run)} | ({"picture": str(written[1])} if written[1:] else {})
        print(json.dumps({**content, **result.to_json()}, allow_nan=False), flush=True)
        return
    console = stdout_console()
    for part in view_of(study).view(result):
        console.print(part)
    lines = [f"wrote {place}" for place in written]
    if unfinished:
        lines.append("the comparison is not stored before every run is finished; rerun the command")
    elif result.provenance.get("runs"):
        runs = " ".join(dict.fromkeys(str(out / place) for place in result.provenance["runs"].values()))
        lines.insert(0, f"next: repflow figures {runs}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _check_lines(checked: Preflight) -> list[str]:
    """Room on the disk, then what is wrong or not known."""
    enough = "enough" if checked.room else "NOT ENOUGH"
    lines = [f"free: {_size(checked.free)} for {_size(checked.needed)} still to come, {enough}"]
    return [*lines, *(f"note: {text}" for text in checked.notes), *(f"wrong: {text}" for text in checked.problems)]


def _cost_lines(cost: ReproduceCost) -> list[str]:
    from repflow.studies.engine.cost import amount_words, pass_words

    least = "at least " if cost.unknown else ""
    # what small models take is bound by launches and their start, not by operations
    speed = f" at {cost.rate / 1e12:.0f} TFLOP/s" if cost.rate >= 1e12 else ""
    hours = f"{_hours(cost.pass_hours)}{speed}"
    if cost.gpu_hours > cost.pass_hours:
        hours += f", {_hours(cost.gpu_hours)} with meters, prompts and fits"
    lines = [
        f"{cost.runs} run{'s' * (cost.runs != 1)}, {amount_words(cost.prompts, cost.tokens, cost.trained)}",
        f"{pass_words(cost.passes)}: {least}{cost.flops:.2e} FLOP, {hours}",
        f"disk: {least}{_size(cost.run_bytes)} for results, {_size(cost.feature_bytes)} for states that probes read, "
        f"{_size(cost.download_bytes)} for checkpoints",
    ]
    return lines + [f"  {model}: size unknown before it is downloaded or read" for model in cost.unknown]


def _hours(count: float) -> str:
    return f"{count:,.{1 if count >= 1 else 3}f} GPU hours"


def _print_lines(lines: list[str], *, to_stderr: bool) -> None:
    for line in lines:
        if to_stderr:
            note(line)
        else:
            say(line)


def _size(count: int) -> str:
    """Bytes with a unit.

    >>> _size(3_200_000), _size(21_000_000_000)
    ('3.2 MB', '21.0 GB')
    """
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"
