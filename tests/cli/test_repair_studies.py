"""`repflow verify --repair` of comparisons and twins, whose stored request says more than their options."""

import json

import pytest

from repflow.store import verify

SMALL = ("--length", "24", "--samples", "3")


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))


def payload(run):
    files = [*sorted((run / "shards").glob("*")), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files if file.exists()}


@pytest.mark.parametrize("other", ["twin", "mamba2"])
def test_a_damaged_comparison_is_recomputed(cli, checkpoints, tmp_path, other):
    second = "twin" if other == "twin" else checkpoints / other
    done = cli("compare", checkpoints / "gpt_neox", second, *SMALL, "--neighbours", "3", "--name", "c")
    assert done.code == 0, done.err
    run = tmp_path / "runs" / "c"
    before = payload(run)
    flip(run / "shards" / "sample-000001.safetensors")
    flip(run / "result.safetensors")
    assert cli("verify", run).code == 1
    done = cli("verify", run, "--repair")
    assert done.code == 0, done.err
    assert payload(run) == before
    assert verify(run) == []


def test_a_comparison_on_a_file_keeps_its_folder(cli, checkpoints, tmp_path):
    from tests.studies.probe.inputs import tokenizer

    tokenizer().save_pretrained(tmp_path / "words")
    (tmp_path / "data").mkdir()
    lines = [{"prompt": f"Extract the value {i} in the JSON object below. Key: data"} for i in range(3)]
    (tmp_path / "data" / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "c.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2}))
    asked = ("--task", "data/own.jsonl", "--tokenizer", "words", "--neighbours", "2", "--name", "c")
    assert cli("compare", "config:c.json", "twin", *asked).code == 0
    flip(tmp_path / "runs" / "c" / "result.safetensors")
    done = cli("verify", "runs/c", "--repair")
    assert done.code == 0, done.err


def test_a_damaged_summary_of_twins_is_judged_again(cli, checkpoints, tmp_path):
    asked = ("--inits", "default", "--lengths", "16,24", "--seeds", "2", "--samples", "3", "--name", "t")
    done = cli("twins", checkpoints / "gpt_neox", *asked)
    assert done.code == 0, done.err
    run = tmp_path / "runs" / "t" / "summary"
    before = payload(run)
    flip(run / "result.safetensors")
    done = cli("verify", run, "--repair")
    assert done.code == 0, done.err
    assert payload(run) == before


def test_a_live_model_cannot_be_given_again(cli, checkpoints, tmp_path):
    import repflow

    model = repflow.load(str(checkpoints / "gpt_neox"))
    live = repflow.load(model.network)
    repflow.compare(live, live, [[1, 2, 3, 4, 5, 6, 7, 8]], out=tmp_path / "runs", name="c", neighbours=2)
    flip(tmp_path / "runs" / "c" / "result.safetensors")
    done = cli("verify", "runs/c", "--repair")
    assert done.code == 2
    assert "a live model" in done.err
