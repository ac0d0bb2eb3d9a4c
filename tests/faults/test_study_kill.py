"""Studies and trainings that are killed between two shards or steps: what is stored counts, the rest is bit-identical.

The children of one process are many: REPFLOW_FAULTS=full kills the larger number of them.
"""

import json
import os

import pytest

from tests import warm
from tests.faults import measure_kills, needle_kills, probe_kills, training_kills

FULL = os.environ.get("REPFLOW_FAULTS") == "full"


@pytest.mark.parametrize(
    ("script", "few", "many", "midway"),
    [(measure_kills, 12, 100, 2), (probe_kills, 4, 60, 3), (needle_kills, 4, 40, 3), (training_kills, 9, 90, 2)],
    ids=["measure", "probe", "needle", "training"],
)
def test_killed_children_resume_bit_identical(tmp_path, script, few, many, midway):
    kills = many if FULL else few
    process = warm.Process(script.main, tmp_path, kills, cwd=tmp_path)
    out, err = process.communicate()
    assert process.returncode == 0, err
    content = json.loads(out)
    assert content["kills"] >= kills
    assert content["midway"] >= kills // midway
    assert content["different"] == []
    assert content.get("cuts", 5) == 5
    assert len(set(content.get("steps", range(3)))) >= 3
