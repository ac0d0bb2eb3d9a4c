"""A study of small cells on two tiny models, and its results by one process: made once for all tests of workers."""

import os
from pathlib import Path

import pytest

from repflow.core.errors import command_line
from repflow.studies.engine.cells import run_cells
from repflow.studies.engine.grid import read_study
from repflow.studies.scale.order import Order
from tests.faults.crew_kills import NAME, check, write_study

CELLS = 16


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """Working folder with models, study and the serial results."""
    folder = tmp_path_factory.mktemp("shop")
    write_study(folder, CELLS)
    before = Path.cwd()
    os.chdir(folder)
    try:
        cells = read_study(f"{NAME}.toml").cells
        with command_line():
            outcomes = list(run_cells(cells, folder / "serial" / NAME))
    finally:
        os.chdir(before)
    assert {outcome.status for outcome in outcomes} == {"finished"}
    return folder


@pytest.fixture
def order(shop, request, monkeypatch):
    """The study's work, in a folder of the test's own."""
    monkeypatch.chdir(shop)
    return Order(shop / request.node.name / NAME, read_study(f"{NAME}.toml").cells)


@pytest.fixture
def same(shop, request):
    """Compares results with the serial ones, byte by byte."""
    return lambda kills=0: check(shop, request.node.name, kills)
