"""What `--help` shows: the options one usually needs, in groups, on one screen; `--help-all` shows every one.

Also what `repflow` alone shows, the five questions, and what the shell completes. Nothing here imports torch.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from repflow.cli.console import DONE, FAILED, note, stdout_console
from repflow.spec.request import TASKS
from repflow.spec.zoo import NAMES, PREFIX

OUTPUT = "Output and help"
OUTPUT_NAMES = ("out", "name", "as_json", "help")
USUAL = frozenset(
    {
        *("task", "text", "length", "lengths", "samples", "init", "twin", "states", "metrics", "device"),
        *("tokenizer", "label", "seeds", "inits", "positions", "needles", "at", "to", "attention", "scale"),
        *("flow_run", "probe_run", "init_b", "rates", "steps", "seconds"),
        *("images", "regions", "replace", "targets", "rows", "layers", "widths", "shares"),
        *("held_out", "test_texts", "match_row", "match_layers", "recall_share", "labelled", "folds"),
        *("workers", "engine", "retry_failed"),
    }
)
"""Options of the groups that `--help` shows; a command's own options are always among them."""
FEW = 13
"""A command of so few options shows them all."""
PLACEHOLDERS = {"int": "N", "float": "X", "path": "PATH", "bool": ""}
"""Short words for what an option takes; others are TEXT."""
ALL = "--help-all"

REFUSED: type[Exception] = typer.BadParameter.__mro__[2]
"""What is raised where the words of a command line are wrong: unknown commands, options and values."""
NO_ARGUMENTS = "NoArgsIsHelpError"
"""The one of them that holds the help of a group of commands."""

QUESTIONS = (
    ("What do the layers do to my prompts?", "repflow measure MODEL"),
    ("Where is the answer, where is it lost?", "repflow probe MODEL --label answer"),
    ("How far back does a token reach?", "repflow recency MODEL"),
    ("Is it the architecture or the training?", "repflow twins MODEL"),
    ("Do two models compute the same?", "repflow compare A B"),
)
"""What people come with, and the command for each."""


def questions() -> str:
    """What `repflow` shows without a command."""
    wide = max(len(question) for question, _ in QUESTIONS)
    lines = [f"  {question:<{wide}}   {command}" for question, command in QUESTIONS]
    return "\n".join(
        [
            "repflow measures what the layers of a sequence model do to its tokens.",
            "",
            *lines,
            "",
            "MODEL is a folder, a hub id, or a built-in model such as zoo:mamba2.",
            "Without a MODEL, the command runs on built-in models.",
            "",
            "  repflow demo            see all of it on built-in models, in about a minute",
            "  repflow --help          every command",
            "  repflow COMMAND --help  its usual options; --help-all lists every one",
        ]
    )


def _all(ctx: Any, args: list[str]) -> list[str]:
    """What was typed; `--help-all` is `--help` with nothing left out."""
    ctx.meta[ALL] = ALL in args
    return ["--help" if word == ALL else word for word in args]


class Command(TyperCommand):
    """A command whose `--help` fits a screen."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed."""
        return super().parse_args(ctx, _all(ctx, args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Groups of options, a line or two each; without the rare ones unless all are asked for."""
        params = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        rare = [parameter for parameter in params if _is_rare(parameter)]
        if sum(map(_is_option, params)) <= FEW or ctx.meta.get(ALL):
            rare = []
        paragraphs = [" ".join(text.split()) for text in inspect.cleandoc(self.help or "").split("\n\n")]
        text = "\n\n".join(paragraphs[:1] if rare else paragraphs)
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in params:
            if parameter not in rare:
                groups.setdefault(_group(parameter), []).append(_described(parameter, ctx, more=bool(rare)))
        groups[OUTPUT] = groups.pop(OUTPUT)  # last
        examples = [line for line in (self.epilog or "").split("\n\n") if line]
        arguments = [parameter.metavar or parameter.name.upper() for parameter in params if not _is_option(parameter)]
        usage = " ".join(["Usage:", ctx.command_path, "[OPTIONS]", *arguments])
        formatter.write(_page(usage, text, groups, examples))


class Group(TyperGroup):
    """A group of commands, a line each, in the groups that they belong to."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed in front of a command."""
        return super().parse_args(ctx, _all(ctx, args) if args[:1] == [ALL] else args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Commands first, then the few options."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for panel, name, line in self.lines(ctx):
            groups.setdefault(panel, []).append((name, line))
        groups["Options"] = [_described(parameter, ctx) for parameter in self.get_params(ctx)]
        formatter.write(_page(self.get_usage(ctx).strip(), self.help or "", groups, []))

    def lines(self, ctx: Any) -> Iterator[tuple[str, str, str]]:
        """Panel, name and line of every command."""
        for name in self.list_commands(ctx):
            yield "Commands", name, first_line(self.get_command(ctx, name))


class Root(Group):
    """`repflow` itself, which asks five questions where nothing was typed."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; what was typed wrongly is an error like any other, in one line."""
        extra["standalone_mode"] = False
        if not standalone_mode:
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **extra)
        except REFUSED as error:
            refusal: Any = error
            if type(error).__name__ == NO_ARGUMENTS:
                print(refusal.format_message())
            else:
                note(f"error: {usage_words(refusal)}")
            sys.exit(refusal.exit_code)
        except typer.Abort:
            sys.exit(FAILED)
        return sys.exit(code if isinstance(code, int) else DONE)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed; nothing at all is a question too."""
        if not args and not ctx.resilient_parsing:
            print(questions())
            ctx.exit()
        return super().parse_args(ctx, args)


NUMBERS = {
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
}
"""What the parser of options says of a word that is no number, and what we say."""


def usage_words(error: Any) -> str:
    """What is wrong with what was typed, and where to look."""
    words = str(error.format_message()).strip().rstrip(".")
    words = words[:1].lower() + words[1:].replace(". Did you mean", "; did you mean")
    for theirs, ours in NUMBERS.items():
        words = words.replace(theirs, ours)
    context = getattr(error, "ctx", None)
    where = f"`{context.command_path if context is not None else 'repflow'} --help`"
    return f"{words} See {where}" if words.endswith("?") else f"{words}; see {where}"


def epilog(examples: Sequence[str]) -> str:
    """Examples as the last lines of a command's help."""
    return "\n\n".join(["Examples:", *examples]) if examples else ""


def first_line(command: Any) -> str:
    """What the list of commands says of one."""
    return inspect.cleandoc(command.help or "").split("\n")[0].rstrip(".")


def _page(usage: str, description: str, groups: dict[str, list[tuple[str, str]]], last: list[str]) -> str:
    """Usage, what it does, groups of two columns, and last lines."""
    from rich.table import Table
    from rich.text import Text

    console = stdout_console()
    wide = max(len(name) for entries in groups.values() for name, _ in entries) + 2
    with console.capture() as captured:
        console.print(Text(f"{usage}\n\n{description}\n"))
        for title, entries in groups.items():
            table = Table.grid(padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True, width=wide)
            for name, text in entries:
                table.add_row(Text(f"  {name}", style="cyan"), Text(text))
            if title:
                console.print(Text(title, style="bold"))
            console.print(table)
        examples = [line for text in last[1:] for line in _example(text, console.width)]
        for line in ["", *last[:1], *examples] if last else []:
            console.print(Text(line), soft_wrap=True)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _example(text: str, width: int) -> list[str]:
    r"""A command and what it does within a screen: the words beside it or below, a long command on several lines.

    >>> _example("repflow list    runs", 40), _example("repflow list runs/demo    what there is", 30)
    (['  repflow list    runs'], ['  repflow list runs/demo', '      what there is'])
    >>> _example("repflow list runs/demo --json", 26)
    ['  repflow list runs/demo \\', '      --json']
    """
    if len(text) + 2 <= width:
        return [f"  {text}"]
    command, _, words = text.partition(" " * 4)
    parts = re.split(r" (?=--)", command)  # an option stays beside its value
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 7 <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(f"    {part}")
    broken = [f"  {line} \\" for line in lines[:-1]] + [f"  {lines[-1]}"]
    return broken + ([f"      {words}"] if words else [])


def _group(parameter: Any) -> str:
    if not _is_option(parameter):
        return ""
    return OUTPUT if parameter.name in OUTPUT_NAMES else str(getattr(parameter, "rich_help_panel", None) or "Options")


def _described(parameter: Any, ctx: Any, *, more: bool = False) -> tuple[str, str]:
    """Name and text of an argument or option."""
    if not _is_option(parameter):
        return (parameter.metavar or parameter.name.upper()).replace("[", "").replace("]", ""), _plain(parameter.help)
    if parameter.name == "help":
        return "--help", f"show this{f'; {ALL} shows every option' if more else ''}"
    word = parameter.metavar or PLACEHOLDERS.get((parameter.display_type(ctx) or "").strip("<>"), "TEXT")
    default_text, default = parameter.show_default, parameter.default
    if not isinstance(default_text, str):
        default_text = (
            "" if not default_text or default is None or default is False or callable(default) else str(default)
        )
    text = _plain(parameter.help)
    return f"{parameter.opts[0]} {word}".strip(), f"{text} [{default_text}]" if default_text else text


def _plain(text: str | None) -> str:
    r"""A help text without rich's escapes, as it stands in the middle of a line.

    >>> _plain("Install completion for the current shell."), _plain(r"gaussian\[:std]")
    ('install completion for the current shell', 'gaussian[:std]')
    """
    words = (text or "").replace("\\[", "[").strip()
    if words.endswith(".") and not words.endswith(".."):
        words = words[:-1]
    return words[:1].lower() + words[1:] if words.partition(" ")[0][1:].islower() else words


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _is_rare(parameter: Any) -> bool:
    """Whether an option is left out of `--help`: in a group, and not among the usual ones."""
    grouped = getattr(parameter, "rich_help_panel", None) is not None
    return _is_option(parameter) and grouped and parameter.name not in USUAL


def complete_model(incomplete: str) -> Iterator[str]:
    """Built-in models and folders, for the shell.

    >>> list(complete_model("zoo:hybrid-"))
    ['zoo:hybrid-mirror']
    """
    for name in NAMES:
        if f"{PREFIX}{name}".startswith(incomplete):
            yield f"{PREFIX}{name}"
    yield from complete_folder(incomplete)


def complete_folder(incomplete: str) -> Iterator[str]:
    """Folders, for the shell."""
    place = Path(incomplete or ".")
    parent = place if incomplete.endswith("/") or not incomplete else place.parent
    try:
        folders = sorted(entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return
    yield from (str(folder) for folder in folders if str(folder).startswith(incomplete))


def complete_task(incomplete: str) -> Iterator[str]:
    """Tasks by name, for the shell.

    >>> list(complete_task("k"))
    ['kvpr']
    """
    yield from (task for task in TASKS if task.startswith(incomplete))
