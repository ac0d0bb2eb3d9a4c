"""Running a grid: cell after cell, each model loaded once in a row; a cell that cannot run does not stop the others."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repflow.core.errors import (
    DamagedRunError,
    DeviceLostError,
    InputError,
    RunLockedError,
    StoreError,
    UnsupportedModelError,
    device_fault,
    teach,
)
from repflow.store.claims.attempt import is_whole
from repflow.store.claims.board import Board, Hold, Policy, config_digest
from repflow.store.claims.liveness import Worker
from repflow.store.claims.protocol import Phase
from repflow.store.disk import UnwritableError
from repflow.store.lock import private, wait_for_writer
from repflow.store.merge import merge_runs
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.loading import identity, load_model
from repflow.studies.engine.opening import check_reused
from repflow.studies.engine.phase import tell
from repflow.studies.engine.spot import meeting, spot_of, stored_shares
from repflow.studies.engine.study import ONE
from repflow.studies.engine.table import study_for

if TYPE_CHECKING:
    from repflow.capture.run import Progress
    from repflow.core.results import Result
    from repflow.models import Model

Status = Literal["finished", "cannot run", "failed"]
POLL_SECONDS = 0.2
"""Between two looks at what others work on."""


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        cell: the cell.
        path: folder of its run.
        status: `finished`; `cannot run` when the request does not fit the model; `failed` for anything else, such as a
            broken checkpoint or a full disk.
        reason: why it is not finished.
        result: the result of a finished cell; None for a share, and for one that was finished before and is not read.
        error: what was raised.
        here: whether it was worked on here and now.
    """

    cell: Cell
    path: Path
    status: Status
    reason: str = ""
    result: Result | None = None
    error: Exception | None = None
    here: bool = False


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    progress: Callable[[Cell], Progress] | None = None,
    retry: bool = True,
    store: str | None = None,
    fresh: Collection[str] = (),
) -> Iterator[Outcome]:
    """Run cells one after the other; a finished one is read from its run without loading its model.

    Other processes and machines may work on the same folder: a cell that another one has claimed is left until the
    others are done, and then waited for, so that each ends with all cells. A cell that cannot run or failed leaves
    NAME.json with the reason in the folder.

    Args:
        cells: what to run.
        folder: folder of the study, created where missing.
        progress: gives the callback for a cell.
        retry: try cells again that failed under an earlier call: the model may have been downloaded since.
        store: object store where workers meet, instead of the folder.
        fresh: names of cells that the calling command has just had finished, while the configurations of their models
            did not change: it is not asked again.

    Yields:
        An outcome for each cell, in their order.
    """
    with Bench(cells, folder, Policy(retry=retry), store=store) as bench:
        done: dict[int, Outcome] = {}
        ready = 0
        waiting = list(range(len(cells)))
        while waiting:
            for number in waiting:
                cell = cells[number]
                outcome = bench.run(cell, None if progress is None else progress(cell), fresh=cell.name in fresh)
                if outcome is not None:
                    done[number] = outcome
                while ready in done:
                    yield done.pop(ready)
                    ready += 1
            left = {number: cells[number].name for number in range(ready, len(cells)) if number not in done}
            changed = bench.wait(list(left.values()))
            waiting = [number for number, name in left.items() if name in changed]


class Bench:
    """Where one worker runs cells of a study: claims, a folder of its own for each, and the model that it holds.

    Args:
        cells: what it may run.
        folder: of the study.
        policy: how it behaves towards other workers.
        worker: who it is.
        store: object store where workers meet, instead of the folder.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        policy: Policy | None = None,
        worker: Worker | None = None,
        store: str | None = None,
    ) -> None:
        self.folder = folder
        self._places = {cell.name: spot_of(folder, cell).result for cell in cells}
        self.board = Board(*meeting(folder, cells, store), worker or Worker(), policy)
        self._holder = HeldModel()
        self._fault: str | None = None

    def __enter__(self) -> Bench:
        self.board.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.board.__exit__(*error)

    def run(self, cell: Cell, progress: Progress | None, *, fresh: bool = False) -> Outcome | None:
        """Run a cell or read it where it is finished, just now if `fresh`; None where another worker has it."""
        outcome = self.work(cell, progress)
        if outcome is not None and outcome.status == "finished" and outcome.result is None:
            return self._read(cell, progress, fresh=fresh)
        return outcome

    def work(self, cell: Cell, progress: Progress | None) -> Outcome | None:
        """Run a cell unless it is finished; a finished one is not read. None where another worker has it."""
        outcome = self._work(cell, progress)
        while outcome is not None and isinstance(outcome.error, RunLockedError) and wait_for_writer(outcome.path):
            outcome = self._work(cell, progress)  # another command had its run open, where results are
        return outcome

    def _work(self, cell: Cell, progress: Progress | None) -> Outcome | None:
        path = self._places[cell.name]
        if self._fault:  # before anything is taken: what another worker has left half done stays for the next
            remedy = "run the same command again, with --retry-failed for that cell: it goes on in a new process"
            raise DeviceLostError(teach("a GPU that answers", f"{self._fault} in an earlier cell", remedy))
        taken = self.board.take(cell.name, config_digest(identity(cell.config)))
        if isinstance(taken, Hold):
            return self._worked(cell, taken, progress)
        if taken.phase is Phase.FAILED:
            assert taken.entry is not None
            status: Status = "cannot run" if taken.entry.status == "cannot run" else "failed"
            return Outcome(cell, path, status, taken.entry.reason)
        return Outcome(cell, path, "finished") if taken.phase is Phase.FINISHED else None

    def _worked(self, cell: Cell, hold: Hold, progress: Progress | None) -> Outcome | None:
        self.board.heartbeat.doing(cell=cell.name, done=0, total=0, tokens=0, phase="")
        self.board.heartbeat.beat()
        outcome = self._attempted(cell, hold, guarded(progress, hold))
        if outcome.error is not None:  # after a fault every further cell would fail in this process
            self._fault = device_fault(outcome.error)
        if isinstance(outcome.error, UnwritableError | RunLockedError):  # says nothing about the cell
            return outcome if hold.release() else None
        published = hold.finish() if outcome.status == "finished" else hold.fail(outcome.status, outcome.reason)
        if published and cell.share is None:
            _note(outcome, self.folder)
        if published and outcome.status == "finished":
            for share in cell.shares():
                self.board.results.drop(share.name)
        return outcome if published else None

    def _attempted(self, cell: Cell, hold: Hold, progress: Progress | None) -> Outcome:
        """Do the work of a claimed cell; what a lost worker left half-written is done again."""
        path = self._places[cell.name]
        for fresh in (False, True):

            def work(fresh: bool = fresh) -> Result | None:
                out = hold.begin(fresh=fresh)
                with private(out):
                    return self._done(cell, out, progress)

            outcome = Outcome(cell, path, *attempt(work), here=True)
            if not isinstance(outcome.error, DamagedRunError) or not hold.inherits:
                break
        return outcome

    def _done(self, cell: Cell, out: Path, progress: Progress | None) -> Result | None:
        """Do the work of a cell in a folder of its own: a share of a run, or a run, from its shares where there are."""
        study = study_for(cell.config)
        if cell.share is not None:
            models = {ONE: self._holder.load(cell.config)} if study.one_model else None
            study.run_share(cell.config, cell.share, models=models, out=out, name=cell.name, progress=progress)
            return None
        for share in cell.shares():
            self.board.results.fetch(share.name)
        shares = stored_shares(self.folder, cell)
        if shares and not is_whole(study.result_place(out / cell.name)):
            tell(progress, "putting shares together")
            merge_runs(shares, out, cell.name)
            study.join(out, cell.name, shares)
        return work_on(cell.config, self._holder, out, cell.name, progress)

    def _read(self, cell: Cell, progress: Progress | None, *, fresh: bool) -> Outcome:
        """The result of a finished cell; one whose bytes were changed since is computed again, at its place."""
        path = self._places[cell.name]

        def work() -> Result:
            self.board.results.fetch(cell.name)
            stored = stored_result(path)
            if stored is None:
                return work_on(cell.config, self._holder, self.folder, cell.name, progress)
            if hasattr(cell.config, "model") and not fresh:  # some studies make their models themselves
                check_reused(path, cell.config.model, cell.config.trust_remote_code)
            return stored

        outcome = Outcome(cell, path, *attempt(work))
        _note(outcome, self.folder)
        return outcome

    def wait(self, cells: Sequence[str]) -> list[str]:
        """Wait until one of the cells that others work on is finished or free."""
        return self.board.first_to_change(cells, POLL_SECONDS)


def guarded(progress: Progress | None, hold: Hold) -> Progress:
    """A progress callback that ends work which another worker has taken over."""
    return _Guarded(progress, hold)


class _Guarded:
    def __init__(self, progress: Progress | None, hold: Hold) -> None:
        self._progress, self._hold = progress, hold

    def __call__(self, done: int, total: int, tokens: int) -> None:
        self._hold.check()
        self._hold.board.heartbeat.doing(done=done, total=total, tokens=tokens)
        if self._progress is not None:
            self._progress(done, total, tokens)

    def phase(self, text: str, done: int = 0, total: int | None = None) -> None:
        self._hold.check()
        self._hold.board.heartbeat.doing(phase=text)
        tell(self._progress, text, done, total)


def work_on(config: Any, holder: HeldModel, folder: Path, name: str, progress: Progress | None) -> Result:
    """Run the study that a config belongs to, on the model that is held where it takes one."""
    study = study_for(config)
    models = {ONE: holder.load(config)} if study.one_model else None
    return study.run(config, models=models, out=folder, name=name, progress=progress)


def attempt(work: Callable[[], Result | None]) -> tuple[Status, str, Result | None, Exception | None]:
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
            if self._key is not None:
                self._held = None
                gc.collect()  # the last model's memory before the next one's
            self._key = key
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
