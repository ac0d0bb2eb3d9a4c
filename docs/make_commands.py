"""Write docs/commands.md: every command and option, from the command line: `python docs/make_commands.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from repflow.cli.commands import ENTRIES
from repflow.cli.main import app
from repflow.cli.options import panel
from repflow.core.studies import STUDIES

COMMANDS_PAGE = Path(__file__).parent / "commands.md"
HEAD = """# Command line

Written by `docs/make_commands.py` from the commands themselves.

`repflow` alone shows five questions and the command for each; `repflow COMMAND --help` shows its usual options,
`--help-all` every one. `repflow --install-completion` lets the shell complete commands, options, tasks, built-in models
and folders. Colours are for terminals: there are none where output is piped or `NO_COLOR` is set.

`MODEL` is `zoo:NAME`, a folder, a hub id with optional `@revision`, `config:FILE.json` or `FILE.gguf`; by default
built-in ones are used, and named on stderr. Lengths are written 300, 1K (which is 1,000) or 4K.

`--out DIR` (default `./runs`) is a parent folder; each run is `DIR/NAME`. Each command prints where it wrote. Progress
goes to stderr; `--json`, which every command has, prints JSON on stdout and nothing else; for studies one
object per model:
`{run, model, task, metrics: {name: {axes, shape, values}}, findings: [{code, layer, message}], provenance}`.
`repflow run --json` adds `cell`, `status` and `reason`. Exit codes: 0 done, 1 the work failed, 2 the request was wrong,
130 interrupted, 143 terminated. `REPFLOW_DEBUG=1` shows tracebacks and the libraries' warnings.
"""


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its words."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _default(parameter: Any) -> str:
    shown = parameter.show_default
    if isinstance(shown, str):
        return f"`{shown}`"
    default = parameter.default
    if shown is False or default is None or default is False or default == "" or callable(default):
        return ""
    return f"`{default}`"


def _row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in parameter.opts)
    text = re.sub(r"\\(?=\[)", "", parameter.help or "").replace("|", "\\|").strip()
    return f"| {names} | {_default(parameter)} | {text} |"


def _section(words: str, command: Any) -> str:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    options = [each for each in shown if each.param_type_name == "option"]
    arguments = " ".join(each.metavar or each.name.upper() for each in shown if each not in options)
    text = inspect.cleandoc(command.help or "").split("\f")[0].strip()
    lines = [f"## repflow {words}", "", f"`repflow {words}{f' {arguments}' if arguments else ''}`", "", text, ""]
    groups: dict[str, list[Any]] = {}
    for option in options:
        groups.setdefault(panel(option.name) or "", []).append(option)
    if options:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for title, members in groups.items():
            lines += [f"| **{title}** | | |"] if title else []
            lines += [_row(option) for option in members]
        lines += [""]
    own = {row.command: row.examples for row in STUDIES} | {entry.name: entry.examples for entry in ENTRIES}
    for example in own.get(words, ()):
        line, _, said = example.partition("    ")
        lines += [f"- `{line}`{f': {said}' if said else ''}"]
    return "\n".join(lines).rstrip() + "\n"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(_section(words, command) for words, command in commands())])


if __name__ == "__main__":
    COMMANDS_PAGE.write_text(page(), encoding="utf-8")
    print(COMMANDS_PAGE)
