"""Trained against random twins: cells are plain measurements on the same prompts, resumed, and judged."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import repflow
from repflow.cli.main import app
from repflow.core.errors import ConfigChangedError, InputError
from repflow.models import load
from repflow.store import list_runs, load_result
from repflow.studies import measure
from repflow.studies.twins.study import TwinsConfig, cells, check_words, run, study_name
from tests.models.tiny_configs import tiny_config
from tests.studies.compare.inputs import TEXTS, save, words_tokenizer

SMALL = {"inits": ["default", "xavier"], "lengths": ["8", "12"], "seeds": 2, "samples": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """gpt2 with a tokenizer and at most 256 tokens, and a Mamba-2 without either."""
    root = tmp_path_factory.mktemp("models")
    save("gpt2", root / "gpt", tokenizer=words_tokenizer)
    save("mamba2", root / "mamba")
    (root / "prose.txt").write_text(" ".join(TEXTS * 4))
    return root


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    for entry in models.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*args):
    done = CliRunner().invoke(app, ["twins", *map(str, args)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_cells_are_measurements_of_a_trained_model_on_text(place):
    """Every number again from `repflow.measure`, one call per cell."""
    config = TwinsConfig(model="gpt", task="text", text=["prose.txt"], **SMALL)
    result = run(config, out="runs")
    assert result["raw/late_minus_early"].shape == (1, 3, 2, 2, 3)
    assert result.axes["raw/late_minus_early"] == ("ablation", "weights", "length", "seed", "sample")
    for w, (init, seeds) in enumerate([("trained", 1), ("default", 2), ("xavier", 2)]):
        for seed in range(seeds):
            for n, length in enumerate((8, 12)):
                model = load("gpt", init=init, seed=seed)
                assert model.tokenizer is not None
                direct = repflow.measure(model, "text", text=["prose.txt"], length=length, samples=3)
                for measured, name in (("raw", "token_similarity"), ("excess", "token_similarity_excess")):
                    values = direct[name]  # five states; a third of four blocks is one
                    place_of = (0, w, n, seed)
                    assert result[f"{measured}/early"][place_of] == pytest.approx(values[1], abs=1e-6)
                    assert result[f"{measured}/late_minus_early"][place_of] == pytest.approx(
                        values[4] - values[1], abs=1e-6
                    )
    assert np.isnan(result["raw/early"][0, 0, :, 1]).all()  # trained weights have no second seed
    mean = result["raw/late_minus_early"][0, 1, 0].mean()
    assert result["raw/late_minus_early_mean"][0, 1, 0] == pytest.approx(mean)
    assert [f.code.partition("_")[0] for f in result.findings] == ["twins", "twins"]
    assert "not called architectural" in result.findings[0].message or "not architectural" in result.findings[0].message
    assert {run.name for run in list_runs(*Path("runs").glob("gpt-text-twins*"))} >= {"summary"}
    assert len(list_runs(*Path("runs").glob("gpt-text-twins*"))) == 1 + 10


def test_prompts_are_shared_and_weights_are_not(place):
    result = run(TwinsConfig(model="gpt", task="random", **SMALL), out="runs")
    stored = [
        load_result(*Path("runs").glob(f"gpt-random-twins*/{name}")) for name in result.provenance["cells"].values()
    ]
    prompts = {(r.config["length"], r.provenance["digests"]["prompts"]) for r in stored}
    assert len(prompts) == 2
    weights = {(r.config["init"], r.config["init_seed"], r.provenance["digests"]["weights"]) for r in stored}
    assert len({digest for _, _, digest in weights}) == len(weights) == 5
    assert set(result.provenance["digests"]["prompts"]) == {"8", "12"}


def test_a_finished_study_loads_no_model(place, monkeypatch):
    config = TwinsConfig(model="gpt", **SMALL)
    first = run(config, out="runs")
    monkeypatch.setattr(measure, "load_model", lambda *_: pytest.fail("loaded a model"))
    again = run(config, out="runs")
    assert {"load", "forward"} <= first.provenance.pop("seconds").keys()
    assert "load" not in again.provenance.pop("seconds")
    assert json.dumps(again.to_json()) == json.dumps(first.to_json())
    assert (
        load_result(*Path("runs").glob("gpt-text-twins*/summary")).provenance["verdicts"]
        == first.provenance["verdicts"]
    )
    with pytest.raises(ConfigChangedError, match="seeds"):
        run(TwinsConfig(model="gpt", **(SMALL | {"seeds": 1})), out="runs", name=study_name(config))


def test_ablations_are_held_against_the_whole_model(place):
    config = TwinsConfig(model="gpt", ablate=["norm-affine", "attention-window:2+positions"], **SMALL)
    assert config.ablate == ["norm-affine", "positions+attention-window:2"]
    result = run(config)
    early = result["raw/early"]
    assert early.shape[0] == 3
    assert np.allclose(early[1], early[0], equal_nan=True, atol=1e-6)  # fresh norms are identities
    assert not np.allclose(early[2], early[0], equal_nan=True, atol=1e-3)
    change = result["raw/early_change_mean"]
    expected = np.nanmean(early[2] - early[0], axis=(-2, -1))
    assert change[2] == pytest.approx(expected)
    conditions = result.provenance["break_conditions"]
    assert list(conditions) == config.ablate
    assert "the same in 6" in conditions["norm-affine"]["statement"]
    verdict = result.provenance["verdicts"]["raw"]
    assert verdict["cells"] == 6  # the ablated cells are no part of the grid


def test_an_architecture_without_weights(place):
    config = tiny_config("mamba2")
    config.to_json_file("mamba.json")
    result = run(TwinsConfig(model="config:mamba.json", **SMALL))
    assert result.provenance["labels"]["weights"] == ["default", "xavier"]
    assert "of trained" not in result.findings[0].message


def test_missing_cells_are_named(place, capsys):
    done = command("gpt", "--inits", "default", "--lengths", "8,300", "--seeds", 1, "--samples", 2)
    assert done.exit_code == 0
    assert "trained n=300: cannot run: expected at most 256 tokens" in done.stderr
    verdicts = load_result(*Path("runs").glob("gpt-text-twins*/summary")).provenance["verdicts"]
    assert any("default n=300 seed 0 (expected at most 256 tokens" in gap for gap in verdicts["raw"]["gaps"])
    assert verdicts["raw"]["code"] != "architectural"


def test_command(place):
    options = ["--inits", "default,xavier", "--lengths", "8", "--seeds", 2, "--samples", 2]
    done = command("mamba", *options)
    assert done.exit_code == 0
    for word in ("weights", "trained", "default", "xavier", "late − early, raw", "wrote runs/mamba-random-twins"):
        assert word in done.stdout
    parsed = json.loads(command("mamba", *options, "--json").stdout)
    assert re.fullmatch(r"runs/mamba-random-twins-[0-9a-f]{8}/summary", parsed["run"])
    assert parsed["metrics"]["raw/late_minus_early_mean"]["shape"] == [1, 3, 1]
    assert set(parsed["provenance"]["verdicts"]) == {"raw", "excess"}


def test_whole_grid_by_default():
    config = TwinsConfig(model="m")
    assert config.tokens == [128, 512, 2000]
    assert len(cells(config)) == 3 + 7 * 3 * 3
    assert study_name(TwinsConfig(model="config:a/b.json", task="kvpr")) == "b-kvpr-twins"
    names = [cell.name for cell in cells(config).values()]
    assert len(set(names)) == len(names)
    assert json.dumps(asdict(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inits": ["trained"]}, "random schemes in inits"),
        ({"inits": ["xaver"]}, "did you mean xavier"),
        ({"inits": ["he", "he"]}, "he twice"),
        ({"lengths": ["8,8"]}, "8 twice"),
        ({"lengths": ["many"]}, "expected"),
        ({"seeds": 0}, "at least 1 seed and 2 samples"),
        ({"samples": 1}, "at least 1 seed and 2 samples"),
        ({"share": 0.7}, "share over 0"),
        ({"states": "hf-tuple"}, "states='residual' or branch"),
        ({"inits": []}, "at least one init"),
    ],
)
def test_refused_before_anything_is_written(place, changes, message):
    config = TwinsConfig(model="gpt", **(SMALL | changes))
    with pytest.raises(InputError, match=message):
        check_words(config)


def test_wrong_requests_leave_nothing(place):
    for args in (["gpt", "--ablate", "norms"], ["nowhere/there"], ["gpt", "--share", "0.9"]):
        assert command(*args).exit_code == 2
    assert not (place / "runs").exists()
