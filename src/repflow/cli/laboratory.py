"""The command of a study that trains a grid of models: cost first, resumable. One for all of them.

Annotations are not postponed in this module: those of the command depend on the study.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from repflow.cli.console import ProgressLine, note, quiet
from repflow.cli.options import AS_JSON, make_config, with_options
from repflow.cli.scale import take_part
from repflow.cli.study import RUNS, json_object, show_result
from repflow.core.studies import StudyRow
from repflow.store.disk import check_place
from repflow.studies.engine.table import study_at


def laboratory_command(row: StudyRow) -> Callable[..., None]:
    """The command of a laboratory of the table."""
    study: Any = study_at(row)

    @with_options(study.config)
    def command(
        out: Annotated[Path, typer.Option("--out", help="folder of runs")] = RUNS,
        name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
        as_json: AS_JSON = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="say what it costs, and train nothing")] = False,
        **options: Any,
    ) -> None:
        from repflow.studies.laboratory.cost import cost_words

        check_place(out)
        config = make_config(study.config, options)
        study.check_request(config, name)
        place = name or study.find_name(config, out)
        note(f"{place}: {cost_words(study, config)}")
        if dry_run:
            _show_cost(study, config, as_json=as_json)
            return
        take_part(study, {place: config}, out)
        with quiet(), ProgressLine(row.command, study.counts) as progress:
            result = study.run(config, out=out, name=place, progress=progress)
        if as_json:
            print(json.dumps(json_object(result, out / place), allow_nan=False))
        else:
            kept = out / f"{place}.models"
            show_result(study.name, result, [out / place, *([kept] if config.keep_models else [])])

    command.__doc__ = study.summary
    return command


def _show_cost(study: Any, config: Any, *, as_json: bool) -> None:
    """Cells on stdout and what they cost on stderr, or all of it as one object."""
    from repflow.studies.laboratory.cost import estimate

    with quiet():
        if study.has_data(config):
            study.check_data(config)
        cost = estimate(study, config)
    cells = config.grid()
    if as_json:
        rows = [{"cell": str(cell), "command": config.command(cell)} for cell in cells]
        print(json.dumps({**cost.to_json(), "cells": rows}, allow_nan=False))
        return
    for line in cost.lines(config.seconds):
        note(line)
    for cell in cells:
        print(cell)
