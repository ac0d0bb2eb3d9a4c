"""Processes that have torch already: they are forked from a server that imported it once.

For what is killed, stopped, cut off or watched. That takes a process of its own, and a fresh interpreter would spend
seconds of imports in each. What a fresh interpreter does is tested where commands start as users start them.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["repflow.cli.study", "repflow.capture.measure", "repflow.report.terminal.measure"])


class Process:
    """A call in a process of its own, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        work: Callable[..., Any],
        *args: Any,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        before: Callable[[], Any] | None = None,
    ) -> None:
        """Start it.

        Args:
            work: a function of a module.
            args: its arguments.
            cwd: working directory.
            env: its environment, by default this one's; what libraries read at import they have read in the server.
            before: called first, for example to set limits.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="warm-"))
        asked = (work, args, str(cwd), dict(os.environ if env is None else env), str(self._folder), before)
        self._process = SERVER.Process(target=_begin, args=asked, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def stopped(self) -> bool:
        """Whether a signal has stopped it."""
        state = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8") if self.poll() is None else ") -"
        return state.rpartition(")")[2].split()[0] == "T"

    def communicate(self) -> tuple[str, str]:
        """Wait for its end; what it wrote to stdout and stderr."""
        self._process.join()
        said = [(self._folder / name).read_text(encoding="utf-8") for name in ("out", "err")]
        shutil.rmtree(self._folder)
        return said[0], said[1]


def command(*words: Any, **options: Any) -> Process:
    """`repflow WORDS` in a process of its own; options of `Process`."""
    return Process(repflow, *map(str, words), **options)


def printed(code: str, *, cwd: Path) -> list[str]:
    """Lines that a script prints in a process of its own, which must end well."""
    process = Process(script, code, cwd=cwd)
    out, err = process.communicate()
    assert process.returncode == 0, err[-3000:]
    return out.splitlines()


def script(code: str) -> None:
    """What `python -c CODE` does."""
    exec(compile(code, "<script>", "exec"), {"__name__": "__main__"})


def repflow(*words: str) -> None:
    """What `python -m repflow WORDS` does."""
    sys.argv = ["repflow", *words]
    runpy.run_module("repflow", run_name="__main__", alter_sys=True)


def _begin(work: Any, args: Any, cwd: str, env: dict[str, str], folder: str, before: Any) -> None:
    # Python leaves it ignored where the tests themselves run in a shell's background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    if before is not None:
        before()
    work(*args)
