"""`repflow list`, `verify`, `export` and `doctor`."""

import json
import shutil

import numpy as np
import pytest

from repflow.store import load_result, verify
from tests.cli.small_request import SMALL


@pytest.fixture(scope="module")
def finished(tmp_path_factory, checkpoints):
    """Folder of runs with one finished run of several batches, `n`."""
    from typer.testing import CliRunner

    from repflow.cli.main import app

    out = tmp_path_factory.mktemp("finished")
    asked = ["measure", str(checkpoints / "gpt_neox"), *SMALL, "--batch-size", "1", "--out", str(out), "--name", "n"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    return out


@pytest.fixture
def runs(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "runs")
    return tmp_path / "runs"


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def payload(run):
    files = [*sorted((run / "shards").iterdir()), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def test_list(cli, runs, checkpoints):
    text = " ".join(cli("list", runs).out.split())
    assert "finished" in text
    assert "3/3" in text
    assert "random" in text
    assert cli("list").out == cli("list", "runs").out
    flip(runs / "n" / "run.json")
    assert "damaged" in cli("list", runs).out
    assert cli("list", "nowhere").code == 2


def test_list_of_an_empty_folder(cli, tmp_path):
    (tmp_path / "none").mkdir()
    done = cli("list", "none")
    assert (done.code, done.out) == (0, "no runs in none\n")


def test_verify_a_sound_run(cli, runs):
    done = cli("verify", runs / "n")
    assert done.code == 0
    assert "sound" in done.out
    done = cli("verify", runs)  # a folder of runs, as a grid has it
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("is sound")


@pytest.mark.parametrize("victim", ["shard", "result.json", "result.safetensors", "run.json", "missing shard"])
def test_repair_is_bit_identical(cli, runs, victim):
    run = runs / "n"
    before = payload(run)
    file = sorted((run / "shards").iterdir())[1] if "shard" in victim else run / victim
    if victim == "missing shard":
        file.unlink()
    else:
        flip(file)
    outcome = cli("verify", run)
    assert outcome.code == 1
    assert f"damaged: {file.relative_to(run)}" in outcome.out
    assert "--repair" in outcome.err
    done = cli("verify", run, "--repair")
    assert done.code == 0, done.err
    assert "repaired" in done.out
    assert verify(run) == []
    assert payload(run) == before
    assert load_result(run)["token_similarity"].shape == (5, 3)


def test_repair_computes_only_what_is_damaged(cli, runs):
    manifest = runs / "n" / "manifest.jsonl"
    assert manifest.read_bytes().count(b'"kind":"shard"') == 3
    flip(sorted((runs / "n" / "shards").iterdir())[1])
    assert cli("verify", runs / "n", "--repair").code == 0
    assert manifest.read_bytes().count(b'"kind":"shard"') == 4


def test_repair_without_the_model_says_so(cli, runs, checkpoints, tmp_path):
    flip(sorted((runs / "n" / "shards").iterdir())[0])
    moved = checkpoints.parent / "moved"
    checkpoints.rename(moved)
    try:
        done = cli("verify", runs / "n", "--repair")
    finally:
        moved.rename(checkpoints)
    assert done.code == 2
    assert "does not exist" in done.err


@pytest.mark.parametrize(("to", "suffix"), [("parquet", "parquet"), ("npz", "npz"), ("csv", "csv"), ("netcdf", "nc")])
def test_export(cli, runs, tmp_path, to, suffix):
    done = cli("export", runs / "n", "--to", to)
    assert done.code == 0, done.err
    file = tmp_path / f"n.{suffix}"
    assert done.out == f"wrote {file.name}\n"
    expected = load_result(runs / "n")["token_similarity"]
    if to == "npz":
        assert np.array_equal(np.load(file)["token_similarity"], expected)
    elif to == "netcdf":
        import xarray

        assert np.array_equal(xarray.load_dataset(file, engine="scipy")["token_similarity"].values, expected)
    else:
        import pandas

        table = pandas.read_parquet(file) if to == "parquet" else pandas.read_csv(file)
        values = table[table.metric == "token_similarity"].sort_values(["state", "sample"]).value.to_numpy()
        np.testing.assert_allclose(values, expected.reshape(-1), rtol=1e-12)


def test_export_of_what_cannot_be(cli, runs):
    assert "did you mean parquet" in cli("export", runs / "n", "--to", "parket").err
    assert cli("export", runs / "n", "--to", "parket").code == 2
    assert cli("export", runs / "none", "--to", "csv").code == 2
    assert cli("export", runs / "n", "--to", "csv", "--out", "no/folder/x.csv").code == 2
    assert cli("export", runs / "n").code == 2


def test_doctor(cli):
    done = cli("doctor", "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["cpu_dtypes"]["float32"] == "ok"
    assert set(content["cpu_dtypes"]) == {"float32", "bfloat16", "float16", "float64"}
    assert content["devices"][0]["device"] == "cpu"
    assert set(content["fast_paths"]) == {"triton", "mamba_ssm", "causal_conv1d"}
    text = cli("doctor").out
    for word in ("torch", "dtype bfloat16", "fast path triton", "extra tables"):
        assert word in text


def test_doctor_gives_the_command_for_a_missing_extra(cli, monkeypatch):
    from repflow.cli import doctor

    monkeypatch.setitem(doctor.EXTRAS, "gguf", ("no_such_module",))
    assert "pip install 'repflow[gguf]'" in cli("doctor").out
