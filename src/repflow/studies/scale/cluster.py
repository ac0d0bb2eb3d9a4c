"""Workers on a Ray cluster: one started here, or one that runs already. Needs the extra `ray`.

Ray starts a task again whose process was killed or whose machine was lost, so that it may run twice: that no result
comes about twice is the claims' doing.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from collections.abc import Sequence
from typing import Any

from repflow.core.errors import InputError, MissingExtraError, teach, words_of
from repflow.core.visible import one_line
from repflow.studies.scale.config import ScaleConfig
from repflow.studies.scale.engine import Ended, Engine
from repflow.studies.scale.order import Order
from repflow.studies.scale.posts import far_posts
from repflow.studies.scale.service import serve
from repflow.studies.scale.worker import Post

REACH_SECONDS = 5.0
"""To hear from a cluster's address."""
PATIENCE = 20.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2, which gRPC and so Ray speak, begins: its preface and settings that say nothing (RFC 9113)."""
SETTINGS, KIND_AT = 4, 3
"""A server's first frame is its settings; the byte of a frame that names its kind."""


class RayEngine(Engine):
    """Tasks of a Ray cluster.

    Args:
        config: how many, and where the cluster is.

    Raises:
        InputError: nobody answers at the address.
    """

    def __init__(self, config: ScaleConfig) -> None:
        check_ray(config)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a task without GPUs sees what the user left
        import ray

        self._ray: Any = ray
        self._config = config
        self._tasks: dict[Any, Post] = {}
        self._began = not self._ray.is_initialized()
        if self._began:
            _connect(self._ray, config)
        self._gpus = float(self._ray.cluster_resources().get("GPU", 0))

    def posts(self) -> list[Post]:
        """As many as asked for; by default one per GPU, or per core."""
        cores = int(self._ray.cluster_resources().get("CPU", 1)) // (self._config.threads or 1)
        usual = int(self._gpus) * self._config.per_gpu if self._gpus else max(1, cores)
        return far_posts(self._config, self._config.workers or usual)

    def start(self, order: Order, posts: Sequence[Post]) -> None:
        """Submit a task for every post."""
        for post in posts:
            self.replace(order, post)

    def replace(self, order: Order, post: Post) -> None:
        """Submit one task; Ray runs it again where its process was lost."""
        share = 1 / self._config.per_gpu if self._gpus else 0
        options = {"num_cpus": self._config.threads or 1, "num_gpus": share, "max_retries": -1}
        task = self._ray.remote(**options)(serve)
        self._tasks[task.remote(order, post)] = post

    def ended(self) -> list[Ended]:
        """Tasks that have ended."""
        if not self._tasks:
            return []
        ready, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=0)
        return [self._read(task) for task in ready]

    def _read(self, task: Any) -> Ended:
        post = self._tasks.pop(task)
        try:
            error = self._ray.get(task)
        except self._ray.exceptions.RayTaskError as failure:
            return Ended(post, error=words_of(failure))
        except self._ray.exceptions.RayError:
            return Ended(post, lost=True)
        return Ended(post, error=error)

    def stop(self, patience: float) -> None:
        """Interrupt tasks that still run; a cluster that was started here ends too."""
        if self._tasks and patience:
            _, left = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=patience)
            self._tasks = {task: self._tasks[task] for task in left}
        for task in self._tasks:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(task, force=False)
        if self._tasks:
            self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=PATIENCE)
        self._tasks = {}
        if self._began:
            self._ray.shutdown()


def check_ray(config: ScaleConfig) -> None:
    """Refuse a missing package and an address at which nobody listens; does not import Ray.

    Raises:
        InputError: says which.
    """
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(teach("ray for --engine ray", "no package ray", "`pip install 'repflow[ray]'`"))
    if config.address is not None:
        check_reachable(config.address)


def _connect(ray: Any, config: ScaleConfig) -> None:
    threads = str(config.threads or os.environ.get("OMP_NUM_THREADS") or 1)
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    own: dict[str, Any] = {"include_dashboard": False} if config.address is None else {}
    if config.address is None and config.workers is not None:  # a worker waits more than it computes: as many as asked
        own["num_cpus"] = max(os.cpu_count() or 1, config.workers * (config.threads or 1))
    try:
        ray.init(address=config.address or "local", runtime_env={"env_vars": variables}, **quiet, **own)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        place = config.address or "one started here"
        remedy = "see `ray status`, set RAY_AUTH_MODE=token where it asks for a token, or leave --address out"
        raise InputError(teach("a Ray cluster", f"{place}: {words_of(error)}", remedy)) from error


def check_reachable(address: str) -> None:
    """Refuse an address at which nobody listens, or something else; Ray itself would try for half a minute or more.

    Raises:
        InputError: says what an address looks like, that nobody answers, or what does.
    """
    if address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal() or not host:
        raise InputError(teach("--address HOST:PORT, or auto", repr(address), "`ray status` names the address"))
    try:
        with socket.create_connection((host, int(port)), timeout=REACH_SECONDS) as line:
            answer = _first_words(line)
    except (OSError, OverflowError) as error:
        remedy = "start it with `ray start --head`, check the address, or leave --address out"
        raise InputError(teach(f"a Ray cluster at {address}", f"no answer ({error})", remedy)) from None
    if len(answer) > KIND_AT and answer[KIND_AT] != SETTINGS:
        got = f"another service, which answers {one_line(answer[:40].decode(errors='replace').strip())!r}"
        raise InputError(teach(f"a Ray cluster at {address}", got, "`ray status` names the address; its port is 6379"))


def _first_words(line: socket.socket) -> bytes:
    """What is answered to a greeting of HTTP/2; nothing where Ray speaks TLS, or where it is Ray's to find out."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
        return b""
    try:
        line.sendall(GREETING)
        return line.recv(64)
    except OSError:  # silence, or a connection that is closed without a word
        return b""
