"""Results in other programs' formats: parquet, npz, csv, netcdf."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from repflow.core.errors import InputError, MissingExtraError, nearest, teach
from repflow.core.results import Result
from repflow.store.canonical import plain, without_nan
from repflow.store.disk import write_atomic
from repflow.store.record import is_run
from repflow.store.study import CELL, load_result

Format = Literal["parquet", "npz", "csv", "netcdf"]
SUFFIX = {"parquet": ".parquet", "npz": ".npz", "csv": ".csv", "netcdf": ".nc"}
ABOUT = "repflow"  # name of the entry with config, provenance, findings and axes
EPOCH = (1980, 1, 1, 0, 0, 0)  # zip keeps a time per entry; a fixed one makes equal results equal files


def export(source: Result | Path | str, to: str, out: Path | str) -> Path:
    """Write a result in another format.

    `parquet` and `csv` are a long table: model, task, metric, one column per axis, value, low, high. A metric with a
    band has its mean and band in rows of their own, named `mean/METRIC`, unless the band has the metric's own axes. For
    a study there are also columns for what differs between its cells, such as length, init and seed. `npz` keeps every
    array under its name; `netcdf` (version 3) maps names to letters, digits and underscores and keeps the original in
    the attribute `repflow_name`. All but csv include config, provenance and findings, as JSON under `repflow`.

    Args:
        source: A result, or the folder of a finished run or of a study.
        to: parquet, npz, csv or netcdf.
        out: File to write, replaced if there; or an existing folder, where the file is named after the run.

    Returns:
        The file written.

    Raises:
        InputError: Unknown format, unfinished run or no folder to write to.
        MissingExtraError: The packages of the extra `tables` are not installed.
    """
    if to not in get_args(Format):
        raise InputError(teach("a format of export", f"{to!r}", nearest(to, get_args(Format))))
    result = source if isinstance(source, Result) else load_result(source)
    name = "result" if isinstance(source, Result) else Path(source).resolve().name
    path = Path(out) / f"{name}{SUFFIX[to]}" if Path(out).is_dir() else Path(out)
    if to != "npz" and any(array.dtype.kind == "c" for array in result.arrays.values()):
        raise InputError(teach(f"real numbers for {to}", "a complex metric", "export to npz"))
    if not path.parent.is_dir():
        raise InputError(teach(f"an existing folder for {path}", "none", "create it or choose another file"))
    if path.exists() and not path.is_file():
        raise InputError(teach(f"a file or nothing at {path}", "something else", "choose another file"))
    if any(is_run(folder) for folder in path.resolve().parents):
        raise InputError(teach("a file outside run folders", f"{path}", "a run keeps only what it has stored itself"))
    write_atomic(path.resolve(), _WRITERS[to](result))  # a link stays, and what it names is written
    return path


def _about(result: Result) -> dict[str, Any]:
    described = {
        "axes": result.axes,
        "config": result.config,
        "provenance": result.provenance,
        "findings": [vars(finding) for finding in result.findings],
    }
    return plain(without_nan(described), "result")


IDENTITY = ("model", "task")
"""Columns that say what a row is of; a study's cells add what else differs between them."""


def _table(result: Result) -> Any:
    frame = result.to_pandas().assign(low=np.nan, high=np.nan)  # says so where pandas is missing
    import pandas

    # Metrics of several dtypes share the column: bool and float together would become Python objects.
    frame["value"] = frame["value"].astype("float64")
    frame = pandas.concat([frame, *_band_rows(result, frame)], ignore_index=True)
    axes = [column for column in frame.columns if column not in ("metric", "value", "low", "high")]
    for column in axes:
        frame[column] = frame[column].astype("Int64")  # a metric without the axis has no index on it
    identity = _identity(result, frame)
    for column, values in identity.items():
        frame[column] = values
    return frame[[*identity, "metric", *axes, "value", "low", "high"]]


def _band_rows(result: Result, frame: Any) -> list[Any]:
    """Rows of means with their bands; a band over a metric's own axes goes into the metric's rows."""
    frames = []
    for name, band in result.bands.items():
        if name not in result:
            continue
        low, high = (np.asarray(part, dtype=np.float64) for part in (band.low, band.high))
        if low.shape == result[name].shape:
            frame.loc[frame["metric"] == name, ["low", "high"]] = np.stack([low.ravel(), high.ravel()], axis=1)
            continue
        # a band is over prompts: what is left are the metric's axes without samples, and without seeds for a probe
        axes = tuple(axis for axis in result.axes[name] if axis not in ("sample", "seed"))[: low.ndim]
        parts = Result({"mean": band.mean, "low": low, "high": high}, dict.fromkeys(("mean", "low", "high"), axes))
        rows = [parts.to_pandas().query("metric == @part").reset_index(drop=True) for part in parts]
        frames.append(rows[0].assign(metric=f"mean/{name}", low=rows[1]["value"], high=rows[2]["value"]))
    return frames


def _identity(result: Result, frame: Any) -> dict[str, Any]:
    """Values of the columns that say what a row is of."""
    cells = [cell["config"] for cell in result.provenance.get("cells", [])] if CELL in frame else []
    keys = [
        *IDENTITY,
        *sorted({key for cell in cells for key in cell if _plain(cell[key])} - {*IDENTITY, "match_with"}),
    ]
    if not cells:
        return {key: _word(result.config.get(key)) for key in keys}
    table = {key: [_word(cell.get(key, result.config.get(key))) for cell in cells] for key in keys}
    at = frame[CELL].to_numpy(dtype=int)
    return {key: np.asarray(values, dtype=object)[at] for key, values in table.items()}


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _word(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else None


def _csv(result: Result) -> bytes:
    return _table(result).to_csv(index=False).encode()


def _parquet(result: Result) -> bytes:
    table = _table(result)
    table.attrs = {ABOUT: _about(result)}
    buffer = io.BytesIO()
    try:
        table.to_parquet(buffer, index=False, engine="pyarrow")
    except ImportError as error:
        raise MissingExtraError("this needs pyarrow, which is not installed; pip install 'repflow[tables]'") from error
    return buffer.getvalue()


def _npz(result: Result) -> bytes:
    arrays = {**result.arrays, ABOUT: np.asarray(json.dumps(_about(result), allow_nan=False))}
    buffer = io.BytesIO()
    # Not np.savez: it takes names as keywords, so that an array could not be called `file`.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy", EPOCH), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def _netcdf(result: Result) -> bytes:
    names = safe_variables(result.arrays)
    renamed = Result(
        {names[name]: _netcdf3(array) for name, array in result.arrays.items()},
        {names[name]: axes for name, axes in result.axes.items() if name in names},
    )
    dataset = renamed.to_xarray()
    dataset = dataset.drop_vars(list(dataset.coords))  # numbers from 0, which the dimensions are without them
    for name, variable in names.items():
        dataset[variable].attrs = {"repflow_name": name, "repflow_dtype": str(result[name].dtype)}
    dataset.attrs = {ABOUT: json.dumps(_about(result), allow_nan=False)}
    return bytes(dataset.to_netcdf(engine="scipy", format="NETCDF3_64BIT"))


def safe_variables(names: Iterable[str]) -> dict[str, str]:
    """Map names to distinct netCDF variable names.

    >>> safe_variables(["final_norm/token_norm", "norm>10/token_norm"])
    {'final_norm/token_norm': 'final_norm_token_norm', 'norm>10/token_norm': 'norm_10_token_norm'}
    """
    mapped: dict[str, str] = {}
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = base if base[:1].isalpha() else f"m_{base}"
        taken, candidate, number = set(mapped.values()), base, 2
        while candidate in taken:
            candidate, number = f"{base}_{number}", number + 1
        mapped[name] = candidate
    return mapped


def _netcdf3(array: np.ndarray) -> np.ndarray:
    """The nearest dtype that netCDF 3 has: no 64-bit or unsigned integers, no half precision."""
    if array.dtype.kind == "f":
        return array.astype("float32") if array.dtype.itemsize < 4 else array
    if array.dtype.kind == "b":
        return array.astype("int8")
    fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
    return array.astype("int32" if fits else "float64")


_WRITERS: dict[str, Callable[[Result], bytes]] = {"parquet": _parquet, "npz": _npz, "csv": _csv, "netcdf": _netcdf}
