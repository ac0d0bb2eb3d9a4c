"""A study's folder: the runs of a grid, found, checked and loaded as one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import InputError, StoreError, teach
from repflow.core.results import Band, Finding, Result
from repflow.store import outcome
from repflow.store.lock import LOCK_FILE
from repflow.store.manifest import MANIFEST, is_complete, read_manifest
from repflow.store.record import RUN_FILE, is_run
from repflow.store.shard import SHARDS

SUMMARY = "summary"
"""Run that holds the result of a whole study, where its command makes one (`repflow twins`)."""
CELL = "cell"
PARTS = ("mean", "low", "high")
NOTE_BYTES = 1 << 20
"""A larger file is not a note."""


def runs_in(folder: Path | str) -> list[Path]:
    """Folders of the runs in a folder, by name; what is left of a killed start or of a damaged run counts."""
    place = Path(folder)
    entries = [entry for entry in sorted(place.iterdir()) if not entry.name.startswith(".")]  # no name of a run does
    return [entry for entry in entries if entry.is_dir() and _looks_like_run(entry)]


def _looks_like_run(folder: Path) -> bool:
    try:
        left = any((folder / name).exists() for name in (LOCK_FILE, RUN_FILE, MANIFEST, SHARDS))
        return left or is_run(folder)
    except (StoreError, OSError):
        return True  # what cannot be read is listed with the reason, not passed over


def notes_in(folder: Path | str) -> dict[str, dict[str, Any]]:
    """Notes of a study's cells that have no run, by name: what was asked, and why there is none."""
    notes = {}
    for file in sorted(Path(folder).glob("*.json")):
        try:
            known = file.stat().st_size <= NOTE_BYTES and not file.with_suffix("").is_dir()
            note = json.loads(file.read_bytes()) if known else None
        except (OSError, ValueError):
            continue  # another file, or one that is being written
        if isinstance(note, dict) and note.get("cell") == file.stem and isinstance(note.get("config"), dict):
            notes[file.stem] = note
    return notes


def is_study(folder: Path | str) -> bool:
    """Whether a folder is not a run itself but contains some."""
    place = Path(folder)
    try:
        return place.is_dir() and not is_run(place) and bool(runs_in(place))
    except OSError:  # a folder that may not be read is no study of ours
        return False


def load_result(path: Path | str) -> Result:
    """Read the result of a finished run, or the results of a study's runs as one; digests are checked. Takes no lock.

    A study gives one Result whose arrays have the axis `cell` first. What differs in length between cells (states,
    prompts, tokens) is filled up with NaN. `config` holds what all cells share, `provenance["cells"]` each one's name
    and what is its own; cells that are not finished are left out and a finding. Where the study has stored a summary of
    its own, as `repflow twins` does, that is what is read.

    Raises:
        InputError: No run there, or none that is finished.
        DamagedRunError: A stored file does not match its digest.
    """
    if not is_study(path):
        return outcome.load_result(path)
    folder = Path(path)
    runs = runs_in(folder)
    if folder / SUMMARY in runs:
        return outcome.load_result(folder / SUMMARY)
    finished = [run for run in runs if is_complete(read_manifest(run).good)]
    if not finished:
        got = f"{len(runs)} unfinished ones"
        raise InputError(teach(f"a finished run in {folder}", got, "run its command again, it resumes"))
    results = [outcome.load_result(run) for run in finished]
    stacked = stack([run.name for run in finished], results)
    stacked.provenance = {"study": folder.resolve().name, **stacked.provenance}
    missing = [run.name for run in runs if run not in finished]
    missing += sorted(file.stem for file in folder.glob("*.json") if not (folder / file.stem).is_dir())
    if missing:
        text = f"{len(missing)} of {len(finished) + len(missing)} cells have no result: {', '.join(missing)}"
        stacked.findings.append(Finding("cells_missing", None, text))
    return stacked


def stack(names: Sequence[str], results: Sequence[Result]) -> Result:
    """Results side by side along a first axis `cell`, filled up with NaN where they differ in length.

    A metric whose axes differ between cells is left out, one that a cell lacks is NaN there.

    >>> two = [Result({"m": np.ones(size)}, {"m": ("state",)}) for size in (1, 2)]
    >>> stack(["a", "b"], two)["m"].tolist()
    [[1.0, nan], [1.0, 1.0]]
    """
    arrays: dict[str, np.ndarray] = {}
    axes: dict[str, tuple[str, ...]] = {}
    bands: dict[str, Band] = {}
    for name in dict.fromkeys(name for result in results for name in result):
        holders = [result for result in results if name in result]
        if len({result.axes[name] for result in holders}) > 1:
            continue
        arrays[name] = _padded([result.arrays.get(name) for result in results])
        axes[name] = (CELL, *holders[0].axes[name])
        if all(name in result.bands for result in holders):
            present = [result.bands.get(name) for result in results]
            parts = ([None if band is None else np.asarray(getattr(band, part)) for band in present] for part in PARTS)
            bands[name] = Band(*map(_padded, parts))
    shared, own = _divided([result.config for result in results])
    cells = [{"name": name, "config": config} for name, config in zip(names, own, strict=True)]
    findings = [
        Finding(f.code, f.layer, f"{name}: {f.message}")
        for name, result in zip(names, results, strict=True)
        for f in result.findings
    ]
    return Result(arrays, axes, shared, {"cells": cells}, findings, bands)


def _padded(arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    present = [array for array in arrays if array is not None]
    shape = tuple(max(sizes) for sizes in zip(*(array.shape for array in present), strict=True))
    if len(present) == len(arrays) and all(array.shape == shape for array in present):
        return np.stack(present)
    dtype = np.result_type(np.float32, *(array.dtype for array in present))
    whole = np.full((len(arrays), *shape), np.nan, dtype=dtype)
    for place, array in enumerate(arrays):
        if array is not None:
            whole[place, ...][tuple(slice(size) for size in array.shape)] = array
    return whole


def _divided(configs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all configs share, and what differs."""
    first = configs[0]
    same = [key for key in first if all(key in other and other[key] == first[key] for other in configs)]
    own = [{key: value for key, value in config.items() if key not in same} for config in configs]
    return {key: first[key] for key in same}, own
