"""kill -9 of the real command: the same command resumes and ends bit-identical.

REPFLOW_FAULTS=full starts the command 100 times as a user does. A start costs seconds of imports, a child of a warm
parent none: otherwise 2 commands are forked from such a parent, and the children of test_study_kill.py are many.
"""

import functools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tests import warm

FULL = os.environ.get("REPFLOW_FAULTS") == "full"
KILLS = 100 if FULL else 2
KILLS_PER_RUN = min(4, KILLS)
BATCHES = 24
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
MODEL = {"model_type": "gpt_neox", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6}
MODEL |= {"num_attention_heads": 4, "max_position_embeddings": 256, "vocab_size": 128}
SMALL_FILES = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))


def words(name):
    """What is asked for: many small batches."""
    asked = ["--length", "200", "--samples", str(BATCHES), "--batch-size", "1", "--out", "runs", "--name", name]
    return ["measure", "config:model.json", *asked]


def start(folder, name):
    """The command, as a user starts it or with torch imported already."""
    if not FULL:
        return warm.command(*words(name), cwd=folder, env=ENV)
    command = [sys.executable, "-m", "repflow", *words(name)]
    return subprocess.Popen(command, cwd=folder, env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def finish_here(tmp_path, monkeypatch):
    """Run the same command to its end in this process, which has torch already."""
    from repflow.cli.main import app

    def run(name):
        monkeypatch.chdir(tmp_path)
        done = CliRunner().invoke(app, words(name))
        assert done.exit_code == 0, done.stderr

    return run


def contents(run):
    files = [*sorted((run / "shards").iterdir()), run / "result.json", run / "result.safetensors"]
    return {file.name: file.read_bytes() for file in files}


def shards(run):
    manifest = run / "manifest.jsonl"
    return manifest.read_bytes().count(b'"kind":"shard"') if manifest.exists() else 0


def killed(folder, name, rng):
    """Start the command and kill it some shards later, or during its start; False if it got to the end first."""
    run = folder / "runs" / name
    process = start(folder, name)
    goal = shards(run) + rng.randint(0, 5)
    while process.poll() is None and shards(run) < goal:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.03) if goal else rng.uniform(0, 3))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def caught(folder, name, sign, after):
    """Start the command until a signal meets it behind some shards; its process, name and messages.

    A busy machine may look too late, when the command has come to its end: then another run is started.
    """
    for attempt in range(20):
        process, errors = warm.command(*words(f"{name}{attempt}"), cwd=folder), ""
        while process.poll() is None and shards(folder / "runs" / f"{name}{attempt}") < after:
            time.sleep(0.001)
        process.send_signal(sign)
        if sign == signal.SIGSTOP:
            while process.poll() is None and not process.stopped():
                time.sleep(0.001)
            met = process.poll() is None
        else:
            _, errors = process.communicate()
            met = process.returncode != 0
        if met:
            return process, f"{name}{attempt}", errors
    raise AssertionError("every run had ended before the signal came; more batches would keep it busy for longer")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    (folder / "model.json").write_text(json.dumps(MODEL))
    process = warm.command(*words("whole"), cwd=folder)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return contents(folder / "runs" / "whole")


def test_killed_commands_resume_bit_identical(tmp_path, reference, finish_here):
    from repflow.store import verify

    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    rng = random.Random("kills of the command line")
    kills = midway = number = 0
    while kills < KILLS or midway < KILLS // 2:  # on a busy machine more kills come too early
        name, number = f"run{number}", number + 1
        for _ in range(KILLS_PER_RUN):
            if not killed(tmp_path, name, rng):
                break
            kills += 1
            midway += 0 < shards(tmp_path / "runs" / name) < BATCHES
        finish_here(name)
        assert contents(tmp_path / "runs" / name) == reference
        assert verify(tmp_path / "runs" / name) == []
        assert not list((tmp_path / "runs").rglob("*.tmp"))


def test_full_disk_is_a_clear_error_and_the_command_resumes(tmp_path, reference, finish_here):
    """A limit on file sizes stands for the full disk: writes fail in the middle of the run."""
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    process = warm.command(*words("full"), cwd=tmp_path, before=SMALL_FILES)
    _, errors = process.communicate()
    assert process.returncode == 2, errors
    assert "no room to write" in errors
    assert "resumes" in errors
    assert "Traceback" not in errors
    finish_here("full")
    assert contents(tmp_path / "runs" / "full") == reference


def test_second_process_is_refused_by_the_lock(tmp_path, monkeypatch):
    from repflow.cli.main import app

    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    first, name, _ = caught(tmp_path, "busy", signal.SIGSTOP, 1)  # still holds the lock, however slow the second is
    monkeypatch.chdir(tmp_path)
    try:
        second = CliRunner().invoke(app, words(name))
    finally:
        first.send_signal(signal.SIGCONT)
    assert second.exit_code == 2
    assert "only writer" in second.stderr
    first.communicate()
    assert first.returncode == 0


def test_interrupted_command_is_130_and_resumes(tmp_path, reference, finish_here):
    (tmp_path / "model.json").write_text(json.dumps(MODEL))
    process, name, errors = caught(tmp_path, "stopped", signal.SIGINT, 2)
    assert process.returncode == 130, errors
    assert "same command" in errors
    assert "Traceback" not in errors
    finish_here(name)
    assert contents(tmp_path / "runs" / name) == reference
