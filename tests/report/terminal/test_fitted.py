"""Tables at any width: numbers are whole or absent, and what is absent is named."""

import io
import re

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table

from repflow.core.results import Band, Result
from repflow.report.terminal.fitted import FittedTable
from repflow.report.terminal.grid import grid_table
from repflow.report.terminal.measure import side_by_side, view
from repflow.report.terminal.probe import view as probe_view


def shown(renderable, width):
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


def probe_result(states=5, seeds=2):
    rng = np.random.default_rng(0)
    accuracy = rng.uniform(0.1, 0.9, (states, seeds))
    mean = accuracy.mean(1)
    arrays = {"probe_accuracy": accuracy, "probe_valid_accuracy": accuracy, "probe/paper/accuracy": accuracy}
    arrays |= dict.fromkeys(("probe_corrected", "probe_information", "probe_selectivity"), mean)
    arrays |= {"twin/probe_accuracy": accuracy, "probe_drop": np.array(0.1), "lens_rank": np.ones((states, 4))}
    axes = {name: ("state", "seed") if array.ndim == 2 else ("state",) for name, array in arrays.items()}
    axes |= {"probe_drop": (), "lens_rank": ("state", "sample")}
    bands = {"probe_accuracy": Band(mean, mean - 0.1, mean + 0.1), "twin/probe_accuracy": Band(mean, mean, mean)}
    bands["probe_drop"] = Band(*(np.array(value) for value in (0.1, 0.0, 0.2)))
    about = {"label": "index", "classes": 4, "chance": 0.25, "recipe": "robust", "peak": 3, "peaks": [3, 3], "last": 4}
    about |= {"tied": [3, 4], "peak_accuracy": 0.6, "last_accuracy": 0.5, "intermediate_beats_final": False}
    result = Result(arrays, axes, bands=bands)
    result.config, result.provenance = {"task": "kvpr", "model": "m"}, {"probe": about, "model": {"name": "m"}}
    return result


@pytest.mark.parametrize("width", [50, 80, 120])
def test_probe_table_keeps_state_mark_and_interval_whole(width):
    result = probe_result()
    text = shown(probe_view(result)[0], width)
    mean, low, high = (getattr(result.bands["probe_accuracy"], key)[3] for key in ("mean", "low", "high"))
    assert re.search(rf"3\*\s+{mean:.3f} \[{low:.3f}, {high:.3f}\]", text)
    assert "…" not in text
    assert ("not shown in this width" in " ".join(text.split())) == (width < 120)


def test_what_is_left_out_is_named():
    text = " ".join(shown(probe_view(probe_result())[0], 80).split())
    left_out = text.partition("not shown in this width: ")[2].split(", ")
    assert left_out[-1] == "lens rank"
    assert all(name not in text.partition("not shown")[0] for name in left_out)


def test_grid_table_names_what_all_cells_share_and_never_cuts_a_number():
    config = {"model": "models/a-long-name-of-a-model", "length": 300, "init": "trained", "seed": 0, "grid": None}
    values = {"Sm": 0.12345, "St": 1.2345, "sim 50 %": 0.0213, "sim 100 %": 0.0087}
    rows = [(config | {"task": "kvpr"}, values), (config | {"task": "random"}, None)]
    whole = shown(grid_table(rows), 120)
    assert "all cells: length 300, init trained, seed 0" in " ".join(whole.split())
    assert "sim 100 %" in whole
    narrow = shown(grid_table(rows), 60)
    assert "not shown in this width: " in " ".join(narrow.split())
    for number in re.findall(r"\d+\.\d+", narrow):
        assert number in whole


def measured(states=7):
    rng = np.random.default_rng(0)
    names = ("token_similarity", "token_similarity_excess", "common_share")
    arrays = {name: rng.uniform(0.1, 0.9, (states, 4)) for name in names}
    arrays |= {"layer_cosine": rng.uniform(size=(states - 1, 4, 8)), "token_norm": rng.uniform(size=(states, 4, 8))}
    axes = dict.fromkeys(names, ("state", "sample"))
    axes |= {"layer_cosine": ("layer", "sample", "token"), "token_norm": ("state", "sample", "token")}
    return Result(arrays, axes, {"task": "text", "model": "m"}, {"model": {"name": "m", "layers": states - 1}})


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_measured_states_are_never_wrapped(width):
    result = measured()
    text = shown(view(result)[0], width)
    band = result.band("token_similarity")
    for state in range(7):
        mean, low, high = (getattr(band, key)[state] for key in ("mean", "low", "high"))
        assert re.search(rf"^\s+{state}\s+{mean:.3f} \[{low:.3f}, {high:.3f}\]", text, re.MULTILINE)
    assert ("not shown in this width" in " ".join(text.split())) == (width < 80)


def test_headings_fold_before_columns_go():
    wide, narrow = (shown(view(measured())[0], width) for width in (110, 80))
    assert "common share" in wide
    assert "common share" not in narrow
    assert len(re.findall(r"\d\.\d{3}", wide)) == len(re.findall(r"\d\.\d{3}", narrow))


@pytest.mark.parametrize("width", [60, 80, 110])
def test_tables_of_flow_check_fit(width):
    from repflow.report.terminal.reproduce import check_view
    from repflow.studies.reproduce.agreement import run

    whole = shown(check_view(run())[1], 110)
    text = shown(check_view(run())[1], width)
    for number in re.findall(r"[+-]?\d+\.\d+", text):
        assert number in whole
    assert "…" not in text


def test_models_side_by_side_fold_their_names():
    results = [measured(), measured()]
    for result in results:
        result.provenance["model"]["name"] = "a-model-whose-name-takes-half-of-the-line"
    text = shown(side_by_side(results), 80)
    assert "100 %" in text
    assert "…" not in text


def test_names_of_one_long_word_are_folded_not_cut():
    """Rows of laboratories begin alike for half a line: `transformer+embednorm+contract@1`, `...+neutreno@0.3`."""
    names = [f"transformer+embednorm+{part}" for part in ("contract@1", "neutreno@0.3")]

    def build(kept, caption):
        table = Table(*kept, caption=caption)
        for name in names:
            table.add_row(name, *["1.234 [1.234, 1.234]"] * (len(kept) - 1))
        return table

    text = shown(FittedTable(["model", "loss", "recall"], 3, build, folds=("model",)), 72)
    assert "…" not in text
    columns = ["".join(line.split("│")[1].strip() for line in text.splitlines() if "│" in line)]
    assert columns == ["".join(names)]
