"""seeds.json: measurements of several trainings, and the demo's verdicts with them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from repflow.core.errors import InputError
from repflow.papers.findings import judge, known_readings, merge
from repflow.papers.reading import Reading
from repflow.spec import zoo
from repflow.studies import demo
from tests.models.tiny_zoo import make_data, make_model
from tools.zoo.make import main
from tools.zoo.seeds import measure_seeds, measure_training, seed_jobs


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    """GPT-NeoX of two seeds and Mamba-2 of one."""
    folder = tmp_path_factory.mktemp("seeds")
    data = make_data(folder / "raw")
    places = [folder / "seed1" / "gpt-neox", folder / "seed2" / "gpt-neox", folder / "seed1" / "mamba2"]
    for place, seed in zip(places, (1, 2, 1), strict=True):
        make_model(place.name, data, place, seed=seed)
    return [str(place) for place in places]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr("tools.zoo.seeds.LENGTHS", (200, 256))
    monkeypatch.setattr("tools.zoo.seeds.LABELS", ("index",))
    for name, value in {"SAMPLES": 2, "GRID": 2}.items():
        monkeypatch.setattr(demo, name, value)


def test_a_training_is_read_with_its_name_and_seed(trainings):
    reading = measure_training(trainings[1], samples=40, device="cpu")
    assert (reading.model, reading.seed, reading.family) == ("gpt-neox", 2, "TBM")
    assert sorted(reading.trained) == ["kvpr/200", "kvpr/256"]
    assert sorted(reading.random) == ["xavier/kvpr/200", "xavier/kvpr/256"]
    assert sorted(reading.probes) == ["index/kvpr/200", "index/kvpr/256"]
    assert len(reading.trained["kvpr/256"].cka) == 3


def test_the_file_is_written_once_per_model_and_seed(trainings, tmp_path, monkeypatch):
    reading = measure_training(trainings[0], samples=40, device="cpu")

    def quick(folder, **options):  # what a training gives is tested above; here its place in the file
        record = zoo.record_in(Path(folder))
        return replace(reading, model=record["name"], seed=record["config"]["seed"])

    monkeypatch.setattr("tools.zoo.seeds.measure_training", quick)
    out = tmp_path / zoo.SEEDS
    said = []
    measure_seeds(trainings[:2], out, samples=40, device="cpu", say=said.append)
    assert main(["seeds", trainings[2], trainings[0], "--out", str(out), "--samples", "40", "--device", "cpu"]) == 0
    assert [text.split(",")[:2] for text in said] == [["gpt-neox", " seed 1"], ["gpt-neox", " seed 2"]]
    stored = json.loads(out.read_text())
    assert [(entry["model"], entry["seed"]) for entry in stored["readings"]] == [
        ("gpt-neox", 1), ("mamba2", 1), ("gpt-neox", 2),
    ]  # fmt: skip
    assert (stored["format"], stored["lengths"], stored["probe_samples"]) == (1, [200, 256], 40)
    with pytest.raises(InputError, match=r"expected a file of readings with .*'probe_samples': 50.*write to another"):
        measure_seeds(trainings[:1], out, samples=50)
    longer = replace(reading, steps=9, seed=1)
    monkeypatch.setattr("tools.zoo.seeds.measure_training", lambda folder, **options: longer)
    measure_seeds(trainings[:1], out, samples=40)  # another training of a seed that is there
    stored = json.loads(out.read_text())
    assert [(entry["seed"], entry["steps"]) for entry in stored["readings"]] == [(1, 0), (1, 0), (2, 0), (1, 9)]
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path))
    known = known_readings()
    assert [entry.to_json() for entry in known] == stored["readings"]
    own = [Reading.from_json({**entry.to_json(), "seed": 0}) for entry in known if entry.training[:2] == (1, 0)]
    finding = judge(merge(own, known), place="kvpr/256")[0]
    assert {clause.training.seed for clause in finding.clauses} == {0, 1, 2}


def test_random_twins_are_drawn_from_the_trainings_seed(trainings):
    jobs = seed_jobs(trainings[0], 40, init_seed=5)
    assert [job.config.init_seed for job in jobs if not job.probes] == [None, 5, None, 5]
    first, again, other = (
        measure_training(folder, samples=40, device="cpu").random["xavier/kvpr/200"].token_similarity
        for folder in (trainings[0], trainings[0], trainings[1])
    )
    assert first == again != other


def test_a_file_that_holds_something_else_is_kept(trainings, tmp_path):
    for text in ("precious", "[1, 2]", "{}"):
        (tmp_path / "mine").write_text(text)
        with pytest.raises(InputError, match=r"expected a file of readings.*write to another file"):
            measure_seeds(trainings[:1], tmp_path / "mine", samples=40)
        assert (tmp_path / "mine").read_text() == text


def test_a_folder_without_a_training_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected training.json in .*; got none; name a folder"):
        measure_training(str(tmp_path))


def test_digests_step(trainings, tmp_path, capsys):
    import shutil

    shutil.copytree(trainings[2], tmp_path / "mamba2")
    assert main(["digests", str(tmp_path)]) == 0
    assert zoo.DIGESTS in capsys.readouterr().out
    stored = json.loads((tmp_path / zoo.DIGESTS).read_text())
    assert list(stored) == ["mamba2"]
    assert set(stored["mamba2"]) == set(zoo.DIGESTED)


def test_the_cards_probes_are_those_of_the_command(trainings):
    """One pass serves both labels where the prompts are the same; the numbers are as if each had its own."""
    from repflow.studies.probe.study import ProbeConfig, run
    from tools.zoo.probe import probe_model

    model = probe_model(trainings[0], samples=40, seeds=1, length=200, device="cpu")
    assert zoo.record_in(Path(trainings[0]), "probe") == model
    for label in ("answer", "index"):
        config = ProbeConfig(
            model=trainings[0], length=200, samples=40, seeds=1, label=label, recipes=["robust"], controls=["none"],
            answers=0, lens=0,
        )  # fmt: skip
        result = run(config)
        assert model["labels"][label]["accuracy"] == result["probe_accuracy"].mean(-1).tolist()
        assert model["labels"][label]["chance"] == float(result["probe_chance"])
