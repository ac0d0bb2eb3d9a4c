"""Workers as processes of this machine.

Without GPUs they are forked from one process that has imported torch, so that eight workers, and those that replace
killed ones, do not import it again. With GPUs each starts by itself, since CUDA and forks do not go together.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from repflow.core.errors import RepflowError, command_line
from repflow.store.disk import make_folder
from repflow.studies.scale.engine import Ended, Engine
from repflow.studies.scale.order import Order
from repflow.studies.scale.service import serve
from repflow.studies.scale.worker import Post

PATIENCE = 20.0
"""Seconds that a worker has to give back its cell and end."""
LOGS = "logs"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class _Running:
    post: Post
    process: Any
    said: Connection


class LocalEngine(Engine):
    """Processes of this machine.

    Args:
        logs: folder for what workers print.
    """

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: list[_Running] = []

    def start(self, order: Order, posts: Sequence[Post]) -> None:
        """Start a process for every post."""
        make_folder(self._logs)
        for post in posts:
            self.replace(order, post)

    def replace(self, order: Order, post: Post) -> None:
        """Start one process."""
        context = _context(gpus=post.gpus is not None)
        ours, theirs = context.Pipe(duplex=False)
        log = self._logs / f"worker-{post.number}.log"
        with _threads(post.threads), _main_left_out():
            process = context.Process(target=_serve, args=(order, post, log, theirs), name=f"worker {post.number}")
            process.start()
        theirs.close()
        self._running.append(_Running(post, process, ours))

    def ended(self) -> list[Ended]:
        """Processes that have ended."""
        gone = [entry for entry in self._running if not entry.process.is_alive()]
        self._running = [entry for entry in self._running if entry.process.is_alive()]
        return [_read(entry) for entry in gone]

    def stop(self, patience: float) -> None:
        """End all processes."""
        sentinels = [entry.process.sentinel for entry in self._running]
        end = time.monotonic() + patience
        while sentinels and (left := end - time.monotonic()) > 0:
            ready = multiprocessing.connection.wait(sentinels, left)
            sentinels = [sentinel for sentinel in sentinels if sentinel not in ready]
        for entry in self._running:
            entry.process.terminate()
        for entry in self._running:
            entry.process.join(PATIENCE)
            if entry.process.is_alive():
                entry.process.kill()
                entry.process.join()
            entry.said.close()
        self._running = []


def _context(*, gpus: bool) -> Any:
    if gpus or not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["repflow.studies.scale.ready"])
    return context


def warm(threads: int | None) -> None:
    """Have the process that workers are forked from import what they need, while this one goes on."""
    _context(gpus=False)
    if sys.platform.startswith("linux"):
        with _threads(threads), _main_left_out():
            forkserver.ensure_running()


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own, forked from one that has imported torch; this one need not.

    Raises:
        RepflowError: what the function raised, or that its process was lost.
    """
    context = _context(gpus=False)
    ours, theirs = context.Pipe(duplex=False)
    with _main_left_out():
        process = context.Process(target=_answer, args=(function, args, Path.cwd(), theirs), name="repflow apart")
        process.start()
    theirs.close()
    try:
        answer, error = ours.recv()
    except EOFError:
        raise RepflowError("a process that looked at the models was lost: it was killed, or is out of memory") from None
    finally:
        ours.close()
        process.join()
    if error is not None:
        raise error
    return answer


def _answer(function: Callable[..., Any], args: tuple[Any, ...], base: Path, said: Connection) -> None:
    _end_with_parent()
    _print_to(Path(os.devnull))
    os.chdir(base)
    with command_line():
        try:
            said.send((function(*args), None))
        except RepflowError as error:
            said.send((None, error))
        except Exception as error:  # noqa: BLE001  raised in the process that asked
            said.send((None, RuntimeError(f"{type(error).__name__}: {error}")))


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set the threads of processes that start inside: libraries read these when they are loaded."""
    before = {name: os.environ.get(name) for name in THREADS}
    if count is not None:
        os.environ |= dict.fromkeys(THREADS, str(count))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _main_left_out() -> Iterator[None]:
    """Do not have workers import the program that was started: it is a command, or a script of the user's own."""
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    for name in hidden:
        setattr(main, name, None)
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


def _read(entry: _Running) -> Ended:
    try:
        error = entry.said.recv() if entry.said.poll() else None
    except EOFError:
        error = None
    entry.said.close()
    entry.process.join()
    if error is None:  # killed, or ended by the interpreter's own death
        return Ended(entry.post, lost=True)
    return Ended(entry.post, error=error)


def _serve(order: Order, post: Post, log: Path, said: Connection) -> None:
    """What a worker's process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the command ends its workers in order
    _end_with_parent()
    _print_to(log)
    said.send(serve(order, post))


def _end_with_parent() -> None:
    """End this process once the command that started it is gone, however it went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="repflow parent", daemon=True).start()


def _print_to(log: Path) -> None:
    """Send what this process and its libraries print to a file."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except OSError:  # a full disk must not keep the worker from saying so
        target = os.open(os.devnull, os.O_WRONLY)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(target, stream)
    os.close(target)
