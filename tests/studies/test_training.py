"""The history of a training as a run: listed, compared, exported, drawn, and refused where it cannot be."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

import repflow
from repflow.core.errors import InputError
from repflow.core.results import Result
from repflow.core.studies import row_of
from repflow.report.data.runs import read_runs
from repflow.report.terminal.listing import list_table
from repflow.report.terminal.training import view
from repflow.store import RunFolder, export, list_runs
from repflow.studies.training import STUDY, TrainingHistoryConfig, compare_histories, is_history
from repflow.training.flow.history import FlowHistory, HistoryFolder, scalars
from tests.studies.stored_history import history


def shown(*parts):
    console = Console(width=200, record=True, file=io.StringIO())
    for part in parts:
        console.print(part)
    return console.export_text()


def test_a_history_is_one_line_of_the_list(tmp_path):
    run = history(tmp_path, "one")
    text = shown(list_table(list_runs(tmp_path)))
    assert re.search(r"one\s+3 readings\s+finished\s+random\s+live:tiny", text)
    assert row_of(repflow.load_result(run).config).name == "training"
    assert is_history(run)
    assert not is_history(tmp_path)
    assert not is_history("")


def test_two_histories_are_compared_at_the_steps_of_both(tmp_path):
    a, b = history(tmp_path, "a"), history(tmp_path, "b", steps=(10, 20, 30), shift=0.05)
    result = compare_histories(a, b)
    assert result["step"].tolist() == [10, 20]
    # a's second reading is b's first: 0.1 further and 0.05 higher
    np.testing.assert_allclose(result["difference/token_similarity"], 0.05, atol=1e-6)
    assert result.axes["difference/token_similarity"] == ("step", "state", "sample")
    text = shown(*view(result))
    assert "A = a, B = b on task random" in text
    assert text.count("+0.050*") == 4


def test_what_cannot_be_compared_is_refused(tmp_path):
    one = history(tmp_path, "one")
    with pytest.raises(InputError, match="two histories on the same prompts"):
        compare_histories(one, history(tmp_path, "other prompts", prompts="def"))
    with pytest.raises(InputError, match=r"steps in common; got \[0, 10, 20\] and \[5, 15\]"):
        compare_histories(one, history(tmp_path, "other steps", steps=(5, 15)))
    result = compare_histories(one, history(tmp_path, "deeper", states=5))
    assert sorted(result) == ["a/smoothness", "b/smoothness", "difference/smoothness", "step"]


def test_a_history_is_exported(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.read_csv(export(history(tmp_path, "one"), "csv", tmp_path))
    assert set(table["metric"]) == {
        "step",
        "token_similarity",
        "smoothness",
        "mean/token_similarity",
        "mean/smoothness",
    }
    assert table.query("metric == 'step'")["value"].tolist() == [0, 10, 20]


def test_the_page_draws_depth_by_step(tmp_path):
    from repflow.report.data.context import Context
    from repflow.report.sections.history import section

    history(tmp_path, "a"), history(tmp_path, "b", shift=0.05)
    runs, warnings = read_runs([tmp_path])
    assert not warnings
    content = section(runs, Context([]))
    maps, lines = content.blocks
    assert [variant.when["run"] for variant in maps.variants] == ["a", "b"]
    trace = maps.variants[0].traces[0]
    assert trace["x"] == ["0", "10", "20"]
    np.testing.assert_allclose(np.array(trace["z"]), runs[0].result.mean("token_similarity").T, atol=1e-3)
    assert [variant.when["metric"] for variant in lines.variants] == ["token similarity", "smoothness"]
    assert len(maps.variants[0].rows) == 9
    assert section([], Context([])) is None


def test_a_history_draws_itself(tmp_path):
    figure = repflow.load_result(history(tmp_path, "one")).plot()
    assert figure.data[0].type == "heatmap"


def test_no_command_makes_one():
    for call in (STUDY.check, STUDY.run):
        with pytest.raises(InputError, match="a training loop, which alone can make a history"):
            call(TrainingHistoryConfig())


def test_a_reading_without_a_metric_is_nan_there():
    kept = FlowHistory({}, {})
    kept.add(1, {"m": (("state",), np.ones(2)), "n": ((), np.array(3.0))})
    kept.add(2, {"m": (("state",), np.zeros(2))})
    np.testing.assert_array_equal(kept.result()["n"], [3.0, np.nan])
    assert scalars({"m": (("state",), np.array([1.0, np.nan]))}, "")["m_last"] != 0


def test_a_killed_training_leaves_what_was_read(tmp_path):
    """Without `close`: the result is that of the last time it was stored, and a resumed training has every shard."""
    config = {"study": "training", "model": "live:tiny", "task": "random", "every": 1}
    kept = FlowHistory(config, {"digests": {}})
    place = HistoryFolder(tmp_path, "cut", kept, 1)
    for step in range(1, 12):
        table = {"m": (("state",), np.full(2, float(step)))}
        kept.add(step, table)
        place.write(kept, step, table)
    place.run.close()  # as the end of the process does
    stored = repflow.load_result(tmp_path / "cut")
    assert stored["step"].tolist() == list(range(1, len(stored["step"]) + 1))
    assert len(stored["step"]) >= 0.8 * 11
    assert not list_runs(tmp_path)[0].finished
    again = FlowHistory(config, {"digests": {}})
    HistoryFolder(tmp_path, "cut", again, 12).close(again)
    assert again.steps == list(range(1, 12))
    assert isinstance(again.result(), Result)
    assert RunFolder.reopen(tmp_path / "cut").finished
