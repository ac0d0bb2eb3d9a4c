"""Additions written from CONTRIBUTING alone: a study, a model family, a mixer and a task have all that theirs have."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ADDED, FENCE

ROOT = Path(__file__).parents[1]
STEP = re.compile(r"^\d\. `(?:src/repflow/)?([\w/]+\.py)`.*?```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\d\. Its row in `(\w+)` of `src/repflow/([\w/.]+)`: `(.*)`$", re.MULTILINE)
FILES = {"A study": 3, "A laboratory": 3, "A model family": 1, "A mixer": 1, "A task": 1}
"""New files of each addition; beside them stand one or two rows."""


def section(title):
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return page.partition(f"### {title}\n")[2].partition("\n### ")[0]


def steps(title):
    """Files with their content, and rows as (table, file, row), as the guide for contributors has them."""
    part = section(title)
    return dict(STEP.findall(part)), ROW.findall(part)


def checks(title):
    """What the guide runs once the steps are done: language, code and what it prints, if the guide says."""
    fences = list(FENCE.finditer(section(title)))
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        if fence["flag"] == ADDED:
            yield fence["info"], fence["body"], following["body"] if following and following["info"] == "text" else None


def add(root, title, place=None):
    """Do an addition's steps in a copy of the package; a file that is not part of it goes to `place`."""
    files, rows = steps(title)
    assert len(files) == FILES[title]
    for name, content in files.items():
        target = root / "repflow" / name if "/" in name else place / name
        assert not target.exists()
        target.write_text(content)
    for table, name, row in rows:
        text = (root / "repflow" / name).read_text()
        start = re.search(rf"^{table}\b[^\n]*[({{]\n", text, re.MULTILINE).end()
        (root / "repflow" / name).write_text(f"{text[:start]}    {row}\n{text[start:]}")
    return len(rows)


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Folder of files that are not part of the package."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def tree(tmp_path_factory, modules):
    """A copy of the package with every addition in it."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(
        ROOT / "src/repflow", root / "repflow", ignore=shutil.ignore_patterns("__pycache__", "zoo"), dirs_exist_ok=True
    )
    (root / "repflow/models/zoo").symlink_to(ROOT / "src/repflow/models/zoo")
    for title in FILES:
        assert 1 <= add(root, title, modules) <= 2
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
SERVER = """
import io, json, os, sys, traceback
from contextlib import redirect_stderr, redirect_stdout
import repflow.capture.run, repflow.report.terminal.measure, repflow.studies
from repflow.cli.main import app


def answer(asked):
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            exec(asked, {}) if isinstance(asked, str) else app(asked)
        except SystemExit as done:
            code = done.code or 0
        except Exception:
            traceback.print_exc()
            code = 3
    return [code, out.getvalue(), err.getvalue()]


for line in sys.stdin:
    folder, asked = json.loads(line)
    if os.fork() == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        print(json.dumps([answer(one) for one in asked]), flush=True)
        os._exit(0)
    if os.wait()[1]:
        print(json.dumps(None), flush=True)
"""


@pytest.fixture(scope="module")
def commands(tree):
    """Exit code, stdout and stderr of each command line (a list) and each piece of Python, in one process.

    The process is forked from one that has imported the copy of the package.
    """
    env = {**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "110"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], env=env, **pipes) as server:

        def run(folder, *lines):
            asked = [line if isinstance(line, str) else list(map(str, line)) for line in lines]
            print(json.dumps([str(folder), asked]), file=server.stdin, flush=True)
            said = json.loads(server.stdout.readline())
            assert said is not None, "the process has ended before its answer"
            return said

        yield run
        server.stdin.close()


def test_families_mixers_and_tasks_pass_their_checks(commands, modules):
    asked, expected = [], []
    for title in ("A model family", "A mixer", "A task"):
        for language, code, printed in checks(title):
            lines = [code] if language == "python" else [line.split()[1:] for line in code.splitlines()]
            asked += lines
            expected += [printed] * len(lines)
    assert sum(printed is not None for printed in expected) == 3
    said = commands(modules, *asked, ["measure", "--help"])
    for line, printed, (code, out, err) in zip(asked, expected, said, strict=False):
        assert code == 0, f"{line}: {err}"
        assert printed is None or out == printed
    words = " ".join(said[-1][1].replace("│", " ").split())
    assert re.search(r"text \(built-in English, or --text FILE\), [\w, ]*\bodd,[\w, ]* or FILE\.jsonl", words), words
    assert len(list((modules / "runs").iterdir())) == 2


def test_a_family_without_its_row_is_named_by_the_check(modules, tree, monkeypatch):
    """In this process, whose tables know nothing of it."""
    from repflow.core.errors import InputError
    from repflow.models import check_model

    monkeypatch.syspath_prepend(str(modules))
    from harp import HarpConfig, HarpForCausalLM

    with pytest.raises(InputError, match=r"check 'sublayers' of harp.*list them in Family\(mixers=\.\.\.\)"):
        check_model(HarpForCausalLM(HarpConfig()))


def test_a_laboratory_trains_resumes_and_keeps_its_models(commands, tmp_path):
    lines = [line.split()[1:] for _, code, _ in checks("A laboratory") for line in code.splitlines()]
    again = [*lines[1], "--json"]
    said = commands(tmp_path, *lines, again, ["report", "runs", "--out", "page.html"], ["parity", "--bits", "x"])
    codes = [code for code, _, _ in said]
    assert codes == [0] * 5 + [2], said[codes.index(next(c for c in codes if c))]
    assert said[0][1].split() == ["s6:0.002:0", "softmax_attention:0.002:0"]
    assert "time: about" in said[0][2]
    assert "softmax_attention" in said[1][1]
    printed = json.loads(said[3][1])
    assert printed["metrics"]["accuracy"]["shape"] == [2, 16]
    assert printed["metrics"]["half_life"]["shape"] == [2, 2]
    command = printed["provenance"]["cells"][0]["command"]
    assert command == "repflow parity --cells s6:0.002:0 --flow-samples 2 --steps 20 --batch 8"
    assert "Whether small models learn to count modulo 2." in (tmp_path / "page.html").read_text()


def test_it_has_everything_that_a_study_has(commands, place):
    named = [*DRIFT, "--samples", "3", "--name", "one"]
    said = commands(
        place,
        ["drift", "--help-all"],
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


KILLED = """
import os, signal, sys
from pathlib import Path
from repflow.cli.main import app
shards = Path("runs/killed/shards")


def kill(event, _):
    if event == "open" and shards.is_dir() and len(os.listdir(shards)) >= 3:
        os.kill(os.getpid(), signal.SIGKILL)


pid = os.fork()
if pid == 0:
    sys.addaudithook(kill)
    app({words} + ["--name", "killed"])
assert os.waitpid(pid, 0)[1] == signal.SIGKILL
assert len(os.listdir(shards)) >= 3 and not Path("runs/killed/result.json").exists()
"""


def test_it_resumes_after_a_kill(commands, place):
    words = [*DRIFT, "--samples", "12"]
    again = [[*words, "--name", name] for name in ("killed", "whole")]
    for code, _, err in commands(place, KILLED.format(words=words), *again):
        assert code == 0, err[-3000:]
    assert (place / "runs/killed/result.json").read_bytes() == (place / "runs/whole/result.json").read_bytes()
