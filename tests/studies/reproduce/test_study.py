"""Recipes from request to stored comparison, on tiny local checkpoints."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repflow import load_result
from repflow.core.errors import InputError
from repflow.papers import values as papers
from repflow.studies.engine import cells
from repflow.studies.engine.table import study_for
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.reproduce import study as reproduce
from repflow.studies.reproduce.config import KINDS
from repflow.studies.reproduce.cost import cell_seconds, estimate, shape_size
from repflow.studies.reproduce.flow import RECIPES
from repflow.studies.reproduce.models import ROLES, TINY, make_tiny, parse_models, tiny_tokenizer
from repflow.studies.reproduce.recipe import ReproduceCell
from repflow.studies.reproduce.study import ReproduceConfig, plan, run

TABLE_2_CELLS = 36  # five models at four lengths and two tasks, without the two Transformers at 4K


@pytest.fixture(scope="session")
def local(tmp_path_factory):
    """Small checkpoints with tokenizers, as a user might have them."""
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny = {role: ROLES[role].tiny for role in ("Pythia-2.8B", "Mamba2-130M")}
    make_tiny(folder, list(tiny.values()))
    return {role: f"{role}={folder / name}" for role, name in tiny.items()}


def small(recipe, local, **changes):
    """A request at scale paper, with small checkpoints, short prompts and few of them."""
    config = ReproduceConfig(
        recipe=recipe, scale="paper", models=list(local.values()), lengths=[240], samples=2, probe_samples=30
    )
    return replace(config, probe_seeds=1, allow_leak=True, **changes)


@pytest.mark.parametrize(
    ("name", "measured", "probed"),
    [
        ("flow-fig1", 4 * 2, 0), ("flow-fig2", 4 * 2, 0), ("flow-fig3", 2 * 2 * 4, 0), ("flow-fig4", 4 * 2, 0),
        ("flow-fig5", 2, 0), ("flow-fig6", 2, 0), ("flow-fig7", 0, 4),
        ("flow-table1", TABLE_2_CELLS, TABLE_2_CELLS), ("flow-table2", TABLE_2_CELLS, TABLE_2_CELLS),
    ],
)  # fmt: skip
@pytest.mark.parametrize("scale", ["tiny", "paper"])
def test_recipe_has_the_cells_of_the_paper(name, measured, probed, scale, tmp_path):
    made = plan(ReproduceConfig(recipe=name, scale=scale), tmp_path)
    assert sum(not cell.key.probed for cell in made.cells) == len(KINDS) * measured
    assert sum(cell.key.probed for cell in made.cells) == len(KINDS) * probed
    assert len({cell.name for cell in made.cells}) == len(made.cells)
    assert made.printed
    assert not list(tmp_path.iterdir())
    keys = {cell.key for cell in made.cells}
    for row in made.printed:  # every printed value has the runs it needs
        for task in made.recipe.tasks_run(made.config) if row.task == "mean" else [row.task]:
            assert any((k.model, k.task, k.length) == (row.model, task, row.length) for k in keys)


def test_the_zoo_stands_for_four_of_the_papers_models(tmp_path):
    made = plan(ReproduceConfig(recipe="flow-table1", scale="zoo"), tmp_path)
    assert {role: model.spec for role, model in made.models.items()} == {
        "GPT-Neo-2.7B": "zoo:gpt-neo",
        "Pythia-2.8B": "zoo:gpt-neox",
        "Mamba-2.8B": "zoo:mamba",
        "Mamba2-2.7B": "zoo:mamba2",
    }
    assert list(made.recipe.lengths_run(made.config).values()) == [256, 340, 448, 512]
    assert not any(model.own for model in made.models.values())
    assert "Mamba2-130M" not in {row.model for row in made.printed}


def test_paper_scale_is_the_papers_setting(tmp_path):
    made = plan(ReproduceConfig(recipe="flow-table2", scale="paper"), tmp_path)
    assert {model.spec for model in made.models.values()} == {entry.hub for entry in papers.CHECKPOINTS.values()}
    assert made.recipe.lengths_run(made.config) == {300: 300, 1000: 1000, 2000: 2000, 4000: 4000}
    probes = [cell.config for cell in made.cells if isinstance(cell.config, ProbeConfig)]
    assert {(config.train, config.test, config.samples) for config in probes} == {(20_000, 2000, 22_000)}
    assert {(c.epochs, c.rate, c.seeds, c.seeds_vary) for c in probes} == {(150, 0.05, 5, "init")}
    assert {c.format for c in probes if c.task == "kvpr"} == {"paper"}
    assert len([row for row in made.printed if row.quantity == "drop"]) == TABLE_2_CELLS


def test_recipes_share_their_runs(tmp_path):
    names = {n: {c.name for c in plan(ReproduceConfig(recipe=n), tmp_path).cells} for n in RECIPES}
    assert names["flow-table1"] == names["flow-table2"]
    assert names["flow-fig1"] == names["flow-fig2"]
    assert names["flow-fig5"] <= names["flow-fig1"] <= names["flow-table1"]
    assert names["flow-fig7"] <= names["flow-table2"]
    assert names["flow-fig6"] <= names["flow-fig4"]


def test_leave_to_leak_does_not_make_another_run(tmp_path):
    config = ReproduceConfig(recipe="flow-fig7")
    names = [[c.name for c in plan(c, tmp_path).cells] for c in (config, replace(config, allow_leak=True))]
    assert names[0] == names[1]


def test_tiny_models_have_the_papers_families():
    assert papers.CHECKPOINTS.keys() <= ROLES.keys()
    for role in ROLES.values():
        if role.name != "Mistral-7B":  # a Pythia stands for it
            assert TINY[role.tiny]["model_type"] == role.config["model_type"]


def test_tiny_tokenizer_writes_anything():
    tokenizer = tiny_tokenizer()
    text = '{"7f666c61-573f": "Röntgen – 物理"}'
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_table_of_small_checkpoints_end_to_end(local, tmp_path):
    config = small("flow-table2", local)
    config.states = ["residual", "branch"]
    result = run(config, out=tmp_path)
    assert all(cell["status"] == "finished" for cell in result.provenance["cells"]), result.provenance["cells"]
    rows = result.provenance["rows"]
    assert len(rows) == 2 * 2 * 4  # models, tasks, quantities
    assert np.isfinite(result["ours"]).all()
    stored = load_result(tmp_path / reproduce.run_name(config))
    np.testing.assert_array_equal(stored["ours"], result["ours"])
    i = next(
        i
        for i, row in enumerate(rows)
        if (row["model"], row["task"], row["quantity"]) == ("Pythia-2.8B", "kvpr", "stability")
    )
    cell = next(c["run"] for c in result.provenance["cells"] if "measure-Pythia-2.8B-kvpr-240-branch" in c["run"])
    assert result["ours"][i, 1] == pytest.approx(load_result(tmp_path / cell).mean("paper_stability"))
    assert result["printed_low"][i] == papers.TABLE_2["kvpr", "Pythia-2.8B", 300].stability
    codes = [finding.code for finding in result.findings]
    assert "stand_in" in codes
    assert "made_up_documents" in codes


def test_finished_cells_are_not_run_again(local, tmp_path, monkeypatch):
    config = small("flow-fig5", {})
    config.models = [f"GPT-Neo-2.7B={local['Pythia-2.8B'].partition('=')[2]}"]
    first = run(config, out=tmp_path)

    def refuse(*_):
        raise AssertionError("a model was loaded again")

    monkeypatch.setattr(cells.HeldModel, "load", refuse)
    again = run(config, out=tmp_path)
    np.testing.assert_array_equal(again["ours"], first["ours"])
    figure_1 = run(replace(config, recipe="flow-fig1", tasks=["kvpr"]), out=tmp_path)  # the same runs
    np.testing.assert_array_equal(figure_1["ours"], first["ours"])
    assert "GPT-Neo-2.7B/kvpr/2K/trained/residual/layer_cosine" in first
    assert first.axes["GPT-Neo-2.7B/kvpr/2K/trained/residual/layer_cosine"] == ("layer",)


def test_a_model_that_cannot_be_loaded_leaves_the_others(local, tmp_path):
    config = small("flow-fig1", {})
    config.models = [local["Pythia-2.8B"], "Mamba-2.8B=no-such-folder-or-model"]
    config.tasks, config.states = ["kvpr"], ["residual"]
    result = run(config, out=tmp_path)
    status = {
        cell["run"].split("-kvpr")[0].partition("measure-")[2]: cell["status"] for cell in result.provenance["cells"]
    }
    assert status == {"Pythia-2.8B": "finished", "Mamba-2.8B": "cannot run"}
    models = [row["model"] for row in result.provenance["rows"]]
    for i, model in enumerate(models):
        assert np.isfinite(result["ours"][i, 0]) == (model == "Pythia-2.8B")
    assert [finding.code for finding in result.findings].count("unfinished") == 1
    assert not (tmp_path / reproduce.run_name(config)).exists()  # not stored before it is whole


def test_random_tokens_stand_for_a_task(local, tmp_path):
    config = small("flow-fig2", {"Pythia-2.8B": local["Pythia-2.8B"]}, tasks=["random"])
    config.lengths, config.states = [32], ["residual"]
    assert np.isfinite(run(config, out=tmp_path)["ours"]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": "flow-fig8"}, r"unknown recipe 'flow-fig8'; did you mean flow-fig"),
        ({"scale": "large"}, r"expected scale tiny, zoo or paper; got 'large'"),
        ({"states": ["residue"]}, r"got 'residue'; did you mean residual"),
        ({"states": []}, r"expected states=.*; got none"),
        ({"lengths": [300, 600]}, r"expected at most 1 lengths for flow-fig1; got 2 lengths; they stand for 2K"),
        ({"models": ["gpt2"]}, r"expected model ROLE=SPEC; got 'gpt2'; ROLE is one of GPT-Neo-2.7B"),
        ({"models": ["gpt2=x"]}, r"unknown model of the paper 'gpt2'"),
        ({"models": ["Mamba2-130M=x"]}, r"expected a model for one of GPT-Neo-2.7B.*; flow-fig1 shows no other"),
        ({"samples": 0}, r"expected samples of at least 1; got 0"),
        ({"recipe": "flow-fig7", "tasks": ["random"]}, r"unknown task of the paper 'random'"),
        ({"tasks": ["kvrp"]}, r"unknown task 'kvrp'; did you mean kvpr"),
    ],
)
def test_wrong_requests_write_nothing(changes, message, tmp_path):
    with pytest.raises(InputError, match=message):
        run(replace(ReproduceConfig(), **changes), out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_role_named_twice_is_refused():
    with pytest.raises(InputError, match=r"expected one model for each .* got Pythia-2.8B twice"):
        parse_models(["pythia-2.8b=a", "Pythia-2.8B=b"], "flow")


def test_cost_counts_tokens_parameters_and_disk(local, tmp_path):
    made = plan(small("flow-table2", local, states=["residual"]), tmp_path)
    cost = estimate(made)
    assert cost.runs == 2 * 2 * 2
    assert cost.tokens == 2 * 2 * (2 + 30) * 240
    from repflow.models import load

    sizes = {role: sum(p.numel() for p in load(model.spec).network.parameters()) for role, model in made.models.items()}
    assert cost.parameters == sizes
    assert cost.flops == sum(2 * size * 2 * (2 + 30) * 240 for size in sizes.values())
    assert cost.pass_hours == pytest.approx(cost.flops / cost.rate / 3600)
    assert cost.gpu_hours > cost.pass_hours
    assert cost.feature_bytes == 2 * 30 * 4 * (6 * 64 + 6 * 32)  # tasks, prompts, bytes, states and final norm x width
    assert cost.download_bytes == 0


def test_cost_of_a_cell_is_that_of_the_cell_that_was_run():
    """20,000 + 2,000 prompts of 300 tokens, Mamba2-2.7B, five seeds: benchmarks/journey.json has its seconds."""
    ran = json.loads((Path(__file__).parents[3] / "benchmarks" / "journey.json").read_text())["table2"]["mamba2-2.7b"]
    config = ProbeConfig(task="kvpr", length=300, samples=22_000, seeds=5, recipes=["paper"])
    cell = ReproduceCell(key=None, name="cell", config=config, role="Mamba2-2.7B")
    study = study_for(config)
    bare, whole = cell_seconds(study, cell, shape_size(ROLES["Mamba2-2.7B"].config), 1e12)
    work = ran["command"] - sum(ran["phases"][name] for name in ("imports", "load", "checks"))
    assert whole == pytest.approx(work, rel=0.25)
    assert bare == pytest.approx(ran["phases"]["forward"] + ran["phases"]["meters"], rel=0.25)


def test_all_of_paper_1_costs_little_more_than_its_passes(tmp_path):
    cost = estimate(plan(ReproduceConfig(recipe="flow-table2", scale="paper", states=["residual"]), tmp_path))
    assert cost.gpu_hours <= 1.4 * cost.pass_hours


def test_cost_of_the_papers_checkpoints_needs_no_download(tmp_path):
    cost = estimate(plan(ReproduceConfig(recipe="flow-fig7", scale="paper", states=["residual"]), tmp_path))
    assert not cost.unknown
    assert cost.parameters["Mamba-2.8B"] == pytest.approx(2.8e9, rel=0.02)
    assert 30e9 < cost.download_bytes < 45e9
    assert cost.feature_bytes > 20_000 * 64 * 2560 * 4
