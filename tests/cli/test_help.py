"""Help, version and `import repflow` need no torch. How quick that makes them: benchmarks/help.py."""

import json
import subprocess
import sys

import typer

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
ask(["--version"], None)
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
    asked = run("import pandas\n" + EVERY_HELP)
    assert asked["the import"] == ["pandas"]


def test_the_entry_point_loads_nothing_heavy():
    code = f"""
import json, sys
sys.argv = ["repflow", "measure", "--help"]
from repflow.__main__ import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print()
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    assert run(code) == []


def test_a_measurement_loads_nothing_that_it_does_not_use():
    """torch, transformers and what they load themselves; the modeling files of the one model, and no others."""
    others = ("pandas", "plotly", "matplotlib", "xarray", "ray", "zarr", "sklearn")
    code = f"""
import json, sys, transformers.modeling_utils, transformers.models.auto.modeling_auto, transformers.generation
before = set(sys.modules)
import torch, repflow
from transformers import GPT2Config, GPT2LMHeadModel
network = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=16, n_positions=16))
repflow.measure(network, torch.arange(8)[None])
new = set(sys.modules) - before
models = sorted({{n.split(".")[2] for n in new if n.startswith("transformers.models.") and ".modeling_" in n}})
print(json.dumps([sorted(new & set({others!r})), models]))
"""
    modules, models = run(code)
    assert modules == []
    assert models == ["gpt2"]


def test_help_names_every_field_with_its_text(cli, monkeypatch):
    from dataclasses import fields

    from repflow.studies.measure import MeasureConfig

    monkeypatch.setenv("COLUMNS", "400")
    text = cli("measure", "--help").out
    for field in fields(MeasureConfig):
        if field.name != "model":
            assert f"--{field.name.replace('_', '-')}" in text
            assert field.metadata["help"] in text


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
