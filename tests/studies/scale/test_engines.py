"""Real engines: a Ray cluster started here, and submitit's jobs as processes; workers are killed and preempted."""

import os
import signal
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from repflow.core.errors import InputError, MissingExtraError
from repflow.store.claims.attempt import OWN
from repflow.store.claims.board import Policy
from repflow.store.claims.ledger import CLAIMS, Kind, last_entry
from repflow.store.claims.liveness import WORKERS
from repflow.store.claims.place import FolderPlace
from repflow.studies.scale.cluster import RayEngine, check_reachable
from repflow.studies.scale.config import ScaleConfig
from repflow.studies.scale.crew import run_crew
from repflow.studies.scale.slurm import SlurmEngine, parse_settings
from repflow.studies.scale.worker import Post, work
from tests.studies.scale.slurm_programs import write_programs


class Killer:
    """Sends signals to workers of a crew, one after each of the first cells."""

    def __init__(self, *signals):
        self.signals, self.sent = list(signals), []

    def __call__(self, standing):
        pids = [beat["pid"] for beat in standing.workers.values() if beat.get("cell") and beat["pid"] not in self.sent]
        if self.signals and pids and len(standing.finished) >= len(self.sent):
            os.kill(pids[0], self.signals.pop(0))
            self.sent.append(pids[0])


def crewed(order, engine, killer):
    lines = []
    wait = lambda _: time.sleep(0.01)  # noqa: E731
    standing = run_crew(order, engine, engine.posts(), show=killer, say=lines.append, wait=wait)
    assert standing.complete
    assert not standing.failed
    assert not killer.signals, "the study was over before every signal was sent"
    return lines


def test_ray(order, same):
    killer = Killer(signal.SIGKILL)  # once here, every 5 seconds by `make faults`
    engine = RayEngine(ScaleConfig(engine="ray", workers=2, threads=1))
    check_reachable(engine._ray.get_runtime_context().gcs_address)  # its own answer is not taken for another service's
    crewed(order, engine, killer)
    same(1)


@pytest.mark.slow
def test_slurm_jobs_as_processes(order, same):
    """A worker is preempted: it gives its cell back and its job is queued again. Killed, it gets a successor.

    CI has jobs as batch files, below, and workers that are killed and replaced, through Ray and in test_crew.py.
    """
    config = ScaleConfig(engine="slurm", workers=1, threads=1, slurm=["cluster=local"])
    killer = Killer(signal.SIGUSR2, signal.SIGKILL)
    lines = crewed(order, SlurmEngine(config, order.folder / OWN), killer)
    assert lines == ["worker 0 was lost; another takes its post"]
    same(2)
    assert killer.sent[0] not in FolderPlace(order.folder / OWN).names(WORKERS)
    logs = "".join(path.read_text() for path in (order.folder / OWN / "jobs").glob("*_log.*"))
    assert logs.count("Requeued job") == 1


def test_slurm_jobs_are_queued_again_when_preempted_and_give_cells_back_when_interrupted(
    order, same, tmp_path, monkeypatch
):
    """Slurm's programs are played (slurm_programs.py): one batch file of two jobs, signals as Slurm sends them."""
    state = write_programs(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    config = ScaleConfig(engine="slurm", workers=2, threads=1, slurm=["partition=gpu,timeout_min=60"])
    seen = []

    def preempt(standing):
        pids = [beat["pid"] for beat in standing.workers.values() if beat.get("cell")]
        if not seen and len(pids) == 2:
            os.kill(pids[1], signal.SIGSTOP)  # leaves cells for the other
            os.kill(pids[0], signal.SIGTERM)  # the announcement
            seen.extend([*pids, len(standing.finished)])
        elif len(seen) == 3 and len(standing.finished) > seen[2]:  # works on
            os.kill(seen[0], signal.SIGUSR2)
            seen.append("preempted")
        elif len(seen) == 4 and set(pids) - set(seen):  # the same job, another process
            os.kill(seen[1], signal.SIGCONT)
            raise KeyboardInterrupt

    engine = SlurmEngine(config, order.folder / OWN)
    lines = []
    with pytest.raises(KeyboardInterrupt):
        run_crew(order, engine, engine.posts(), show=preempt, say=lines.append, wait=lambda _: time.sleep(0.01))
    assert not lines  # nobody was replaced
    (batch,) = state.glob("*.batch")
    for setting in ("array=0-1%2", "partition=gpu", "signal=USR2@90", "time=60"):
        assert f"#SBATCH --{setting}" in batch.read_text()
    assert len(list(state.glob("*.requeued"))) == 1
    place = FolderPlace(order.folder / OWN)
    assert not place.names(WORKERS)
    assert Kind.CLAIM not in {last_entry(place, name).kind for name in place.names(CLAIMS)}
    assert work(order, Post(policy=Policy(beat=0.05))).failed == 0
    same(3)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":6379", "ray://x:port"])
def test_an_address_that_is_none(address):
    with pytest.raises(InputError, match="--address HOST:PORT"):
        check_reachable(address)


def test_an_address_at_which_nobody_listens(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=r"no answer.*ray start --head"):
        RayEngine(ScaleConfig(engine="ray", address=f"127.0.0.1:{port}"))


@contextmanager
def answering(words):
    """A service that says something to whoever connects; its address."""
    with socket.create_server(("127.0.0.1", 0)) as service:

        def serve():
            with suppress(OSError):
                while True:
                    line, _ = service.accept()
                    with line:
                        line.recv(64)
                        line.sendall(words)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{service.getsockname()[1]}"


@pytest.mark.parametrize("words", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.0 400 Bad\r\n", b"-ERR unknown command\r\n"])
def test_an_address_at_which_something_else_answers(words):
    with answering(words) as address, pytest.raises(InputError, match="got another service") as told:
        check_reachable(address)
    assert repr(words.decode().strip()) in str(told.value)
    assert "`ray status` names the address" in str(told.value)


@pytest.mark.parametrize("words", [bytes([0, 0, 24, 4, 0, 0, 0, 0, 0]), b""])
def test_what_may_be_ray_is_left_to_ray(words, monkeypatch):
    with answering(words) as address:
        check_reachable(address)
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with answering(bytes([21, 3, 3, 0, 2])) as address:  # an alert of TLS, as nothing was asked in its way
        check_reachable(address)


def test_no_slurm_here(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"no program sbatch here; .*cluster=local"):
        SlurmEngine(ScaleConfig(engine="slurm", workers=2), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slurm": ["cluster=local"]}, "--workers N with --engine slurm"),
        ({"workers": 1, "slurm": ["cluster=loca"]}, "cluster=slurm or cluster=local"),
        ({"workers": 1, "slurm": ["partition"]}, "KEY=VALUE"),
        ({"workers": 1, "slurm": ["cluster=local,partitoin=gpu"]}, "settings of Slurm jobs"),
    ],
)
def test_bad_settings_of_jobs(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        SlurmEngine(ScaleConfig(engine="slurm", **options), tmp_path)


def test_settings_of_jobs_by_their_own_names():
    settings = parse_settings(["partition=gpu,gpus_per_node=1,time=60", "slurm_account=me"])
    assert settings == {"slurm_partition": "gpu", "gpus_per_node": 1, "slurm_time": 60, "slurm_account": "me"}


@pytest.mark.parametrize(("engine", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, tmp_path, engine, package):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else find(name, *more))
    with pytest.raises(MissingExtraError, match=rf"repflow\[{engine}\]"):
        if engine == "ray":
            RayEngine(ScaleConfig(engine="ray"))
        else:
            SlurmEngine(ScaleConfig(engine="slurm", workers=1), tmp_path)
