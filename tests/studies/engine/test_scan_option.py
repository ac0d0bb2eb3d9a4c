"""`--scan` in every study: recorded as what ran, no part of what a run is."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import repflow
from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.interventions import ablate
from repflow.models import load, twin
from repflow.store import read_record
from repflow.studies.compare.config import CompareConfig
from repflow.studies.diagnose.study import DiagnoseConfig
from repflow.studies.engine.cells import model_key
from repflow.studies.engine.grid import cell_name
from repflow.studies.engine.loading import identity
from repflow.studies.measure import MeasureConfig
from repflow.studies.measure import run_name as measure_name
from repflow.studies.probe.config import ProbeConfig
from repflow.studies.probe.study import run_name as probe_name
from repflow.studies.reproduce.study import ReproduceConfig
from repflow.studies.reproduce.study import run_name as reproduce_name
from repflow.studies.twins.study import TwinsConfig
from tests.models.tiny_configs import tiny_model
from tests.studies.compare.inputs import save, words_tokenizer

IDS = torch.randint(3, 128, (3, 12), generator=torch.Generator().manual_seed(0))
CONFIGS = (MeasureConfig, ProbeConfig, CompareConfig, DiagnoseConfig, TwinsConfig, ReproduceConfig)
CHUNKED = [{"path": "chunked", "reason": "tensors on the cpu"}]
OWN = [{"path": "transformers", "reason": "asked for"}]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    save("mamba2", tmp_path / "model", tokenizer=words_tokenizer)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args):
    done = CliRunner().invoke(app, list(map(str, args)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.mark.parametrize("kind", CONFIGS)
def test_no_part_of_what_a_run_is(kind):
    assert kind().scan == "auto"
    assert identity(kind(scan="reference")) == identity(kind())
    assert "scan" not in identity(kind())


def test_names_stay(folder):
    one, two = MeasureConfig(model="model"), MeasureConfig(model="model", scan="reference")
    assert measure_name(one) == measure_name(two)
    assert cell_name(one) == cell_name(two)
    assert model_key(one) != model_key(two)  # a grid must not measure with the model of another cell
    assert probe_name(ProbeConfig(model="m")) == probe_name(ProbeConfig(model="m", scan="fast"))
    assert reproduce_name(ReproduceConfig()) == reproduce_name(ReproduceConfig(scan="fast"))


def test_measure_says_what_ran(folder):
    fast = repflow.measure("model", IDS)
    slow = repflow.measure(load("model").network, IDS, scan="reference")
    assert fast.provenance["model"]["scan"] == {"asked": "auto", "ssd": {"layers": 4, "ran": CHUNKED}}
    assert slow.provenance["model"]["scan"] == {"asked": "reference", "ssd": {"layers": 4, "ran": OWN}}
    np.testing.assert_allclose(fast["token_similarity"], slow["token_similarity"], atol=1e-5)
    assert "scan" not in fast.config
    with pytest.raises(InputError, match="got scan with a loaded Model; pass it to"):
        repflow.measure(load("model"), IDS, scan="fast")


def test_a_run_resumes_with_another_setting(folder):
    options = ("model", "--length", "12", "--samples", "2", "--name", "run", "--json")
    first = json.loads(command("measure", *options, "--scan", "reference").stdout)
    again = command("measure", *options)
    assert again.exit_code == 0
    assert json.loads(again.stdout)["metrics"] == first["metrics"]
    assert first["provenance"]["model"]["scan"]["ssd"]["ran"] == OWN
    assert read_record("runs/run").provenance["scan"] == "reference"


def test_a_resume_with_another_setting_is_a_finding_of_the_result(folder):
    from repflow.store import RunFolder

    options = ("model", "--length", "12", "--samples", "2", "--batch-size", "1", "--name", "run", "--json")
    assert command("measure", *options, "--scan", "reference").exit_code == 0
    with RunFolder.reopen("runs/run") as run:
        run.discard_shard(run.shards()[-1], "as after a kill")
        run.discard_result("as after a kill")
    findings = json.loads(command("measure", *options).stdout)["findings"]
    assert [finding["message"] for finding in findings if finding["code"] == "resumed"] == [
        "resumed with scan: stored 'reference', now 'auto'"
    ]


@pytest.mark.parametrize("name", ["measure", "compare", "probe", "diagnose", "twins"])
def test_wrong_word(folder, name):
    models = ("model", "twin") if name == "compare" else ("model",)
    done = command(name, *models, "--scan", "fats")
    assert done.exit_code == 2
    assert "did you mean fast?" in " ".join(done.stderr.split())
    assert not (folder / "runs").exists()


def test_compare_says_what_ran_in_both(folder):
    result = repflow.compare("model", "twin", IDS.tolist(), scan="reference", neighbours=3)
    assert [result.provenance["models"][side]["scan"]["ssd"]["ran"] for side in "ab"] == [OWN, OWN]


def test_twins_and_copies_keep_the_setting():
    model = load(tiny_model("bamba"), scan="reference")
    assert twin(model).scans.setting == "reference"
    assert ablate(model, ["norm-affine"]).scans.setting == "reference"
    assert load(tiny_model("bamba")).scans.setting == "auto"


def test_transformers_without_scans_say_nothing():
    result = repflow.measure(tiny_model("llama"), IDS)
    assert result.provenance["model"]["scan"] == {"asked": "auto"}
