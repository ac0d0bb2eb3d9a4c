"""result.json and result.safetensors: a finished run's Result, read back exactly.

result.json describes everything and spells out the values of small arrays for readers without this library;
result.safetensors holds every array with all its bits (JSON has no NaN or infinity). Neither holds a time, so equal
results are equal bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from repflow.core.errors import DamagedRunError, InputError, teach
from repflow.core.results import Band, Finding, Result, array_to_json
from repflow.store.canonical import plain, without_nan
from repflow.store.manifest import live_result, read_manifest
from repflow.store.record import existing_run
from repflow.store.shard import pack, read_stamped, unpack

RESULT_FILE = "result.json"
ARRAYS_FILE = "result.safetensors"
INLINE = 4096  # values of larger arrays are left out of result.json
PARTS = ("mean", "low", "high")


def result_files(result: Result) -> dict[str, bytes]:
    """File names and contents that keep a result, in the order to write them."""
    arrays = {f"metrics/{name}": array for name, array in result.arrays.items()}
    for name, band in result.bands.items():
        arrays |= {f"bands/{part}/{name}": np.asarray(getattr(band, part)) for part in PARTS}
    described = {
        "format": "repflow-result",
        "version": 1,
        "metrics": {name: _describe(array, result.axes[name]) for name, array in result.arrays.items()},
        "bands": list(result.bands),
        "config": without_nan(result.config),
        # seconds are in the manifest: no clock changes the bytes of a result
        "provenance": without_nan({key: value for key, value in result.provenance.items() if key != "seconds"}),
        "findings": [asdict(finding) for finding in result.findings],
    }
    text = _page(plain(described, "result"), 2) + "\n"
    return {ARRAYS_FILE: pack(arrays), RESULT_FILE: text.encode("ascii")}


def load_result(path: Path | str) -> Result:
    """Read the result of a finished run, its digests checked. Takes no lock.

    Raises:
        InputError: No run folder there, or the run is not finished.
        DamagedRunError: A stored file does not match its digest.
    """
    folder = existing_run(path)
    entries = read_manifest(folder).good
    files = live_result(entries)
    if not files:
        raise InputError(teach(f"a finished run in {folder}", "an unfinished one", "run its command again, it resumes"))
    contents = {}
    for name in (ARRAYS_FILE, RESULT_FILE):
        if name not in files:  # a line with a checksum that fits, but not one that we wrote
            raise DamagedRunError(f"{folder}: the manifest's result lacks {name}; `repflow verify --repair {folder}`")
        contents[name], fault = read_stamped(folder / name, files[name])
        if fault:
            raise DamagedRunError(f"{folder / name}: {fault}; `repflow verify --repair {folder}` recomputes it")
    try:
        result = _rebuild(json.loads(contents[RESULT_FILE]), unpack(contents[ARRAYS_FILE]))
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # digests that fit what we never wrote
        got = f"{folder / RESULT_FILE} does not describe a result: {type(error).__name__}: {error}"
        raise DamagedRunError(f"{got}; `repflow verify --repair {folder}` recomputes it") from error
    if spent := [entry.data for entry in entries if entry.kind == "seconds"]:
        result.provenance["seconds"] = dict(spent[-1])  # beside the result, whose bytes no clock may change
    return result


def _rebuild(described: dict[str, Any], arrays: dict[str, np.ndarray]) -> Result:
    return Result(
        {name: arrays[f"metrics/{name}"] for name in described["metrics"]},
        {name: tuple(entry["axes"]) for name, entry in described["metrics"].items()},
        described["config"],
        described["provenance"],
        [Finding(**finding) for finding in described["findings"]],
        {name: Band(*(arrays[f"bands/{part}/{name}"] for part in PARTS)) for name in described["bands"]},
    )


def _describe(array: np.ndarray, axes: tuple[str, ...]) -> dict[str, Any]:
    if math.prod(array.shape) <= INLINE and array.dtype.kind in "biuf":
        return array_to_json(array, axes)
    return {"axes": list(axes), "shape": list(array.shape), "dtype": str(array.dtype), "values_in": ARRAYS_FILE}


def _page(value: Any, depth: int) -> str:
    """JSON with one line per entry down to a depth: a metric per line rather than a number per line."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, allow_nan=False)
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {_page(entry, depth - 1)}" for key, entry in value.items()) + "\n}"
