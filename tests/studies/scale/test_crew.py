"""Workers of one command: all cells once, under kills, Ctrl-C, a full disk; GPUs and threads dealt out."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from repflow.cli.main import app
from repflow.cli.scale import CrewTable
from repflow.core.errors import DeviceLostError, InputError, RepflowError
from repflow.core.trust import Trust
from repflow.store.claims.attempt import OWN
from repflow.store.claims.board import Policy
from repflow.store.claims.ledger import CLAIMS, Kind, last_entry
from repflow.store.claims.liveness import WORKERS, born
from repflow.store.claims.place import FolderPlace
from repflow.studies.engine.cell import Cell
from repflow.studies.engine.cells import Bench, run_cells
from repflow.studies.engine.cost import plan
from repflow.studies.scale import posts as posting
from repflow.studies.scale.config import ScaleConfig, check_scale
from repflow.studies.scale.crew import MOST_LOSSES, Standing, run_crew
from repflow.studies.scale.engine import Ended, Engine
from repflow.studies.scale.local import LocalEngine, apart
from repflow.studies.scale.order import BLOCK, Order, rotated
from repflow.studies.scale.posts import local_posts, thread_share
from repflow.studies.scale.service import DEVICE_LOST, serve
from repflow.studies.scale.worker import Post, work

BRISK = Policy(beat=0.05)


def posts(count, **more):
    return [Post(number, count, threads=1, policy=BRISK, **more) for number in range(count)]


def crew(order, count, show=lambda _: None, lines=None):
    engine = LocalEngine(order.folder / OWN / "logs")
    say = ([] if lines is None else lines).append
    return run_crew(order, engine, posts(count), show=show, say=say, wait=lambda _: time.sleep(0.01))


def at_work(standing):
    return [beat["pid"] for beat in standing.workers.values() if beat.get("cell")]


@pytest.mark.parametrize(("which", "by"), [(0, signal.SIGKILL), (-1, signal.SIGTERM)], ids=["killed", "terminated"])
def test_workers_are_ended_and_every_result_is_there_once(order, same, which, by):
    killed, lines = [], []

    def kill(standing):
        alive = [pid for pid in at_work(standing) if pid not in killed]
        if len(standing.finished) > len(killed) and alive and len(killed) < 3:
            os.kill(alive[which], by)
            killed.append(alive[which])

    standing = crew(order, 3, kill, lines)
    assert standing.complete
    assert standing.fresh == {cell.name for cell in order.cells}
    assert not standing.failed
    assert len(killed) == 3
    facts = same(len(killed))
    assert facts["cells"] == len(order.cells)
    assert any("was lost; another takes its post" in line for line in lines)
    assert not FolderPlace(order.folder / OWN).names(WORKERS)
    assert crew(order, 2).complete  # again: nothing is started


def test_an_interrupt_ends_all_workers_and_gives_their_cells_back(order, same):
    pids = []

    def stop(standing):
        if len(at_work(standing)) == 2:
            pids.extend(at_work(standing))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        crew(order, 2, stop)
    assert len(pids) == 2
    assert not any(born(pid) for pid in pids)
    place = FolderPlace(order.folder / OWN)
    assert not place.names(WORKERS)
    kinds = [last_entry(place, name).kind for name in place.names(CLAIMS)]
    assert Kind.CLAIM not in kinds  # nothing has to go stale
    assert crew(order, 2).complete
    same(len(kinds))


LOST = """
import os, signal, sys
from pathlib import Path
os.chdir({shop!r})
from repflow.core.trust import Trust
from repflow.studies.engine.cost import plan
from repflow.studies.engine.grid import read_study
from repflow.studies.scale.local import apart, warm
from repflow.studies.scale.order import Order
from tests.studies.scale.test_crew import at_work, crew

def show(standing):
    if at_work(standing):
        print("torch" in sys.modules, *at_work(standing), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

warm(1)
crew(Order(Path({folder!r}), apart(plan, Path("study.toml"), "1/1", Trust()).cells), 2, show)
"""


def test_workers_end_when_their_command_is_killed_which_has_not_imported_torch(order, shop):
    code = LOST.format(shop=str(shop), folder=str(order.folder))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    imported, *pids = done.stdout.split()
    assert imported == "False"
    assert pids
    while any(born(int(pid)) for pid in pids):
        pass  # they notice by themselves
    place = FolderPlace(order.folder / OWN)
    assert all(last_entry(place, name).kind is not Kind.CLAIM for name in place.names(CLAIMS))


def test_what_is_asked_of_a_process_apart_comes_back_or_is_raised(shop, monkeypatch):
    monkeypatch.chdir(shop)
    here = plan(Path("study.toml"), "2/4", Trust())
    assert apart(plan, Path("study.toml"), "2/4", Trust()) == here
    with pytest.raises(InputError, match=r"cannot read nothing\.toml"):
        apart(plan, Path("nothing.toml"), "1/1", Trust())
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        apart(divmod, 1, 0)
    with pytest.raises(RepflowError, match="was lost"):
        apart(os._exit, 3)


def test_a_full_disk_is_one_error_and_what_is_stored_stays(order, same, monkeypatch):
    """A worker in this process: the third cell meets a full disk; nothing is marked as failed."""
    from repflow.store import UnwritableError, run

    write, count = run.write_atomic, [0]

    def full(path, data):
        count[0] += 1
        if count[0] > 9:
            raise UnwritableError("no room to write") from OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(run, "write_atomic", full)
    with pytest.raises(UnwritableError, match="no room"):
        work(order, Post(policy=BRISK))
    monkeypatch.undo()
    os.chdir(order.base)
    standing = Standing(order, "s")
    assert not standing.failed
    assert 1 <= len(standing.finished) < len(order.cells)
    assert work(order, Post(policy=BRISK)).failed == 0
    same(1)


def test_a_read_only_store_is_refused(order, tmp_path):
    if os.geteuid() == 0:
        blocked = tmp_path / "file"  # root may write anywhere: a file where a folder should be
        blocked.write_text("")
        place = blocked / "study"
    else:
        place = tmp_path / "study"
        tmp_path.chmod(0o500)
    with pytest.raises(RepflowError, match="cannot write"):
        work(replace(order, folder=place), Post(policy=BRISK))
    tmp_path.chmod(0o700)


class Scripted(Engine):
    """Workers that end as a test says."""

    def __init__(self, ends):
        self.ends, self.started, self.stopped = list(ends), [], False

    def start(self, order, posts):
        self.started += [post.number for post in posts]

    def replace(self, order, post):
        self.started.append(post.number)

    def ended(self):
        return [self.ends.pop(0)] if self.ends else []

    def stop(self, patience):
        self.stopped = patience == 0.0


def test_workers_that_are_lost_again_and_again_end_the_command(order):
    post = Post(0, 1, policy=BRISK)
    engine = Scripted([Ended(post, lost=True)] * 20)
    with pytest.raises(RepflowError, match="again and again"):
        run_crew(order, engine, [post], show=lambda _: None, say=lambda _: None, wait=lambda _: None)
    assert len(engine.started) == MOST_LOSSES + 1
    assert engine.stopped


def test_what_a_worker_says_is_the_commands_error(order):
    post = Post(0, 1, policy=BRISK)
    engine = Scripted([Ended(post, error="no room to write x")])
    with pytest.raises(RepflowError, match="worker 0 cannot go on: no room"):
        run_crew(order, engine, [post], show=lambda _: None, say=lambda _: None, wait=lambda _: None)
    assert engine.stopped


FAULT = "CUDA error: an illegal memory access was encountered"


def test_a_worker_that_has_lost_its_gpu_takes_no_further_cell(order, same, monkeypatch):
    """Every call of CUDA fails after a fault: one cell has failed, and the others are left to another process."""
    done, broken = Bench._done, []

    def fault(self, cell, *more):
        if not broken or self is broken[0]:
            broken[:] = [self]
            raise RuntimeError(FAULT)
        return done(self, cell, *more)

    monkeypatch.setattr(Bench, "_done", fault)
    post, lines = replace(posts(1)[0], session="first"), []
    assert serve(order, post, terminable=False) == DEVICE_LOST
    place, _ = order.meeting()
    kinds = [entry.kind for cell in order.cells if (entry := last_entry(place, cell.name)) is not None]
    assert kinds == [Kind.FAILED]  # none is taken and given back, which would part it from what others left
    engine = Scripted([Ended(post, error=DEVICE_LOST), Ended(post, error="no room")])
    with pytest.raises(RepflowError, match="no room"):
        run_crew(order, engine, [post], show=lambda _: None, say=lines.append, wait=lambda _: None)
    assert lines == ["worker 0 lost its GPU; another takes its post"]
    assert engine.started == [0, 0]
    again = replace(post, session="second", policy=replace(BRISK, retry=True))
    assert serve(order, again, terminable=False) == ""
    same(1)  # the cell that failed is claimed again


def test_a_command_says_that_its_gpu_is_lost(order, monkeypatch):
    def fault(*_):
        raise ValueError("a batch") from RuntimeError(f"Triton Error [CUDA]: {FAULT.partition(': ')[2]}")

    monkeypatch.setattr(Bench, "_done", fault)
    cells = run_cells(order.cells[:2], order.folder)
    assert next(cells).status == "failed"
    with pytest.raises(
        DeviceLostError, match=r"that answers; got Triton Error \[CUDA\]: an illegal memory access in an earlier"
    ):
        next(cells)


def test_time_left_follows_the_pace_of_this_command(order):
    standing = Standing(order, "s")
    assert standing.seconds_left() is None
    names = [cell.name for cell in order.cells]
    standing.began = 100.0
    standing.finished = set(names)
    assert standing.seconds_left(now=110.0) == 0
    standing.finished = {name for name in names if "-16-" in name}  # of 12 and 16 tokens: 4/7 of the work
    assert standing.seconds_left(now=140.0) == pytest.approx(30.0)


def test_the_command_with_workers_and_as_one_of_many_while_its_file_is_edited(shop, monkeypatch, request, same):
    """The command does what it began with and says so; the new request has cells of its own beside them."""
    monkeypatch.chdir(shop)
    out, file, show = request.node.name, shop / "study.toml", CrewTable.show
    asked = file.read_text()

    def edit(table, standing):
        if standing.finished:
            file.write_text(asked.replace("samples = 2", "samples = 3").replace("seeds = [0, 1, 2, 3]", "seeds = [0]"))
        show(table, standing)

    def run(*options):
        return CliRunner().invoke(app, ["run", "study.toml", "--out", out, *options])

    monkeypatch.setattr(CrewTable, "show", edit)
    try:
        done = run("--workers", "2", "--json")
        joined = run("--worker")
    finally:
        file.write_text(asked)
    assert done.exit_code == 0, done.stderr
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [entry["status"] for entry in objects] == ["finished"] * 16
    for words in (
        "starting 2 workers (local)",
        "16 of 16 cells finished",
        "study.toml was edited while this command ran",
    ):
        assert words in done.stderr
    assert joined.exit_code == 0, joined.stderr
    assert "4 cells finished here" in joined.stderr
    assert joined.stdout == ""
    others = {path.parent.name for path in (shop / out).glob("*/*/result.json")} - {entry["cell"] for entry in objects}
    assert len(others) == 4
    for name in others:
        shutil.move(shop / out / "study" / name, shop / out / name)
    same()  # what the first command made has the bytes of its own request
    again = run("--worker")
    assert again.exit_code == 0, again.stderr
    assert "0 cells finished here" in again.stderr
    assert "was edited" not in again.stderr
    wrong = run("--worker", "--workers", "2")
    assert (wrong.exit_code, "either one worker" in wrong.stderr) == (2, True)


# Where workers stand


def test_cells_of_a_model_are_in_a_row_and_long_ones_first(order):
    cells = order.at_work()
    assert sorted(cell.name for cell in cells) == sorted(cell.name for cell in order.cells)
    models = [cell.config.model for cell in cells]
    assert models == sorted(models)
    assert [cell.config.length for cell in cells[:8]] == [16] * 4 + [12] * 4


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (5, 3), (64, 2), (200, 8), (200, 300)])
def test_every_worker_sees_every_cell_from_another_start(count, workers):
    cells = [Cell(f"{number:03d}", None) for number in range(count)]
    blocks = [rotated(cells, number, workers) for number in range(workers)]
    for one in blocks:
        assert sorted(cell.name for block in one for cell in block) == [cell.name for cell in cells]
        assert {frozenset(c.name for c in b) for b in one} == {frozenset(c.name for c in b) for b in blocks[0]}
        assert max(map(len, one)) <= BLOCK
    assert len({one[0][0].name for one in blocks}) == min(count, workers)


def plain_order(device=None):
    from repflow.studies.measure import MeasureConfig

    return Order(Path("x"), (Cell("a", MeasureConfig(model="a", device=device)),))


def test_gpus_are_dealt_in_turn(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert [post.gpus for post in local_posts(ScaleConfig(), plain_order())] == ["2", "5"]
    four = local_posts(ScaleConfig(per_gpu=2), plain_order())
    assert [post.gpus for post in four] == ["2", "5", "2", "5"]
    assert [post.gpus for post in local_posts(ScaleConfig(workers=3, per_gpu=2), plain_order())] == ["2", "5", "2"]
    assert [post.gpus for post in local_posts(ScaleConfig(workers=3), plain_order("cpu"))] == [None] * 3
    with pytest.raises(InputError, match="at most 2 workers; got --workers 3 on 2 GPUs; pass --per-gpu 2"):
        local_posts(ScaleConfig(workers=3), plain_order())


def test_gpus_are_counted_without_torch(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A'\necho 'GPU 1: A'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert posting.visible_gpus() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert posting.visible_gpus() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,-1,1")
    assert posting.visible_gpus() == ["0"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="a GPU for --per-gpu"):
        local_posts(ScaleConfig(per_gpu=2), plain_order())


def test_threads_are_divided(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert [thread_share(None, count) for count in (1, 3, 8, 40)] == [16, 5, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert (thread_share(None, 8), thread_share(2, 8)) == (4, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "--workers"),
        ({"per_gpu": 0}, "--per-gpu"),
        ({"engine": "rey"}, "did you mean ray"),
        ({"worker": True, "workers": 2}, "either one worker"),
        ({"address": "x:1"}, "--address with --engine ray"),
        ({"slurm": ["partition=gpu"]}, "--slurm with --engine slurm"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(InputError, match=message):
        check_scale(ScaleConfig(**options))
