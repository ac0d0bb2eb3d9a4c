"""A study written from CONTRIBUTING alone: five files, and it has everything that a study has."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = {
    "core/studies.py": "STUDIES = (\n",
    "report/sections/__init__.py": "SECTIONS = (\n",
}


def instructions():
    """Files with their content, and rows by the file they go into, as the guide for contributors has them."""
    part = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("### A study")[2].partition("\n### ")[0]
    files = re.findall(r"^\d\. `src/repflow/([\w/]+\.py)`.*?```python\n(.*?)```", part, re.DOTALL | re.MULTILINE)
    rows = re.findall(r"^\d\. Its row in `\w+` of `src/repflow/([\w/.]+)`: `(.*)`$", part, re.MULTILINE)
    return dict(files), dict(rows)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the package with the toy study in it."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(
        ROOT / "src/repflow", root / "repflow", ignore=shutil.ignore_patterns("__pycache__", "zoo"), dirs_exist_ok=True
    )
    (root / "repflow/models/zoo").symlink_to(ROOT / "src/repflow/models/zoo")
    files, rows = instructions()
    assert len(files) == 3
    assert rows.keys() == ROWS.keys()
    for name, content in files.items():
        assert not (root / "repflow" / name).exists()
        (root / "repflow" / name).write_text(content)
    for name, row in rows.items():
        text = (root / "repflow" / name).read_text()
        (root / "repflow" / name).write_text(text.replace(ROWS[name], f"{ROWS[name]}    {row}\n", 1))
    return root


@pytest.fixture
def place(tmp_path):
    config = {
        "model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 64, "max_position_embeddings": 256, "vocab_size": 100,
    }  # fmt: skip
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    lines = ('kind = "drift"', 'models = ["config:tiny.json"]', 'inits = ["default", "xavier"]', "lengths = [8, 12]")
    (tmp_path / "study.toml").write_text("\n".join(["[study]", *lines, "samples = 2"]))
    return tmp_path


DRIFT = ["drift", "config:tiny.json", "--init", "default", "--length", "24"]
SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from repflow.cli.main import app
said = []
for args in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app(args)
            code = 0
        except SystemExit as done:
            code = done.code or 0
    said.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(said))
"""


def commands(tree, place, *lines):
    """Exit code, stdout and stderr of each command, in one process."""
    env = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "110"}
    asked = json.dumps([list(map(str, line)) for line in lines])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=asked, cwd=place, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_it_has_everything_that_a_study_has(tree, place):
    named = [*DRIFT, "--samples", "3", "--name", "one"]
    said = commands(
        tree,
        place,
        ["drift", "--help"],
        named,
        [*named, "--json"],
        [*DRIFT, "--samples", "3", "--power", "2"],
        ["list"],
        ["verify", "runs/one"],
        ["export", "runs/one", "--to", "npz"],
        ["run", "study.toml", "--dry-run"],
        ["run", "study.toml"],
        ["report", "runs", "--out", "page.html"],
        ["figures", "runs/one", "--format", "svg", "--out", "drawn"],
        ["drift", "config:tiny.json", "--task", "nothing"],
    )
    codes = [code for code, _, _ in said]
    assert codes == [0] * 11 + [2], said[codes.index(next(c for c in codes if c))]
    outs = [out for _, out, _ in said]
    assert "power that distances are raised to" in " ".join(outs[0].split())
    assert "distance from the embedding" in " ".join(outs[1].split())
    printed = json.loads(outs[2])
    assert printed["metrics"]["moved"]["shape"] == [4, 3]
    assert printed["provenance"]["seconds"]
    assert re.search(r"wrote runs/tiny-default-drift-random-24-[0-9a-f]{8}", outs[3])
    assert "one" in outs[4]
    assert "is sound" in outs[5]
    assert "4 cells, 8 prompts" in outs[7]
    assert "moved" in outs[8]
    assert "4 finished" in said[8][2]
    assert "How far tokens move from their embeddings." in (place / "page.html").read_text()
    assert list((place / "drawn").glob("*distances*.svg"))


def test_it_resumes_after_a_kill(tree, place):
    line = [sys.executable, "-m", "repflow", *DRIFT, "--samples", "400", "--name"]
    env = {**os.environ, "PYTHONPATH": str(tree)}
    child = subprocess.Popen(
        [*line, "killed"], cwd=place, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    while child.poll() is None and len(list((place / "runs/killed/shards").glob("*"))) < 3:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    done, finished = len(list((place / "runs/killed/shards").glob("*"))), (place / "runs/killed/result.json").exists()
    assert done >= 3
    assert not finished
    for name in ("killed", "whole"):
        assert subprocess.run([*line, name], cwd=place, env=env, capture_output=True, check=False).returncode == 0
    assert (place / "runs/killed/result.json").read_bytes() == (place / "runs/whole/result.json").read_bytes()
