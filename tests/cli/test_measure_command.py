"""`repflow measure` on real tiny checkpoints: files, table, JSON, resume, kinds of state."""

import json
import re

import pytest

from repflow.store import load_result, verify
from tests.cli.small_request import SMALL
from tests.models.tiny_configs import NAMED, save_tiny
from tests.sample import sampled


def only_run(folder):
    (run,) = folder.iterdir()
    return run


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def test_measure_in_a_process_prints_a_table_and_stores_the_run(process, checkpoints, tmp_path):
    done = process("measure", checkpoints / "gpt_neox", "--task", "random", *SMALL, "--out", "o", "--name", "n")
    assert done.code == 0, done.err
    for word in (
        "similarity",
        "excess",
        "layer cosine",
        "norm (median)",
        "common share",
        "relative Sm",
        "relative St",
    ):
        assert word in done.out
    assert done.out.rstrip().endswith("wrote o/n")
    # bindings of libraries complain behind it of what is not taken apart at the end
    assert re.fullmatch(r".*: 3/3 prompts.* left", done.err.splitlines()[-1])
    assert "tokens/s" in done.err
    assert "loading" not in done.out
    assert {"run.json", "manifest.jsonl", "result.json", "result.safetensors", "shards"} <= {
        entry.name for entry in (tmp_path / "o" / "n").iterdir()
    }
    assert verify(tmp_path / "o" / "n") == []


def test_json_is_one_object_and_nothing_else(cli, checkpoints, tmp_path, capfd):
    done = cli("measure", checkpoints / "mamba2", checkpoints / "gpt_neox", *SMALL, "--json")
    assert done.code == 0, done.err
    assert capfd.readouterr().out == ""  # nor past Python's own stdout
    objects = [json.loads(line, parse_constant=no_constant) for line in done.out.splitlines()]
    assert [o["provenance"]["model"]["type"] for o in objects] == ["mamba2", "gpt_neox"]
    for content in objects:
        assert set(content) == {"run", "model", "task", "metrics", "findings", "provenance"}
        assert content["task"] == "random"
        entry = content["metrics"]["token_similarity"]
        assert set(entry) == {"axes", "shape", "values"}
        assert entry["axes"] == ["state", "sample"]
        assert entry["shape"] == [5, 3]
        stored = load_result(tmp_path / content["run"])
        assert stored["token_similarity"].tolist() == entry["values"]


def test_several_models_are_compared_on_the_matched_grid(cli, checkpoints):
    done = cli("measure", checkpoints / "gpt_neox", checkpoints / "mamba2", *SMALL)
    assert done.code == 0
    assert "matched grid of 4 relative-depth steps" in " ".join(done.out.split())
    for depth in ("0 %", "25 %", "50 %", "75 %", "100 %"):
        assert depth in done.out
    rows = [line.split() for line in done.out.splitlines() if line.split()[:1] in (["gpt_neox"], ["mamba2"])]
    rows = [row for row in rows if len(row) == 9]
    assert [row[:2] for row in rows] == [["gpt_neox", "4"], ["mamba2", "4"]]
    for row in rows:
        assert all(float(value) == float(value) for value in row[2:])


def test_table_shows_the_stored_numbers(cli, checkpoints, tmp_path):
    cli_out = cli("measure", checkpoints / "gpt_neox", *SMALL, "--name", "n").out
    result = load_result(tmp_path / "runs" / "n")
    mean = result.mean("token_similarity")
    for state, value in enumerate(mean):
        (line,) = [line for line in cli_out.splitlines() if line.split()[:1] == [str(state)]]
        assert line.split()[1] == f"{value:.3f}"
    (line,) = [line for line in cli_out.splitlines() if line.strip().startswith("smoothness Sm")]
    assert line.split()[2] == f"{float(result.mean('smoothness')):.4g}"


def test_finished_run_is_read_not_computed_again(cli, checkpoints, tmp_path, monkeypatch):
    first = cli("measure", checkpoints / "gpt_neox", *SMALL)
    before = (only_run(tmp_path / "runs") / "manifest.jsonl").read_bytes()
    import repflow.capture.measure

    monkeypatch.setattr(repflow.capture.measure, "run_plan", lambda *_, **__: pytest.fail("computed again"))
    second = cli("measure", checkpoints / "gpt_neox", *SMALL)
    assert (second.code, second.out) == (0, first.out)
    assert (only_run(tmp_path / "runs") / "manifest.jsonl").read_bytes() == before


@pytest.mark.parametrize("change", [("--samples", "4"), ("--seed", "1"), ("--drop", "first")])
def test_changed_config_is_refused_with_the_key(cli, checkpoints, change):
    assert cli("measure", checkpoints / "gpt_neox", *SMALL, "--name", "n").code == 0
    done = cli("measure", checkpoints / "gpt_neox", *SMALL, *change, "--name", "n")
    assert done.code == 2
    assert repr(change[0].removeprefix("--")) in done.err


def test_changed_weights_are_refused(cli, checkpoints, tmp_path):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoints / "gpt_neox", tmp_path / "m")
    assert cli("measure", "m", *SMALL).code == 0
    file = tmp_path / "m" / "model.safetensors"
    weights = load_file(file)
    name = min(weights)
    weights[name] = weights[name] + 1e-3
    save_file(weights, file, metadata={"format": "pt"})
    done = cli("measure", "m", *SMALL)
    assert done.code == 2
    assert "weights" in done.err


@pytest.mark.parametrize(
    ("kind", "states"), [("residual", 5), ("hf-tuple", 5), ("branch", 4), ("branch:attention", 4), ("branch:mlp", 4)]
)
def test_kinds_of_state(cli, checkpoints, kind, states):
    done = cli("measure", checkpoints / "gpt_neox", *SMALL, "--states", kind, "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["metrics"]["token_similarity"]["shape"] == [states, 3]
    assert content["provenance"]["states"] == kind


def test_branches_are_listed_by_block(cli, checkpoints):
    lines = cli(
        "measure", checkpoints / "gpt_neox", *SMALL, "--states", "branch", "--metrics", "token_norm"
    ).out.splitlines()
    head = next(i for i, words in enumerate(lines) if words.split()[:1] == ["block"])
    assert [words.split()[0] for words in lines[head + 2 : head + 6]] == ["1", "2", "3", "4"]


def test_metrics_repeated_comma_separated_and_default(cli, checkpoints, tmp_path):
    done = cli(
        "measure",
        checkpoints / "mamba2",
        *SMALL,
        "--metrics",
        "token_norm,cka_matrix",
        "--metrics",
        "smoothness",
        "--json",
    )
    names = set(json.loads(done.out)["metrics"])
    assert {"token_norm", "cka_matrix", "smoothness"} <= names
    assert "token_similarity" not in names
    table = cli("measure", checkpoints / "mamba2", *SMALL, "--metrics", "token_norm", "--name", "small").out
    assert "norm (median)" in table
    assert "similarity" not in table
    all_names = cli(
        "measure", checkpoints / "mamba2", *SMALL, "--metrics", "default,effective_rank", "--name", "d", "--json"
    )
    assert {"token_similarity", "effective_rank"} <= set(json.loads(all_names.out)["metrics"])


def test_cka_pooled_over_rows(cli, checkpoints):
    import numpy as np

    asked = ("--metrics", "cka_matrix", "--cka-pool", "rows", "--batch-size", "2", "--json")
    done = cli("measure", checkpoints / "mamba2", *SMALL, *asked)
    assert done.code == 0, done.err
    pooled = json.loads(done.out)["metrics"]["cka_row_pooled"]
    assert pooled["axes"] == ["state", "state"]
    np.testing.assert_allclose(np.diag(pooled["values"]), 1, atol=1e-6)


def test_own_metric_from_a_file(cli, checkpoints, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def mean_size_cli(hidden):\n    print('noise')\n    return hidden.abs().mean((1, 2))\n"
    )
    done = cli(
        "measure", checkpoints / "gpt_neox", *SMALL, "--metrics", "mine.py:mean_size_cli", "--name", "m", "--json"
    )
    assert done.code == 0, done.err
    entry = json.loads(done.out)["metrics"]["mean_size_cli"]
    assert entry["axes"] == ["state", "sample"]
    assert all(value > 0 for row in entry["values"] for value in row)
    assert "noise" in done.err
    (tmp_path / "mine.py").write_text("def mean_size_cli(hidden):\n    return hidden.mean((1, 2))\n")
    changed = cli("measure", checkpoints / "gpt_neox", *SMALL, "--metrics", "mine.py:mean_size_cli", "--name", "m")
    assert changed.code == 2
    assert "mine.py" in changed.err


def test_many_states_are_thinned(cli, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 30, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    (tmp_path / "deep.json").write_text(json.dumps(config))
    done = cli("measure", "config:deep.json", "--length", "8", "--samples", "2")
    assert done.code == 0, done.err
    assert "12 of 31 states shown" in done.out
    lines = [line.split() for line in done.out.splitlines() if "states shown" not in line]
    rows = [words[0] for words in lines if words and words[0].isdigit()]
    assert len(rows) == 12
    assert (rows[0], rows[-1]) == ("0", "30")


def test_same_random_weights_for_the_same_seed(cli, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 64}
    (tmp_path / "c.json").write_text(json.dumps(config))
    outs = [
        json.loads(
            cli("measure", "config:c.json", *SMALL, "--init", "he", "--seed", seed, "--name", name, "--json").out
        )
        for seed, name in (("0", "a"), ("0", "b"), ("1", "c"))
    ]
    weights = [content["provenance"]["digests"]["weights"] for content in outs]
    assert weights[0] == weights[1] != weights[2]
    assert outs[0]["metrics"] == outs[1]["metrics"]


@pytest.mark.parametrize("kind", sampled(NAMED))
def test_every_named_architecture(cli, tmp_path, kind):
    """From a folder in Hugging Face format to stored numbers."""
    folder = save_tiny(kind, tmp_path / kind)
    done = cli("measure", folder, "--length", "12", "--samples", "2", "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert content["provenance"]["model"]["type"] == kind
    values = content["metrics"]["token_similarity"]["values"]
    assert len(values) == content["provenance"]["model"]["layers"] + 1
    assert all(value is not None for row in values for value in row)


@pytest.mark.shared
def test_text_task_with_a_tokenizer(cli, shared, tmp_path):
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 50277}
    (tmp_path / "c.json").write_text(json.dumps(config))
    text = shared / "wikitext2" / "test.txt"
    tokenizer = shared / "tokenizers" / "neox20b"
    asked = ("--task", "text", "--text", text, "--tokenizer", tokenizer, "--length", "32", "--samples", "2")
    done = cli("measure", "config:c.json", *asked, "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert len(content["provenance"]["kept"]) == 2
    assert "".join(content["provenance"]["kept"][0]["tokens"]).strip() in text.read_text(encoding="utf-8")
    (tmp_path / "p.jsonl").write_text('{"prompt": "one two three four"}\n{"prompt": "five six seven"}\n')
    own = cli("measure", "config:c.json", "--task", "p.jsonl", "--tokenizer", tokenizer, "--length", "32", "--json")
    assert json.loads(own.out)["provenance"]["lengths"][0] > json.loads(own.out)["provenance"]["lengths"][1]


def test_one_failing_model_does_not_stop_the_others(cli, checkpoints, tmp_path):
    done = cli("measure", checkpoints / "gpt_neox", "no/such/model", checkpoints / "mamba2", *SMALL, "--json")
    assert done.code == 2
    assert [json.loads(line)["provenance"]["model"]["type"] for line in done.out.splitlines()] == ["gpt_neox", "mamba2"]
    assert "no/such/model" in done.err


def test_failed_work_is_exit_1_and_wins_over_a_wrong_request(cli, checkpoints, tmp_path):
    (tmp_path / "bad.py").write_text("def broken_cli(hidden):\n    raise RuntimeError('broken on purpose')\n")
    done = cli("measure", checkpoints / "gpt_neox", "no/such/model", *SMALL, "--metrics", "bad.py:broken_cli")
    assert done.code == 1
    assert "broken on purpose" in done.err
    assert "Traceback" not in done.err


def test_debug_shows_the_traceback(cli, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setenv("REPFLOW_DEBUG", "1")
    done = cli("measure", "no/such/model", *SMALL)
    assert done.code == 2
    assert "Traceback" in done.err


def test_interrupt_is_130_and_says_how_to_go_on(cli, checkpoints, monkeypatch):
    import repflow.studies.measure

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(repflow.studies.measure.Measure, "run", interrupted)
    done = cli("measure", checkpoints / "gpt_neox", *SMALL)
    assert done.code == 130
    assert "same command" in done.err
