"""The models and files that docs/make_models.py promises the reader, made once."""

import importlib
import runpy
import shutil

import pytest

from tests.docs.pages import DOCS


@pytest.fixture(scope="session")
def made_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs-models")
    runpy.run_path(str(DOCS / "make_models.py"))["make"](folder)
    return folder


@pytest.fixture
def workplace(made_models, tmp_path, monkeypatch):
    """A working directory as the reader has it after docs/make_models.py."""
    for entry in made_models.iterdir():
        if entry.is_dir():
            (tmp_path / entry.name).symlink_to(entry)
        else:
            shutil.copy(entry, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")  # as wide as the pages are
    # pages show what comes without a network
    monkeypatch.setattr(importlib.import_module("repflow.models.load"), "hub_reachable", lambda: False)
    return tmp_path
