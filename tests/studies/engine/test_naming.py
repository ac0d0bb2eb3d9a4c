"""Names of runs: every option that changes the result, and runs that earlier versions named otherwise."""

from dataclasses import replace

import pytest

import repflow
from repflow.studies.engine.loading import identity
from repflow.studies.engine.naming import known_name, model_word, spell
from repflow.studies.measure import STUDY, MeasureConfig
from tests.models.tiny_configs import tiny_model

PLAIN = MeasureConfig(model="gpt2", task="random", length=12)


@pytest.mark.parametrize("change", [{"samples": 3}, {"seed": 1}, {"metrics": ["layer_cosine"]}, {"dtype": "float64"}])
def test_an_option_that_changes_the_result_changes_the_name(change):
    name, plain = STUDY.run_name(replace(PLAIN, **change)), STUDY.run_name(PLAIN)
    assert plain == "gpt2-random-12"
    assert name.startswith(f"{plain}-")


@pytest.mark.parametrize("change", [{"device": "cpu"}, {"batch_size": 2}, {"scan": "reference"}])
def test_how_it_is_computed_does_not(change):
    assert STUDY.run_name(replace(PLAIN, **change)) == STUDY.run_name(PLAIN)


def test_folders_of_one_name_in_two_places_are_two_models():
    names = {STUDY.run_name(replace(PLAIN, model=f"/data/{place}/model")) for place in ("a", "b")}
    assert len(names) == 2
    assert all(name.startswith("model-random-12-") for name in names)
    assert model_word("a/b") == "a/b"


def test_a_run_under_an_old_name_is_found_by_its_request(tmp_path):
    """Measured as an earlier version named it; another request under that name is not taken for it."""
    config = replace(PLAIN, model="", samples=2)
    result = repflow.measure(repflow.load(tiny_model("gpt2")), length=12, samples=2, out=tmp_path, name="old")
    asked = {**identity(config), "model": result.config["model"]}
    names = spell(replace(config, model="gpt2"), ["random", "12"], ("task", "length"))._replace(bare="old")
    assert known_name(tmp_path, names, asked) == "old"
    assert known_name(tmp_path, names, {**asked, "seed": 1}) == names.current
