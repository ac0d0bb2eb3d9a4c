"""Help, version and `import repflow` need no torch. How quick that makes them: benchmarks/help.py."""

import json
import os
import shlex
import subprocess
import sys

import pytest
import typer

from repflow.cli.commands import ENTRIES
from repflow.core.studies import STUDIES

HEAVY = ("torch", "transformers", "plotly", "pandas", "matplotlib")
EVERY_HELP = f"""
import json, sys
import typer
from typer.testing import CliRunner
from repflow.cli.main import app

def loaded():
    return [name for name in {HEAVY!r} if name in sys.modules]

def ask(words, group):
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (words, result.output)
    asked[" ".join(words)] = loaded()
    for name, command in getattr(group, "commands", {{}}).items():
        ask([*words[:-1], name, "--help"], command)

asked = {{"the import": loaded()}}
ask([], None)
ask(["--version"], None)
ask(["measure", "--help-all"], None)
ask(["--help"], typer.main.get_command(app))
print(json.dumps(asked))
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def words_of(group, before=()):
    """Words of every command and group."""
    for name, command in group.commands.items():
        yield " ".join([*before, name])
        if hasattr(command, "commands"):
            yield from words_of(command, (*before, name))


def test_help_of_every_command_loads_nothing_heavy():
    from repflow.cli.main import app

    asked = run(EVERY_HELP)
    assert asked.keys() >= {f"{words} --help" for words in words_of(typer.main.get_command(app))}
    assert {words: names for words, names in asked.items() if names} == {}


def test_a_heavy_import_would_be_seen():
    """The first question asked behind it names it."""
    asked = run(
        "import sys\nsys.modules['pandas'] = sys\n" + EVERY_HELP.replace('ask(["--help"]', 'None and ask(["--help"]')
    )
    assert asked["the import"] == ["pandas"]


def test_the_entry_point_loads_what_it_shows_and_nothing_heavy():
    """The list of commands needs no study; the help of one needs that one, without numpy."""
    code = f"""
import json, sys
from repflow.__main__ import main

def loaded(*words):
    sys.argv = ["repflow", *words]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
    heavy = [name for name in {(*HEAVY, "numpy")!r} if name in sys.modules]
    studies = [name.split(".")[2] for name in sys.modules if name.startswith("repflow.studies.")]
    return heavy, sorted({{*studies}})

print("\\n" + json.dumps([loaded("--help"), loaded("measure", "--help")]))
"""
    listed, measure = run(code)
    assert listed == [[], []]
    assert measure == [[], ["engine", "measure"]]


def test_no_help_imports_numpy():
    """Every study's module imports it at its start; the entry point defers that until something uses it."""
    code = f"""
import json, sys
from repflow.__main__ import main

loaded = {{}}
for words in {[entry.name for entry in ENTRIES]!r}:
    sys.argv = ["repflow", words, "--help"]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
    loaded[words] = [name for name in ("numpy", "numpy._core") if name in sys.modules]
print("\\n" + json.dumps(loaded))
"""
    assert not {words: names for words, names in run(code).items() if names}


def test_help_names_every_field_with_its_text(cli, monkeypatch):
    from dataclasses import fields

    from repflow.studies.measure import MeasureConfig

    monkeypatch.setenv("COLUMNS", "400")
    text = cli("measure", "--help-all").out
    for field in fields(MeasureConfig):
        if field.name != "model":
            assert f"--{field.name.replace('_', '-')}" in text
            assert field.metadata["help"] in text


def test_help_leaves_out_what_a_command_refuses(cli):
    text = cli("attack", "--help-all").out
    assert "--regions" in text
    assert not {"--text", "--length", "--scan", "--init", "--tokenizer"} & set(text.split())


LINES = 45
"""A screen: of 80 columns."""


def test_help_of_every_command_fits_a_screen(cli, monkeypatch):
    """measure's had 111 lines."""
    from repflow.cli.main import app

    monkeypatch.setenv("COLUMNS", "80")
    for words in ["", *words_of(typer.main.get_command(app))]:
        printed = cli(*words.split(), "--help").out.splitlines()
        assert len(printed) <= LINES, words
        assert all(len(line) <= 80 for line in printed), words
    assert all(len(line) <= 80 for line in cli().out.splitlines())


def test_examples_can_be_copied(cli, monkeypatch):
    """A command that is broken over lines is one command for the shell."""
    monkeypatch.setenv("COLUMNS", "80")
    printed = cli("corrupt", "--help").out.partition("Examples:\n")[2].replace("\\\n", "")
    commands = [shlex.split(line) for line in printed.splitlines()]
    assert [words[:2] for words in commands] == [["repflow", "corrupt"]] * len(commands)
    assert commands[0][-4:-2] == ["--regions", "windows:32,992:1024"]


def test_lists_show_what_they_start_with(cli):
    assert "[none/16, both/16]" in cli("recall", "--help").out


def test_lengths_are_explained_wherever_one_can_be_typed(cli):
    """1K is 1,000: laboratories alone take plain numbers."""
    from repflow.cli.main import app

    plain = {row.command for row in STUDIES if row.trains} | {"theory apply"}
    for words in words_of(typer.main.get_command(app)):
        text = " ".join(cli(*words.split(), "--help-all").out.split())
        if "--length" in text and words not in plain:
            assert "1K is 1,000" in text, words


def test_rare_options_are_behind_help_all(cli):
    short, whole = cli("measure", "--help").out, cli("measure", "--help-all").out
    assert "--cka-pool" not in short
    assert "--cka-pool" in whole
    assert "--help-all" in short
    assert "--task" in short
    assert "What the model reads" in short
    assert len(whole) > 1.5 * len(short)
    assert cli("--help-all").out == cli("--help").out


def test_a_command_of_few_options_shows_them_all(cli):
    assert cli("verify", "--help").out == cli("verify", "--help-all").out
    assert "--trust-remote-code" in cli("verify", "--help").out


def test_a_name_that_begins_like_help_all_is_refused(cli):
    assert cli("measure", "zoo:mamba", "--help-al").code == 2


def test_repflow_alone_shows_the_five_questions(cli):
    from repflow.cli.help import QUESTIONS

    shown = cli()
    assert shown.code == 0
    assert len(QUESTIONS) == 5
    assert all(question in shown.out and command in shown.out for question, command in QUESTIONS)


def test_every_question_names_a_command():
    from repflow.cli.help import QUESTIONS
    from repflow.cli.main import app

    known = {*words_of(typer.main.get_command(app))}
    assert {command.split()[1] for _, command in QUESTIONS} <= known


def test_every_command_has_json():
    """Groups such as zoo have none of their own."""
    from repflow.cli.main import app

    def lacking(group, before=""):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from lacking(command, f"{before}{name} ")
            elif not any("--json" in parameter.opts for parameter in command.params):
                yield f"{before}{name}"

    assert {*lacking(typer.main.get_command(app))} == set()


@pytest.mark.parametrize("words", [["--help"], ["measure", "--help"], ["zoo", "list"], []], ids=" ".join)
def test_no_colours_where_output_is_piped(words):
    plain = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    command = [sys.executable, "-m", "repflow", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=plain | {"TERM": "xterm-256color"})
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["repflow", "mea"], "measure"),
        (["repflow", "measure", "zoo:mam"], "zoo:mamba2"),
        (["repflow", "measure", "--task", "kv"], "kvpr"),
        (["repflow", "theory", "ver"], "verify"),
        (["repflow", "measure", "--len"], "--length"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_the_shell_completes(words, expected):
    ask = {"_REPFLOW_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "from repflow.cli.main import main; import sys; sys.argv = ['repflow']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | ask, check=False
    )
    assert expected in done.stdout.split()


def test_completion_script_is_there():
    ask = {"_REPFLOW_COMPLETE": "source_bash"}
    code = "from repflow.cli.main import main; import sys; sys.argv = ['repflow']; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | ask, check=False
    )
    assert "_REPFLOW_COMPLETE=complete_bash" in done.stdout


def test_commands_are_listed(cli):
    text = cli("--help").out
    for command in ("measure", "compare", "run", "reproduce", "demo", "zoo", "list", "verify", "export", "doctor"):
        assert command in text


def test_version(cli):
    from repflow import __version__

    assert cli("--version").out == f"repflow {__version__}\n"


def test_unknown_option_is_a_wrong_request(cli):
    assert cli("measure", "x", "--lenght", "3").code == 2
    assert cli("run").code == 2
