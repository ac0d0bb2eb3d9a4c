"""One changed bit anywhere in a run folder is found and named; the healed run ends bit-identical."""

import random
import shutil

import pytest

from repflow.store import damaged_shards, heal, load_result, verify
from repflow.store.lock import LOCK_FILE
from tests.faults.store.study import contents, run_study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    parent = tmp_path_factory.mktemp("flips")
    run_study(parent)
    return parent / "run"


def files_of(run):
    return sorted(path for path in run.rglob("*") if path.is_file() and path.name != LOCK_FILE)


def flip(path, rng):
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def test_two_hundred_flips_are_found_and_named(run):
    rng = random.Random(20251115)
    files = files_of(run)
    assert len(files) == 10
    for i in range(200):
        path = files[i % len(files)]
        intact = path.read_bytes()
        flip(path, rng)
        damages = verify(run)
        path.write_bytes(intact)
        assert {damage.file for damage in damages} == {str(path.relative_to(run))}
    assert verify(run) == []


@pytest.mark.parametrize("seed", range(20))
def test_a_flip_is_healed_and_recomputed(run, tmp_path, seed):
    expected = contents(run)
    rng = random.Random(seed)
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    path = files_of(copy)[seed % 10]
    flip(path, rng)
    named = damaged_shards(copy)
    assert named == ([path.stem] if path.parent.name == "shards" else [])
    assert heal(copy)
    run_study(tmp_path)
    assert contents(copy) == expected
    assert verify(copy) == []
    assert heal(copy) == []


def test_a_damaged_shard_leaves_the_result_readable(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    (copy / "shards" / "batch-2.safetensors").write_bytes(b"")
    heal(copy)
    assert load_result(copy)["count"].tolist() == [0, 1, 2, 3, 4, 5]
