"""The site's pages on commands and names are whole: made of the command line, of docstrings, and of nothing typed."""

import importlib
import re
import runpy

import pytest

import repflow
from repflow.core.catalogue import ALIASES, METRICS
from tests.docs.pages import DOCS, ROOT

THEORY = (DOCS / "theory.md").read_text(encoding="utf-8")
SHADOWED = re.compile(r"^::: (repflow[\w.]*)$", re.MULTILINE)
PACKAGES = ("metrics", "mixers", "training", "theory", "dynamics", "probes", "tasks")


def test_the_page_of_commands_is_as_the_command_line_has_it():
    maker = runpy.run_path(str(DOCS / "make_commands.py"))
    same = maker["page"]() == maker["COMMANDS_PAGE"].read_text(encoding="utf-8")
    assert same, "run python docs/make_commands.py"


def test_every_command_and_option_is_on_the_page():
    maker = runpy.run_path(str(DOCS / "make_commands.py"))
    text = maker["COMMANDS_PAGE"].read_text(encoding="utf-8")
    for words, command in maker["commands"]():
        section = re.search(rf"^## repflow {words}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, words
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in section[1], f"{words} {parameter.opts[0]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_asked_for(package):
    """A name that a submodule shares is shadowed by it and has to be asked for by its whole path."""
    text = (DOCS / "api" / f"{package}.md").read_text(encoding="utf-8")
    asked = SHADOWED.findall(text)
    assert f"repflow.{package}" in asked
    module = importlib.import_module(f"repflow.{package}")
    files = {file.stem for file in (ROOT / "src" / "repflow" / package).iterdir()}
    shared = [name for name in module.__all__ if name in files and not name.startswith("hypo")]
    assert [name for name in shared if f"repflow.{package}.{name}.{name}" not in asked] == []


def test_the_facade_is_asked_for():
    text = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    members = re.search(r"members: \[(.*)\]", text)[1].split(", ")
    modules = {"dynamics", "errors", "metrics", "mixers", "theory", "training"}
    assert {*members} == {*repflow.__all__} - modules - {"__version__"}
    for name in modules:
        assert f"({name}.md)" in text


@pytest.mark.parametrize("name", sorted({*METRICS, *ALIASES}))
def test_metric_has_a_row_in_the_theory_page(name):
    assert re.search(rf"^\| `{name}` \|", THEORY, re.MULTILINE)


def test_tested_architectures_are_listed():
    from repflow.models.families import FAMILIES

    page = (DOCS / "decoders.md").read_text(encoding="utf-8")
    for kind, family in FAMILIES.items():
        lacks = "–" if family.streams else family.missing
        assert re.search(rf"^\| {kind} \|.*\| {lacks} \| by name \|$", page, re.MULTILINE)
    for file in ("README.md", "docs/alternatives.md"):
        text = (DOCS.parent / file).read_text(encoding="utf-8")
        assert f"{len(FAMILIES)} architectures" in " ".join(text.split())
