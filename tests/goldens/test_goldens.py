"""Every command does what it did when the goldens were recorded; `record.py update` records them again."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import repflow

FILE = Path(__file__).parent / "record.py"
spec = importlib.util.spec_from_file_location("record_goldens", FILE)
record = importlib.util.module_from_spec(spec)
sys.modules["record_goldens"] = record
spec.loader.exec_module(record)


def test_every_command_does_what_was_recorded(tmp_path):
    source = str(Path(repflow.__file__).parents[1])
    by_key = {key: value for key, value in os.environ.items() if key not in record.UNSET}
    done = subprocess.run(
        [sys.executable, str(FILE), "record", str(tmp_path / "now"), "--compact"],
        env={**by_key, **record.ENVIRONMENT, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences = record.differences(record.COMMITTED, tmp_path / "now")
    advice = "if every one is meant: python tests/goldens/record.py update, and name them in the changelog"
    assert not differences, "\n".join([*differences[:40], f"{len(differences)} differences; {advice}"])


def test_the_goldens_are_small():
    sizes = [file.stat().st_size for file in record.COMMITTED.glob("*.json")]
    assert sum(sizes) <= 3_000 * len(sizes)


def test_every_command_has_a_step():
    files = [file for file in record.COMMITTED.glob("*.json") if not file.name.startswith("python-")]
    steps = [json.loads(file.read_text(encoding="utf-8"))["run"].split() for file in files]
    run = {tuple(word for word in words if not word.startswith("-"))[:2] for words in steps if "--help" not in words}
    for words in record.command_names():
        known = words[:1] in ([], ["demo"], ["doctor"], ["theory"], ["dynamics"], ["zoo"])
        assert known or any(words == list(one[: len(words)]) for one in run), words


OLD = {
    "code": 0,
    "config": {"length": 512, "init": "trained"},
    "stdout": ["state   similarity", "    1        0.151", "wrote runs/a"],
    "values": [[1.0, 1e-5], [2.0, 3.0]],
    "metrics": {"a": "(state) 4: rms 1.2000e-01, mean 0.5000, mix -0.1000"},
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"code": 1}, ["step/code"]),
        ({"config": {"length": 256, "init": "trained"}}, ["step/config/length", "old: 512", "new: 256"]),
        ({"config": {"length": 512}}, ["step/config/init", "(not there)"]),
        ({"stdout": [*OLD["stdout"], "next: b"]}, ["step/stdout", "new: next: b"]),
        ({"stdout": [OLD["stdout"][0], "    1        0.171", "wrote runs/a"]}, ["old:     1        0.151"]),
        ({"values": [[1.0, 1e-5], [2.1, 3.0]]}, ["step/values/1/0"]),
        ({"values": [[1.0, 1e-5]]}, ["length 2 → 1"]),
        ({"metrics": {"a": "(state) 4: rms 1.2000e-01, mean 0.5000, mix -0.1100"}}, ["step/metrics/a"]),
        ({"metrics": {"a": "(layer) 4: rms 1.2000e-01, mean 0.5000, mix -0.1000"}}, ["step/metrics/a"]),
    ],
)
def test_a_difference_is_named(change, named):
    comparison = record.Comparison(1e-4, loose=True)
    comparison.record("step", OLD, OLD | change)
    assert len(comparison.found) == 1
    assert all(text in comparison.found[0] for text in named), comparison.found


@pytest.mark.parametrize(
    "change",
    [
        {"values": [[1.0, 2e-5], [2.0001, 3.0]]},
        {"stdout": ["state similarity", "    1        0.152", "wrote runs/a"]},
        {"metrics": {"a": "(state) 4: rms 1.2001e-01, mean 0.5001, mix -0.0999"}},
    ],
)
def test_rounding_is_not_a_difference(change):
    comparison = record.Comparison(1e-4, loose=True)
    comparison.record("step", OLD, OLD | change)
    assert comparison.found == []


def test_loose_values_are_held_to_shape_and_finiteness():
    old = {"loose": "why", "values": [1.0, None], "text": "4: rms 1.2e-01", "code": 0}
    comparison = record.Comparison(1e-4, loose=True)
    comparison.record("step", old, old | {"values": [9.0, None], "text": "4: rms 7.0e-01"})
    assert comparison.found == []
    comparison.record("step", old, old | {"values": [9.0, 1.0], "text": "3: rms 7.0e-01", "code": 1})
    assert len(comparison.found) == 3
