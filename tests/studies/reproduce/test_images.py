"""Paper 3's Table 3 and Figure 2: statements judged on made accuracies of known truth; scales; one run by command."""

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.spec.corruption import parse_regions
from repflow.studies.engine.cells import Outcome
from repflow.studies.pixels.config import parse_row
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.cost import estimate
from repflow.studies.reproduce.images import RANDOM, RECIPES, RESTORED, ROWS, SORTED
from repflow.studies.reproduce.study import plan

STEPS = [0, 5, 10]


def trained(gains, seeds=5, images=1_000_000, spread=1e-4):
    """Accuracies whose differences from the plain row are known, alike at every reading but the first."""
    random = np.random.default_rng(0)
    cells = [{"row": row, "seed": seed} for row in ROWS for seed in range(seeds)]
    last = np.array([0.6 + 0.02 * cell["seed"] + gains.get(cell["row"], 0) for cell in cells])
    way = np.stack([np.full(len(cells), 0.1), last - 0.1, last], 1) + spread * random.standard_normal((len(cells), 3))
    arrays = {"test_accuracy": way[:, -1], "test_accuracy_on_the_way": way, "parameters": np.full(len(cells), 9.0)}
    axes = {name: ("cell", "point")[: value.ndim] for name, value in arrays.items()}
    facts = {"images": "cifar-10", "classes": list(range(10)), "watched": STEPS}
    facts |= {"test_images": images, "images_replaced": images}
    return Result(arrays, axes, {}, {"cells": cells, "pixels": facts})


def judged(name, result, **options):
    work = plan(ReproduceConfig(recipe=name, scale="lab", **options), "runs")
    facts = RECIPES[name].compare(work, [Outcome(work.cells[0], work.folder, "finished", result=result)]).provenance
    return [line["holds"] for line in facts["lines"] if line.get("judged", True)], facts["lines"]


def test_sorting_and_its_controls_are_told_apart():
    held, lines = judged("dynamics-table3", trained({SORTED: 0.01, RANDOM: 0.02, RESTORED: -0.01}))
    assert held == [True, True, False, False]
    beside = {line["what"]: line for line in lines if not line.get("judged", True)}
    assert beside["tokens sorted: accuracy"]["stated"] == "82.02 % (Table 3, ImageNet)"
    assert beside["tokens sorted: accuracy"]["ours"].startswith("65.00 % of cifar-10")
    assert judged("dynamics-fig2", trained({SORTED: 0.01, RANDOM: 0.02}))[0] == [True, False, True]
    assert judged("dynamics-fig2", trained({SORTED: -0.01}))[0] == [False, False, False]


@pytest.mark.parametrize("name", RECIPES)
def test_what_few_seeds_few_images_or_few_steps_cannot_show_stays_open(name):
    gains = {SORTED: 0.0012}  # the paper's difference
    assert judged(name, trained(gains, images=10**8))[0][0] is True
    for open_ in ({"seeds": 2}, {"images": 10_000}):
        assert set(judged(name, trained(gains, **open_))[0]) == {None}
    assert set(judged(name, trained({SORTED: 0.1}), try_steps=20)[0]) == {None}


@pytest.mark.parametrize("scale", ["tiny", "lab", "paper"])
def test_both_share_their_runs_and_read_no_class_token(scale):
    works = [plan(ReproduceConfig(recipe=name, scale=scale), "runs") for name in RECIPES]
    assert len({work.cells[0].name for work in works}) == 1
    grid = works[0].cells[0].config
    assert {cell.row for cell in grid.grid()} == {*ROWS}
    assert all(parse_row(row).frame(1, 8, 64)["class_token"] is None for row in ROWS)
    assert len(parse_regions(grid.regions, 64)) == 1  # what the recipes do not read costs next to nothing
    if scale == "lab":
        assert grid.steps == 10 * (50_000 // grid.batch)
        assert estimate(works[0]).gpu_hours < 0.1
    if scale == "paper":
        assert (grid.batch, grid.rates, grid.decay) == (512, ["0.0008"], 0.05)
        assert grid.steps == 310 * 50_000 // 512
        assert estimate(works[0]).gpu_hours > 10


def test_a_run_from_the_command_line(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from repflow.cli.main import app
    from repflow.studies.reproduce import images

    small = {"train_images": 20, "test_images": 20, "layers": ["1"], "widths": ["8"], "batch": 4}
    monkeypatch.setitem(images.SETTINGS, "tiny", {**images.SETTINGS["tiny"], **small})
    words = ["reproduce", "dynamics-fig2", "--try-steps", "2", "--device", "cpu", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "3 statements: 0 hold, 0 do not hold, 3 open" in " ".join(done.output.split())
