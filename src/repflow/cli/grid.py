"""`repflow run`: a grid of runs of any study from a STUDY.toml, its cost first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repflow.cli.console import DONE, FAILED, ProgressLine, import_torch, note, quiet, say, stdout_console
from repflow.cli.options import ALLOW_CODE, TRUST_REMOTE_CODE, make_config, with_options
from repflow.cli.scale import be_worker, check_engine, plan_of, spread, warm_up
from repflow.cli.spread import is_command, run_command
from repflow.cli.study import RUNS, json_object
from repflow.core.trust import Trust
from repflow.store.disk import check_place
from repflow.studies.scale.config import ScaleConfig

if TYPE_CHECKING:
    from repflow.studies.engine.cells import Outcome
    from repflow.studies.engine.cost import Cost
    from repflow.studies.scale.order import Order


@with_options(ScaleConfig)
def command(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="STUDY.toml | -- COMMAND...", help="lists of models, tasks, lengths, inits, seeds; or a command"
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the cost and stop; nothing is written")] = False,
    part: Annotated[str, typer.Option("--part", help="run share i of k, written i/k, to split a grid")] = "1/1",
    out: Annotated[Path, typer.Option("--out", help="folder of runs; the study is a folder in it")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object per cell, nothing else")] = False,
    allow_code: ALLOW_CODE = False,
    trust_remote_code: TRUST_REMOTE_CODE = False,
    **options: Any,
) -> None:
    """Run a study on every combination of the models, tasks, lengths, inits and seeds that STUDY.toml lists.

    Prints the cost first. Cells that are finished are skipped when the command is run again; one that cannot run is
    stored with its reason and shown as a dash. Several commands, on one machine or many, may run the same study in one
    folder: each cell is run once. With -- COMMAND the work of another command is spread: its runs, the models that it
    trains, with --split its prompts.
    """
    from repflow.studies.engine.grid import parse_part, read_table
    from repflow.studies.engine.opening import config_bytes
    from repflow.studies.scale.config import check_scale
    from repflow.studies.scale.order import Order, divided

    parse_part(part)
    scale = make_config(ScaleConfig, options)
    check_scale(scale)
    check_engine(scale)
    if is_command(words):
        warm_up(scale)
        own = {"--dry-run": dry_run, "--part": part != "1/1", "--out": out != RUNS, "--json": as_json}
        own |= {"--allow-code": allow_code, "--trust-remote-code": trust_remote_code}
        raise typer.Exit(run_command(words, scale, [name for name, typed in own.items() if typed]))
    study = Path(words[0])
    check_place(out)
    trust = Trust(allow_code, trust_remote_code)
    before = {model: config_bytes(model) for model in read_table(study, trust).get("models", [])}
    asked = study.read_bytes()
    forked = not dry_run and warm_up(scale)
    note(f"{study.name}: looking at models and cost")
    with quiet():
        planned = plan_of(study, part, trust, apart=forked)
    cost, cells = planned.cost, planned.cells
    if dry_run and as_json:
        print(json.dumps(cost.to_json(), allow_nan=False), flush=True)
    else:
        _print_cost(cost, as_json or scale.worker)
    if dry_run:
        return
    order = Order(out / planned.name, tuple(divided(cell, scale.split) for cell in cells), store=scale.store)
    if scale.worker:
        be_worker(order, scale)
        _note_edit(study, asked)
        return
    names = spread(order, scale) if scale.many and cells else frozenset()
    same = {model for model, content in before.items() if config_bytes(model) == content}
    fresh = frozenset(cell.name for cell in cells if cell.name in names and getattr(cell.config, "model", None) in same)
    code = _run(order, retry=scale.retry_failed and not scale.many, as_json=as_json, fresh=fresh)
    _note_edit(study, asked)
    raise typer.Exit(code)


def _note_edit(study: Path, asked: bytes) -> None:
    """Say that the study's file was edited meanwhile: cells are those of the file that the cost was printed for."""
    try:
        same = study.read_bytes() == asked
    except OSError:
        same = False
    if not same:
        note(f"{study} was edited while this command ran, which did the cells that it began with; run it again")


def _run(order: Order, *, retry: bool, as_json: bool, fresh: frozenset[str]) -> int:
    from repflow.report.terminal.grid import grid_table, summary
    from repflow.studies.engine.cells import run_cells
    from repflow.studies.engine.table import study_for

    if order.cells:
        import_torch()
    rows: list[tuple[dict[str, Any], dict[str, float] | None]] = []
    statuses, reasons = [], dict[str, list[str]]()
    cells = order.cells
    numbers = {cell.name: f"{number}/{len(cells)} {cell.name}" for number, cell in enumerate(cells, start=1)}
    outcomes = run_cells(
        cells,
        order.folder,
        progress=lambda cell: ProgressLine(numbers[cell.name], study_for(cell.config).counts),
        retry=retry,
        store=order.store,
        fresh=fresh,
    )
    while True:
        with quiet():
            outcome = next(outcomes, None)
        if outcome is None:
            break
        statuses.append(outcome.status)
        request = {"study": study_for(outcome.cell.config).name, **asdict(outcome.cell.config)}
        rows.append((request, None if outcome.result is None else summary(outcome.result)))
        if outcome.status != "finished":
            alike = reasons.setdefault(outcome.reason, [])  # a missing model has many cells
            if not alike:
                note(f"{outcome.cell.name}: {outcome.status}: {outcome.reason}")
            alike.append(outcome.cell.name)
        if as_json:
            print(json.dumps(_json(outcome), allow_nan=False), flush=True)
    for first, *others in reasons.values():
        if others:
            note(f"{len(others)} more cell{'s' * (len(others) > 1)} without a result, for the reason of {first}")
    if rows and not as_json:
        console = stdout_console()
        console.print(grid_table(rows))
        console.print(f"wrote {order.folder}", markup=False, highlight=False, soft_wrap=True)
    counted = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    note(f"{len(statuses)} cells: {counted or 'none in this part'}")
    if statuses.count("finished") < len(statuses):
        note("a cell without a result keeps its reason; --retry-failed tries it again")
    return FAILED if "failed" in statuses else DONE


def _json(outcome: Outcome) -> dict[str, Any]:
    """The object of `repflow measure --json` for a finished cell, with null metrics and the reason for another."""
    head = {"cell": outcome.cell.name, "status": outcome.status, "reason": outcome.reason or None}
    if outcome.result is not None:
        return head | json_object(outcome.result, outcome.path)
    config = outcome.cell.config
    empty: dict[str, Any] = {"metrics": None, "findings": [], "provenance": None}
    return head | {
        "run": None,
        "model": getattr(config, "model", None),
        "task": getattr(config, "task", None),
        **empty,
        "config": asdict(config),
    }


def _print_cost(cost: Cost, to_stderr: bool) -> None:
    from repflow.studies.engine.cost import amount_words, operation_words, pass_words

    lines = [f"{cost.cells} cells, {amount_words(cost.prompts, cost.tokens, cost.trained)}"]
    for model, count in cost.parameters.items():
        lines.append(f"  {model}: {'size unknown before it is downloaded or read' if count is None else _count(count)}")
    least = "at least " if cost.unknown else ""
    each = operation_words(cost.passes)
    lines.append(f"{pass_words(cost.passes)}: {least}{cost.flops:.2e} FLOP ({each})")
    lines.append(f"disk: {least}about {cost.disk_bytes / 1e6:,.1f} MB")
    for line in lines:
        if to_stderr:
            note(line)
        else:
            say(line)


def _count(parameters: int) -> str:
    """Parameters with a unit.

    >>> _count(124_439_808), _count(5120)
    ('124.4 M parameters', '5,120 parameters')
    """
    if parameters < 1e5:
        return f"{parameters:,} parameters"
    return f"{parameters / 1e6:,.1f} M parameters"
