"""The manifest cut at any byte opens with its last whole line, and the run goes on from there."""

import random
import shutil

import pytest

from repflow.store import verify
from repflow.store.manifest import MANIFEST
from tests.faults.store.study import contents, open_run, run_study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    parent = tmp_path_factory.mktemp("cuts")
    run_study(parent)
    return parent / "run"


def test_cut_at_every_byte_opens_with_the_last_whole_line(run, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda fd: None)  # thousands of opens; durability is not the question here
    whole = (run / MANIFEST).read_bytes()
    for size in range(len(whole) + 1):
        (run / MANIFEST).write_bytes(whole[:size])
        lines = whole[:size].count(b"\n")
        with open_run(run.parent) as opened:
            assert len(opened.shards()) == min(max(lines - 2, 0), 6)
            assert len(opened.events("plan")) == (lines >= 2)
            assert opened.finished == (size == len(whole))
        data = (run / MANIFEST).read_bytes()
        # The first line holds the time, so a first line that was cut comes back with another.
        assert data.count(b"\n") == max(lines, 1)
        assert data.endswith(b"\n")
        assert lines == 0 or whole.startswith(data)
    (run / MANIFEST).write_bytes(whole)


@pytest.mark.parametrize("seed", range(5))
def test_random_cut_resumes_bit_identical(run, tmp_path, seed):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    whole = (copy / MANIFEST).read_bytes()
    (copy / MANIFEST).write_bytes(whole[: random.Random(seed).randrange(len(whole))])
    run_study(tmp_path)
    assert contents(copy) == contents(run)
    assert verify(copy) == []
