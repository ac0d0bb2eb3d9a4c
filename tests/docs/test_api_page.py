"""docs/api.md names every public name, command and option; docs/theory.md every metric."""

import re

import pytest
import typer

import repflow
from repflow.cli.main import app
from repflow.core.catalogue import ALIASES, METRICS
from tests.docs.pages import DOCS

API = (DOCS / "api.md").read_text(encoding="utf-8")
THEORY = (DOCS / "theory.md").read_text(encoding="utf-8")
GUARANTEES = (DOCS / "guarantees.md").read_text(encoding="utf-8")


def flat(group, before=""):
    """Commands by name, those of a group under `group command`."""
    found = {}
    for name, command in group.commands.items():
        found |= flat(command, f"{name} ") if hasattr(command, "commands") else {f"{before}{name}": command}
    return found


COMMANDS = flat(typer.main.get_command(app))


def section(command):
    """Part of the page about one command."""
    match = re.search(rf"^### repflow {command}\n(.*?)(?=^##|\Z)", API, re.MULTILINE | re.DOTALL)
    assert match is not None, f"docs/api.md has no section 'repflow {command}'"
    return match[1]


@pytest.mark.parametrize("name", sorted({*repflow.__all__, *dir(repflow)} - {"__version__"}))
def test_public_name_is_documented(name):
    assert f"`repflow.{name}" in API


@pytest.mark.parametrize("name", repflow.metrics.__all__)
def test_metric_function_is_documented(name):
    assert f"`{name}(" in API


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_command_and_its_options_are_documented(command):
    text = section(command)
    for parameter in COMMANDS[command].params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            assert f"`{parameter.opts[0]}`" in text, f"{command} {parameter.opts[0]}"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_documented_options_exist(command):
    known = {option for parameter in COMMANDS[command].params for option in parameter.opts}
    named = set(re.findall(r"^\| `(--[\w-]+)`", section(command), re.MULTILINE))
    assert named <= known


def test_no_command_is_invented():
    assert set(re.findall(r"^### repflow (\w+(?: \w+)?)$", API, re.MULTILINE)) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted({*METRICS, *ALIASES}))
def test_metric_has_a_row_in_the_theory_page(name):
    assert re.search(rf"^\| `{name}` \|", THEORY, re.MULTILINE)


def test_tested_architectures_are_listed():
    from repflow.models.repair import EMBEDDING_MISSING, LAST_BLOCK_MISSING

    for kind in EMBEDDING_MISSING | LAST_BLOCK_MISSING:
        assert f"| {kind} |" in GUARANTEES
