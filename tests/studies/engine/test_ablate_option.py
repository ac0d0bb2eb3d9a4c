"""`--ablate` in measure, compare and grids: recorded, named, part of what a run is."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import repflow
from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.interventions import ablate
from repflow.models import load
from repflow.store import load_result
from repflow.studies.engine.cells import model_key
from repflow.studies.engine.grid import cell_name
from repflow.studies.measure import MeasureConfig, run_name
from tests.models.tiny_configs import tiny_model
from tests.studies.compare.inputs import save, words_tokenizer

IDS = torch.randint(3, 128, (3, 12), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return load(tiny_model("bamba"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    save("llama", tmp_path / "model", tokenizer=words_tokenizer)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args):
    done = CliRunner().invoke(app, list(map(str, args)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_measure_takes_specs_live_models_and_loaded_ones(folder):
    network = load("model").network
    results = [
        repflow.measure("model", IDS, ablate=["attention-uniform", "norm-affine"]),
        repflow.measure(network, IDS, ablate="norm-affine,attention-uniform"),
        repflow.measure(load("model"), IDS, ablate=["norm-affine+attention-uniform"]),
        repflow.measure(ablate(load("model"), ["norm-affine", "attention-uniform"]), IDS),
    ]
    plain = repflow.measure("model", IDS)
    for result in results:
        assert result.config["ablate"] == result.provenance["ablate"] == ["norm-affine", "attention-uniform"]
        assert np.array_equal(result["token_similarity"], results[0]["token_similarity"])
        assert result.provenance["digests"]["weights"] == results[0].provenance["digests"]["weights"]
        assert [f.code for f in result.findings].count("ablated") == 2
    assert plain.config["ablate"] == plain.provenance["ablate"] == []
    assert plain.provenance["digests"]["weights"] != results[0].provenance["digests"]["weights"]
    assert not np.allclose(plain["token_similarity"], results[0]["token_similarity"], atol=1e-4)


def test_command_stores_it(folder):
    options = ["model", "--length", 12, "--samples", 2, "--metrics", "token_similarity"]
    assert command("measure", *options, "--ablate", "positions", "--ablate", "attention-window:3").exit_code == 0
    stored = load_result(*Path("runs").glob("model-ablated-positions-attention-window-3-text-12-*"))
    assert stored.config["ablate"] == ["positions", "attention-window:3"]
    printed = json.loads(command("measure", *options, "--ablate", "attention-window:3,positions", "--json").stdout)
    assert printed["provenance"]["ablate"] == ["positions", "attention-window:3"]  # the same run, read again
    assert len(list((folder / "runs").iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "message"), [("norms", "did you mean norm"), ("attention-window", "attention-window:W")]
)
def test_wrong_names_leave_nothing(folder, name, message):
    done = command("measure", "model", "--ablate", name)
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (folder / "runs").exists()


def test_parts_that_a_model_lacks(folder):
    save("mamba", folder / "mamba")
    done = command("measure", "mamba", "--length", 12, "--samples", 2, "--ablate", "attention-uniform")
    assert done.exit_code == 2
    assert "expected a model with attention; got mamba, whose layers are ssm" in done.stderr
    assert not (folder / "runs").exists()


def test_run_names_and_cells():
    plain = MeasureConfig(model="m", length=8)
    changed = MeasureConfig(model="m", length=8, ablate=["norm:final", "norm-affine"])
    drawn = MeasureConfig(model="m", length=8, init="xavier:2+residual", init_seed=7)
    assert run_name(changed) == "m-ablated-norm-affine-norm-final-text-8"
    assert run_name(drawn) == "m-xavier-2-residual-init7-text-8"
    assert len({cell_name(c) for c in (plain, changed, drawn)}) == 3
    assert len({model_key(c) for c in (plain, changed, drawn)}) == 3


def test_init_seed_leaves_the_prompts(folder):
    one, two, three = (
        repflow.measure("model", "random", length=12, samples=2, init="xavier", **seeds)
        for seeds in ({"seed": 1}, {"seed": 1, "init_seed": 2}, {"seed": 2})
    )
    digests = [result.provenance["digests"] for result in (one, two, three)]
    assert digests[0]["prompts"] == digests[1]["prompts"] != digests[2]["prompts"]
    assert digests[0]["weights"] != digests[1]["weights"] == digests[2]["weights"]
    with pytest.raises(InputError, match="init_seed with a loaded Model"):
        repflow.measure(load("model"), IDS, init_seed=3)


def test_compare_a_model_with_itself_ablated(model):
    same = repflow.compare(model, model, IDS)
    other = repflow.compare(model, model, IDS, ablate_b=["attention-uniform"])
    diagonal = np.diagonal(same["cka_cross_pooled"]), np.diagonal(other["cka_cross_pooled"])
    assert diagonal[0] == pytest.approx(1, abs=1e-4)
    assert diagonal[1][:2] == pytest.approx(1, abs=1e-4)  # the first block is a Mamba-2 block
    assert diagonal[1][2] < 0.9999
    facts = other.provenance["models"]
    assert (facts["a"]["ablate"], facts["b"]["ablate"]) == ([], ["attention-uniform"])
    assert (other.config["ablate"], other.config["ablate_b"]) == ([], ["attention-uniform"])


def test_a_twin_lacks_what_its_original_lacks(model, folder):
    for first, options in ((model, {"ablate": ["norm-affine"]}), (ablate(model, "norm-affine"), {})):
        result = repflow.compare(first, "twin", IDS, **options)
        facts = result.provenance["models"]
        assert facts["a"]["ablate"] == facts["b"]["ablate"] == ["norm-affine"]
    done = command("compare", "model", "twin", "--length", 12, "--samples", 2, "--ablate", "norm-affine", "--json")
    printed = json.loads(done.stdout)
    assert printed["run"].startswith("runs/model-ablated-norm-affine-vs-twin-default-text-12-")
    assert printed["provenance"]["models"]["b"]["ablate"] == ["norm-affine"]
