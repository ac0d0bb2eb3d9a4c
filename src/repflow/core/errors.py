"""Exceptions of repflow: each says what was expected, what came, and what to do.

A request that cannot be met as it stands is an `InputError` (exit code 2 on the command line); work that was right
to ask for and failed is any other `RepflowError` (exit code 1).

Messages are written in the words of the command line, `--batch-size 4`. From Python they name the keyword argument,
`batch_size=4`: this is the one place that translates, when the error is shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from repflow.core.tasks import NAMES
from repflow.core.visible import one_line, visible


class RepflowError(Exception):
    """Base of every error that repflow raises on purpose."""

    def __str__(self) -> str:
        text = visible(super().__str__())  # names from files and folders are part of it
        return text if _typed_commands else in_python(text)


class InputError(RepflowError, ValueError):
    """The request is wrong: a bad argument, shape, name or file. Nothing was written."""


class UnsupportedModelError(InputError):
    """A model whose states cannot be read reliably; the message names the check that failed."""


class MissingExtraError(InputError, ImportError):
    """An optional package is needed for this request; the message gives the command that installs it."""


class StoreError(RepflowError):
    """A run folder that cannot be read or written."""


class RunLockedError(InputError, StoreError):
    """Another process is writing to the run folder."""


class ConfigChangedError(InputError, StoreError):
    """The run folder holds a run with another configuration."""


class DamagedRunError(StoreError):
    """Stored data does not match its digest."""


class DivergedError(RepflowError):
    """A training whose loss or gradient is not finite; the message names the step."""


class PausedError(RepflowError):
    """Work stopped when its time was up, as asked; the same call goes on from there."""


class OutOfMemoryError(RepflowError):
    """The machine has too little memory for the work; what was stored before stays."""


class DeviceLostError(RepflowError):
    """A process can no longer use its GPU, after a fault of a kernel; what was stored before stays."""


_typed_commands = 0
"""Depth of `command_line` blocks."""
SWITCHES = frozenset(
    (
        *("allow-code", "allow-float16", "allow-leak", "attention", "chat-template", "checkpointing", "drop-features"),
        *("paper-sign", "quick", "skip-told", "trust-remote-code"),
    )
)
"""Options without a value."""
RENAMED = {"flow": "flow_run", "probe": "probe_run"}
"""Options whose keyword has another name."""
COMMAND_ONLY = frozenset(
    {
        *("repair", "dry-run", "part", "watch", "json", "full"),
        *("workers", "worker", "per-gpu", "engine", "address", "slurm", "retry-failed"),
    }
)
"""Options of commands that have no call in Python."""
_VALUES = (
    f"{'|'.join(NAMES)}|float32|bfloat16|float16|float64|auto|reference|fast|rows|paper|last|final|model|always"
    "|never|default|trained|init|split|all|none|tokens|items|mean|answer|residual|branch"
)
_OPTION = re.compile(
    r"(?:repflow \w+ (?=--help))?(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
    rf"(?: (?:([A-Z][A-Z0-9]*(?:\.\w+)?(?::[A-Z]+)?|-?\d[\w.]*|[a-z]+:\d)|({_VALUES}))(?![\w=-]))?"
)


@contextmanager
def command_line() -> Iterator[None]:
    """Internally, errors name options, since what runs was typed as a command."""
    global _typed_commands
    _typed_commands += 1
    try:
        yield
    finally:
        _typed_commands -= 1


def in_python(text: str) -> str:
    """Put keyword arguments in place of the command line's options.

    >>> in_python("pass --dtype float32 or bfloat16, or --allow-float16 if you mean it")
    "pass dtype='float32' or bfloat16, or allow_float16=True if you mean it"
    >>> in_python("pass a smaller --batch-size, --length 100 or less, or --text FILE")
    'pass a smaller batch_size, length=100 or less, or text=FILE'
    """
    parts = re.split(r"(`[^`]*`)", text)  # a whole command in backticks stays one
    return "".join(part if part.startswith("`") else _OPTION.sub(_keyword, part) for part in parts)


def _keyword(match: re.Match[str]) -> str:
    option, plain, word = match.groups()
    if option in COMMAND_ONLY:
        return match.group()
    if option == "help":
        return "the docstring"
    name = RENAMED.get(option, option.replace("-", "_"))
    if option in SWITCHES and word is None:
        return f"{name}=True" + (f" {plain}" if plain else "")
    return f"{name}={plain}" if plain else f"{name}={word!r}" if word else name


def teach(expected: str, got: str, remedy: str) -> str:
    """Join the three parts of an error message.

    >>> teach("a mask of shape (batch, token)", "shape (3,)", "pass mask[None]")
    'expected a mask of shape (batch, token); got shape (3,); pass mask[None]'
    """
    return f"expected {expected}; got {got}; {remedy}"


SHORTAGE = re.compile(
    r"DefaultCPUAllocator.*(not enough|can't allocate) memory|could not create a primitive(?! desc)|bad_alloc|bad alloc"
    r"|CUDA out of memory|CUDA error: out of memory|_ALLOC_FAILED|Cannot allocate memory|unable to allocate",
    re.DOTALL | re.IGNORECASE,
)
"""What torch, oneDNN, C++, CUDA and the system say where memory runs out; only some have a class for it."""
WORDS = 300


def out_of_memory(error: BaseException) -> bool:
    """True for an error that means too little memory: Python's, NumPy's, torch's on a CPU or GPU, and the system's.

    >>> out_of_memory(MemoryError()), out_of_memory(RuntimeError("could not create a primitive"))
    (True, True)
    >>> out_of_memory(RuntimeError("could not create a primitive descriptor")), out_of_memory(ValueError("no memory"))
    (False, False)
    """
    if isinstance(error, MemoryError | OutOfMemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's
        return True
    return isinstance(error, RuntimeError | OSError) and SHORTAGE.search(str(error)) is not None


FAULT = re.compile(
    r"(CUDA (driver )?error|Triton Error \[CUDA\]): [^\n]*?(illegal (memory access|instruction)|misaligned address"
    r"|device-side assert triggered|unspecified launch failure|launch timed out|invalid (program counter|address space)"
    r"|hardware stack error|uncorrectable ECC|MPS (client|server)|unknown error|_EXECUTION_FAILED)",
    re.IGNORECASE,
)
"""Faults after which every further call of CUDA fails in a process, by the line that names them: torch has hints behind
it. Under MPS those of one process end all the others that share the GPU, and so does a process that is killed while its
kernels run."""


def device_fault(error: BaseException) -> str | None:
    r"""The fault, of an error or of one that it came from, after which a process cannot use its GPU any more.

    >>> device_fault(RuntimeError("CUDA error: an illegal memory access was encountered"))
    'CUDA error: an illegal memory access'
    >>> hint = "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
    >>> [device_fault(RuntimeError(f"CUDA error: {what}\n{hint}")) for what in ("out of memory", "invalid argument")]
    [None, None]
    """
    line = FAULT.search(str(error)) if isinstance(error, RuntimeError) else None
    if line is not None:
        return line[0]
    earlier = error.__cause__ or error.__context__
    return None if earlier is None else device_fault(earlier)


def memory_words(error: BaseException, doing: str) -> OutOfMemoryError:
    """The one message for a shortage of memory, with the library's own words."""
    got = f"too little memory ({words_of(error)})"
    remedy = (
        "pass a smaller --batch-size or --length, a smaller model or --dtype bfloat16, end other programs, or use a "
        "larger machine; rerun the same command to resume"
    )
    return OutOfMemoryError(teach(f"memory for {doing}", got, remedy))


def refused_permission(name: str, kind: type[InputError] | None = None) -> InputError:
    """Error of a file or folder that this user may not open, of the class that `refusing` was asked for."""
    got = f"{name}: permission denied"
    return (kind or InputError)(teach("a file or folder that this user may open", got, "change its permissions"))


def words_of(error: BaseException) -> str:
    r"""A library's error in one short line.

    >>> words_of(KeyError("weight_map")), words_of(ValueError("two\nlines"))
    ("KeyError: 'weight_map'", 'two lines')
    """
    text = " ".join(str(error).split())
    speaks = isinstance(error, ValueError | OSError | ImportError | RuntimeError) or "Error: " in text
    if not text or not speaks or isinstance(error, RecursionError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= WORDS else text[: WORDS - 1] + "…"


@contextmanager
def refusing(expected: str, got: str, remedy: str, kind: type[InputError] | None = None) -> Iterator[None]:
    """Turn whatever a library raises over a user's file into an error that says what to do.

    Libraries that parse files raise any class over a damaged one: IndexError, AssertionError, a bare Exception, or a
    Rust panic, which is not even an Exception. A shortage of memory stays one.

    Args:
        expected: What the file should be.
        got: Name of the file; the library's words follow it.
        remedy: What to do.
        kind: Class of the error, InputError unless given.
    """
    try:
        yield
    except RepflowError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if out_of_memory(error):
            raise memory_words(error, f"reading {got}") from error
        if isinstance(error, PermissionError):
            raise refused_permission(got, kind) from error
        raise (kind or InputError)(teach(expected, f"{got}: {words_of(error)}", remedy)) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Name the known words nearest to an unknown one, for the end of an error message.

    >>> nearest("token_similarty", ["token_similarity", "token_norm"])
    'did you mean token_similarity?'
    """
    known = sorted(known)
    close = [one_line(word) for word in difflib.get_close_matches(name, known, n=3)]
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(map(one_line, known))}"
