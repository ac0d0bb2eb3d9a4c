import json

import numpy as np
import pytest

from repflow.core.errors import InputError, MissingExtraError
from repflow.core.results import Finding, Result
from repflow.store import RunFolder, export

ARRAYS = {
    "token_similarity": np.array([[0.1, np.nan], [np.inf, -0.0], [1 / 3, 5e-324]]),
    "final_norm/token_similarity": np.array([[0.1, 0.2]], np.float32),
    "norm>10/token_norm": np.array([1, 2, 2**53], np.int64),
    "norm_10_token_norm": np.array([1, 2, 3], np.int64),
    "cka_matrix": np.arange(9, dtype=np.float32).reshape(3, 3) / 7,
    "is_sink": np.array([True, False, True]),
    "half": np.array([0.5, 1.5, np.nan], np.float16),
    "file": np.zeros((0, 2), np.uint8),
}
AXES = {
    "token_similarity": ("state", "sample"),
    "final_norm/token_similarity": ("state", "sample"),
    "norm>10/token_norm": ("state",),
    "norm_10_token_norm": ("state",),
    "cka_matrix": ("state", "state"),
    "is_sink": ("state",),
    "half": ("state",),
    "file": ("layer", "sample"),
}


@pytest.fixture
def result():
    return Result(dict(ARRAYS), dict(AXES), {"model": "tiny"}, {"ratio": np.nan}, [Finding("sink", 1, "one")])


def test_npz(result, tmp_path):
    path = export(result, "npz", tmp_path / "r.npz")
    with np.load(path) as loaded:
        about = json.loads(str(loaded["repflow"]))
        assert set(loaded.files) == {*ARRAYS, "repflow"}
        for name, array in ARRAYS.items():
            assert loaded[name].dtype == array.dtype
            assert loaded[name].tobytes() == array.tobytes()
    assert about["axes"]["cka_matrix"] == ["state", "state"]
    assert about["provenance"] == {"ratio": None}
    assert about["findings"] == [{"code": "sink", "layer": 1, "message": "one"}]
    assert export(result, "npz", tmp_path / "again.npz").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_tables(result, tmp_path, to):
    pandas = pytest.importorskip("pandas")
    path = export(result, to, tmp_path / "table")
    frame = pandas.read_csv(path) if to == "csv" else pandas.read_parquet(path)
    axes = ["state", "sample", "state_2", "layer"]
    assert list(frame.columns) == ["model", "task", "metric", *axes, "value", "low", "high"]
    assert set(frame["model"]) == {"tiny"}
    assert len(frame) == sum(array.size for array in ARRAYS.values())
    for name, array in ARRAYS.items():
        rows = frame[frame["metric"] == name]
        assert np.array_equal(rows["value"].to_numpy(), array.reshape(-1).astype(float), equal_nan=True)
    square = frame[frame["metric"] == "cka_matrix"].astype({"state": int, "state_2": int})
    assert [*zip(square["state"], square["state_2"], strict=True)][:4] == [(0, 0), (0, 1), (0, 2), (1, 0)]
    if to == "parquet":
        assert frame.attrs["repflow"]["config"] == {"model": "tiny"}


def test_netcdf(result, tmp_path):
    xarray = pytest.importorskip("xarray")
    path = export(result, "netcdf", tmp_path / "r.nc")
    with xarray.open_dataset(path, engine="scipy") as loaded:
        by_name = {variable.attrs["repflow_name"]: variable for variable in loaded.data_vars.values()}
        assert set(by_name) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert np.array_equal(by_name[name].values, array.astype(float), equal_nan=True)
            assert by_name[name].attrs["repflow_dtype"] == str(array.dtype)
        assert loaded["cka_matrix"].dims == ("state", "state_2")
        assert json.loads(loaded.attrs["repflow"])["config"] == {"model": "tiny"}


@pytest.mark.parametrize("to", ["npz", "netcdf"])
def test_a_metric_without_axes(tmp_path, to):
    path = export(Result({"scalar": np.array(2.5)}, {"scalar": ()}), to, tmp_path)
    loaded = np.load(path) if to == "npz" else pytest.importorskip("xarray").open_dataset(path, engine="scipy")
    with loaded:
        assert loaded["scalar"].shape == ()
        assert float(loaded["scalar"]) == 2.5


def test_a_run_folder_into_a_folder(result, tmp_path):
    with RunFolder.open(tmp_path, "run", config={}, provenance={}) as run:
        with pytest.raises(InputError, match="unfinished"):
            export(run.path, "csv", tmp_path)
        run.finish(result)
    for to, suffix in (("csv", ".csv"), ("npz", ".npz"), ("parquet", ".parquet"), ("netcdf", ".nc")):
        assert export(str(tmp_path / "run"), to, tmp_path) == tmp_path / f"run{suffix}"
        assert (tmp_path / f"run{suffix}").stat().st_size > 0


def test_mistakes(result, tmp_path):
    with pytest.raises(InputError, match="did you mean parquet"):
        export(result, "parque", tmp_path)
    with pytest.raises(InputError, match="an existing folder"):
        export(result, "csv", tmp_path / "none" / "r.csv")
    with pytest.raises(InputError, match="export to npz"):
        export(Result({"z": np.array([1j])}, {"z": ("state",)}), "csv", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("to", "package"), [("csv", "pandas"), ("parquet", "pyarrow"), ("netcdf", "xarray")])
def test_missing_extras_say_what_to_install(result, tmp_path, monkeypatch, to, package):
    import sys

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package}.*pip install 'repflow\[tables\]'"):
        export(result, to, tmp_path / "out")
    assert not list(tmp_path.iterdir())
