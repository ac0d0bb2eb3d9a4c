"""What the user sees beside results: errors, notes and progress on stderr; exit codes."""

from __future__ import annotations

import atexit
import functools
import gc
import locale
import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import typer

from repflow.cli.deferred import deferred
from repflow.core.errors import (
    InputError,
    RepflowError,
    command_line,
    memory_words,
    out_of_memory,
    refused_permission,
    teach,
)
from repflow.core.seconds import CLOCK, phase
from repflow.core.visible import one_line, visible

DONE, FAILED, WRONG_REQUEST, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143
PLAIN_WIDTH = 110
LINE_SECONDS = 10.0  # between progress lines where stderr is no terminal
STORED_SECONDS = 0.002  # a batch reported sooner than this after the last was stored already and says nothing of speed


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what a command raises into one clear message on stderr and an exit code."""

    @functools.wraps(command)
    def call(*args: Any, **kwargs: Any) -> Any:
        with command_line(), ExitStack() as stack:
            if _timings["asked"]:
                stack.callback(_print_seconds)
            try:
                stack.enter_context(_heeding_termination())
                _check_working_folder()
                return command(*args, **kwargs)
            except (typer.Exit, typer.Abort, BrokenPipeError):
                raise
            except KeyboardInterrupt as stop:
                ended = isinstance(stop, Terminated)
                note(f"{'terminated' if ended else 'interrupted'}; rerun the same command to resume")
                raise typer.Exit(TERMINATED if ended else INTERRUPTED) from None
            except Exception as error:  # noqa: BLE001  the last stop before the user
                raise typer.Exit(complain(error)) from None

    return call


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; it is handled like Ctrl-C."""


@contextmanager
def _heeding_termination() -> Iterator[None]:
    """Have SIGTERM end the command as Ctrl-C does, saying what to do next."""
    if threading.current_thread() is not threading.main_thread():  # only that one may say what a signal does
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_working_folder() -> None:
    try:
        Path.cwd()
    except OSError:  # libraries would end the process without a word of it
        got = "one that was deleted or cannot be read"
        raise InputError(teach("a working directory that exists", got, "change to another folder (cd)")) from None


def prepare_streams() -> None:
    """Make stdout take any text: one that is closed, or that knows ASCII alone, must not end a run that is done."""
    if not os.environ.get("COLUMNS", "1").strip("0"):  # a width of nothing, as some schedulers set it, is not a width
        del os.environ["COLUMNS"]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123  until the end
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def complain(error: Exception, about: str = "") -> int:
    """Say what went wrong and return the exit code it means; the traceback only with REPFLOW_DEBUG=1."""
    if os.environ.get("REPFLOW_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    if out_of_memory(error) and not isinstance(error, RepflowError):
        error = memory_words(error, "this command")
    if isinstance(error, PermissionError) and error.filename is not None:
        error = refused_permission(str(error.filename))
    text = str(error) if isinstance(error, RepflowError) else f"{type(error).__name__}: {error}"
    if not isinstance(error, RepflowError):
        text += " (REPFLOW_DEBUG=1 shows where)"
    if not isinstance(error, RepflowError) or error.__cause__ is not None:
        text = re.sub(r"\s*\n\s*", " ", text)  # what another library said in several lines
    if (fault := _locale_fault(error)) is not None:
        got = f"{locale.getencoding()}, in which this cannot be read or written: {fault}"
        text = teach("a process that reads text as UTF-8", got, "set PYTHONUTF8=1 and run the command again")
    note(f"error: {f'{about}: ' if about else ''}{text}")
    return WRONG_REQUEST if isinstance(error, InputError) else FAILED


def _locale_fault(error: BaseException | None) -> UnicodeError | None:
    """What could not be read or written because the process does not use UTF-8, whichever error it surfaced as."""
    if sys.flags.utf8_mode or locale.getencoding().lower().replace("-", "") == "utf8":
        return None
    while error is not None and not isinstance(error, UnicodeEncodeError | UnicodeDecodeError):
        error = error.__cause__ or error.__context__
    # a file that was read as UTF-8, as ours are, and is not, is the file's fault
    return None if isinstance(error, UnicodeDecodeError) and error.encoding == "utf-8" else error


def note(text: str) -> None:
    """Print a line on stderr; what is in it stays one line and moves no cursor."""
    print(one_line(text), file=sys.stderr, flush=True)


def say(text: str) -> None:
    """Print a line of the result on stdout, as harmless as a note."""
    print(one_line(text), flush=True)


def import_torch() -> None:
    """Import what every study of a model needs, so that its seconds are counted under their own name."""
    if "repflow.models" in sys.modules and "repflow.capture.run" in sys.modules:
        return
    # transformers takes one function each of these into losses of object detectors and into assisted generation
    later = deferred("scipy.optimize", "linear_sum_assignment"), deferred("sklearn.metrics", "roc_curve")
    with phase("imports"), later[0], later[1]:
        import repflow.capture.run
        import repflow.models  # noqa: F401

        gc.freeze()  # modules stay: freeing one model before the next need not walk through them, a quarter of a second
        atexit.register(gc.unfreeze)  # at the end they are taken apart as ever; bindings complain of what is left


_timings = {"asked": False}


def show_timings(wanted: bool) -> None:
    """Whether a command ends by saying where its time went, on stderr."""
    _timings["asked"] = wanted


def _print_seconds() -> None:
    spent = CLOCK.seconds()
    parts = ", ".join(f"{name} {value:.2f}" for name, value in spent.items())
    note(f"seconds: {parts}; {sum(spent.values()):.2f} in all")


def stdout_console() -> Any:
    """Console for results: as wide as the terminal or as COLUMNS says, else wide enough for the tables."""
    from rich.console import Console
    from rich.segment import Segment

    class Seen(Console):
        """Writes out control characters in whatever a table holds; its own colours are not part of the text."""

        def render(self, *args: Any, **kwargs: Any) -> Any:
            for part in super().render(*args, **kwargs):
                yield part if part.control else Segment(visible(part.text), part.style)

    known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    return Seen() if known else Seen(width=PLAIN_WIDTH)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep stdout for results: prints of libraries go to stderr, and their warnings nowhere unless REPFLOW_DEBUG=1."""
    if os.environ.get("REPFLOW_DEBUG") == "1":
        with redirect_stdout(sys.stderr):
            yield
        return
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    with redirect_stdout(sys.stderr), warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = _show_own
        yield


def _show_own(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if f"{os.sep}repflow{os.sep}" in filename:
        note(f"warning: {message}")


class ProgressLine:
    """What is done, how far it is and the time left, on stderr; a bar on a terminal, now and then a line elsewhere.

    Call it as studies call their progress: samples done, samples in total, tokens done. `phase` names what is done now.
    """

    def __init__(self, label: str, counts: str = "prompts") -> None:
        self.label = one_line(label)
        self._counts = counts
        self._bar: Any = None
        self._phase = ""
        self._alone = False  # one of many, as in a grid, names its first phase only
        self._last = self._shown = time.monotonic()
        self._tokens = 0
        self._work_tokens, self._work_seconds = 0, 0.0

    def __enter__(self) -> ProgressLine:
        self._alone = True
        if sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=None, count="", rate="")
        self.phase("loading")
        import_torch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def phase(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Say what is being done; without a total the bar pulses."""
        first, fresh = not self._phase, text != self._phase
        self._phase = text
        if fresh:
            self._last = time.monotonic()  # other work says nothing of the speed of reading
        if self._bar is None:
            if first or (fresh and self._alone):
                note(f"{self.label}: {text}")
            return
        count = "" if total is None else f"{done}/{total}"
        fields = {"description": f"{self.label}: {text}", "total": total, "completed": done, "count": count, "rate": ""}
        if fresh:  # the time left is that of this phase
            self._bar.reset(self._task, **fields)
        else:
            self._bar.update(self._task, **fields)

    def __call__(self, done: int, total: int, tokens: int) -> None:
        """Report a finished batch."""
        now = time.monotonic()
        if not done:  # time until here was spent on loading
            self._last = now
        if now - self._last > STORED_SECONDS:
            self._work_tokens += tokens - self._tokens
            self._work_seconds += now - self._last
        self._last, self._tokens = now, tokens
        rate = self._work_tokens / self._work_seconds if self._work_seconds else 0.0
        if self._bar is not None:
            if self._phase == "loading":
                self.phase("reading states")
            pace = f"{rate:,.0f} tokens/s" if rate else ""
            self._bar.update(self._task, total=total, completed=done, count=f"{done}/{total}", rate=pace)
        elif done and (now - self._shown > LINE_SECONDS or done == total):
            self._shown = now
            left = (total - done) * (tokens / max(done, 1)) / rate if rate else 0.0
            pace = f", {rate:,.0f} tokens/s" if rate else ""
            known = f", {clock(left)} left" if left or done == total else ""  # work without tokens has no speed
            note(f"{self.label}: {done}/{total} {self._counts}{pace}{known}")


class ModelLines:
    """One line per model on stderr: a bar on a terminal, elsewhere a line once all runs of a model are done.

    Args:
        models: name and number of runs of each.
    """

    WIDTH = 20

    def __init__(self, models: Sequence[tuple[str, int]]) -> None:
        self._runs = dict(models)
        self._done = dict.fromkeys(self._runs, 0)
        self._began: dict[str, float] = {}
        self._bar: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> ModelLines:
        if sys.stderr.isatty():
            self._bar = _model_bar()
            self._bar.start()
            self._tasks = {
                name: self._bar.add_task(name, total=runs, count=f"0/{runs}", doing="")
                for name, runs in self._runs.items()
            }
        import_torch()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, name: str, label: str) -> ModelProgress:
        """A run of a model begins; what its study calls."""
        self._began.setdefault(name, time.monotonic())
        doing = label.removeprefix(f"{name}, ")  # the line begins with it
        self._show(name, 0.0, doing)
        return ModelProgress(self, name, doing)

    def end(self, name: str) -> None:
        """A run has ended, well or not."""
        self._done[name] += 1
        self._show(name, 0.0, "")
        if self._bar is None and self._done[name] == self._runs[name]:
            seconds = time.monotonic() - self._began[name]
            width = max(map(len, self._runs))
            note(f"{name:<{width}} {'=' * self.WIDTH} {self._runs[name]} runs, {clock(seconds)}")

    def _show(self, name: str, share: float, doing: str) -> None:
        if self._bar is not None:
            done, count = self._done[name], f"{self._done[name]}/{self._runs[name]}"
            self._bar.update(self._tasks[name], completed=done + share, count=count, doing=one_line(doing))


class ModelProgress:
    """Progress of one run on its model's line; call it as studies call theirs."""

    def __init__(self, lines: ModelLines, name: str, label: str) -> None:
        self._lines, self._name, self._label = lines, name, label

    def phase(self, text: str, done: int = 0, total: int | None = None) -> None:
        """Say what is done now."""
        self._lines._show(self._name, done / total if total else 0.0, f"{self._label}: {text}")

    def __call__(self, done: int, total: int, tokens: int) -> None:
        """Report a finished batch."""
        self._lines._show(self._name, done / max(total, 1), self._label)


def _model_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=ModelLines.WIDTH, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]} runs"),
        TextColumn("{task.fields[doing]}", markup=False),
    )
    return Bar(*columns, console=Console(stderr=True))


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20, complete_style="cyan", finished_style="green", pulse_style="cyan"),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=Console(stderr=True), transient=True)


def clock(seconds: float) -> str:
    """Minutes and seconds.

    >>> clock(75.0), clock(3675.0)
    ('1:15', '1:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
