"""`repflow recall`: train a grid of stacks on multi-query associative recall, cost first, resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from repflow.cli.console import ProgressLine, note, quiet
from repflow.cli.options import AS_JSON, make_config, with_options
from repflow.cli.study import RUNS, json_object, show_result
from repflow.store.disk import check_place
from repflow.studies.recall.config import RecallConfig


@with_options(RecallConfig)
def command(
    out: Annotated[Path, typer.Option("--out", help="folder of runs; half-trained models lie beside the run")] = RUNS,
    name: Annotated[str | None, typer.Option("--name", help="name of the run")] = None,
    as_json: AS_JSON = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what it costs, and train nothing")] = False,
    **options: Any,
) -> None:
    """Train a grid of stacks on multi-query associative recall: accuracy by pairs and by distance, beside their decays.

    Every row, depth, width, rate and seed is one model. Models of one shape are trained side by side. A stopped or
    killed run resumes when the same command runs again.
    """
    from repflow.studies.recall.study import STUDY, cost_words

    check_place(out)
    config = make_config(RecallConfig, options)
    STUDY.check_request(config, name)
    place = name or STUDY.find_name(config, out)
    note(f"{place}: {cost_words(config)}")
    if dry_run:
        for cell in config.grid():
            print(cell)
        return
    with quiet(), ProgressLine("recall") as progress:
        result = STUDY.run(config, out=out, name=place, progress=progress)
    if as_json:
        print(json.dumps(json_object(result, out / place), allow_nan=False))
    else:
        show_result(STUDY.name, result, [out / place])
