"""The guide for contributors: a recipe from one file and one row has all that the others have."""

import json
import re
import sys
import types
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repflow.core import recipes

ROOT = Path(__file__).parents[3]
FILE = re.compile(r"^\d\. `src/repflow/([\w/]+)\.py`.*?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\d\. Its row in `RECIPES` of `src/repflow/core/recipes.py`: `(.*),`$", re.MULTILINE)


@pytest.fixture
def recipe(monkeypatch):
    """The recipe of the guide, as if its file and its row were there."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = page.partition("### A recipe\n")[2].partition("\n### ")[0]
    ((path, code),), (row,) = FILE.findall(part), ROW.findall(part)
    name = f"repflow.{path.replace('/', '.')}"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, path, "exec"), module.__dict__)
    made = eval(row, {"RecipeRow": recipes.RecipeRow})
    assert made.module == name
    monkeypatch.setattr(recipes, "RECIPES", (made, *recipes.RECIPES))
    return made


@pytest.fixture
def cli(tmp_path, monkeypatch):
    from repflow.cli.main import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return lambda *args: CliRunner().invoke(app, [str(arg) for arg in args])


def test_it_has_everything_that_a_recipe_has(recipe, cli, tmp_path):
    listed = cli("reproduce", "--list")
    assert listed.exit_code == 0
    assert recipe.name in listed.stdout
    assert recipe.shows in listed.stdout
    config = {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4, "vocab_size": 60}
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    asked = ("reproduce", recipe.name, "--model", "Mamba-130M=config:tiny.json", "--task", "random", "--length", 12)
    dry = cli(*asked, "--dry-run")
    assert dry.exit_code == 0, dry.stderr
    assert "memory Mamba-130M: random at 12 tokens" in dry.stdout
    assert "1 run, 4 prompts, 48 tokens" in dry.stdout
    done = cli(*asked, "--name", "decay")
    assert done.exit_code == 0, done.stderr
    assert "2 statements: " in done.stdout
    assert "next: repflow figures runs/recency-tiny/decay-Mamba-130M-" in done.stdout
    data = json.loads(cli(*asked, "--name", "decay", "--json").stdout)
    assert data["config"]["study"] == "reproduce-table"
    assert data["provenance"]["lines"][0]["stated"] == "0.600 ± 0.1 (Figure 6)"
    assert data["provenance"]["verdict"]["word"] == "open"  # random weights decide nothing on training
    assert data["metrics"]["Mamba-130M/A_range"]
    (tmp_path / "runs/decay/result.json").write_text("{}")
    assert cli("verify", "runs/decay").exit_code == 1
    assert cli("verify", "runs/decay", "--repair").exit_code == 0
    assert cli("report", "runs/decay", "--out", "page.html").exit_code == 0
    assert f"Paper 2, {recipe.name}: {recipe.shows}" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--scale", "zoo"), "expected --scale tiny or paper; got 'zoo'"),
        (("--states", "branch"), "expected recency-decay without --states; got branch; leave --states out"),
        (("--scale", "paper"), "expected --yes to start at scale paper"),
    ],
)
def test_wrong_requests_write_nothing(recipe, cli, options, message, tmp_path):
    done = cli("reproduce", recipe.name, *options)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not list(tmp_path.iterdir())
