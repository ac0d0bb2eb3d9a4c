"""Result: named arrays with named axes, and where they came from. NumPy only; everything downstream reads this."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from repflow.core.catalogue import described, is_counted, span_of
from repflow.core.errors import InputError, MissingExtraError, nearest, teach
from repflow.core.hooks import hook, register_hook
from repflow.core.intervals import Band, positive_interval, student_interval, whole_interval
from repflow.core.seconds import timed

__all__ = [
    "Band",
    "Finding",
    "Result",
    "array_from_json",
    "array_to_json",
    "register_hook",
    "sample_band",
    "sample_mean",
    "unique_axes",
]

if TYPE_CHECKING:
    _Arrays = Mapping[str, np.ndarray]
else:
    _Arrays = Mapping  # naming the type of its values would import numpy for every `--help`


@dataclass(frozen=True)
class Finding:
    """Something worth a reader's attention that the run came across.

    Attributes:
        code: Short name of the kind of finding, such as `nonfinite_weight` or `sink_tokens`.
        layer: Index from 0 of the state or block it concerns, None for the whole run.
        message: One sentence with the numbers behind it; it says which state or block, blocks counted from 1.
    """

    code: str
    layer: int | None
    message: str


@dataclass(repr=False)
class Result(_Arrays):
    """What a study found: a mapping from metric name to array, with axes, configuration and provenance beside it.

    A name may carry a prefix: `final_norm/NAME` is the metric of the final norm's output, `norm>10/NAME` the metric
    with sink tokens dropped, `kept/NAME` the unpooled per-token values of the first few samples.

    >>> r = Result({"token_similarity": np.array([[0.1, 0.3], [0.5, 0.7]])}, {"token_similarity": ("state", "sample")})
    >>> r.mean("token_similarity")
    array([0.2, 0.6])
    """

    arrays: dict[str, np.ndarray]
    axes: dict[str, tuple[str, ...]]
    config: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    bands: dict[str, Band] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that every array has one axis name per dimension."""
        for name, array in self.arrays.items():
            axes = self.axes.get(name)
            if axes is None or len(axes) != array.ndim:
                raise InputError(
                    teach(
                        f"one axis name per dimension of {name!r} {array.shape}", f"{axes}", "pass axes={name: (...)}"
                    )
                )

    def __getitem__(self, name: str) -> np.ndarray:
        """Return the array of one metric."""
        try:
            return self.arrays[name]
        except KeyError:
            raise KeyError(f"no metric {name!r} in this result; {nearest(name, self.arrays)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def mean(self, name: str) -> np.ndarray:
        """Average a metric over samples, leaving out samples where it is undefined (NaN)."""
        return sample_mean(self[name], self.axes[name])

    @timed("intervals")
    def band(self, name: str) -> Band:
        """Mean over samples with its 95 % interval; the stored one where the run made it.

        Student's, within the range that the catalogue declares; NaN bounds below three samples. Runs from before
        `repflow.core.intervals` hold percentiles of a bootstrap, which are too narrow for a few samples; they are
        returned as stored. `sample_band(result[name], result.axes[name])` recomputes them.
        """
        if name not in self.bands:
            self.bands[name] = sample_band(self[name], self.axes[name], span=span_of(name), whole=is_counted(name))
        return self.bands[name]

    def token_counts(self, name: str) -> np.ndarray:
        """Tokens behind each stored value of a per-token metric, zero where it is NaN; the shape is the metric's.

        Beyond 256 tokens a stored position is the mean of a span of them, except for the first four, which are kept
        singly: a plain mean over positions would count these as often as whole spans.
        """
        values, axes = self[name], self.axes[name]
        starts, lengths = self.provenance.get("positions"), self.provenance.get("lengths")
        sizes = [values.shape[axes.index(axis)] for axis in ("token", "sample")]
        if starts is None or lengths is None or sizes != [len(starts), len(lengths)]:  # one value per token, as kept/
            return np.isfinite(values).astype(np.float64)
        behind = np.append(starts[1:], max(lengths))
        spans = np.maximum(np.minimum(behind, np.asarray(lengths)[:, None]) - np.asarray(starts), 0)  # (sample, token)
        if axes.index("token") < axes.index("sample"):
            spans = spans.T
        shape = [size if axis in ("sample", "token") else 1 for axis, size in zip(axes, values.shape, strict=True)]
        return np.where(np.isfinite(values), spans.reshape(shape), 0.0)

    def token_mean(self, name: str, *, pooled: bool = False) -> np.ndarray:
        """Mean over a prompt's tokens, each counted once, in float64; NaN where no token has a value.

        Args:
            name: a per-token metric, such as `layer_cosine` (layer, sample, token).
            pooled: over the tokens of all prompts together, so that the sample axis goes too.
        """
        axes, counts = self.axes[name], self.token_counts(name)
        away = tuple(place for place, axis in enumerate(axes) if axis == "token" or (pooled and axis == "sample"))
        total = (np.where(counts > 0, self[name], 0.0) * counts).sum(away)
        count = counts.sum(away)
        return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))

    def to_json(self) -> dict[str, Any]:
        """Turn everything into plain JSON values; NaN and infinities become null."""
        return {
            "metrics": {name: array_to_json(array, self.axes[name]) for name, array in self.arrays.items()},
            "bands": {
                name: {"low": _plain(band.low), "mean": _plain(band.mean), "high": _plain(band.high)}
                for name, band in self.bands.items()
            },
            "config": self.config,
            "provenance": _finite(self.provenance),
            "findings": [asdict(finding) for finding in self.findings],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Rebuild a Result from `to_json`; null becomes NaN."""
        arrays, axes = {}, {}
        for name, entry in data["metrics"].items():
            arrays[name] = array_from_json(entry)
            axes[name] = tuple(entry["axes"])
        bands = {
            name: Band(*(np.asarray(_restore(entry[k]), dtype=np.float64) for k in ("mean", "low", "high")))
            for name, entry in data.get("bands", {}).items()
        }
        findings = [Finding(**entry) for entry in data.get("findings", [])]
        return cls(arrays, axes, dict(data["config"]), dict(data["provenance"]), findings, bands)

    def to_pandas(self) -> Any:
        """Long table with columns metric, one per axis, value. Needs the extra `tables`."""
        pandas = _need("pandas", "tables")
        frames = []
        for name, array in self.arrays.items():
            index = np.indices(array.shape).reshape(array.ndim, array.size)
            # whole numbers that may be missing: metrics have different axes
            columns = {
                axis: pandas.array(index[i], dtype="Int64") for i, axis in enumerate(unique_axes(self.axes[name]))
            }
            # yes and no as 1 and 0: one bool among numbers would make the whole column a column of objects
            values = array.reshape(-1) * 1 if array.dtype == bool else array.reshape(-1)
            frames.append(pandas.DataFrame({"metric": name, **columns, "value": values}))
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame({"metric": [], "value": []})

    def to_xarray(self) -> Any:
        """Dataset with one variable per metric. Needs the extra `tables`.

        Every dimension has its numbers as coordinates; `relative_depth` goes with `state` from 0 (embedding) to 1.
        Attributes say what was measured (model, task, config, findings) and what each metric is.

        Metrics whose axes have other lengths than the rest (the final norm has one state, kept samples are fewer)
        get dimensions of their own, named AXIS_of_LENGTH (AXIS_2 is the second axis of that name, as in CKA).
        """
        xarray = _need("xarray", "tables")
        lengths: dict[str, int] = {}
        sizes: dict[str, int] = {}
        variables = {}
        for name, array in self.arrays.items():
            dims = []
            for axis, length in zip(unique_axes(self.axes[name]), array.shape, strict=True):
                dims.append(axis if lengths.setdefault(axis, length) == length else f"{axis}_of_{length}")
            variables[name] = (tuple(dims), array, described(name))
            sizes |= dict(zip(dims, array.shape, strict=True))
        coordinates: dict[str, Any] = {dim: np.arange(size) for dim, size in sizes.items() if dim not in variables}
        if sizes.get("state", 0) > 1 and "relative_depth" not in variables:
            depth = np.linspace(0, 1, sizes["state"])
            coordinates["relative_depth"] = ("state", depth, {"long_name": "0 embedding, 1 last block"})
        return xarray.Dataset(variables, coordinates, self._facts())

    def _facts(self) -> dict[str, str]:
        """What was measured, as text that every format keeps."""
        facts = {key: str(self.config[key]) for key in ("model", "task") if self.config.get(key)}
        facts |= {key: str(self.provenance[key]) for key in ("repflow",) if self.provenance.get(key)}
        facts["config"] = json.dumps(self.config, default=str)
        facts["findings"] = json.dumps([asdict(finding) for finding in self.findings])
        return facts

    def plot(self, name: str | None = None) -> Any:
        """Plotly figure of one metric; without a name that of the result's kind (see `repflow.report`)."""
        return hook("plot")(self, name)

    def __repr__(self) -> str:
        """Short enough for a prompt: what was measured and how much it contains.

        >>> Result({"m": np.ones(2)}, {"m": ("state",)}, {"model": "gpt2", "task": "kvpr"})
        <Result of gpt2 on kvpr: 1 metric, such as m (state 2)>
        """
        about = " on ".join(str(self.config[key]) for key in ("model", "task") if self.config.get(key))
        count = len(self.arrays)
        text = f"<Result{f' of {about}' if about else ''}: {count} metric{'s' if count != 1 else ''}"
        for name in sorted(self.arrays, key=lambda name: name.count("/"))[:1]:  # plain names before variants
            sizes = zip(self.axes[name], self.arrays[name].shape, strict=True)
            text += f", such as {name} ({', '.join(f'{axis} {size}' for axis, size in sizes)})"
        findings = len(self.findings)
        return f"{text}{f'; {findings} finding' + 's' * (findings != 1) if findings else ''}>"

    def _repr_html_(self) -> str:
        return hook("html")(self)


def _need(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"this needs {module}, which is not installed; pip install 'repflow[{extra}]'"
        ) from None


def unique_axes(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Number repeated axes, so that they can name columns: (state, state) becomes (state, state_2)."""
    return tuple(
        axis if axes[:i].count(axis) == 0 else f"{axis}_{axes[:i].count(axis) + 1}" for i, axis in enumerate(axes)
    )


def sample_mean(array: np.ndarray, axes: tuple[str, ...]) -> np.ndarray:
    """Mean over the sample axis, ignoring NaN; unchanged where there is none."""
    if "sample" not in axes:
        return array
    moved = np.moveaxis(array, axes.index("sample"), 0).astype(np.float64)
    present = ~np.isnan(moved)
    count = present.sum(0)
    total = np.where(present, moved, 0.0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def sample_band(
    array: np.ndarray,
    axes: tuple[str, ...],
    *,
    span: tuple[float, float] = (-math.inf, math.inf),
    whole: bool = False,
) -> Band:
    """Mean over samples and Student's 95 % interval of it; NaN bounds without a sample axis and below three samples.

    Args:
        array: values.
        axes: its axes; those without `sample` have no interval.
        span: least and largest value there can be. An interval stops there; that of a quantity from 0 to infinity is
            Student's of the mean's logarithm, which never reaches zero (`repflow.core.intervals.positive_interval`).
        whole: values are whole numbers from 1, which may all agree (`repflow.core.intervals.whole_interval`).

    >>> band = sample_band(np.array([0.9, 0.95, 0.99]), ("sample",), span=(-1.0, 1.0))
    >>> round(float(band.mean), 4), round(float(band.low), 4), float(band.high)
    (0.9467, 0.8347, 1.0)
    """
    if "sample" not in axes:
        mean = sample_mean(array, axes)
        return Band(mean, np.full(mean.shape, np.nan), np.full(mean.shape, np.nan))
    usual = positive_interval if span[0] >= 0 and span[1] == math.inf else student_interval
    interval = whole_interval if whole else usual
    band = interval(array, axis=axes.index("sample"))
    # rounding may put the mean itself a little outside
    low, high = np.minimum(span[0], band.mean), np.maximum(span[1], band.mean)
    return Band(band.mean, np.asarray(np.maximum(band.low, low)), np.asarray(np.minimum(band.high, high)))


def array_to_json(array: np.ndarray, axes: tuple[str, ...]) -> dict[str, Any]:
    """Describe an array as axes, shape and nested values with null for what is not finite."""
    return {"axes": list(axes), "shape": list(array.shape), "dtype": str(array.dtype), "values": _plain(array)}


def array_from_json(entry: Mapping[str, Any]) -> np.ndarray:
    """Inverse of `array_to_json`."""
    dtype = np.dtype(entry.get("dtype", "float64"))
    return np.asarray(_restore(entry["values"]), dtype=dtype).reshape(entry["shape"])


def _plain(array: np.ndarray) -> Any:
    if array.dtype.kind == "f":
        return _null(array.tolist())
    return array.tolist()


def _null(value: Any) -> Any:
    if isinstance(value, list):
        return [_null(v) for v in value]
    return value if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """Copy of nested values with null for what is not finite, such as the ends of an interval of few prompts."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _restore(value: Any) -> Any:
    if isinstance(value, list):
        return [_restore(v) for v in value]
    return math.nan if value is None else value
