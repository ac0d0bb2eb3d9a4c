"""Symbolic links in a run folder: refused by every writer and reader, and what they lead to stays as it was."""

import os

import numpy as np
import pytest

from repflow.core.errors import RepflowError, StoreError
from repflow.core.results import Result
from repflow.store import heal, list_runs, load_result, verify
from repflow.store.run import OWN_FILES
from tests.faults.store.study import open_run, run_study


@pytest.fixture
def run(tmp_path):
    run_study(tmp_path)
    return tmp_path / "run"


def link(run, name, outside):
    """Move a part of the run to a place outside and leave a link to it."""
    (run / name).rename(outside)
    (run / name).symlink_to(outside)


def state(place):
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    return {file: file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_linked_part_is_refused_and_left_alone(run, tmp_path, name):
    outside = tmp_path / "outside"
    link(run, name, outside)
    before = state(outside)
    for act in (lambda: open_run(tmp_path), lambda: heal(run), lambda: run_study(tmp_path)):
        with pytest.raises(RepflowError, match=r"got a symbolic link to .*; delete the link"):
            act()
    assert state(outside) == before
    assert (run / name).is_symlink()


@pytest.mark.parametrize("name", OWN_FILES)
def test_verify_and_list_name_the_link(run, tmp_path, name):
    link(run, name, tmp_path / "outside")
    if name in ("run.json", "manifest.jsonl"):  # nothing can be read of the run then
        with pytest.raises(StoreError, match="symbolic link"):
            verify(run)
    else:
        assert any("symbolic link" in damage.what for damage in verify(run))
    assert [summary.name for summary in list_runs(tmp_path)] == ["run"]


@pytest.mark.parametrize("name", ["result.json", "result.safetensors"])
def test_a_linked_result_is_not_read(run, tmp_path, name):
    link(run, name, tmp_path / "outside")
    with pytest.raises(StoreError, match="symbolic link"):
        load_result(run)


def test_a_new_run_does_not_write_through_a_planted_lock(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".repflow.lock").symlink_to(victim)
    with pytest.raises(StoreError, match="symbolic link"):
        open_run(tmp_path)
    assert victim.read_text() == "mine"


def test_a_dangling_link_creates_nothing(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".repflow.lock").symlink_to(tmp_path / "created")
    with pytest.raises(StoreError, match="symbolic link"):
        open_run(tmp_path)
    assert not (tmp_path / "created").exists()


def test_links_planted_while_a_run_is_open(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with open_run(tmp_path) as run:
        (run.path / "shards").symlink_to(outside)
        with pytest.raises(StoreError, match="symbolic link"):
            run.write_shard("s", {"x": np.zeros(1)})
        (run.path / "result.json.tmp").symlink_to(victim)
        with pytest.raises(StoreError, match="cannot write"):
            run.finish(Result({}, {}))
    assert not list(outside.iterdir())
    assert victim.read_text() == "mine"


def test_the_folder_of_a_run_may_be_a_link(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run.rename(tmp_path / "elsewhere" / "run")
    run.symlink_to(tmp_path / "elsewhere" / "run")
    assert verify(run) == []
    with open_run(tmp_path) as opened:
        assert opened.finished
    assert load_result(run)


def test_a_pipe_does_not_hang(run, tmp_path):
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    with pytest.raises(StoreError, match="pipe"):
        verify(run)
    assert "pipe" in list_runs(tmp_path)[0].damaged
