"""A grid's folder as one: listed, loaded side by side with NaN where cells differ, exported with what differs."""

import csv
import json

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.core.results import Band, Finding, Result
from repflow.store import RunFolder, export, is_study, list_runs, load_result, runs_in


def stored(parent, name, states, *, model="m", length=8, samples=2, finish=True):
    config = {"model": model, "task": "random", "length": length, "samples": samples}
    values = np.arange(states * samples, dtype=float).reshape(states, samples)
    mean = values.mean(1)
    result = Result(
        {"token_similarity": values, "smoothness": np.full(samples, 0.5), "drop": np.array(0.1)},
        {"token_similarity": ("state", "sample"), "smoothness": ("sample",), "drop": ()},
        config,
        {"model": {"name": model}},
        [Finding("sink_tokens", 1, "two")] if states == 3 else [],
        {
            "token_similarity": Band(mean, mean - 1, mean + 1),
            "drop": Band(*(np.array(v) for v in (0.1, 0.0, 0.2))),
        },
    )
    with RunFolder.open(parent, name, config=config, provenance={}) as run:
        if finish:
            run.finish(result)
        else:
            run.write_shard("s", {"x": np.ones(1)}, {"samples": 1})
    return result


@pytest.fixture
def study(tmp_path):
    folder = tmp_path / "runs" / "depth"
    stored(folder, "a", 3, length=8)
    stored(folder, "b", 5, length=16, samples=3, model="n")
    return folder


def test_a_study_is_one_line_of_the_list(study):
    stored(study.parent, "alone", 2)
    assert is_study(study)
    assert not is_study(study / "a")
    alone, depth = list_runs(study.parent)
    assert (depth.name, depth.cells, depth.done, depth.total, depth.finished) == ("depth", 2, 2, 2, True)
    assert (depth.model, depth.task) == ("2 models", "random")
    assert (alone.name, alone.cells) == ("alone", 0)
    stored(study, "c", 2, finish=False)
    (study / "d.json").write_text(json.dumps({"cell": "d", "config": {}, "status": "failed", "reason": "no room"}))
    (study / "plan.json").write_text('{"a": "file of somebody"}')
    _, depth = list_runs(study.parent)
    assert (depth.done, depth.total, depth.finished, depth.failed) == (2, 4, False, 1)
    assert [run.name for run in list_runs(study)] == ["a", "b", "c", "d"]
    assert [run.name for run in runs_in(study)] == ["a", "b", "c"]


def test_cells_without_a_run_are_listed_with_their_reason(study):
    asked = {"model": "m9", "task": "random", "samples": 4}
    note = {"cell": "aa", "status": "cannot run", "reason": "expected a folder; got: none", "config": asked}
    (study / "aa.json").write_text(json.dumps(note))
    (study / "other.json").write_text(json.dumps({**note, "cell": "else"}))  # notes of something else
    (study / "list.json").write_text("[1]")
    (study / "torn.json").write_text('{"cell"')
    (study / "b.json").write_text(json.dumps({**note, "cell": "b"}))  # of an earlier attempt: b has run since
    rows = list_runs(study)
    assert [row.name for row in rows] == ["a", "aa", "b"]
    assert (rows[1].model, rows[1].task, rows[1].done, rows[1].total, rows[1].finished) == ("m9", "random", 0, 4, False)
    assert rows[1].reason == "cannot run: expected a folder; got: none"
    assert [row.reason for row in rows[::2]] == ["", ""]
    none = study.parent / "none"
    none.mkdir()
    (none / "aa.json").write_text(json.dumps(note))
    row = list_runs(study.parent)[1]
    assert (row.name, row.cells, row.done, row.total, row.failed, row.model) == ("none", 0, 0, 1, 1, "m9")


def test_cells_are_loaded_side_by_side(study):
    result = load_result(study)
    one, two = load_result(study / "a"), load_result(study / "b")
    assert result.axes["token_similarity"] == ("cell", "state", "sample")
    assert result["token_similarity"].shape == (2, 5, 3)
    np.testing.assert_array_equal(result["token_similarity"][0, :3, :2], one["token_similarity"])
    np.testing.assert_array_equal(result["token_similarity"][1], two["token_similarity"])
    assert np.isnan(result["token_similarity"][0, 3:]).all()
    assert np.isnan(result["token_similarity"][0, :, 2:]).all()
    np.testing.assert_array_equal(result.bands["token_similarity"].low[0, :3], one.bands["token_similarity"].low)
    np.testing.assert_allclose(result.mean("token_similarity")[0, :3], one.mean("token_similarity"))
    assert result.config == {"task": "random"}
    assert [cell["config"]["length"] for cell in result.provenance["cells"]] == [8, 16]
    assert result.findings == [Finding("sink_tokens", 1, "a: two")]
    assert result.provenance["study"] == "depth"


def test_what_has_no_result_is_a_finding(study):
    stored(study, "c", 2, finish=False)
    (study / "d.json").write_text("{}")
    result = load_result(study)
    assert len(result.provenance["cells"]) == 2
    (missing,) = [f for f in result.findings if f.code == "cells_missing"]
    assert missing.message == "2 of 4 cells have no result: c, d"


def test_a_summary_of_its_own_is_what_a_study_gives(study):
    stored(study, "summary", 4)
    assert load_result(study)["token_similarity"].shape == (4, 2)


def test_nothing_finished_is_refused(tmp_path):
    stored(tmp_path / "depth", "a", 2, finish=False)
    with pytest.raises(InputError, match=r"expected a finished run in .*depth; got 1 unfinished ones"):
        load_result(tmp_path / "depth")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a run folder at"):
        load_result(tmp_path / "empty")


def rows(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_export_of_a_run_says_model_task_and_band(study, tmp_path):
    table = rows(export(study / "a", "csv", tmp_path / "a.csv"))
    assert {(row["model"], row["task"]) for row in table} == {("m", "random")}
    means = [row for row in table if row["metric"] == "mean/token_similarity"]
    band = load_result(study / "a").bands["token_similarity"]
    assert [row["state"] for row in means] == ["0", "1", "2"]
    assert {row["sample"] for row in means} == {""}
    for key, column in (("mean", "value"), ("low", "low"), ("high", "high")):
        assert [float(row[column]) for row in means] == getattr(band, key).tolist()
    (drop,) = [row for row in table if row["metric"] == "drop"]  # a band with the metric's own axes: no second row
    assert (drop["value"], drop["low"], drop["high"]) == ("0.1", "0.0", "0.2")
    assert {row["low"] for row in table if row["metric"] == "token_similarity"} == {""}


def test_export_of_a_study_says_what_differs(study, tmp_path):
    table = rows(export(study, "csv", tmp_path / "depth.csv"))
    first = [row for row in table if row["metric"] == "token_similarity" and row["cell"] == "1" and row["state"] == "4"]
    assert [(row["model"], row["length"], float(row["value"])) for row in first] == [
        ("n", "16", 12.0),
        ("n", "16", 13.0),
        ("n", "16", 14.0),
    ]
    for to in ("npz", "parquet", "netcdf"):
        assert export(study, to, tmp_path).stat().st_size


def test_no_two_cells_need_the_same_metrics(tmp_path):
    result = stored(tmp_path / "depth", "a", 2)
    with RunFolder.open(tmp_path / "depth", "b", config={"model": "o"}, provenance={}) as run:
        run.finish(
            Result(
                {"smoothness": np.ones(2), "other": np.ones((2, 2))},
                {"smoothness": ("sample",), "other": ("state", "state")},
            )
        )
    summary = load_result(tmp_path / "depth")
    assert np.isnan(summary["token_similarity"][1]).all()
    np.testing.assert_array_equal(summary["token_similarity"][0], result["token_similarity"])
    assert summary["smoothness"].tolist() == [[0.5, 0.5], [1.0, 1.0]]
