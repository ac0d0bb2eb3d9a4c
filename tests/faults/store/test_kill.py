"""kill -9 at any moment: nothing acknowledged is lost, and the resumed run ends bit-identical."""

import os
import random
import signal
import time

import pytest

from repflow.store import verify
from tests.faults.child_kills import killed_after
from tests.faults.store.study import SHARDS, contents, open_run, run_study

KILLS_PER_FOLDER = 5
POINTS = ("open", "write", "fsync", "replace", "ftruncate", "close")


def die_at(point):
    """Have this process kill itself around its `point`-th file system call, in the middle of a write included."""
    calls = 0

    def dying(name, real):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == point and name == "write":
                real(args[0], bytes(args[1])[: len(args[1]) // 2])
            if calls == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    for name in POINTS:
        setattr(os, name, dying(name, getattr(os, name)))


def killed_child(parent, *, point=None, seconds=None):
    """Fork a child that runs the study and is killed; return how many shards it had acknowledged, None if it ended."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            acknowledge, real_write = write_end, os.write
            if point is not None:
                die_at(point)
            if seconds is not None:
                killed_after(seconds)
            run_study(parent, on_shard=lambda: real_write(acknowledge, b"."))
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        acknowledged = len(pipe.read())
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return acknowledged if os.WIFSIGNALED(status) else None


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    parent = tmp_path_factory.mktemp("reference")
    start = time.process_time()
    run_study(parent)
    return contents(parent / "run"), time.process_time() - start


def stored(parent):
    with open_run(parent) as run:
        return len(run.shards())


@pytest.mark.parametrize("how", ["at a call", "at a time"])
def test_fifty_kills_resume_bit_identical(tmp_path, reference, how):
    expected, duration = reference
    rng = random.Random(f"kills {how}")
    kills = 0
    folder = 0
    while kills < 50:
        parent = tmp_path / str(folder)
        folder += 1
        before = 0
        for _ in range(KILLS_PER_FOLDER):
            # A resumed child has fewer calls left, so aim at the first part of a whole run.
            if how == "at a call":
                acknowledged = killed_child(parent, point=rng.randint(1, 60))
            else:
                acknowledged = killed_child(parent, seconds=rng.uniform(0, 0.6 * duration))
            if acknowledged is None:
                break
            kills += 1
            after = stored(parent)
            # The shard whose acknowledgement was cut off may be there or not; no other is lost.
            assert before + acknowledged <= after <= min(before + acknowledged + 1, SHARDS)
            before = after
        run_study(parent)
        assert contents(parent / "run") == expected
        assert verify(parent / "run") == []
        assert not list((parent / "run").rglob("*.tmp"))


def test_every_call_can_be_the_last(tmp_path, reference):
    """Kill at the first call, the second, ... until the run gets through: no point is skipped by chance."""
    expected, _ = reference
    for point in range(1, 200):
        parent = tmp_path / str(point)
        acknowledged = killed_child(parent, point=point)
        if acknowledged is None:
            break
        assert acknowledged <= stored(parent) <= acknowledged + 1
        run_study(parent)
        assert contents(parent / "run") == expected
    assert point > 60
