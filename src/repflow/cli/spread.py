"""`repflow run -- COMMAND`: a command whose work is spread over workers before it puts everything together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from repflow.cli.scale import SPREAD
from repflow.core.errors import InputError, nearest, teach
from repflow.core.studies import STUDIES

if TYPE_CHECKING:
    from repflow.studies.scale.config import ScaleConfig

OTHER = ("repflow.cli.twins:command", "repflow.cli.reproduce:command")
"""Commands of their own that take part; see `repflow.cli.scale.take_part`."""
ALL = tuple(row.command for row in STUDIES if row.command and " " not in row.command)
COMMANDS = tuple(row.command for row in STUDIES if row.command in ALL and (not row.at or row.at in OTHER))


def is_command(words: Sequence[str]) -> bool:
    """Whether what was typed is a command rather than a file.

    >>> is_command(["study.toml"]), is_command(["probe", "gpt2"]), is_command(["reproduce"])
    (False, True, True)
    """
    return len(words) > 1 or words[0] in ALL


def run_command(words: Sequence[str], scale: ScaleConfig, misplaced: Sequence[str]) -> int:
    """Run a command; returns its exit code.

    Args:
        words: the command, as it is typed behind `repflow`.
        scale: workers.
        misplaced: options of `repflow run` that were typed and mean nothing to another command.

    Raises:
        InputError: not a command, one whose work is a single piece, or an option stands before the command.
    """
    from repflow.cli.commands import ENTRIES, built
    from repflow.cli.help import REFUSED, usage_words

    words = words[1:] if words[0] == "repflow" else words
    if not words or words[0] not in COMMANDS:
        got = repr(words[0]) if words else "none"
        remedy = nearest(words[0], COMMANDS) if words else f"such as {COMMANDS[0]}"
        expected = "STUDY.toml, or behind -- a command whose work can be shared"
        raise InputError(teach(expected, got, f"{remedy}; other studies of one model by `kind` of a STUDY.toml"))
    if misplaced:
        raise InputError(teach(f"{misplaced[0]} behind the command", "before --", "move it"))
    entry = next(entry for entry in ENTRIES if entry.name == words[0])
    token = SPREAD.set(scale)
    try:
        code = built(entry).main(list(words[1:]), prog_name=f"repflow {words[0]}", standalone_mode=False)
    except REFUSED as error:
        raise InputError(usage_words(error)) from None
    finally:
        SPREAD.reset(token)
    return code if isinstance(code, int) else 0
