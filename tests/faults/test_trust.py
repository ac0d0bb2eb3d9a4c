"""Code that a run folder or a study file names: it runs with a flag in the very call, and only as it was stored."""

import json
import os
import py_compile
import sys
from pathlib import Path

import pytest

from repflow.core.errors import ConfigChangedError, InputError
from repflow.store import read_record, verify
from repflow.store.canonical import seal
from repflow.store.manifest import encode, read_manifest
from tests import warm
from tests.faults import audit_child

TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 64}
SMALL = ("--length", "12", "--samples", "2")
METRIC = "def size(hidden):\n    return hidden.abs().mean((1, 2))\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    (tmp_path / "own.py").write_text(METRIC)
    return tmp_path


@pytest.fixture
def cli():
    from typer.testing import CliRunner

    from repflow.cli.main import app

    def run(*args):
        done = CliRunner().invoke(app, [str(arg) for arg in args])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return run


def watched(place, *args):
    """The command in a process that ends with 98 or 99 where Python below `place` is executed."""
    process = warm.Process(audit_child.main, str(place), *map(str, args), cwd=place)
    _, process.stderr = process.communicate()
    return process


def hostile(run, **changes):
    """Change the stored request of a run, checksums and both copies included, and damage its result."""
    content = read_record(run).content()
    content["config"] |= changes
    (run / "run.json").write_bytes(seal(content, indent=2))
    lines = read_manifest(run).lines
    lines[0] = encode(0, "run", content)
    (run / "manifest.jsonl").write_bytes(b"".join(lines))
    result = run / "result.json"
    result.write_bytes(result.read_bytes()[:-2])


def evil(place, name="evil.py"):
    """A file that leaves a marker when it is imported."""
    text = f"import pathlib\npathlib.Path({str(place / 'marker')!r}).touch()\n{METRIC}"
    (place / name).write_text(text)
    return place / name


def measured(cli, *args):
    done = cli("measure", "config:tiny.json", *SMALL, "--name", "run", *args)
    assert done.exit_code == 0, done.stderr
    return Path("runs/run")


@pytest.mark.parametrize("shape", [lambda name: [name], lambda name: {name: 1}], ids=["list", "mapping"])
def test_a_stored_metric_file_is_not_imported(place, cli, shape):
    run = measured(cli)
    file = evil(place)
    hostile(run, metrics=shape(f"{file}:size"))
    before = (run / "manifest.jsonl").read_bytes()
    done = watched(place, "verify", "--repair", run)
    assert done.returncode == 2, done.stderr
    assert "--allow-code in this call" in done.stderr
    assert not (place / "marker").exists()
    assert (run / "manifest.jsonl").read_bytes() == before  # refused before anything is discarded


def test_an_allowed_file_is_compared_before_it_is_imported(place, cli):
    run = measured(cli)
    file = evil(place)
    hostile(run, metrics=[f"{file}:size"])
    done = watched(place, "verify", "--repair", run, "--allow-code")
    assert done.returncode == 2
    assert "sha256" in done.stderr
    assert not (place / "marker").exists()


def test_an_allowed_file_that_is_as_stored_repairs_the_run(place, cli):
    run = measured(cli, "--metrics", "default,own.py:size")
    before = (run / "result.json").read_bytes()
    hostile(run)
    assert cli("verify", "--repair", run).exit_code == 2
    assert verify(run)
    done = cli("verify", "--repair", run, "--allow-code")
    assert done.exit_code == 0, done.stderr
    assert (run / "result.json").read_bytes() == before


@pytest.mark.parametrize("value", [True, "yes", [False], 1], ids=str)
def test_stored_remote_code_is_not_honoured(place, cli, value):
    run = measured(cli)
    folder = place / "remote"
    folder.mkdir()
    evil(folder, "modeling.py")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    hostile(run, model=str(folder), trust_remote_code=value)
    done = watched(place, "verify", "--repair", run, "--allow-code")
    assert done.returncode == 2, done.stderr
    assert "--trust-remote-code in this call" in done.stderr
    assert not (place / "marker").exists()


@pytest.mark.parametrize(
    ("line", "flag"), [('metrics = ["FILE:size"]', "--allow-code"), ("trust_remote_code = true", "--trust-remote-code")]
)
def test_a_study_file_grants_nothing(place, line, flag):
    folder = place / "remote"
    folder.mkdir()
    evil(folder, "modeling.py")
    config = {"model_type": "own", "auto_map": {"AutoConfig": "modeling.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    study = f'[study]\nkind = "measure"\nmodels = ["{folder}", "config:tiny.json"]\n'
    (place / "study.toml").write_text(study + line.replace("FILE", str(evil(place))) + "\n")
    done = watched(place, "run", "study.toml")
    assert done.returncode == 2, done.stderr
    assert f"{flag} in this call" in done.stderr
    assert not list(place.rglob("marker"))
    assert not (place / "runs").exists()


def test_a_study_with_its_flag_runs(place, cli):
    lines = ("[study]", 'kind = "measure"', 'models = ["config:tiny.json"]', 'metrics = ["own.py:size"]')
    (place / "study.toml").write_text("\n".join((*lines, "lengths = [12]", "samples = 2")) + "\n")
    assert cli("run", "study.toml", "--dry-run").exit_code == 2
    done = cli("run", "study.toml", "--allow-code", "--json")
    assert done.exit_code == 0, done.stderr
    assert "size" in json.loads(done.stdout)["metrics"]


def test_a_resume_compares_the_file_before_it_imports_it(place, cli):
    run = measured(cli, "--metrics", "default,own.py:size")
    result = run / "result.json"
    before = result.read_bytes()
    evil(place, "own.py")
    done = watched(place, "measure", "config:tiny.json", *SMALL, "--name", "run", "--metrics", "default,own.py:size")
    assert done.returncode == 2, done.stderr
    assert "own.py" in done.stderr
    assert not (place / "marker").exists()
    assert result.read_bytes() == before


def test_compiled_code_beside_the_file_is_not_what_runs(place, cli):
    """The digest is of the source, so the source must be what runs."""
    file = place / "own.py"
    other = place / "other.py"
    other.write_text("import pathlib; pathlib.Path('marker').touch()\n".ljust(file.stat().st_size, "#"))
    assert other.stat().st_size == file.stat().st_size
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    cached = place / "__pycache__" / f"own.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(other), cfile=str(cached))
    measured(cli, "--metrics", "default,own.py:size")
    assert not (place / "marker").exists()


def test_python_says_the_keyword(place):
    import repflow
    from repflow.studies.engine.grid import read_study

    (place / "study.toml").write_text('[study]\nkind = "measure"\nmodels = ["a"]\nmetrics = ["own.py:size"]\n')
    with pytest.raises(InputError, match="allow_code=True in this call"):
        read_study("study.toml")
    assert read_study("study.toml", allow_code=True).cells
    repflow.measure("config:tiny.json", metrics=["own.py:size"], length=12, samples=2, out="runs", name="run")
    (place / "own.py").write_text(METRIC + "# changed\n")
    with pytest.raises(ConfigChangedError, match="own"):
        repflow.measure("config:tiny.json", metrics=["own.py:size"], length=12, samples=2, out="runs", name="run")
