"""What holds for every test: one thread unless OMP_NUM_THREADS says otherwise, and seven savings of time."""

import functools
import gc
import os
import sys
from pathlib import Path

import jaxtyping
import pytest
import typer.testing

from tests.typecheck import checked

# read by torch when it is imported, here and in the processes that tests start
os.environ.setdefault("OMP_NUM_THREADS", "1")

# scripts that tests start import `tests.…` and `tools.…` as the tests themselves do
_PLACES = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _PLACES))

# modules are compiled once, not in each of the processes that tests start
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# the hook of pyproject.toml's --jaxtyping-packages decorates every function with it
jaxtyping.jaxtyped = checked

# a command tree of forty options a command takes longer to build than many of the commands take to run
typer.testing._get_command = functools.cache(typer.testing._get_command)


def _written(fd):
    """As `os.fsync`, without waiting for the disk: only a power cut would show it, and tests/store counts the calls."""
    os.fstat(fd)


os.fsync = _written

# few of the objects that commands and models make are garbage in circles
gc.set_threshold(20_000, 20, 20)

_imported = 0


def _keep_modules():
    """Imported modules stay: no later collection of garbage, and studies ask for many, has to walk through them."""
    global _imported
    if len(sys.modules) != _imported:
        _imported = len(sys.modules)
        gc.collect()
        gc.freeze()


LONGEST = (
    "tests/goldens/test_goldens.py::test_every_command_does_what_was_recorded",
    "tests/mixers/test_triton_scan.py::test_kernels",
    "tests/models/fastpath/test_layers.py::test_layers",
    "tests/studies/scale/test_engines.py::",
)
"""Tests of half a minute and more: at the end one of them would leave a worker alone."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """The longest tests first; all others stay beside their neighbours, with which they share models and runs."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish():
    """What tests import at their top is most of it."""
    _keep_modules()


def pytest_runtest_logfinish():
    """Models, charts and tables are imported by the first test that needs them."""
    _keep_modules()


def pytest_unconfigure():
    """At the end modules are taken apart as ever."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def browser():
    """One for all tests of a worker: playwright refuses a second beside it."""
    from tests.report.page.browser import launch, without

    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        without("no playwright: pip install -e '.[dev]'")
    with sync_playwright() as playwright:
        found = launch(playwright)
        yield found
        found.close()
