"""A study of 200 cells by workers that are killed: `make faults` does it whole, 20 times here and through each engine.

`make test` has small ones with real processes, real Ray and submitit's jobs: test_crew.py and test_engines.py of
tests/studies/scale.
"""

import os

import pytest

from tests.faults.crew_kills import check, every, killed, serial, write_study

FULL = os.environ.get("REPFLOW_FAULTS") == "full"
CELLS, WORKERS, SECONDS = 200, "8", 5.0
ENGINES = {"ray": ["--engine", "ray"], "slurm": ["--engine", "slurm", "--slurm", "cluster=local"]}
RUNS = [*(("local", seed) for seed in range(20)), ("ray", 0), ("slurm", 0)]
pytestmark = pytest.mark.skipif(not FULL, reason="minutes each: make faults")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("crew")
    write_study(place, CELLS)
    serial(place)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "seed"), RUNS)
def test_every_result_once_and_equal_to_a_serial_run(folder, engine, seed):
    out = f"{engine}-{seed}"
    options = ["--workers", WORKERS, *ENGINES.get(engine, [])]
    done, kills = killed(folder, out, options, every(SECONDS), seed)
    assert done.returncode == 0, done.stderr[-3000:]
    assert kills
    check(folder, out, kills)
