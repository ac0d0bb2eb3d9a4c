"""Reproduce: a figure or table of the papers, ours beside what is printed. One engine for every recipe.

The runs of a recipe lie in `OUT/PAPER-SCALE` (`flow-tiny`, `recency-zoo` ...), shared between recipes and resumed when
they were cut; the comparison is the run `OUT/NAME`, stored once all of them are finished.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repflow.core.seconds import CLOCK
from repflow.studies.engine.cells import Outcome, run_cells
from repflow.studies.engine.naming import Names
from repflow.studies.engine.opening import keep_result
from repflow.studies.engine.study import BaseStudy, Call
from repflow.studies.engine.table import study_for
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.models import STAND_IN, make_tiny, stand_ins
from repflow.studies.reproduce.recipe import ReproduceCell, ReproducePlan, check_options, recipe_named

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Finding, Result
    from repflow.studies.engine.cell import Work

__all__ = ["STUDY", "ReproduceConfig", "plan", "reproduce", "run", "run_name"]

Label = Callable[[int, int, ReproduceCell], "Progress"]
"""Gives the callback for a cell from its number, the number of cells, and the cell."""
MODELS = "models"
"""Folder of the tiny models, beside the runs."""


def plan(config: ReproduceConfig, out: str | Path) -> ReproducePlan:
    """Work out the runs and printed values of a request; nothing is loaded or written."""
    recipe = recipe_named(config.recipe)
    check_options(recipe, config)
    config = recipe.settled(config)
    folder = Path(out) / f"{recipe.row.family}-{config.scale}"
    models = stand_ins(config, recipe.roles, folder / MODELS) if recipe.roles else {}
    printed = tuple(recipe.printed(config, models))
    cells = tuple(recipe.cells(config, models))
    for cell in cells:
        study_for(cell.config).check_request(cell.config, cell.name)
    return ReproducePlan(config, recipe, models, cells, printed, folder)


def reproduce(
    config: ReproduceConfig,
    out: Path | None,
    name: str | None = None,
    label: Label | None = None,
    begun: dict[str, float] | None = None,
) -> Result:
    """Run what is missing of a recipe, compare and store.

    Args:
        config: what to reproduce.
        out: folder of runs; None keeps the comparison in memory only.
        name: name of the run that holds the comparison.
        label: gives the callback for a cell from its number, the number of cells, and the cell.
        begun: seconds by phase at the start of the work, if that was earlier.

    Returns:
        Result: what the recipe compares, with rows or lines, cells and verdicts under `provenance`. It is stored once
        every cell is finished; `provenance["cells"]` says which are not, and why.
    """
    begun = CLOCK.seconds() if begun is None else begun
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as folder:
        work = plan(config, folder)
        make_tiny(work.folder / MODELS, [model.made_here for model in work.models.values() if model.made_here])
        outcomes = list(outcomes_of(work, label))
        result = compared(work, outcomes)
        result.config = ({"study": work.recipe.stored_as} if work.recipe.stored_as else {}) | work.recipe.asked(config)
        results = [outcome.result for outcome in outcomes if outcome.result is not None]
        if out is not None and len(results) == len(outcomes):
            keep_result(result, out, name or STUDY.run_name(config), work.recipe.made_with(results), begun)
    return result


def outcomes_of(plan: ReproducePlan, label: Label | None = None) -> Iterator[Outcome]:
    """Run the cells of a plan one after the other; finished ones are read from their runs.

    Args:
        plan: what to run.
        label: gives the callback for a cell.
    """
    numbers = {id(cell): number for number, cell in enumerate(plan.cells, start=1)}

    def progress(cell: Any) -> Progress:
        assert label is not None
        return label(numbers[id(cell)], len(plan.cells), cell)

    yield from run_cells(plan.cells, plan.folder, progress=None if label is None else progress)


def compared(plan: ReproducePlan, outcomes: Sequence[Outcome]) -> Result:
    """What the recipe makes of its cells, with what every comparison says: title, cells, stand-ins."""
    result = plan.recipe.compare(plan, outcomes)
    facts: dict[str, Any] = {"title": plan.recipe.row.shows}
    facts |= {"note": plan.recipe.note} if plan.recipe.note else {}
    if plan.cells:
        facts["cells"] = [
            {"run": f"{plan.folder.name}/{outcome.cell.name}", "status": outcome.status, "reason": outcome.reason}
            for outcome in outcomes
        ]
    result.provenance = {**facts, **result.provenance}
    result.findings += _findings(plan, outcomes)
    return result


def _findings(plan: ReproducePlan, outcomes: Sequence[Outcome]) -> list[Finding]:
    from repflow.core.results import Finding

    findings = []
    if any(not model.own for model in plan.models.values()):
        message = f"{'small random' if plan.random else 'other'} models stand for the paper's: {STAND_IN}"
        findings.append(Finding("stand_in", None, message))
    missing = [outcome for outcome in outcomes if outcome.status != "finished"]
    if missing:
        first = f"{missing[0].cell.name}: {missing[0].reason}"
        message = f"{len(missing)} of {len(outcomes)} runs are missing, such as {first}"
        findings.append(Finding("unfinished", None, message))
    return findings


class Reproduce(BaseStudy[ReproduceConfig]):
    """Figures and tables of the papers, ours beside what is printed. Made of other studies' runs."""

    name = "reproduce"
    config = ReproduceConfig
    named = False
    one_model = False

    def check(self, config: ReproduceConfig) -> None:
        """Refuse what no recipe is, and what its own studies refuse."""
        plan(config, "runs")

    def work(self, config: ReproduceConfig, out: Path, name: str, split: int = 1) -> Work:
        """Its runs, each divided as its own study divides it; tiny models are made at once."""
        from repflow.studies.engine.cell import Cell, Work

        whole = plan(config, out)
        make_tiny(whole.folder / MODELS, [model.made_here for model in whole.models.values() if model.made_here])
        by_name = {cell.name: cell.config for cell in whole.cells}
        cells = [Cell(name, own, study_for(own).shares(own, split)) for name, own in by_name.items()]
        return Work(whole.folder, tuple(cells))

    def conduct(self, config: ReproduceConfig, call: Call) -> Result:
        """Run what is missing of a recipe, compare and store."""
        progress = call.progress
        label: Label | None = None if progress is None else lambda *_: progress
        return reproduce(config, call.out, call.name, label, call.begun)

    def names(self, config: ReproduceConfig) -> Names:
        """Recipe, scale and a hash of the request."""
        return recipe_named(config.recipe).names(config)


STUDY = Reproduce()
run = STUDY.run
run_name = STUDY.run_name
