"""Running a grid: cell after cell, each model loaded once in a row; a cell that cannot run does not stop the others."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from repflow.core.errors import InputError, RunLockedError, StoreError, UnsupportedModelError
from repflow.studies.engine.grid import Cell
from repflow.studies.engine.loading import load_model
from repflow.studies.engine.opening import check_reused
from repflow.studies.engine.study import ONE
from repflow.studies.engine.table import study_for

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model

Status = Literal["finished", "cannot run", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: the cell.
        path: folder of its run.
        status: `finished`; `cannot run` when the request does not fit the model; `failed` for anything else, such as a
            broken checkpoint or a full disk.
        reason: why it is not finished.
        result: the result of a finished cell.
        error: what was raised.
    """

    cell: Cell
    path: Path
    status: Status
    reason: str = ""
    result: Result | None = None
    error: Exception | None = None


def run_cells(
    cells: Sequence[Cell], folder: Path, *, progress: Callable[[Cell], Progress] | None = None
) -> Iterator[Outcome]:
    """Run cells one after the other; a finished one is read from its run without loading its model.

    A cell that cannot run or failed leaves NAME.json with the reason in the folder, and is tried again next time: the
    model may have been downloaded, the disk emptied.

    Args:
        cells: what to run.
        folder: folder of the study, created where missing.
        progress: gives the callback for a cell.
    """
    models_held = HeldModel()

    def run(cell: Cell) -> Outcome:
        return run_cell(cell, folder, models_held, None if progress is None else progress(cell))

    for outcome in free_first(cells, run, lambda cell: study_for(cell.config).result_place(folder / cell.name)):
        _note(outcome, folder)
        yield outcome


C = TypeVar("C")
Done = TypeVar("Done", bound="HasError")


@runtime_checkable
class HasError(Protocol):
    """An outcome, whatever its study."""

    @property
    def error(self) -> Exception | None:
        """What was raised."""


def free_first(cells: Sequence[C], run: Callable[[C], Done], path: Callable[[C], Path]) -> Iterator[Done]:
    """Run cells; one that another process is running is left until the others are done, and then waited for.

    So two processes side by side share a grid's work, and each ends with all of it.

    Args:
        cells: what to run.
        run: runs a cell, or reads it where it is finished.
        path: folder of a cell's run.

    Yields:
        An outcome for each cell, in their order.
    """
    done: list[Done | None] = []
    ready_until = 0
    for cell in cells:
        outcome = run(cell)
        done.append(None if isinstance(outcome.error, RunLockedError) else outcome)
        while ready_until < len(done) and (ready := done[ready_until]) is not None:
            yield ready
            ready_until += 1
    for place in range(ready_until, len(cells)):
        ready = done[place]
        yield _waited(cells[place], run, path(cells[place])) if ready is None else ready


def _waited(cell: C, run: Callable[[C], Done], path: Path) -> Done:
    from repflow.store.lock import wait_for_writer

    while True:
        elsewhere = wait_for_writer(path)
        outcome = run(cell)
        if not elsewhere or not isinstance(outcome.error, RunLockedError):
            return outcome


def run_cell(cell: Cell, folder: Path, holder: HeldModel, progress: Progress | None) -> Outcome:
    """Run one cell, or say why it could not be."""
    path = study_for(cell.config).result_place(folder / cell.name)

    def work() -> Result:
        stored = stored_result(path)
        if stored is not None:
            if hasattr(cell.config, "model"):  # some studies make their models themselves
                check_reused(path, cell.config.model, cell.config.trust_remote_code)
            return stored
        return work_on(cell.config, holder, folder, cell.name, progress)

    return Outcome(cell, path, *attempt(work))


def work_on(config: Any, holder: HeldModel, folder: Path, name: str, progress: Progress | None) -> Result:
    """Run the study that a config belongs to, on the model that is held where it takes one."""
    study = study_for(config)
    models = {ONE: holder.load(config)} if study.one_model else None
    return study.run(config, models=models, out=folder, name=name, progress=progress)


def attempt(work: Callable[[], Result]) -> tuple[Status, str, Result | None, Exception | None]:
    """Do the work of a cell: status, reason, result and error, in the order of `Outcome`."""
    try:
        return "finished", "", work(), None
    except StoreError as error:  # some are InputErrors too, but a full disk or a lock says nothing about the cell
        return "failed", str(error), None, error
    except InputError as error:
        return "failed" if is_damage(error) else "cannot run", str(error), None, error
    except Exception as error:  # noqa: BLE001  one cell must not take the rest of the grid down
        return "failed", f"{type(error).__name__}: {error}", None, error


def is_damage(error: InputError) -> bool:
    """Whether a checkpoint's file is broken: the cell could run, so its failing must not pass for a dash."""
    from safetensors import SafetensorError

    broken = isinstance(error.__cause__, SafetensorError | EOFError | RuntimeError)
    return broken and not isinstance(error, UnsupportedModelError)


def stored_result(path: Path) -> Result | None:
    """Result of a finished run; None if there is none that is whole."""
    from repflow.store import list_runs, load_result

    if not path.is_dir():
        return None
    summaries = list_runs(path)
    if not summaries or not summaries[0].finished or summaries[0].damaged:
        return None
    try:
        return load_result(path)
    except StoreError:
        return None  # the run itself says what is wrong with it


class HeldModel:
    """The model loaded last, for cells in a row that share it; a model that could not be loaded is not tried again."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._held: Model | Exception | None = None

    def load(self, config: Any) -> Model:
        """Load the model of a cell unless it is held."""
        key = model_key(config)
        if key != self._key:
            self._key, self._held = key, None
            gc.collect()  # the last model's memory before the next one's
            try:
                self._held = load_model(config)
            except Exception as error:  # noqa: BLE001  raised again below, for every cell of this model
                self._held = error
        if isinstance(self._held, Exception):
            raise self._held
        assert self._held is not None
        return self._held


def model_key(config: Any) -> tuple[Any, ...]:
    """What decides which weights are loaded, and where to; the seed only where weights are random."""
    random = config.init != "trained" or config.model.startswith("config:")
    own = getattr(config, "init_seed", None)
    seed = config.seed if own is None else own
    named = ("tokenizer", "dtype", "device", "device_map", "scan", "trust_remote_code")
    place = tuple(getattr(config, name, None) for name in named)
    return (config.model, config.init, seed if random else None, tuple(getattr(config, "ablate", ())), *place)


def _note(outcome: Outcome, folder: Path) -> None:
    from repflow.store.disk import make_folder, write_atomic

    file = folder / f"{outcome.cell.name}.json"
    if outcome.status == "finished":
        if file.exists():
            with suppress(OSError):
                file.unlink()
        return
    content = {
        "cell": outcome.cell.name,
        "status": outcome.status,
        "reason": outcome.reason,
        "config": asdict(outcome.cell.config),
    }
    with suppress(StoreError):  # on a full disk the reason is at least told
        make_folder(folder)
        write_atomic(file, (json.dumps(content, indent=2) + "\n").encode())
