"""Whole journeys on tiny shapes: every command and public call, with every model, source and dtype, in one process.

CI has every command with two of the six models, and meets every model, source and dtype; `make test-all` has every
pair. The same set runs on the papers' shapes on a GPU: benchmarks/journey.py.
"""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from repflow.models.devices import probe_dtype
from tests.sample import chosen

FILE = Path(__file__).parents[1] / "benchmarks" / "journey.py"
spec = importlib.util.spec_from_file_location("journey", FILE)
journey = importlib.util.module_from_spec(spec)
sys.modules["journey"] = journey
spec.loader.exec_module(journey)
CELLS = journey.covering()
MODELS = len(journey.SHAPES)
IN_CI = [cell for place, cell in enumerate(CELLS) if (place // MODELS - place % MODELS) % 3 == 0]


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return journey.Workshop(tmp_path_factory.mktemp("journeys"), journey.SMALL, "cpu")


def test_every_pair_meets_in_at_most_sixty_cells():
    assert len(CELLS) <= 60
    assert not journey.missing_pairs(CELLS)
    assert journey.missing_pairs(CELLS[1:])


def test_ci_meets_every_command_model_source_and_dtype():
    assert len(IN_CI) == len(CELLS) // 3
    for axis in ("entry", "model", "source", "dtype"):
        assert {getattr(cell, axis) for cell in IN_CI} == {getattr(cell, axis) for cell in CELLS}


@pytest.mark.parametrize("cell", chosen(CELLS, IN_CI), ids=lambda cell: cell.name)
def test_the_journey_ends_well(cell, shop):
    if (why := probe_dtype(getattr(torch, cell.dtype))) is not None:
        pytest.skip(f"this CPU cannot run {cell.dtype}: {why}")
    record = journey.run_cell(cell, shop)
    assert record["code"] == 0, record["said"]
    assert set(record["phases"]) >= {"load", "forward"}
