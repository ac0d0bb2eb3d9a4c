"""Wrong requests: exit 2, one clear message without a traceback, and nothing left behind."""

import json
import os
import shutil

import pytest

from tests import warm
from tests.cli.invocation import no_connections
from tests.cli.small_request import SMALL

TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 50277}


@pytest.fixture
def refused(cli, tmp_path):
    """Run a command that must be refused; return its message."""

    def run(*args):
        done = cli(*args, "--out", tmp_path / "out")
        assert done.code == 2, done.err
        assert done.out == ""
        assert "Traceback" not in done.err
        assert not (tmp_path / "out").exists()
        return done.err

    return run


def test_the_built_in_text_by_name_needs_a_tokenizer(cli, refused, tmp_path):
    """By default a model without one reads random ids; asked for by name, the text is not replaced by them."""
    config = tmp_path / "tiny.json"
    config.write_text(json.dumps(TINY | {"vocab_size": 60}))
    model = f"config:{config}"
    for words in (("measure", model), ("compare", model, "twin"), ("recency", "--task", "text", model)):
        if "--task" not in words:
            words = (*words, "--task", "text")
        assert "a tokenizer to read --task text with" in refused(*words, *SMALL)
    done = cli("measure", model, "--length", "8", "--samples", "2", "--out", tmp_path / "runs", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["task"] == "random"


def test_an_attack_needs_a_model(refused):
    assert "expected a MODEL; got none" in refused("attack")


def test_a_recipe_must_be_named(refused):
    assert "expected a RECIPE; got none; see `repflow reproduce --list`" in refused("reproduce")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--task", "rndom"), "did you mean random"),
        (("--text", "x.txt"), "cannot read x.txt"),
        (("--task", "kvpr", "--text", "x.txt"), "--task text with --text"),
        (("--task", "none.jsonl"), "none.jsonl"),
        (("--name", "a/b"), "'a/b'"),
        (("--name", ".."), "'..'"),
        (("--length", "65"), "at most 64 tokens"),
        (("--length", "1"), "length >= 2"),
        (("--samples", "0"), "samples >= 1"),
        (("--dtype", "float33"), "float32"),
        (("--dtype", "float16"), "float16"),
        (("--metrics", "token_similarty"), "did you mean token_similarity"),
        (("--metrics", "nofile.py:f"), "nofile.py"),
        (("--drop", "nrm>10"), "nrm>10"),
        (("--states", "residuals"), "did you mean residual"),
        (("--init", "hee"), "'hee'"),
        (("--bos", "perhaps"), "'perhaps'"),
        (("--grid", "9"), "--grid between"),
        (("--batch-size", "0"), "--batch-size of at least 1"),
        (("--meter-memory", "0"), "--meter-memory"),
        (("--keep-samples", "-1"), "--keep-samples"),
        (("--device", "cuda:7"), "cuda:7"),
        (("--device", "abacus"), "'abacus'"),
        (("--cka-form", "exact"), "exact"),
        (("--metrics", "cka_matrix", "--cka-pool", "rows", "--cka-memory", "0"), "--cka-memory"),
        (("--tokenizer", "no/tokenizer"), "no/tokenizer"),
    ],
)
def test_wrong_option(refused, checkpoints, options, says):
    fields = dict(zip(options[::2], options[1::2], strict=True))
    rest = [
        part for key, value in zip(SMALL[::2], SMALL[1::2], strict=True) if key not in fields for part in (key, value)
    ]
    assert says in refused("measure", checkpoints / "gpt_neox", *rest, *options)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("no/such/folder/model", "no/such/folder/model"),
        ("config:none.json", "none.json"),
        ("zoo:hybird", "did you mean hybrid"),
        ("model.gguf", "model.gguf"),
        ("empty", "config.json"),
    ],
)
def test_unknown_model(refused, tmp_path, monkeypatch, model, says):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    assert says in refused("measure", model, *SMALL)


def test_name_with_several_models(refused, checkpoints):
    assert "--name" in refused("measure", checkpoints / "gpt_neox", checkpoints / "mamba2", "--name", "n")


def test_text_without_a_tokenizer(refused, checkpoints, tmp_path):
    (tmp_path / "t.txt").write_text("some words here")
    message = refused("measure", checkpoints / "gpt_neox", "--task", "text", "--text", tmp_path / "t.txt")
    assert "--tokenizer" in message


def test_own_metric_that_does_not_import(refused, checkpoints, tmp_path):
    (tmp_path / "m.py").write_text("def f(:\n")
    assert "SyntaxError" in refused("measure", checkpoints / "gpt_neox", *SMALL, "--metrics", f"{tmp_path}/m.py:f")
    (tmp_path / "g.py").write_text("def good(hidden):\n    return 0\n")
    assert "good" in refused("measure", checkpoints / "gpt_neox", *SMALL, "--metrics", f"{tmp_path}/g.py:goood")


@pytest.mark.shared
@pytest.mark.parametrize(
    ("text", "says"), [("", "empty"), ("  \n", "empty"), ("word", "windows of"), (b"\xff\xfe\xfa", "UTF-8")]
)
def test_text_that_cannot_be_measured(refused, shared, tmp_path, text, says):
    (tmp_path / "c.json").write_text(json.dumps(TINY))
    file = tmp_path / "t.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    asked = ("--task", "text", "--text", file, "--tokenizer", shared / "tokenizers" / "neox20b", *SMALL)
    assert says in refused("measure", f"config:{tmp_path}/c.json", *asked)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("line", "says"), [('{"prompt": "a"}', "at least 2 tokens"), ("{}", "'prompt'"), ("[", "line 1"), ("", "empty")]
)
def test_prompts_that_cannot_be_measured(refused, shared, tmp_path, line, says):
    (tmp_path / "c.json").write_text(json.dumps(TINY))
    (tmp_path / "p.jsonl").write_text(line)
    asked = ("--task", tmp_path / "p.jsonl", "--tokenizer", shared / "tokenizers" / "neox20b")
    assert says in refused("measure", f"config:{tmp_path}/c.json", *asked)


def test_pickled_objects_are_refused_and_never_executed(refused, checkpoints, tmp_path):
    import torch

    class Payload:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "executed"),))

    shutil.copytree(checkpoints / "gpt_neox", tmp_path / "evil")
    (tmp_path / "evil" / "model.safetensors").unlink()
    torch.save({"w": Payload()}, tmp_path / "evil" / "pytorch_model.bin")
    assert "unpickling" in refused("measure", tmp_path / "evil", *SMALL)
    assert not (tmp_path / "executed").exists()


def test_remote_code_is_off(refused, checkpoints, tmp_path):
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {"model_type": "strange", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.M"}}
        )
    )
    (folder / "code.py").write_text(f"import os; os.mkdir({str(tmp_path / 'executed')!r})")
    assert "--trust-remote-code" in refused("measure", folder, *SMALL)
    assert not (tmp_path / "executed").exists()


def test_folder_that_is_no_run_is_left_alone(cli, checkpoints, tmp_path):
    (tmp_path / "out" / "n").mkdir(parents=True)
    (tmp_path / "out" / "n" / "thesis.txt").write_text("years of work")
    done = cli("measure", checkpoints / "gpt_neox", *SMALL, "--out", "out", "--name", "n")
    assert done.code == 2
    assert [entry.name for entry in (tmp_path / "out" / "n").iterdir()] == ["thesis.txt"]


def test_nonfinite_weights_are_a_finding(cli, checkpoints, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoints / "gpt_neox", tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    name = next(key for key in weights if "layers.2." in key and weights[key].ndim == 2)
    weights[name][0, 0] = float("nan")
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    done = cli("measure", "m", *SMALL, "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    (finding,) = [entry for entry in content["findings"] if entry["code"] == "nonfinite_weight"]
    assert name in finding["message"]
    values = content["metrics"]["token_similarity"]["values"]
    assert all(value is not None for row in values[:3] for value in row)
    assert all(value is None for row in values[3:] for value in row)
    table = cli("measure", "m", *SMALL)
    assert table.code == 0
    assert "nonfinite_weight" in table.out
    assert "nan" not in table.out.lower().replace("nonfinite", "").replace(name, "").replace("nan or", "")


def test_local_models_make_no_connection(checkpoints, tmp_path):
    local = warm.command("measure", checkpoints / "mamba2", *SMALL, cwd=tmp_path, before=no_connections)
    # the guard itself works: a hub id must run into it
    hub = warm.command("measure", "some-org/some-model", *SMALL, cwd=tmp_path, before=no_connections)
    _, errors = local.communicate()
    assert local.returncode == 0, errors
    assert "connection was tried" in hub.communicate()[1]
