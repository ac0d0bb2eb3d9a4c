"""The built-in models: names, files, digests; and that the packaged ones and their cards say what was measured."""

import contextlib
import json
import re
import shutil
from pathlib import Path

import pytest

from repflow.core.errors import InputError, RepflowError
from repflow.papers.reading import known_readings
from repflow.spec import zoo
from repflow.studies.demo import PROBED
from tests.models.tiny_zoo import make_zoo
from tools.zoo.architecture import read_cells

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ROOT / "src" / "repflow" / "models" / "zoo"
MOST_BYTES = 100e6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture
def own(made, tmp_path, monkeypatch):
    """A zoo that a test may damage."""
    shutil.copytree(made, tmp_path / "zoo")
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path / "zoo"))
    return tmp_path / "zoo"


def test_a_wrong_name_teaches_the_names():
    with pytest.raises(InputError, match=r"unknown model of the zoo 'mamba3'; did you mean mamba.*the zoo has gpt-neo"):
        zoo.check_zoo_name("zoo:mamba3")
    with pytest.raises(InputError, match="unknown model of the zoo 'zzz'; known: gpt-neo, gpt-neox, hybrid"):
        zoo.model_folder("zzz")


def test_every_name_has_a_shape_and_a_folder(own):
    assert tuple(zoo.SHAPES) == zoo.NAMES
    for name in zoo.NAMES:
        assert zoo.checked_folder(f"zoo:{name}") == own / name
        assert zoo.record(name)["name"] == name
        assert zoo.card(name).startswith(f"# {name}\n")


@pytest.mark.parametrize("file", zoo.DIGESTED)
def test_a_flipped_bit_is_refused(own, file):
    path = own / "mamba" / file
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert zoo.damaged_files("mamba") == [file]
    with pytest.raises(RepflowError, match=rf"expected {file} of zoo:mamba as it was made; got other bytes"):
        zoo.checked_folder("mamba")
    assert zoo.damaged_files("mamba2") == []


def test_missing_files_are_told(own, monkeypatch):
    (own / "hybrid" / "tokenizer.json").unlink()
    assert zoo.damaged_files("hybrid") == ["tokenizer.json"]
    with pytest.raises(
        InputError, match=r"expected tokenizer.json in .*hybrid; got none; run `python -m tools.zoo.make card`"
    ):
        zoo.write_digests(own)
    (own / "hybrid" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"the built-in model hybrid; got no weights in .*; check REPFLOW_ZOO"):
        zoo.model_folder("hybrid")
    (own / "mamba" / "README.md").unlink()
    with pytest.raises(InputError, match=r"expected a card in .*; got none"):
        zoo.card("mamba")
    monkeypatch.setenv(zoo.VARIABLE, str(own / "nowhere"))
    with pytest.raises(InputError, match="no weights"):
        zoo.model_folder("mamba")
    assert zoo.seed_records() == []


# ---------------------------------------------------------------- what is packaged
HERE = tuple(name for name in zoo.NAMES if (PACKAGED / name / "model.safetensors").is_file())
packaged = pytest.mark.parametrize("name", HERE)


@pytest.fixture
def shipped(monkeypatch):
    monkeypatch.delenv(zoo.VARIABLE, raising=False)
    return PACKAGED


@packaged
def test_every_digest_of_the_package(shipped, name):
    known = json.loads((shipped / zoo.DIGESTS).read_text())[name]
    assert set(known) == set(zoo.DIGESTED)
    assert {file: zoo.file_digest(shipped / name / file) for file in known} == known


@packaged
def test_packaged_weights_are_those_that_training_wrote(shipped, name):
    import torch

    from repflow.models import load
    from tools.zoo.save import digest

    network = load(f"zoo:{name}", device="cpu").network.to(torch.bfloat16)  # as they are stored; nothing is rounded
    assert digest(network) == zoo.record(name)["digest"]


def test_the_package_stays_small(shipped):
    assert sum(file.stat().st_size for file in shipped.rglob("*") if file.is_file()) < MOST_BYTES


def test_the_package_has_what_the_demo_probes(shipped):
    assert set(PROBED) <= set(zoo.available())
    assert set(json.loads((shipped / zoo.DIGESTS).read_text())) == set(zoo.available())


def test_the_models_are_matched(shipped):
    records = [zoo.record(name) for name in zoo.available()]
    for key in ("steps", "tokens", "vocabulary", "data", "windows"):
        assert all(record[key] == records[0][key] for record in records), key
    assert {record["config"]["seed"] for record in records} == {records[0]["config"]["seed"]}
    assert not any(record["stopped_early"] for record in records)
    sizes = [record["parameters"] for record in records]
    assert max(sizes) < 1.1 * min(sizes)
    assert [entry["step"] for entry in records[0]["flow"]] == [round(part * 8000) for part in (0, 0.01, 0.1, 1)]


@packaged
def test_a_card_states_what_was_measured_and_nothing_else(shipped, name, tmp_path):
    """The card is what its measurements make of it; so no number in it can have been typed."""
    from tools.zoo.card import write_card

    for file in (shipped / name).glob("*.json"):
        shutil.copyfile(file, tmp_path / file.name)
    assert write_card(tmp_path) == zoo.card(name)


@packaged
def test_the_numbers_of_a_card_by_hand(shipped, name):
    """The same from the other side: read out of the text and compared with the files."""
    text, evaluation = zoo.card(name), zoo.record(name, "evaluation")
    rows = re.findall(r"^\| (\S+) \| (\d+) \| (\d+) of (\d+) \|", text, re.MULTILINE)
    by_key = {key: (int(longest), int(right), int(of)) for key, longest, right, of in rows}
    assert by_key == {k: (e["tokens"], e["exact"], e["of"]) for k, e in evaluation["retrieval"].items()}
    prose = float(re.search(r"Prose: ([\d.]+) nats", text)[1])
    assert prose == pytest.approx(evaluation["prose"]["nats_per_token"], abs=5e-4)
    probes = zoo.record(name, "probe").get("labels", {})
    assert ("## Linear probes" in text) == bool(probes)
    for label, words in (("answer", "first symbol of the value"), ("index", "index of the pair")):
        if not probes:
            continue
        chance, cells = re.search(rf"- {words}, by chance ([\d.]+): ([\d. ]+)", text).groups()
        assert float(chance) == pytest.approx(probes[label]["chance"], abs=5e-3)
        shown = [float(cell) for cell in cells.split()]
        assert shown == pytest.approx(probes[label]["accuracy"], abs=5.1e-3)


# ---------------------------------------------------------------- the wheel
def test_the_wheel_takes_models_and_records_along(shipped):
    """What setuptools would put into a wheel, without building one."""
    from setuptools import Distribution

    files = _wheel_files(Distribution)
    for name in HERE:
        assert {*zoo.DIGESTED, "README.md", "training.json", "evaluation.json"} <= {
            file.name for file in (shipped / name).iterdir()
        }
        for file in (shipped / name).iterdir():
            assert f"repflow/models/zoo/{name}/{file.name}" in files
    for file in ("repflow/models/zoo/digests.json", "repflow/py.typed", "repflow/cli/demo.py"):
        assert file in files
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "repflow").rglob("*.py")}
    assert sources <= files


def _wheel_files(distribution):
    with contextlib.chdir(ROOT):
        dist = distribution({"script_name": "pyproject.toml"})
        dist.parse_config_files(["pyproject.toml"])
        dist.include_package_data = False  # for a list of files in git it would write an egg-info folder
        step = dist.get_command_obj("build_py")
        step.ensure_finalized()
        paths = [Path(*package.split("."), file) for package, _, _, files in step._get_data_files() for file in files]
        modules = [Path(path).relative_to("src") for _, _, path in step.find_all_modules()]
    return {str(path) for path in [*paths, *modules]}


@pytest.mark.parametrize("name", zoo.NAMES)
def test_logits_are_those_of_another_machine(shipped, name):
    """Other Python, torch and transformers, the same numbers to 1e-4: a sample of them, kept in zoo_logits.json."""
    import numpy as np
    import torch

    import repflow

    content = json.loads((Path(__file__).parent / "zoo_logits.json").read_text(encoding="utf-8"))
    rng = np.random.default_rng(content["ids"]["seed"])
    ids = torch.from_numpy(rng.integers(0, content["ids"]["below"], content["ids"]["shape"]))
    with torch.inference_mode():
        logits = repflow.load(f"zoo:{name}", device="cpu").network(input_ids=ids, use_cache=False).logits
    sample = logits[:, :: content["every token"], :: content["every word"]].float().numpy().ravel()
    assert np.abs(sample).max() > 5  # not a comparison of zeros
    assert np.abs(sample - np.asarray(content["logits"][name])).max() <= 1e-4


def test_further_trainings_are_those_of_the_study(shipped):
    """Three seeds of four models and of two narrow ones, all of one length, whose probes the study's page shows too."""
    readings = known_readings()
    models = ("gpt-neox", "gpt-neox-narrow", "hybrid", "hybrid-mirror", "mamba2", "mamba2-narrow")
    assert sorted((one.model, one.seed) for one in readings) == [(name, seed) for name in models for seed in range(3)]
    assert {one.steps for one in readings} == {2000}
    cells = {(cell["variant"], cell["seed"]): cell for cell in read_cells(ROOT / "docs" / "architecture.json")}
    for one in readings:
        assert set(one.trained) == {"kvpr/256", "kvpr/512"}
        shown = cells[one.model, one.seed]["reading"]["probes"]
        for key, probe in one.probes.items():
            assert shown[key]["accuracy"] == pytest.approx(probe.accuracy, abs=1e-5)
