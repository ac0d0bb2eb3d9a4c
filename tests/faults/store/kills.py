"""Kill children that run the study of study.py, resume each, compare every byte: `python -m tests.faults.store.kills`.

In a process of its own without torch: a fork copies the page tables of its parent, and in a worker of the tests, which
has everything imported, fifty of them took 35 to 47 CPU seconds. Here they take one to three.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from repflow.store import verify
from tests.faults.child_kills import killed_after
from tests.faults.store.study import SHARDS, contents, open_run, run_study

KILLS = 50
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
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return acknowledged if os.WIFSIGNALED(status) else None


def stored(parent):
    with open_run(parent) as run:
        return len(run.shards())


def at_random(parent, expected, duration, how):
    """Kills at any call or any time, several to a run."""
    rng = random.Random(f"kills {how}")
    kills = folder = 0
    while kills < KILLS:
        place = parent / str(folder)
        folder += 1
        before = 0
        for _ in range(KILLS_PER_FOLDER):
            # A resumed child has fewer calls left, so aim at the first part of a whole run.
            if how == "call":
                acknowledged = killed_child(place, point=rng.randint(1, 60))
            else:
                acknowledged = killed_child(place, seconds=rng.uniform(0, 0.6 * duration))
            if acknowledged is None:
                break
            kills += 1
            after = stored(place)
            # The shard whose acknowledgement was cut off may be there or not; no other is lost.
            assert before + acknowledged <= after <= min(before + acknowledged + 1, SHARDS), (before, after)
            before = after
        run_study(place)
        assert contents(place / "run") == expected, place
        assert verify(place / "run") == [], place
        assert not list((place / "run").rglob("*.tmp")), place
    return kills


def at_every_call(parent, expected):
    """Kill at the first call, the second, ... until the run gets through: no point is skipped by chance."""
    for point in range(1, 200):
        place = parent / str(point)
        acknowledged = killed_child(place, point=point)
        if acknowledged is None:
            break
        assert acknowledged <= stored(place) <= acknowledged + 1, point
        run_study(place)
        assert contents(place / "run") == expected, point
    assert point > 60, point
    return point - 1


def main(folder, how):
    parent = Path(folder)
    run_study(parent / "warm")  # pays for lazy imports
    start = time.process_time()
    run_study(parent / "reference")
    duration = time.process_time() - start
    expected = contents(parent / "reference" / "run")
    kills = at_every_call(parent, expected) if how == "every call" else at_random(parent, expected, duration, how)
    assert "torch" not in sys.modules
    print(kills)


if __name__ == "__main__":
    main(*sys.argv[1:])
