"""The runs behind a page: found in run folders and folders of studies, read, named; what cannot be read is reported.

A `StoredRun` is what every section builder gets: the Result, the name of its run and the label of its model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repflow.core.errors import InputError, StoreError
from repflow.core.results import Result
from repflow.core.studies import row_of
from repflow.report.data.labels import Labels, sides
from repflow.store import is_study, load_result, read_record, runs_in

SUMMARY = "summary"
"""Run in a study's folder that holds the result of the whole study."""


@dataclass(frozen=True)
class StoredRun:
    """One stored run of the page.

    Attributes:
        name: Name of the run folder, behind that of its study's folder; unique on the page.
        label: Label of its model on the page, "" where it has none; of the first of two models compared.
        study: Name of the study that made it.
        result: What it found.
        created: When it was started.
        cell_of: What it is a cell of: of a study with a `summary` (`repflow twins`), of a `grid`, or "" of none.
        folder: Name of that study's folder.
        other: Label of the second model of a comparison.
    """

    name: str
    label: str
    study: str
    result: Result
    created: str = ""
    cell_of: str = ""
    folder: str = ""
    other: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What the run says about its model, {} without one."""
        return sides(self.result)[0] if sides(self.result) else {}

    @property
    def task(self) -> str:
        """What the model read."""
        return str(self.result.config.get("task", ""))

    @property
    def length(self) -> str:
        """Tokens per prompt, as text."""
        return str(self.result.config.get("length", ""))

    @property
    def states(self) -> str:
        """Kind of state."""
        return str(self.result.config.get("states", "residual"))

    @property
    def dtype(self) -> str:
        """Number format in which the model ran."""
        return str(self.result.provenance.get("dtype", ""))

    @property
    def layers(self) -> int:
        """Blocks of the model."""
        return int(self.facts.get("layers", 0))

    @property
    def trained(self) -> bool:
        """Whether the weights are the model's own, with nothing taken out."""
        return self.facts.get("init", "trained") == "trained" and not self.facts.get("ablate")


def study_of(result: Result) -> str:
    """Which study made a result.

    >>> import numpy as np
    >>> study_of(Result({"m": np.ones(1)}, {"m": ("state",)}, {"model": "gpt2", "metrics": ["m"]}))
    'measure'
    """
    if "study" in result.config:
        return str(result.config["study"])
    row = row_of(result.config, result.provenance)
    return "measure" if row is None else row.name


def called(run: StoredRun, runs: Sequence[StoredRun]) -> str:
    """A run by the label of its model, and by its own name too where several runs are of one model."""
    alike = [other for other in runs if other.label == run.label]
    return run.label if len(alike) < 2 else f"{run.label} ({run.name})"


def colour_of(run: StoredRun, runs: Sequence[StoredRun]) -> str | None:
    """A colour of its own for a run whose model has several here; None for the model's."""
    alike = [other for other in runs if other.label == run.label]
    return None if len(alike) < 2 else f"model:{[other.name for other in runs].index(run.name)}"


def named(runs: Sequence[StoredRun]) -> list[tuple[StoredRun, str]]:
    """Every run with what it is called."""
    return [(run, called(run, runs)) for run in runs]


def read_runs(paths: Sequence[Path | str]) -> tuple[list[StoredRun], list[str]]:
    """Read every run at or in some folders; digests are checked.

    Args:
        paths: run folders, folders of studies, or folders of both.

    Returns:
        The runs in the order given, and a sentence for every one that is missing, damaged or not finished.
    """
    entries: dict[Path, _Entry] = {}
    warnings: list[str] = []
    for path in paths:
        for entry in _expand(Path(path), warnings):
            entries.setdefault(entry.path.resolve(), entry)
    loaded: list[tuple[_Entry, Result, str]] = []
    for entry in entries.values():
        try:
            loaded.append((entry, load_result(entry.path), read_record(entry.path).created))
        except (StoreError, InputError, OSError) as error:
            warnings.append(f"{entry.name} is left out: {error}")
    labels = Labels([result for _, result, _ in loaded])
    names = _unique([entry.name for entry, _, _ in loaded])
    runs = []
    for (entry, result, created), name in zip(loaded, names, strict=True):
        first, other = labels.of(result)
        cell_of = entry.cell_of if entry.path.name != SUMMARY else ""
        runs.append(StoredRun(name, first, study_of(result), result, created, cell_of, entry.folder, other))
    return runs, warnings


@dataclass(frozen=True)
class _Entry:
    path: Path
    name: str
    cell_of: str = ""
    folder: str = ""


def _expand(path: Path, warnings: list[str]) -> Iterator[_Entry]:
    """Run folders at or below a path; what is not a run is a warning."""
    name = path.name or path.resolve().name
    if not path.is_dir():
        reason = "is a file, not the folder of a run" if path.exists() else "is missing: no folder has this name"
        warnings.append(f"{path} {reason}")
    elif is_study(path):
        yield from _cells(path, name)
        warnings += _failed(path, name)
        yield from _below(path, warnings)
    elif list(_studies(path)):
        yield from _below(path, warnings)
    else:
        yield _Entry(path, name)  # a run, or something that reading will explain


def _cells(folder: Path, name: str) -> Iterator[_Entry]:
    runs = runs_in(folder)
    summary = folder / SUMMARY in runs
    # a folder of runs of different kinds is not a study: only a summary or cells that failed say that it is one
    kind = SUMMARY if summary else "grid" if any(folder.glob("*.json")) else ""
    for run in runs:
        label = name if run.name == SUMMARY and summary else f"{name}/{run.name}" if kind else run.name
        yield _Entry(run, label, kind, name if kind else "")


def _below(folder: Path, warnings: list[str]) -> Iterator[_Entry]:
    for study in _studies(folder):
        yield from _expand(study, warnings)


def _studies(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and is_study(entry):
            yield entry


def _failed(folder: Path, name: str) -> list[str]:
    """Cells that left a reason instead of a run."""
    sentences = []
    for file in sorted(folder.glob("*.json")):
        if (folder / file.stem).is_dir():
            continue
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            sentences.append(f"{name}/{content['cell']} has no result: {content['status']}: {content['reason']}")
        except (OSError, ValueError, KeyError, TypeError):
            sentences.append(f"{name}/{file.stem} has no result, and {file.name} cannot be read")
    return sentences


def _unique(names: Sequence[str]) -> list[str]:
    """Names with a number behind those that came before.

    >>> _unique(["a", "b", "a"])
    ['a', 'b', 'a (2)']
    """
    return [name if (times := names[:i].count(name)) == 0 else f"{name} ({times + 1})" for i, name in enumerate(names)]
