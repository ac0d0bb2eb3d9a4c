"""Requests whose words alone are wrong: refused before torch or a model is loaded, and by a message that helps."""

import json
import subprocess
import sys

import pytest

NO_TORCH = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from repflow.cli.main import app
found = []
for args in json.load(sys.stdin):
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            app(args)
    except SystemExit as end:
        found.append([end.code, said.getvalue(), "torch" in sys.modules])
print(json.dumps(found))
"""

KVPR = ("--task", "kvpr")
WRONG = [
    (("measure", "m", "--seed", "-1"), "--seed from 0 to"),
    (("measure", "m", "--init-seed", "-3"), "--init-seed from 0 to"),
    (("measure", "m", "--init-seed", str(2**64)), "--init-seed from 0 to"),
    (("measure", "m", "--dtype", "float33"), "did you mean float32"),
    (("measure", "m", "--dtype", "half"), "--allow-float16"),
    (("measure", "m", "--device", "abacus"), "'abacus'"),
    (("measure", "m", "--device-map", "foo"), "expected --device-map auto; got 'foo'; pass --device-map auto"),
    (("measure", "m", "--init", "hee"), "did you mean he"),
    (("measure", "m", "--states", "residuals"), "did you mean residual"),
    (("measure", "m", "--drop", "nrm>10"), "norm>k"),
    (("measure", "m", "--grid", "0"), "--grid of at least 1"),
    (("measure", "m", "--batch-size", "0"), "--batch-size of at least 1"),
    (("measure", "m", "--meter-memory", "0"), "--meter-memory of at least 1 MiB; got 0; leave it out"),
    (("measure", "m", "--keep-samples", "-1"), "--keep-samples of at least 0"),
    (("measure", "m", "--length", "1"), "length >= 2"),
    (("measure", "m", "--ablate", "nrm"), "did you mean norm"),
    (("measure", "m", "--cka-form", "exact"), "--cka-form unbiased or paper"),
    (("measure", "m", "--out", "file/runs"), "file, which is a file; choose another --out"),
    (("compare", "a", "twin", "--init-b", "trained"), "random weights for a twin; got --init-b trained"),
    (("compare", "a", "b", "--init-b", "hee"), "did you mean he"),
    (("compare", "a@{b,c}", "--init-b", "he"), "--init-b with a second model"),
    (("probe", "m", "--rate", "inf"), "a finite --rate above 0; got inf"),
    (("probe", "m", "--rate", "nan"), "a finite --rate above 0; got nan"),
    (("probe", "m", "--controls", "task,none"), "--controls none, or names without it; got task,none; drop none"),
    (("probe", "m", "--position", "first"), "last, mean or a relative position"),
    (("probe", "m", "--sweep", "0,2"), "last, mean or a relative position"),
    (("probe", "m", "--twin", "trained"), "a random scheme for the twin"),
    (("probe", "m", "--twin", "hee"), "did you mean he"),
    (("probe", "m", "--task", "own.jsonl", "--label", "answer"), "--task kvpr or mdqa with --label"),
    (("diagnose", "m", "--task", "own.jsonl", "--label", "answer"), "--task kvpr or mdqa with --label"),
    (("diagnose", "m", "--init-seed", "-1"), "--init-seed from 0 to"),
    (("twins", "m", "--inits", "hee"), "did you mean he"),
    (("twins", "m", "--seed", "-1"), "--seed from 0 to"),
    (("run", "wrong.toml"), "--seed from 0 to"),
    (("run", "dtype.toml"), "did you mean float32"),
    (("run", "grid.toml"), "--grid of at least 1"),
    (("run", "mark.toml", "--out", "file"), "file, which is a file"),
    (("reproduce", "flow-fig1", "--out", "file"), "file, which is a file"),
]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """Exit code, message and whether torch was loaded, for every wrong request, in one process."""
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "file").write_text("no folder")
    (folder / "own.jsonl").write_text(json.dumps({"prompt": "a b", "label": 0}) + "\n")
    for name, line in (
        ("wrong", "seeds = [0, -1]"),
        ("dtype", 'dtype = "float33"'),
        ("grid", "grid = 0"),
        ("mark", ""),
    ):
        (folder / f"{name}.toml").write_text(f'[study]\nkind = "measure"\nmodels = ["m"]\n{line}\n')
    asked = json.dumps([args for args, _ in WRONG])
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH], input=asked, capture_output=True, text=True, cwd=folder, check=True
    )
    left = sorted(entry.name for entry in folder.iterdir())
    assert left == ["dtype.toml", "file", "grid.toml", "mark.toml", "own.jsonl", "wrong.toml"]
    return dict(zip([args for args, _ in WRONG], json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("args", "says"), WRONG, ids=[" ".join(args[:1] + args[2:]) for args, _ in WRONG])
def test_refused_by_its_words_without_torch(refusals, args, says):
    code, said, torch = refusals[args]
    assert code == 2, said
    assert says in " ".join(said.split())
    assert "Traceback" not in said
    assert not torch


def test_a_revision_of_a_folder_is_refused(cli, checkpoints, tmp_path):
    done = cli("measure", f"{checkpoints / 'gpt_neox'}@step3", "--length", "8", "--samples", "2")
    assert done.code == 2
    assert "a folder without a revision" in done.err
    assert "leave @step3 out" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_configuration_is_no_tokenizer(cli, checkpoints, tmp_path):
    (tmp_path / "t.txt").write_text("some words here")
    (tmp_path / "architecture.json").write_text(json.dumps({"model_type": "gpt2", "n_embd": 16}))
    asked = ("--task", "text", "--text", "t.txt", "--tokenizer")
    done = cli("measure", checkpoints / "gpt_neox", *asked, "architecture.json")
    assert done.code == 2
    assert "architecture.json, which is a model's configuration" in done.err
    assert "KeyError" not in done.err
    (tmp_path / "list.json").write_text("[1]")
    done = cli("measure", checkpoints / "gpt_neox", *asked, "list.json")
    assert done.code == 2
    assert "list.json, which is other JSON" in done.err


def test_memory_for_the_meters_is_named_in_whole_mebibytes(cli, checkpoints):
    done = cli("measure", checkpoints / "mamba2", "--length", "9000", "--samples", "1", "--meter-memory", "1")
    assert done.code == 2
    need = int(done.err.partition("--meter-memory of at least ")[2].partition(" MiB")[0])
    assert need > 1


def test_a_study_that_begins_with_a_byte_order_mark_is_read(cli, checkpoints, tmp_path):
    text = f'[study]\nkind = "measure"\nmodels = ["{checkpoints / "gpt_neox"}"]\nlengths = [8]\nsamples = 2\n'
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    done = cli("run", "s.toml", "--dry-run")
    assert done.code == 0, done.err
    assert "1 cells" in done.out
