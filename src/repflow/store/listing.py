"""Overview of the runs in a folder, from their records and manifests alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, StoreError, teach
from repflow.store.manifest import MANIFEST, Entry, Reading, is_complete, live_result, live_shards, read_manifest
from repflow.store.record import RUN_FILE, is_run, is_start, read_record, record_in_file
from repflow.store.shard import shard_path
from repflow.store.study import is_study, notes_in, runs_in


@dataclass(frozen=True)
class RunSummary:
    """One run at a glance.

    Attributes:
        name: Folder name.
        path: The folder.
        model: `config["model"]`, or the models or the scale of a reproduction; "" where there is none.
        task: `config["task"]`, or the recipe of a reproduction; "" where there is none.
        finished: Whether the result is stored.
        done: Samples in stored shards (`meta["samples"]`, a count or a list of ids), None if shards do not say.
        total: Samples of the last `plan` event (`samples`, a count or a list), else `config["samples"]`, else None.
        damaged: What is visibly wrong, "" for nothing; `verify` looks at every byte, this only at sizes.
        created: Time of the first start.
        cells: Runs in it, for the folder of a study, whose done and total count runs; 0 for a run.
        failed: Cells of a study that left a reason instead of a run.
        study: `config["study"]`; "" where the config has none.
        reason: Of a study's cell without a run, "cannot run" or "failed", and why; "" for a run.
    """

    name: str
    path: Path
    model: str = ""
    task: str = ""
    finished: bool = False
    done: int | None = None
    total: int | None = None
    damaged: str = ""
    created: str = ""
    cells: int = 0
    failed: int = 0
    study: str = ""
    reason: str = ""


def list_runs(parent: Path | str) -> list[RunSummary]:
    """Summaries of the runs in a folder by name; a bad run is marked, never raised. Takes no lock.

    A run folder itself gives the list of that run alone. A folder where a run was killed before it stored anything
    counts as a run without a model. A folder of runs inside the folder, as grids and twins make one, is one entry. A
    grid's cell that has no run, as its model is missing, is listed with the reason.

    Raises:
        InputError: There is no such folder.
    """
    folder = Path(parent)
    if not folder.is_dir():
        raise InputError(
            teach(f"a folder of runs at {folder}", "no folder", "run `repflow measure` first or name another")
        )
    if is_run(folder):
        return [_summary(folder)]
    runs = set(runs_in(folder))
    summaries = [_without_run(folder / name, note) for name, note in notes_in(folder).items()]
    for entry in folder.iterdir():
        if entry in runs:
            summaries.append(_summary(entry))
        elif entry.is_dir() and not entry.name.startswith(".") and (is_study(entry) or _only_notes(entry)):
            summaries.append(_study(entry))
    return sorted(summaries, key=lambda summary: summary.path)


def _only_notes(folder: Path) -> bool:
    """Whether a folder is a grid's of which no cell could run."""
    try:
        return not is_run(folder) and bool(notes_in(folder))
    except (StoreError, OSError):
        return False


def _without_run(folder: Path, note: Mapping[str, Any]) -> RunSummary:
    """A cell of a study that left a reason instead of a run."""
    config = note["config"]
    task = str(config.get("task") or config.get("recipe") or "")
    reason = f"{note.get('status', 'cannot run')}: {note.get('reason', '')}"
    return RunSummary(folder.name, folder, _model(config), task, done=0, total=_count(config), reason=reason)


def _study(folder: Path) -> RunSummary:
    """A study at a glance: its runs counted, what they share named."""
    runs = [_summary(entry) for entry in runs_in(folder)]
    notes = notes_in(folder)
    named, failed = runs or [_without_run(folder / name, note) for name, note in notes.items()], len(notes)
    done = sum(run.finished for run in runs)
    damaged = [run.name for run in runs if run.damaged]
    return RunSummary(
        folder.name,
        folder,
        _shared([run.model for run in named], "models"),
        _shared([run.task for run in named], "tasks"),
        done == len(runs) and not failed,
        done,
        len(runs) + failed,
        f"{damaged[0]}{f' and {len(damaged) - 1} more' if len(damaged) > 1 else ''}" if damaged else "",
        min((run.created for run in runs), default=""),
        len(runs),
        failed,
    )


def _shared(values: list[str], noun: str) -> str:
    distinct = sorted({value for value in values if value})
    return distinct[0] if len(distinct) == 1 else f"{len(distinct)} {noun}" if distinct else ""


def _summary(folder: Path) -> RunSummary:
    try:
        return _read_summary(folder)
    except (StoreError, InputError, OSError) as error:
        return RunSummary(folder.name, folder, damaged=str(error))
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # values of types that no run of ours has
        return RunSummary(folder.name, folder, damaged=f"what it stores is not what a run stores ({error})")


def _read_summary(folder: Path) -> RunSummary:
    if not is_run(folder):
        empty = f"neither {RUN_FILE} nor {MANIFEST} says what ran here; delete it and rerun the command"
        return RunSummary(folder.name, folder, damaged="" if is_start(folder) else empty)
    record, reading = read_record(folder), read_manifest(folder)
    finished = is_complete(reading.good) and all((folder / name).exists() for name in live_result(reading.good))
    total = _total(reading.good, record.config)
    return RunSummary(
        folder.name,
        folder,
        _model(record.config),
        str(record.config.get("task") or record.config.get("recipe") or ""),
        finished,
        total if finished and total is not None else _done(reading.good),
        total,
        _visible_fault(folder, reading),
        record.created,
        study=str(record.config.get("study") or ""),
    )


def _model(config: Mapping[str, Any]) -> str:
    """What ran.

    >>> _model({"model": "gpt2"}), _model({"models": ["a", "b"]}), _model({"recipe": "flow-fig1", "scale": "tiny"})
    ('gpt2', 'a, b', 'tiny models')
    """
    models = config.get("models")
    several = ", ".join(map(str, models.values() if isinstance(models, Mapping) else models or ()))
    scale = f"{config['scale']} models" if "recipe" in config and config.get("scale") else ""
    return str(config.get("model") or several or scale)


def _visible_fault(folder: Path, reading: Reading) -> str:
    stored = {shard_path(folder, name): line["bytes"] for name, line in live_shards(reading.good).items()}
    stored |= {folder / name: line["bytes"] for name, line in live_result(reading.good).items()}
    faults = [*reading.faults(), *([] if record_in_file(folder) else [f"{RUN_FILE} is damaged"])]
    faults += [] if reading.lines or is_start(folder) else [f"{MANIFEST} is missing or empty"]
    for path, size in stored.items():
        if not path.is_file() or path.stat().st_size != size:
            faults.append(f"{path.relative_to(folder)} is missing or has another size")
    return "; ".join(faults[:3])


def _done(entries: list[Entry]) -> int | None:
    counts = [_count(line["meta"]) for line in live_shards(entries).values()]
    known = [count for count in counts if count is not None]
    return sum(known) if known or not counts else None


def _total(entries: list[Entry], config: Mapping[str, Any]) -> int | None:
    plans = [count for entry in entries if entry.kind == "plan" and (count := _count(entry.data)) is not None]
    return plans[-1] if plans else _count(config)


def _count(holder: Mapping[str, Any]) -> int | None:
    samples = holder.get("samples")
    if isinstance(samples, list):
        return len(samples)
    return samples if isinstance(samples, int) else None
