"""Result: mapping, bands, exact JSON, tables."""

import json
import warnings

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from repflow.core import hooks, results
from repflow.core.errors import InputError, MissingExtraError
from repflow.core.results import Finding, Result, array_from_json, array_to_json, sample_band, sample_mean, unique_axes


@pytest.fixture
def result():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((4, 6))
    values[2, 3] = np.nan
    return Result(
        {
            "token_similarity": values,
            "smoothness": rng.standard_normal(6).astype(np.float32),
            "cka_matrix": rng.standard_normal((4, 4, 6)),
            "final_norm/token_similarity": rng.standard_normal((1, 6)),
            "kept/token_norm": rng.standard_normal((4, 2, 9)),
            "top_tokens": rng.integers(0, 9, (4, 6, 2)),
            "rows": np.asarray(7.5),
        },
        {
            "token_similarity": ("state", "sample"),
            "smoothness": ("sample",),
            "cka_matrix": ("state", "state", "sample"),
            "final_norm/token_similarity": ("state", "sample"),
            "kept/token_norm": ("state", "sample", "token"),
            "top_tokens": ("state", "sample", "rank"),
            "rows": (),
        },
        config={"task": "random", "length": 8},
        provenance={"torch": "2"},
        findings=[Finding("sink_tokens", 2, "one token carries 0.9")],
    )


def test_is_a_mapping(result):
    assert list(result) == list(result.arrays)
    assert len(result) == 7
    assert "smoothness" in result
    assert result["smoothness"] is result.arrays["smoothness"]
    assert dict(result).keys() == result.keys()
    with pytest.raises(KeyError, match="no metric 'smothness' in this result; did you mean smoothness"):
        result["smothness"]
    assert result.get("nothing") is None


@pytest.mark.parametrize("axes", [{}, {"a": ("state",)}, {"a": ("state", "sample", "token")}])
def test_every_dimension_needs_a_name(axes):
    with pytest.raises(InputError, match=r"one axis name per dimension of 'a' \(2, 3\)"):
        Result({"a": np.zeros((2, 3))}, axes)


def test_mean_leaves_undefined_samples_out(result):
    np.testing.assert_allclose(result.mean("token_similarity"), np.nanmean(result["token_similarity"], axis=1))
    np.testing.assert_allclose(result.mean("cka_matrix"), result["cka_matrix"].mean(-1))
    assert result.mean("rows") == 7.5
    assert np.isnan(sample_mean(np.full((2, 3), np.nan), ("state", "sample"))).all()
    assert sample_mean(np.arange(3), ("sample",)) == 1


def test_band_is_students():
    values = np.random.default_rng(1).normal(size=(3, 8))
    band = sample_band(values, ("state", "sample"))
    for state in range(3):
        theirs = scipy.stats.ttest_1samp(values[state], 0.0).confidence_interval(0.95)
        np.testing.assert_allclose([band.low[state], band.high[state]], theirs, rtol=1e-10)
    np.testing.assert_allclose(band.mean, values.mean(1))


@pytest.mark.parametrize("count", [3, 4, 8, 16, 64])
def test_band_covers(count):
    """A percentile bootstrap covers 75, 80, 88, 92 and 94 % here."""
    values = np.random.default_rng(count).normal(size=(4000, count))
    band = Result({"m": values}, {"m": ("state", "sample")}).band("m")
    assert 0.93 <= ((band.low <= 0) & (band.high >= 0)).mean() <= 0.97


def test_band_with_undefined_samples(result):
    values = np.random.default_rng(3).standard_normal((2, 30))
    some = np.concatenate([values, np.full((2, 5), np.nan)], 1)
    np.testing.assert_allclose(sample_band(some, ("state", "sample")), sample_band(values, ("state", "sample")))
    never = np.vstack([values, np.full((1, 30), np.nan)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        band = sample_band(never, ("state", "sample"))
    assert np.isnan([band.mean[2], band.low[2], band.high[2]]).all()
    assert np.isfinite(band.low[:2]).all()
    rare = np.full((1, 8), np.nan)
    rare[0, 3:5] = 2.0
    band = sample_band(rare, ("state", "sample"))
    assert band.mean == 2
    assert np.isnan([band.low, band.high]).all()


@pytest.mark.parametrize("count", [1, 2])
def test_band_needs_three_samples_and_a_sample_axis(result, count):
    few = sample_band(np.array([[1.0] * count, [2.0] * count]), ("state", "sample"))
    assert few.mean.tolist() == [1, 2]
    assert np.isnan(few.low).all()
    assert np.isnan(few.high).all()
    assert np.isnan(result.band("rows").low)


def test_band_stays_within_what_the_metric_can_be():
    """Three prompts that differ widely: Student's own ends are below 0 and above 1."""
    arrays = {"token_similarity": np.array([[0.5, 0.9, 1.0]]), "final_norm/token_norm": np.array([[1.0, 2.0, 30.0]])}
    axes = {"token_similarity": ("state", "sample"), "final_norm/token_norm": ("state", "sample")}
    result = Result(arrays, axes)
    band = result.band("token_similarity")
    assert band.high == 1.0
    assert 0 < band.low < band.mean
    norm = result.band("final_norm/token_norm")
    assert norm.mean == 11
    assert 0 < norm.low < norm.mean < norm.high
    assert sample_band(arrays["final_norm/token_norm"], ("state", "sample")).low < 0
    same = Result({"token_norm": np.zeros((1, 4))}, {"token_norm": ("state", "sample")}).band("token_norm")
    assert [float(part[0]) for part in same] == [0, 0, 0]


def test_band_is_stored_and_keeps_shape(result):
    band = result.band("cka_matrix")
    assert band.low.shape == band.high.shape == (4, 4)
    assert result.band("cka_matrix") is band
    again = sample_band(result["cka_matrix"], result.axes["cka_matrix"], span=(-1.0, 1.0))
    np.testing.assert_array_equal(again.low, band.low)
    middle = sample_band(result["kept/token_norm"], result.axes["kept/token_norm"])
    assert middle.low.shape == (4, 9)
    np.testing.assert_allclose(middle.mean, result["kept/token_norm"].mean(1))


def test_a_band_stored_by_an_older_version_is_read_as_it_is():
    """Two prompts had an interval then."""
    values = {"axes": ["sample"], "shape": [2], "dtype": "float64", "values": [1.0, 3.0]}
    data = {"metrics": {"m": values}, "config": {}, "provenance": {}, "findings": []}
    data["bands"] = {"m": {"low": 1.0, "mean": 2.0, "high": 3.0}}
    assert [float(part) for part in Result.from_json(data).band("m")] == [2.0, 1.0, 3.0]


def test_json_round_trip_is_exact(result):
    result.band("token_similarity")
    text = json.dumps(result.to_json(), allow_nan=False)
    back = Result.from_json(json.loads(text))
    assert back.axes == result.axes
    assert list(back) == list(result)
    for name, array in result.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array, err_msg=name)
    assert back.findings == result.findings
    assert (back.config, back.provenance) == (result.config, result.provenance)
    for part in ("mean", "low", "high"):
        np.testing.assert_array_equal(
            getattr(back.bands["token_similarity"], part), getattr(result.bands["token_similarity"], part)
        )
    assert json.dumps(back.to_json(), allow_nan=False) == text


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(st.sampled_from([np.float32, np.float64]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)))
def test_every_array_survives_json(array):
    entry = json.loads(json.dumps(array_to_json(array, ("token",) * array.ndim), allow_nan=False))
    back = array_from_json(entry)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    np.testing.assert_array_equal(back, np.where(np.isfinite(array), array, np.nan))


def test_to_pandas(result):
    table = result.to_pandas()
    assert len(table) == sum(array.size for array in result.values())
    row = table[(table.metric == "cka_matrix") & (table.state == 1) & (table.state_2 == 3) & (table["sample"] == 5)]
    assert row.value.item() == result["cka_matrix"][1, 3, 5]
    scalar = table[table.metric == "rows"]
    assert scalar.value.tolist() == [7.5]
    assert {str(table[axis].dtype) for axis in ("state", "state_2", "sample")} == {"Int64"}
    assert table[table.metric == "token_similarity"].state_2.isna().all()
    assert Result({}, {}).to_pandas().empty
    empty = Result({"layer_cosine": np.zeros((0, 3))}, {"layer_cosine": ("layer", "sample")})
    assert empty.to_pandas().empty


def test_to_xarray(result):
    data = result.to_xarray()
    assert data["cka_matrix"].dims == ("state", "state_2", "sample")
    assert data["token_similarity"].dims == ("state", "sample")
    np.testing.assert_array_equal(data["cka_matrix"].values, result["cka_matrix"])
    np.testing.assert_array_equal(data["final_norm/token_similarity"].values, result["final_norm/token_similarity"])
    assert data["final_norm/token_similarity"].dims[0] != "state"
    assert data["kept/token_norm"].dims[1] != "sample"
    assert all(dim in data.coords for dim in data.dims)
    assert data.state.values.tolist() == list(range(data.sizes["state"]))
    assert data.relative_depth.values[[0, -1]].tolist() == [0.0, 1.0]
    assert data["token_similarity"].attrs["long_name"].startswith("mean cosine")
    assert {"config", "findings"} <= data.attrs.keys()


def test_a_metric_may_have_the_name_of_an_axis():
    data = Result({"state": np.zeros((2, 3))}, {"state": ("layer", "sample")}).to_xarray()
    assert data["state"].shape == (2, 3)


def test_to_xarray_with_an_axis_of_length_two_beside_a_second_state_axis():
    """The second state axis and a state axis of length 2 must not end up under one name."""
    arrays = {"cka_matrix": np.zeros((5, 5)), "pair": np.zeros(2), "cross": np.zeros((2, 5))}
    axes = {"cka_matrix": ("state", "state"), "pair": ("state",), "cross": ("state", "state")}
    data = Result(arrays, axes).to_xarray()
    assert {name: data[name].shape for name in arrays} == {name: array.shape for name, array in arrays.items()}


def test_unique_axes():
    assert unique_axes(("state", "state", "sample", "state")) == ("state", "state_2", "sample", "state_3")
    assert unique_axes(()) == ()


def test_missing_extra_and_missing_hook(result, monkeypatch):
    with pytest.raises(MissingExtraError, match=r"needs no_such_module.*pip install 'repflow\[tables\]'"):
        results._need("no_such_module", "tables")
    monkeypatch.setattr(hooks, "_hooks", {})
    with pytest.raises(InputError, match="no plot hook registered; import repflow"):
        result.plot()
    hooks.register_hook("plot", lambda of, name: (of, name))
    assert result.plot("smoothness") == (result, "smoothness")


def test_yes_and_no_stay_numbers_in_a_table():
    result = Result(
        {"converged": np.array([True, False]), "loss": np.array([0.5, 0.1])},
        {"converged": ("state",), "loss": ("state",)},
    )
    table = result.to_pandas()
    assert table["value"].dtype == np.float64
    assert table["value"].tolist() == [1.0, 0.0, 0.5, 0.1]


def test_numbers_of_the_provenance_that_are_not_finite_are_null_too():
    provenance = {"cells": [{"mean": 0.5, "low": float("nan"), "high": np.float64("inf")}], "pair": (1.0, float("nan"))}
    odd = Result({"m": np.zeros(2)}, {"m": ("state",)}, provenance=provenance)
    text = json.dumps(odd.to_json(), allow_nan=False)
    content = json.loads(text)["provenance"]
    assert content == {"cells": [{"mean": 0.5, "low": None, "high": None}], "pair": [1.0, None]}
