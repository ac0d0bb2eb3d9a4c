"""Exceptions of repflow: each says what was expected, what came, and what to do.

A request that cannot be met as it stands is an `InputError` (exit code 2 on the command line); work that was right
to ask for and failed is any other `RepflowError` (exit code 1).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RepflowError(Exception):
    """Base of every error that repflow raises on purpose."""


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


def teach(expected: str, got: str, remedy: str) -> str:
    """Join the three parts of an error message.

    >>> teach("a mask of shape (batch, token)", "shape (3,)", "pass mask[None]")
    'expected a mask of shape (batch, token); got shape (3,); pass mask[None]'
    """
    return f"expected {expected}; got {got}; {remedy}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Name the known words nearest to an unknown one, for the end of an error message.

    >>> nearest("token_similarty", ["token_similarity", "token_norm"])
    'did you mean token_similarity?'
    """
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
