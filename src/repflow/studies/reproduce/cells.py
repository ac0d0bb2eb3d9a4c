"""Running a recipe's cells one after the other; finished ones are read from their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repflow.studies.engine.cells import HeldModel, Status, attempt, free_first, stored_result, work_on
from repflow.studies.engine.opening import check_reused
from repflow.studies.reproduce.plan import ReproduceCell, ReproducePlan

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result

Label = Callable[[int, int, ReproduceCell], "Progress"]


@dataclass(frozen=True)
class CellOutcome:
    """What became of a cell.

    Attributes:
        cell: the cell.
        status: `finished`; `cannot run` when the request does not fit the model; `failed` for anything else.
        reason: why it is not finished.
        result: the result of a finished cell.
        error: what was raised.
    """

    cell: ReproduceCell
    status: Status
    reason: str = ""
    result: Result | None = None
    error: Exception | None = None


def run_cells(plan: ReproducePlan, label: Label | None = None) -> Iterator[CellOutcome]:
    """Run the cells of a plan.

    Args:
        plan: what to run.
        label: gives the callback for a cell from its number, the number of cells, and the cell.
    """
    held = HeldModel()

    def run(numbered: tuple[int, ReproduceCell]) -> CellOutcome:
        number, cell = numbered
        progress = None if label is None else label(number, len(plan.cells), cell)
        return _run_cell(plan, cell, held, progress)

    yield from free_first(list(enumerate(plan.cells, start=1)), run, lambda numbered: plan.folder / numbered[1].name)


def _run_cell(plan: ReproducePlan, cell: ReproduceCell, held: HeldModel, progress: Progress | None) -> CellOutcome:
    def work() -> Result:
        stored = stored_result(plan.folder / cell.name)
        if stored is None:
            return work_on(cell.config, held, plan.folder, cell.name, progress)
        check_reused(plan.folder / cell.name, cell.config.model, cell.config.trust_remote_code)
        return stored

    return CellOutcome(cell, *attempt(work))
