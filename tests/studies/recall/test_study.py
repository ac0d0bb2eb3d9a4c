"""repflow recall: rows, grids, training in groups, resumption, what is reported, refusals."""

import numpy as np
import pytest
import torch

from repflow.core.errors import InputError, PausedError
from repflow.store import load_result
from repflow.studies.engine.conformance import check_study
from repflow.studies.laboratory.group import groups
from repflow.studies.recall.accuracy import count_right
from repflow.studies.recall.config import RecallCell, RecallConfig, parse_row
from repflow.studies.recall.study import STUDY, run
from tests.studies.recall.tiny import TINY, tiny


@pytest.mark.parametrize(
    ("word", "mixer"),
    [
        ("none/16", {"name": "s6", "state": 16}),
        ("both", {"name": "s6", "state": 16, "polarize": "both"}),
        ("one+/8", {"name": "s6", "state": 8, "polarize": "one", "pole_states": "added"}),
        ("zero@-100/8", {"name": "s6", "state": 8, "polarize": "zero", "zero_rate": -100.0}),
        (
            "both+@-1000/16",
            {"name": "s6", "state": 16, "polarize": "both", "pole_states": "added", "zero_rate": -1000.0},
        ),
        ("placebo/16", {"name": "s6", "state": 16, "polarize": "both", "placebo": True}),
        ("ssd/8", {"name": "ssd", "state": 8}),
        ("softmax_attention", {"name": "softmax_attention"}),
    ],
)
def test_rows_name_mixers(word, mixer):
    assert parse_row(word).mixer == mixer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rows": ["bothe/16"]},
            "expected a row such as none/16, both+/16, placebo/16 or gla; got 'bothe/16'; did you mean both",
        ),
        ({"rows": ["both/2"]}, "expected more states than the 2 that 'both/2' fixes; got 2; write more states"),
        ({"rows": ["none+/16"]}, "expected a pole with + or @; got 'none+/16'"),
        ({"rows": ["one@-9/16"]}, "expected @ with a pole at 0; got 'one@-9/16'"),
        ({"rows": ["gla+"]}, "expected poles of S6 alone in a row; got 'gla+'"),
        ({"rows": ["none/4", "none/4"]}, "expected different models; got 2, some alike"),
        ({"shares": ["0.75"]}, "expected from 1 to 2 pairs in 8 tokens"),
        ({"vocabulary": 8}, "expected a vocabulary with at least"),
        ({"inits": ["wrong"]}, "expected inits right or published; got 'wrong'"),
        ({"rows": ["gla"], "inits": ["published"]}, "expected the published initialisation of S6 rows; got gla"),
        ({"rates": ["fast"]}, "expected numbers in rates; got 'fast'"),
        ({"rates": ["0.0"]}, "a rate above 0"),
        ({"layers": ["2", "2"]}, "expected different numbers of at least 0"),
        ({"cells": ["none/4:1:8"]}, "expected a cell as ROW:LAYERS:WIDTH:INIT:RATE:SEED; got 'none/4:1:8'"),
        ({"steps": 0}, "steps of at least 1; got 0"),
        ({"warmup": 2.0}, "from 0 to 1; got 2.0"),
        ({"filler": "noise"}, "zeros or random; got 'noise'"),
    ],
)
def test_wrong_requests_are_refused_before_anything_is_written(options, message, tmp_path):
    with pytest.raises(InputError) as caught:
        run(tiny(**options), out=tmp_path)
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_models_of_one_shape_train_together_whatever_their_poles():
    config = tiny(rows=["none/4", "both/4", "placebo/4", "both+/4", "none/6"], rates=["0.01", "0.02"], together=5)
    words = [[str(config.grid()[place]).split(":")[0] for place in group] for group in groups(STUDY, config)]
    assert words == [
        ["none/4", "none/4", "both/4", "both/4", "placebo/4"],
        ["placebo/4"],
        ["both+/4", "both+/4", "none/6", "none/6"],
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out, run(tiny(flow_samples=2, rates=["0.01", "0.02"]), out=out, name="grid")


def test_the_result_has_the_grid_and_what_may_explain_it(whole):
    out, result = whole
    assert result["accuracy"].shape == (4, 2)
    assert result.axes["accuracy_by_distance"] == ("cell", "pairs", "gap")
    assert result.provenance["recall"]["gaps"] == [1, 2, 4, 8, 16]
    assert [cell["cell"] for cell in result.provenance["cells"]] == list(map(str, tiny(rates=["0.01", "0.02"]).grid()))
    assert np.isfinite(result["half_reach"]).all()
    assert result["token_similarity"].shape == (4, 2)
    assert result["half_life"].shape == (4, 1)
    assert result["parameters"].tolist() == [result["parameters"][0]] * 2 + [result["parameters"][0] - 2 * 16] * 2
    assert result["state_bytes"].tolist() == [4 * 16 * 4] * 4
    assert not (out / "grid.training").exists()
    assert load_result(out / "grid")["accuracy"].tolist() == result["accuracy"].tolist()


@pytest.mark.parametrize(("word", "tolerance"), [("command", 0), ("alone", 1e-5)])
def test_one_cell_is_trained_again_by_its_printed_command(whole, tmp_path, word, tolerance):
    """With the models beside it bit by bit, alone within rounding."""
    _, result = whole
    words = result.provenance["cells"][3][word].split()[2:]
    options = {
        key.removeprefix("--").replace("-", "_"): value for key, value in zip(words[::2], words[1::2], strict=True)
    }
    numbers = {
        key: int(value) if value.isdecimal() and key != "cells" else value.split(",") for key, value in options.items()
    }
    again = run(RecallConfig(**{**numbers, "device": "cpu"}), out=tmp_path)
    place = numbers["cells"].index(result.provenance["cells"][3]["cell"])
    assert len(numbers["cells"]) == (4 if word == "command" else 1)
    assert again["accuracy"][place].tolist() == result["accuracy"][3].tolist()
    assert again["loss"][place] == pytest.approx(result["loss"][3], abs=tolerance)


def test_accuracy_is_counted_by_hand():
    """A model whose head always names one value is right where that value is asked for."""
    config = tiny()
    network = STUDY.build(config.grid()[0], config).eval()
    setting = config.tests()[0]
    with torch.no_grad():
        network.model.final_norm.weight.zero_()  # all logits are 0: the first id, never a value, is named
    counts = count_right(network, [setting], 20)
    assert counts["right"].sum() == 0
    assert counts["queries"].sum() == 20 * setting.pairs
    assert counts["queries"].shape == (1, 4)


def test_time_that_is_up_is_said_and_nothing_is_lost(tmp_path):
    with pytest.raises(PausedError, match="stopped after 0 s, as asked, with 0 of 1 groups trained; nothing is lost"):
        run(tiny(seconds=0.0), out=tmp_path, name="r")
    assert run(tiny(), out=tmp_path, name="r")["accuracy"].tolist() == run(tiny())["accuracy"].tolist()


def test_it_keeps_the_promises_of_a_study():
    check_study(STUDY, tiny())


def test_cells_are_read_as_they_are_written():
    cells = tiny(layers=["1", "2"], inits=["right", "published"]).grid()
    assert [RecallCell.parse(str(cell)) for cell in cells] == cells
    assert TINY["rows"] == ["none/4", "both/4"]
