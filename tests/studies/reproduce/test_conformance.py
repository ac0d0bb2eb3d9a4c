"""Every recipe of the table keeps the promises that the engine, the command line and stored comparisons rely on."""

import json
import subprocess
import sys
from dataclasses import fields, replace

import pytest

from repflow import load_result
from repflow.core.recipes import NAMES, RECIPES, recipe_row
from repflow.store import RunFolder
from repflow.studies.reproduce.config import ReproduceConfig
from repflow.studies.reproduce.cost import estimate
from repflow.studies.reproduce.models import ROLES
from repflow.studies.reproduce.preflight import preflight
from repflow.studies.reproduce.recipe import recipe_named
from repflow.studies.reproduce.statement import Ours, Statement, StatementRecipe
from repflow.studies.reproduce.study import STUDY, plan, run

CASES = [(name, scale) for name in NAMES for scale in recipe_row(name).scales or ("tiny",)]
MODELS = {
    "mamba": {"model_type": "mamba", "hidden_size": 16, "num_hidden_layers": 4, "state_size": 4, "vocab_size": 60},
    "neox": {
        "model_type": "gpt_neox", "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 64, "vocab_size": 60,
    },
}  # fmt: skip


def test_the_table_is_whole():
    assert len({row.name for row in RECIPES}) == len(RECIPES)
    for row in RECIPES:
        assert row.paper in (1, 2, 3)
        assert row.shows
        assert bool(row.module) != bool(row.needs)
        assert row.family == {1: "flow", 2: "recency", 3: "dynamics"}[row.paper]


@pytest.mark.parametrize("name", NAMES)
def test_row_recipe_and_options_agree(name):
    recipe = recipe_named(name)
    assert recipe.name == name
    assert {*recipe.takes} <= {entry.name for entry in fields(ReproduceConfig)}
    assert "recipe" in recipe.takes
    assert {*recipe.roles} <= ROLES.keys()
    config = ReproduceConfig(recipe=name)
    again = STUDY.again(json.loads(json.dumps({"study": recipe.stored_as} | recipe.asked(config))))
    assert recipe.names(again) == recipe.names(config)
    if "seed" in recipe.takes:
        assert recipe.names(replace(config, seed=1)) != recipe.names(config)


@pytest.mark.parametrize(
    ("name", "scale"), [pytest.param(*case, marks=pytest.mark.slow if case[1] == "lab" else ()) for case in CASES]
)
def test_a_dry_run_loads_no_weights_and_writes_nothing(name, scale, tmp_path, monkeypatch):
    import importlib

    loading = importlib.import_module("repflow.models.load")
    monkeypatch.setattr(loading, "hub_reachable", lambda: True)

    def refuse(*_, **__):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(loading, "load", refuse)
    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    made = plan(ReproduceConfig(recipe=name, scale=scale), tmp_path)
    cost = estimate(made)
    checked = preflight(made, cost)
    assert cost.runs == max(len(made.cells), 1)
    assert cost.run_bytes > 0
    assert checked.needed > 0
    assert not cost.unknown
    assert (cost.prompts > 0, cost.tokens > 0, cost.flops > 0, cost.gpu_hours > 0) == (bool(made.cells),) * 4
    assert all(checked.lines())
    assert checked.problems == ()
    assert json.loads(json.dumps(cost.to_json() | checked.to_json(), allow_nan=False))["runs"] == cost.runs
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_cells_and_printed_values(name, scale, tmp_path):
    made = plan(ReproduceConfig(recipe=name, scale=scale), tmp_path)
    assert len({cell.name for cell in made.cells}) == len({cell.key for cell in made.cells}) == len(made.cells)
    assert {cell.role for cell in made.cells if cell.role} == made.models.keys()  # what is trained has none
    assert made.printed
    for printed in made.printed:
        assert printed.what
        assert printed.source
    if isinstance(made.recipe, StatementRecipe):
        keys = {cell.key for cell in made.cells}
        assert {key for statement in made.printed for key in statement.needs} == keys
        assert all(statement.stated for statement in made.printed)


def test_planning_imports_no_torch():
    code = (
        "import sys\n"
        "from repflow.core.recipes import NAMES\n"
        "from repflow.studies.reproduce.study import STUDY, ReproduceConfig\n"
        "for name in NAMES: STUDY.check(ReproduceConfig(recipe=name))\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def small(tmp_path):
    """Requests of one recipe per paper that take a second."""
    for name, config in MODELS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    options = {"tasks": ["random"], "lengths": [12], "samples": 3, "batch_size": 1}
    flow = [f"GPT-Neo-2.7B=config:{tmp_path}/neox.json", f"Mamba2-2.7B=config:{tmp_path}/mamba.json"]
    return {
        "flow": ReproduceConfig(recipe="flow-fig1", models=flow, states=["residual"], **options),
        "recency": ReproduceConfig(
            recipe="recency-fig5",
            models=[f"Mamba-1.4B=config:{tmp_path}/mamba.json", f"Pythia-1.4B=config:{tmp_path}/neox.json"],
            **options,
        ),
        "dynamics": ReproduceConfig(recipe="dynamics-fig5"),
    }


@pytest.mark.parametrize("paper", ["flow", "recency", "dynamics"])
def test_a_recipe_that_was_cut_goes_on(paper, small, tmp_path, monkeypatch):
    """Ended in its second run, or while it stores; the same bytes come out, and nothing is computed twice."""
    config, write, finish = small[paper], RunFolder.write_shard, RunFolder.finish
    whole = run(config, out=tmp_path / "whole", name="figure")
    assert whole.provenance["seconds"]
    finished, written = [], []

    def cut(folder, result):
        finished.append(folder.path.name)
        if len(finished) == (2 if paper != "dynamics" else 1):
            raise KeyboardInterrupt
        finish(folder, result)

    def counted(folder, name, *args, **kwargs):
        written.append((folder.path.name, name))
        write(folder, name, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", cut)
        patch.setattr(RunFolder, "write_shard", counted)
        with pytest.raises(KeyboardInterrupt):
            run(config, out=tmp_path / "cut", name="figure")
        assert not (tmp_path / "cut" / "figure" / "result.json").exists()
        patch.setattr(RunFolder, "finish", finish)
        run(config, out=tmp_path / "cut", name="figure")
    assert len(set(written)) == len(written)
    for name in ("result.json", "result.safetensors"):
        one, other = (tmp_path / place / "figure" / name for place in ("whole", "cut"))
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_bytes() == other.read_bytes()
    stored = load_result(tmp_path / "cut" / "figure")
    assert stored.provenance["title"] == recipe_row(config.recipe).shows
    assert {cell["status"] for cell in stored.provenance.get("cells", [])} <= {"finished"}


def test_without_a_folder_nothing_is_left(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = run(small["recency"], out=None)
    assert result.provenance["verdict"]["parts"] == len(result.provenance["lines"]) == 6
    assert sorted(tmp_path.iterdir()) == before


def test_a_model_of_a_statement_that_is_not_there_leaves_the_others(small, tmp_path):
    config = small["recency"]
    config.models[1] = "Pythia-1.4B=no-such-model"
    result = run(config, out=tmp_path / "runs")
    assert [cell["status"] for cell in result.provenance["cells"]] == ["finished", "cannot run"]
    assert {line["what"].split(",")[0] for line in result.provenance["lines"]} == {"Mamba-1.4B"}
    assert "unfinished" in [finding.code for finding in result.findings]
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == [
        "recency-tiny"
    ]  # not stored before it is whole


def test_tiny_models_made_by_two_commands_at_once(tmp_path, monkeypatch):
    """The one that is there first stays, and the other command goes on with it."""
    from repflow.models.weights import initialise
    from repflow.studies.reproduce import models

    real = initialise.random_model

    def rival(config, *args, **kwargs):
        (tmp_path / "tiny-mamba").mkdir()
        (tmp_path / "tiny-mamba" / "config.json").write_text("{}")
        return real(config, *args, **kwargs)

    monkeypatch.setattr(initialise, "random_model", rival)
    models.make_tiny(tmp_path, ["tiny-mamba"])
    assert (tmp_path / "tiny-mamba" / "config.json").read_text() == "{}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny-mamba"]


@pytest.mark.parametrize(("values", "holds"), [([0.5, 0.52, 0.51], True), ([0.9, 0.91, 0.9], False), ([0.5], None)])
def test_a_printed_number_is_judged_by_its_interval(values, holds):
    number = Statement.number("x", 0.5, "Table 1", ["a"], lambda _: Ours.mean(values), tolerance=0.1)
    reading = number.read(None)
    assert reading.holds is holds
    assert "nan" not in reading.text
