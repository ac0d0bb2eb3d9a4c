"""One writer at a time, and a dead one never blocks."""

import os
import signal

import pytest

from repflow.core.errors import RunLockedError, StoreError
from repflow.store import list_runs, verify
from tests.faults.store.study import open_run


def child_holding(parent, then=lambda run: None):
    """Fork a child that opens the run and waits; return its pid once it holds the lock."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run = open_run(parent)
            then(run)
            os.write(write_end, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read(1) == b"."
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_second_process_is_refused_until_the_first_is_killed(tmp_path):
    pid = child_holding(tmp_path)
    try:
        with pytest.raises(RunLockedError, match=rf"process {pid} on .*use another name"):
            open_run(tmp_path)
        assert verify(tmp_path / "run") == []
        assert [run.name for run in list_runs(tmp_path)] == ["run"]
    finally:
        kill(pid)
    with open_run(tmp_path) as run:
        run.record("note", {})


def test_what_is_kept_in_one_go_waits_for_another_process(tmp_path, monkeypatch):
    """Two commands that share their runs end at the same moment, with the same comparison."""
    import numpy as np

    from repflow.core.results import Result
    from repflow.store import load_result, lock
    from repflow.studies.engine.opening import keep_result
    from tests.faults.store.study import CONFIG, PROVENANCE

    pid, real, waited = child_holding(tmp_path), lock.wait_for_writer, []

    def end_then_wait(folder):
        waited.append(folder)
        kill(pid)
        return real(folder)

    monkeypatch.setattr(lock, "wait_for_writer", end_then_wait)
    try:
        keep_result(Result({"x": np.ones(2)}, {"x": ("row",)}, CONFIG), tmp_path, "run", PROVENANCE)
    finally:
        if not waited:
            kill(pid)
    assert load_result(tmp_path / "run")["x"].tolist() == [1.0, 1.0]
    monkeypatch.setattr(lock, "wait_for_writer", real)
    with open_run(tmp_path), pytest.raises(RunLockedError):  # held by this process: waiting would never end
        keep_result(Result({"x": np.ones(2)}, {"x": ("row",)}, CONFIG), tmp_path, "run", PROVENANCE)


def test_second_open_in_the_same_process_is_refused(tmp_path):
    with open_run(tmp_path), pytest.raises(RunLockedError):
        open_run(tmp_path)
    open_run(tmp_path).close()


def test_a_surviving_worker_of_a_killed_run_does_not_block(tmp_path):
    read_end, write_end = os.pipe()

    def fork_worker(run):
        worker = os.fork()
        if worker == 0:
            try:
                os.close(read_end)
                run.record("note", {})
            except StoreError:
                os.write(write_end, b"refused\n")
                signal.pause()
            finally:
                os._exit(1)
        os.write(write_end, f"{worker}\n".encode())

    holder = child_holding(tmp_path, fork_worker)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        lines = {pipe.readline().strip(), pipe.readline().strip()}
    assert "refused" in lines
    worker = int((lines - {"refused"}).pop())
    kill(holder)
    try:
        open_run(tmp_path).close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_racing_starts_leave_one_run(tmp_path):
    """Many processes start the same new run: exactly one holds it, whichever loses removes nothing."""
    read_end, write_end = os.pipe()
    held, release = os.pipe()
    pids = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(release)
                run = open_run(tmp_path)
                os.write(write_end, b"w")
                os.read(held, 1)  # until the parent has heard of all: the others may be slow to start
                run.close()
            except StoreError:
                os.write(write_end, b"l")
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        outcomes = pipe.read(8)
    os.close(release)
    for pid in pids:
        os.waitpid(pid, 0)
    assert sorted(outcomes) == sorted(b"w" + b"l" * 7)
    assert verify(tmp_path / "run") == []
