"""`kind = "probe"` in a STUDY.toml, and the options that twins hand on to the tasks."""

import json

import pytest
from typer.testing import CliRunner

from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.store import list_runs, load_result
from repflow.studies.engine.grid import expand
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.study import STUDY as PROBE
from repflow.studies.twins.study import TwinsConfig, cells
from tests.studies.probe.inputs import reader, tokenizer

STUDY = """
[study]
kind = "probe"
models = ["m"]
inits = ["trained", "default"]
lengths = [300]
items = 3
samples = 30
seeds = 1
recipes = ["robust"]
controls = ["none"]
answers = 0
lens = 0
allow_leak = true
"""


def test_cells_are_probes_and_the_length_is_the_tasks():
    study = expand({"kind": "probe", "models": ["a", "b"], "tasks": ["kvpr", "mdqa"], "seeds": 2}, default_name="s")
    assert [type(cell.config) for cell in study.cells] == [ProbeConfig] * 4
    assert [(c.config.model, c.config.task, c.config.length, c.config.seeds) for c in study.cells][:2] == [
        ("a", "kvpr", 300, 2),
        ("a", "mdqa", 1000, 2),
    ]
    assert all(cell.config.match_with for cell in study.cells)
    assert len({cell.name for cell in study.cells}) == 4


def test_prompts_are_counted_with_seeds_and_twin():
    assert PROBE.reads(ProbeConfig(samples=50, seeds=3, seeds_vary="all", twin="default"))[0] == 300
    assert PROBE.reads(ProbeConfig(samples=50, seeds=3, task="own.jsonl"))[0] == 50


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "prob"}, "kind = one of .* in .*did you mean probe"),
        ({"seeds": [0, 1]}, "seeds of type int in .*see `repflow probe --help`"),
        ({"metrics": ["cka_matrix"]}, "unknown key 'metrics'"),
        ({"tasks": ["random"]}, "a task with labels"),
    ],
)
def test_wrong_studies_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        expand({"kind": "probe", "models": ["a"], **wrong}, default_name="s")


def test_a_grid_of_probes_runs_and_is_read_as_one(tmp_path, monkeypatch):
    reader("mamba2").network.save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    (tmp_path / "find.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(app, ["run", "find.toml"])
    assert done.exit_code == 0, done.stderr
    assert "at peak" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    result = load_result("runs/find")
    assert result.axes["probe_accuracy"] == ("cell", "state", "seed")
    assert [cell["config"]["init"] for cell in result.provenance["cells"]] == ["default", "trained"]
    (line,) = list_runs("runs")
    assert (line.cells, line.finished) == (2, True)
    again = CliRunner().invoke(app, ["run", "find.toml", "--json"])
    rows = [json.loads(text) for text in again.stdout.splitlines()]
    assert [entry["status"] for entry in rows] == ["finished"] * 2
    checked = CliRunner().invoke(app, ["verify", "runs/find"])
    assert checked.stdout.splitlines()[-1] == "2 of 2 runs in runs/find are sound"
    exported = CliRunner().invoke(app, ["export", "runs/find", "--to", "csv"])
    assert exported.stdout.strip() == "wrote find.csv"
    header = (tmp_path / "find.csv").read_text().splitlines()[0]
    assert header.startswith("model,task,init,")


def test_twins_hand_the_options_of_the_task_on():
    config = TwinsConfig(model="m", task="kvpr", items=3, classes=2, format="paper", inits=["xavier"], lengths=["300"])
    requests = [cell.config for cell in cells(config).values()]
    assert {(c.items, c.classes, c.format) for c in requests} == {(3, 2, "paper")}
