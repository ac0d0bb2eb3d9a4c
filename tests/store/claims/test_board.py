"""Workers on a real folder: taking, taking over, publishing, failing; with dead, late, stopped and foreign ones."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from repflow.core.errors import ConfigChangedError, InputError, RunLockedError, StoreError
from repflow.core.results import Result
from repflow.store import RunFolder, list_runs, load_result
from repflow.store.canonical import seal
from repflow.store.claims.attempt import OWN, Attempts
from repflow.store.claims.board import MOST_TRIES, Board, Hold, Policy
from repflow.store.claims.ledger import Entry, Kind, key_of, last_entry
from repflow.store.claims.liveness import Heartbeat, Watch, Worker, born, has_ended, machine_id, read_beat
from repflow.store.claims.place import FolderPlace
from repflow.store.claims.protocol import Phase

QUICK = Policy(beat=0.01)
ELSEWHERE = {"machine": "another machine", "host": "far"}


def board(folder, policy=QUICK, **worker):
    return Board(FolderPlace(folder / OWN), Attempts(folder), Worker(**worker), policy)


def result(value):
    return Result({"x": np.array([value])}, {"x": ("sample",)}, {"model": "m"}, {})


def store_run(out, name="cell", value=1.0, *, shards=2, finish=True):
    with RunFolder.open(out, name, config={"model": "m"}, provenance={}) as run:
        for number in range(shards):
            if not run.has_shard(f"s{number}"):
                run.write_shard(f"s{number}", {"x": np.full(3, value)})
        if finish:
            run.finish(result(value))


def value_of(folder):
    return float(load_result(folder / "cell")["x"][0])


def test_a_cell_is_taken_worked_on_and_published(tmp_path):
    with board(tmp_path) as mine, board(tmp_path) as other:
        hold = mine.take("cell", "c")
        assert other.take("cell", "c").phase is Phase.BUSY
        store_run(hold.begin())
        assert not (tmp_path / "cell").exists()
        assert hold.finish()
        assert value_of(tmp_path) == 1.0
        assert other.take("cell", "c").phase is Phase.FINISHED
    assert sorted(entry.name for entry in (tmp_path / OWN).iterdir()) == ["claims", "versions", "workers"]
    assert not list((tmp_path / OWN / "workers").iterdir())
    assert [run.name for run in list_runs(tmp_path)] == ["cell"]


def test_a_finished_study_is_read_without_a_write(tmp_path):
    store_run(tmp_path)
    with board(tmp_path) as mine:
        assert mine.take("cell", "c").phase is Phase.FINISHED
    assert [entry.name for entry in tmp_path.iterdir()] == ["cell"]


def test_a_late_worker_cannot_publish(tmp_path):
    """A worker that was silent for too long finishes after the one that took over, and before it."""
    for other_first in (True, False):
        folder = tmp_path / str(other_first)
        with board(folder, **ELSEWHERE) as late, board(folder, replace(QUICK, stale=0.0)) as other:
            held = late.take("cell", "c")
            store_run(held.begin(), value=1.0)
            taken = other.take("cell", "c")
            assert isinstance(taken, Hold)
            if other_first:
                store_run(taken.begin(fresh=True), value=2.0)
                assert taken.finish()
            assert not held.finish()
            if not other_first:
                store_run(taken.begin(fresh=True), value=2.0)
                assert taken.finish()
            assert value_of(folder) == 2.0
        assert not (folder / OWN / "work").exists()


def test_a_worker_notices_that_it_was_taken_over(tmp_path):
    with board(tmp_path, **ELSEWHERE) as late, board(tmp_path, replace(QUICK, stale=0.0)) as other:
        held = late.take("cell", "c")
        held.check()
        assert isinstance(other.take("cell", "c"), Hold)
        assert held.lost.wait(30)
        with pytest.raises(StoreError, match="another worker has taken over"):
            held.check()


def test_who_takes_over_starts_from_what_was_stored_and_the_late_one_cannot_reach_it(tmp_path):
    with board(tmp_path, **ELSEWHERE) as late, board(tmp_path, replace(QUICK, stale=0.0)) as other:
        held = late.take("cell", "c")
        place = held.begin()
        with RunFolder.open(place, "cell", config={"model": "m"}, provenance={}) as zombie:
            zombie.write_shard("s0", {"x": np.full(3, 1.0)})
            taken = other.take("cell", "c")
            own = taken.begin()
            zombie.write_shard("s1", {"x": np.full(3, 9.0)})
            zombie.record("note", {})
            with RunFolder.open(own, "cell", config={"model": "m"}, provenance={}) as run:
                assert run.shards() == ["s0"]
                run.write_shard("s1", {"x": np.full(3, 2.0)})
                zombie.discard_shard("s0", "late")
                assert run.read_shard("s0")["x"].tolist() == [1.0] * 3
                run.finish(result(2.0))
            assert taken.finish()
            zombie.write_shard("s2", {"x": np.zeros(1)})
        assert not held.finish()
    assert value_of(tmp_path) == 2.0
    assert not (tmp_path / OWN / "work").exists()


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from tests.store.claims.test_board import board, store_run
folder = Path({folder!r})
with board(folder) as mine:
    hold = mine.take("cell", "c")
    store_run(hold.begin(), finish={finish})
    {more}
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_worker(folder, more="", finish=False):
    code = CHILD.format(path=[str(Path(__file__).parents[3])], folder=str(folder), finish=finish, more=more)
    child = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr


def test_a_killed_worker_is_noticed_at_once_on_its_machine(tmp_path):
    killed_worker(tmp_path)
    with board(tmp_path) as mine:
        hold = mine.take("cell", "c")
        assert isinstance(hold, Hold)
        with RunFolder.open(hold.begin(), "cell", config={"model": "m"}, provenance={}) as run:
            assert run.shards() == ["s0", "s1"]  # its work is not lost
            run.finish(result(3.0))
        assert hold.finish()
    assert value_of(tmp_path) == 3.0


def test_what_was_stored_for_another_config_is_not_taken_over(tmp_path):
    killed_worker(tmp_path)
    with board(tmp_path) as mine:
        hold = mine.take("cell", "another")
        with RunFolder.open(hold.begin(), "cell", config={"model": "other"}, provenance={}) as run:
            assert run.shards() == []
            run.finish(result(4.0))
        assert hold.finish()
    assert value_of(tmp_path) == 4.0


def test_a_worker_killed_between_commit_and_move_has_published(tmp_path):
    more = "from repflow.store.claims.ledger import Kind; hold.world.add(hold.state.number + 1, Kind.DONE, hold.claim)"
    killed_worker(tmp_path, more, finish=True)
    assert not (tmp_path / "cell").exists()
    with board(tmp_path) as mine:
        assert mine.take("cell", "c").phase is Phase.FINISHED
    assert value_of(tmp_path) == 1.0


def test_a_cell_that_ends_its_workers_is_given_up(tmp_path):
    """As one that needs more memory than there is: the others must not all die over it."""
    claims = 0
    while True:
        with board(tmp_path, replace(QUICK, stale=0.0), machine=f"machine {claims}", host=f"host{claims}") as mine:
            taken = mine.take("cell", "c")
            if not isinstance(taken, Hold):
                break
            claims += 1
            store_run(taken.begin(), shards=1, finish=False)
            mine.done_with()  # killed
    assert (taken.phase, claims) == (Phase.FAILED, MOST_TRIES + 1)
    with board(tmp_path) as mine:
        failed = mine.take("cell", "c")
        assert failed.phase is Phase.FAILED
        assert f"{MOST_TRIES} workers in a row" in failed.entry.reason
        assert "host5" in failed.entry.reason
    with board(tmp_path, replace(QUICK, retry=True)) as mine:
        again = mine.take("cell", "c")
        store_run(again.begin())
        assert again.finish()


def test_a_cell_that_comes_further_each_time_is_never_given_up(tmp_path):
    for number in range(2 * MOST_TRIES):
        with board(tmp_path, replace(QUICK, stale=0.0), machine=f"machine {number}") as mine:
            taken = mine.take("cell", "c")
            store_run(taken.begin(), shards=number + 1, finish=False)
            mine.done_with()  # preempted
    with board(tmp_path, replace(QUICK, stale=0.0)) as mine:
        hold = mine.take("cell", "c")
        store_run(hold.begin(), shards=20)
        assert hold.finish()


def test_a_failure_is_kept_and_tried_again_once_by_each_command_that_asks(tmp_path):
    with board(tmp_path) as mine:
        hold = mine.take("cell", "c")
        store_run(hold.begin(), shards=1, finish=False)
        assert hold.fail("failed", "too hot")
        assert mine.take("other", "c").fail("cannot run", "too long")
    with board(tmp_path) as mine:
        failed = mine.take("cell", "c")
        assert (failed.phase, failed.entry.status, failed.entry.reason) == (Phase.FAILED, "failed", "too hot")
    ask = replace(QUICK, retry=True)
    with board(tmp_path, ask, session="aaaa") as one, board(tmp_path, ask, session="aaaa") as two:
        hold = one.take("cell", "c")
        assert [path.name for path in (hold.begin() / "cell" / "shards").iterdir()] == ["s0.safetensors"]
        hold.fail("failed", "still too hot")
        assert two.take("cell", "c").phase is Phase.FAILED  # the same command tries once
        assert isinstance(two.take("other", "c"), Hold)


def test_a_released_cell_is_free_at_once_with_its_work(tmp_path):
    with board(tmp_path) as mine:
        store_run(mine.take("cell", "c").begin(), shards=1, finish=False)
    with board(tmp_path) as other:
        hold = other.take("cell", "c")
        assert (hold.begin() / "cell" / "shards" / "s0.safetensors").exists()


def test_a_result_that_was_deleted_is_computed_again(tmp_path):
    import shutil

    for value in (1.0, 2.0):
        with board(tmp_path) as mine:
            hold = mine.take("cell", "c")
            store_run(hold.begin(), value=value)
            assert hold.finish()
        assert value_of(tmp_path) == value
        shutil.rmtree(tmp_path / "cell")


def test_unfinished_work_at_its_place_is_gone_on_with(tmp_path):
    """As a command that is not made of cells, or an earlier version, leaves it."""
    store_run(tmp_path, shards=1, finish=False)
    with board(tmp_path) as mine:
        with RunFolder.reopen(tmp_path / "cell"), pytest.raises(RunLockedError):
            mine.take("cell", "c").begin()
        mine._held.release()
        hold = mine.take("cell", "c")
        assert (hold.begin() / "cell" / "shards" / "s0.safetensors").exists()
        store_run(hold.begin())
        assert hold.finish()
    assert value_of(tmp_path) == 1.0


def test_damaged_work_at_its_place_stays_for_a_repair(tmp_path):
    store_run(tmp_path, shards=1, finish=False)
    (tmp_path / "cell" / "shards" / "s0.safetensors").write_bytes(b"")
    with board(tmp_path) as mine, pytest.raises(StoreError, match="verify --repair"):
        mine.take("cell", "c").begin()
    assert (tmp_path / "cell" / "run.json").exists()


def test_files_of_others_are_never_replaced(tmp_path):
    (tmp_path / "cell").mkdir()
    with board(tmp_path) as mine:
        hold = mine.take("cell", "c")
        store_run(hold.begin())
        (tmp_path / "cell").mkdir()
        (tmp_path / "cell" / "mine.txt").write_text("keep")
        with pytest.raises(RunLockedError, match="move the files"):
            hold.finish()
    assert (tmp_path / "cell" / "mine.txt").read_text() == "keep"
    (tmp_path / "cell" / "mine.txt").unlink()
    with board(tmp_path) as mine:
        assert mine.take("cell", "c").phase is Phase.FINISHED


def test_without_locks_of_the_file_system(tmp_path, monkeypatch):
    """As on some network file systems; work in a folder of one's own needs none."""
    import errno
    import fcntl

    from repflow.store.lock import private

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with board(tmp_path) as mine:
        hold = mine.take("cell", "c")
        out = hold.begin()
        with private(out):
            store_run(out)
        assert hold.finish()
    assert value_of(tmp_path) == 1.0
    with pytest.raises(StoreError, match="has no locks"):
        store_run(tmp_path, "other")


# Liveness


def test_clocks_are_never_compared(tmp_path):
    """A worker whose machine's clock is hours away is judged by changes alone, by the watcher's own clock."""
    import time

    now = [0.0]
    place = FolderPlace(tmp_path)
    claim = Entry(1, Kind.CLAIM, "abcdef", "cell", machine="another machine", pid=1, born="1")
    watch = Watch(place, stale=60.0, clock=lambda: now[0])
    place.write("workers/abcdef", b"1")
    os.utime(tmp_path / "workers" / "abcdef", (time.time() - 7200, time.time() + 7200))
    for second in range(0, 600, 30):
        now[0] = float(second)
        place.write("workers/abcdef", str(second).encode())
        assert not watch.gone(claim)
    now[0] += 59
    assert not watch.gone(claim)
    now[0] += 1
    assert watch.gone(claim)


def test_a_process_is_known_by_its_start(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = born(child.pid)
    assert started
    assert not has_ended(machine_id(), child.pid, started)
    assert has_ended(machine_id(), child.pid, "1")  # its number was given to another process
    assert not has_ended("another machine", child.pid, "1")
    assert not has_ended(machine_id(), child.pid, "")  # nobody knows
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended(machine_id(), child.pid, started)  # dead, and not yet reaped by its parent
    child.wait()
    assert has_ended(machine_id(), child.pid, started)


def test_a_heartbeat_says_what_is_done_and_ends_with_its_worker(tmp_path):
    place = FolderPlace(tmp_path)
    worker = Worker()
    with Heartbeat(place, worker, seconds=0.01) as beat:
        beat.doing(cell="x", done=3)
        before = read_beat(place, worker.token)["beat"]
        while read_beat(place, worker.token).get("beat", 0) < before + 2:
            pass
        seen = read_beat(place, worker.token)
        assert (seen["cell"], seen["done"], seen["pid"]) == ("x", 3, os.getpid())
    assert read_beat(place, worker.token) == {}


# Others


def test_a_worker_of_another_version_is_refused_while_one_of_ours_lives(tmp_path):
    with board(tmp_path, version="0.0.9") as old, board(tmp_path) as mine:
        assert isinstance(old.take("a", "c"), Hold)
        with pytest.raises(InputError, match=r"0\.0\.9.*got .* here; install the same version"):
            mine.take("b", "c")
    assert last_entry(mine.place, "b") is None


def test_what_a_dead_worker_of_another_version_left_is_no_reason_to_stop(tmp_path):
    killed_worker(tmp_path)
    (beat,) = (tmp_path / OWN / "workers").iterdir()
    beat.write_text(json.dumps(json.loads(beat.read_text()) | {"version": "0.0.9"}))
    (tmp_path / OWN / "versions" / "0.0.9").touch()
    with board(tmp_path) as mine:
        assert isinstance(mine.take("b", "c"), Hold)
    far = Worker(**ELSEWHERE, version="0.0.9")
    beat.write_text(json.dumps(far.facts()))
    waits = []
    with board(tmp_path, replace(QUICK, stale=0.0)) as mine:
        mine.check_versions(waits.append)
        assert isinstance(mine.take("c", "c"), Hold)


def test_of_two_versions_that_begin_at_once_one_refuses(tmp_path, monkeypatch):
    """Each shows itself before it looks: here the other begins between the two."""
    mine, other = board(tmp_path), board(tmp_path, version="0.0.9")
    check, begun = mine.check_versions, []

    def after_the_other(*_):
        begun.append(other.take("a", "c"))
        check()

    monkeypatch.setattr(mine, "check_versions", after_the_other)
    with other, mine, pytest.raises(InputError, match=r"one version of repflow, such as .* on "):
        mine.take("b", "c")
    assert isinstance(begun[0], Hold)
    assert last_entry(mine.place, "b") is None
    assert not list((tmp_path / OWN / "workers").iterdir())  # who refuses is no longer seen


def test_another_config_of_the_same_name_is_refused_while_it_is_worked_on(tmp_path):
    with board(tmp_path) as mine, board(tmp_path) as other:
        mine.take("cell", "one")
        with pytest.raises(ConfigChangedError, match="works on another config"):
            other.take("cell", "two")


@pytest.mark.parametrize("damage", ["cut", "empty", "foreign", "path", "cell", "number", "format"])
def test_damaged_entries(tmp_path, damage):
    """Such an entry counts as a claim of nobody, which goes stale; no path in it is followed."""
    place = FolderPlace(tmp_path / OWN)
    entry = Entry(1, Kind.CLAIM, "abcdef12", "cell", attempt="cell@000001-abcdef12")
    content = {"format": 1, **{name: getattr(entry, name) for name in entry.__dataclass_fields__}}
    raw = {
        "cut": entry.to_bytes()[:-20],
        "empty": b"",
        "foreign": seal({"hello": "world"}),
        "path": seal(content | {"attempt": "../../../elsewhere"}),
        "cell": seal(content | {"cell": "other"}),  # copied from where another cell's entries are
        "number": seal(content | {"number": 2}),
        "format": seal(content | {"format": 2}),
    }[damage]
    assert Entry.from_bytes(1, "cell", entry.to_bytes()) == entry
    place.create(key_of("cell", 1), raw)
    if damage == "format":
        with board(tmp_path) as mine, pytest.raises(StoreError, match="install the same version"):
            mine.take("cell", "c")
        return
    assert last_entry(place, "cell") == Entry(1, Kind.CLAIM, "", "cell")
    with board(tmp_path) as mine:
        assert mine.take("cell", "c").phase is Phase.BUSY
    with board(tmp_path, replace(QUICK, stale=0.0)) as mine:
        hold = mine.take("cell", "c")
        store_run(hold.begin())
        assert hold.finish()
