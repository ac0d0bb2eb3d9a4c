import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from repflow.core.errors import ConfigChangedError, DamagedRunError, InputError, StoreError
from repflow.core.results import Finding, Result
from repflow.store import RunFolder, load_result, read_record

CONFIG = {"model": "gpt2", "length": 512, "metrics": ("a", "b"), "nested": {"depth": 1}}
PROVENANCE = {"digests": {"weights": "aa"}, "threads": 2}


def open_run(parent, name="run", *, config=CONFIG, provenance=PROVENANCE):
    return RunFolder.open(parent, name, config=config, provenance=provenance)


def result(**arrays):
    arrays = arrays or {"token_similarity": np.array([0.5, np.nan], np.float32)}
    return Result(arrays, {name: tuple(f"axis{i}" for i in range(a.ndim)) for name, a in arrays.items()})


def test_a_resumed_run_has_its_shards_events_and_meta(tmp_path):
    with open_run(tmp_path) as run:
        run.record("plan", {"batches": [[0, 1], [2]]})
        run.write_shard("b", {"x": np.arange(3)}, {"samples": [0, 1]})
        run.write_shard("a", {"x": np.arange(4)})
        run.record("split", {"batch": 0})
    with open_run(tmp_path) as run:
        assert run.shards() == ["b", "a"]
        assert run.shard_meta("b") == {"samples": [0, 1]}
        assert run.shard_meta("a") == {}
        assert run.events("plan") == [{"batches": [[0, 1], [2]]}]
        assert run.events("split") == [{"batch": 0}]
        assert run.events("none") == []
        assert run.read_shard("b")["x"].tolist() == [0, 1, 2]
        assert not run.finished
        assert run.resumed_with == []


dtypes = st.sampled_from(["f2", "f4", "f8", "i1", "i4", "i8", "u1", "u8", "?"])
arrays = dtypes.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))


@settings(max_examples=50, deadline=None)
@given(first=arrays, second=arrays)
def test_shards_and_results_come_back_exactly(tmp_path_factory, first, second):
    parent = tmp_path_factory.mktemp("exact")
    given_arrays = {"first": first, "norm>10/second": second, "transposed": second.T, "big-endian": first.astype(">f8")}
    with open_run(parent) as run:
        run.write_shard("s", given_arrays)
        run.finish(result(**given_arrays))
        for back in (run.read_shard("s"), load_result(run.path)):
            assert set(back) == set(given_arrays)
            for name, array in given_arrays.items():
                assert back[name].dtype == array.dtype.newbyteorder("=")
                assert back[name].shape == array.shape
                assert np.ascontiguousarray(back[name]).tobytes() == native(array).tobytes()


def native(array):
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))


def test_nan_payload_and_infinities_survive(tmp_path):
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    odd_nan = np.array([0x7FF8000000000123], np.uint64).view(np.float64)
    with open_run(tmp_path) as run:
        run.finish(result(odd=odd, odd_nan=odd_nan))
    back = load_result(tmp_path / "run")
    assert back["odd"].tobytes() == odd.tobytes()
    assert back["odd_nan"].tobytes() == odd_nan.tobytes()


def test_a_result_comes_back_with_everything(tmp_path):
    whole = Result(
        {"m": np.arange(6.0).reshape(2, 3), "final_norm/m": np.ones((1, 3), np.float32)},
        {"m": ("state", "sample"), "final_norm/m": ("state", "sample")},
        {"length": 512},
        {"token_strings": [["a", "é", "\ud800", "</script>"]], "ratio": float("nan"), "n": np.int64(3)},
        [Finding("sink", 3, "one token"), Finding("slow", None, "a path")],
    )
    whole.band("m")
    with open_run(tmp_path) as run:
        run.finish(whole)
        assert run.finished
    back = load_result(str(tmp_path / "run"))
    assert list(back) == ["m", "final_norm/m"]
    assert back.axes == whole.axes
    assert back.config == whole.config
    assert back.provenance == {"token_strings": [["a", "é", "\ud800", "</script>"]], "ratio": None, "n": 3}
    assert back.findings == whole.findings
    for part in ("mean", "low", "high"):
        assert np.array_equal(getattr(back.bands["m"], part), getattr(whole.bands["m"], part))


def test_result_json_is_strict_and_spells_out_small_arrays(tmp_path):
    with open_run(tmp_path) as run:
        run.finish(result(small=np.array([1.5, np.nan, np.inf]), large=np.zeros(5000), none=np.zeros((0, 2))))

    def refuse(token):
        raise AssertionError(token)

    text = (tmp_path / "run" / "result.json").read_text()
    metrics = json.loads(text, parse_constant=refuse)["metrics"]
    assert metrics["small"]["values"] == [1.5, None, None]
    assert metrics["large"] == {
        "axes": ["axis0"], "shape": [5000], "dtype": "float64", "values_in": "result.safetensors"
    }  # fmt: skip
    assert metrics["none"]["shape"] == [0, 2]


def test_equal_results_are_equal_bytes(tmp_path):
    for name in ("one", "two"):
        with open_run(tmp_path, name) as run:
            run.finish(result(**{f"m{i}": np.full(3, i, ["f4", "f8", "i8"][i % 3]) for i in range(20)}))
    for file in ("result.json", "result.safetensors"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_finishing_again_replaces_the_result(tmp_path):
    with open_run(tmp_path) as run:
        run.finish(result(m=np.zeros(1)))
        run.finish(result(m=np.ones(1)))
        assert run.finished
    assert load_result(tmp_path / "run")["m"] == [1.0]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"length": 1024}, r"config key 'length': stored 512, requested 1024; use another name or delete"),
        (CONFIG | {"nested": {"depth": 2}}, r"config key 'nested.depth': stored 1, requested 2"),
        (CONFIG | {"new": None}, r"config key 'new': stored \(absent\), requested None"),
        ({k: v for k, v in CONFIG.items() if k != "model"}, r"'model': stored 'gpt2', requested \(absent\)"),
        (CONFIG | {"metrics": ["a"]}, r"'metrics': stored \['a', 'b'\], requested \['a'\]"),
        (CONFIG | {"nested": {"depth": True}}, r"'nested.depth': stored 1, requested True"),
    ],
)
def test_another_config_is_refused_with_the_key(tmp_path, config, message):
    open_run(tmp_path).close()
    with pytest.raises(ConfigChangedError, match=message):
        open_run(tmp_path, config=config)
    open_run(tmp_path).close()  # the refusal left no lock


def test_other_digests_are_refused(tmp_path):
    open_run(tmp_path).close()
    with pytest.raises(ConfigChangedError, match="digest key 'weights': stored 'aa', requested 'bb'"):
        open_run(tmp_path, provenance={"digests": {"weights": "bb"}, "threads": 2})


def test_other_provenance_is_recorded(tmp_path):
    open_run(tmp_path).close()
    with open_run(tmp_path, provenance=PROVENANCE | {"threads": 8}) as run:
        assert run.resumed_with == ["threads: stored 2, now 8"]
        assert run.events("resumed") == [{"changes": ["threads: stored 2, now 8"]}]
        assert run.provenance["threads"] == 2


def test_a_resume_with_other_versions_is_a_finding_of_the_result(tmp_path):
    open_run(tmp_path).close()
    for threads in (8, 8, 2):  # the last as at first
        open_run(tmp_path, provenance=PROVENANCE | {"threads": threads}).close()
    with open_run(tmp_path) as run:
        run.finish(result())
        run.finish(load_result(run.path))
    assert load_result(run.path).findings == [Finding("resumed", None, "resumed with threads: stored 2, now 8")]


def test_a_strangers_folder_is_not_touched(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match=r"a run or an empty folder .*thesis.txt.*use another name"):
        open_run(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a file"):
        open_run(tmp_path, "file")
    with pytest.raises(InputError, match="cannot write"):
        open_run(tmp_path / "file", "run")


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "run").mkdir()
    open_run(tmp_path).close()
    assert read_record(tmp_path / "run").config == CONFIG | {"metrics": ["a", "b"]}


@pytest.mark.parametrize("config", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}])
def test_a_config_that_json_cannot_hold_leaves_nothing_behind(tmp_path, config):
    with pytest.raises(InputError, match="config of finite numbers"):
        open_run(tmp_path, config=config)
    assert not list(tmp_path.iterdir())


def fail(run, *, shard):
    if shard:
        run.write_shard("one", {"x": np.zeros(1)})
    run.record("plan", {"batches": []})
    raise InputError("a metric that cannot run")


def test_a_run_that_fails_before_it_stores_anything_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError), open_run(tmp_path) as run:
        fail(run, shard=False)
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_later_or_was_there_before_stays(tmp_path):
    with pytest.raises(InputError), open_run(tmp_path) as run:
        fail(run, shard=True)
    with open_run(tmp_path) as run:
        assert run.shards() == ["one"]
        run.discard_shard("one", "for the test")
    with pytest.raises(InputError), open_run(tmp_path) as run:
        fail(run, shard=False)
    assert (tmp_path / "run").is_dir()


def test_shard_mistakes(tmp_path):
    with open_run(tmp_path) as run:
        run.write_shard("one", {"x": np.zeros(1)})
        with pytest.raises(InputError, match="call discard_shard first"):
            run.write_shard("one", {"x": np.zeros(1)})
        with pytest.raises(InputError, match="shard name"):
            run.write_shard("../one", {"x": np.zeros(1)})
        with pytest.raises(InputError, match=r"'text'.*dtype <U1"):
            run.write_shard("two", {"text": np.array(["a"])})
        with pytest.raises(InputError, match="did you mean one"):
            run.read_shard("on")
        with pytest.raises(InputError, match="kind of event of your own"):
            run.record("shard", {})
        assert run.shards() == ["one"]
        assert [path.name for path in (run.path / "shards").iterdir()] == ["one.safetensors"]


def test_discarded_shards_are_written_again(tmp_path):
    with open_run(tmp_path) as run:
        run.write_shard("one", {"x": np.zeros(1)})
        run.write_shard("two", {"x": np.zeros(1)})
        run.finish(result())
        run.discard_shard("one", "test")
        assert not run.has_shard("one")
        assert not run.finished  # the command must go through the shards again
        run.write_shard("one", {"x": np.ones(1)})
        run.finish(result())
        assert run.finished
    with open_run(tmp_path) as run:
        assert run.shards() == ["two", "one"]
        assert run.read_shard("one")["x"] == [1.0]
        assert run.finished


def test_a_file_without_a_line_is_ignored_and_stale_temporaries_go(tmp_path):
    with open_run(tmp_path) as run:
        run.write_shard("one", {"x": np.zeros(1)})
    shards = tmp_path / "run" / "shards"
    (shards / "two.safetensors").write_bytes(b"half a file")
    (shards / "two.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "run" / "result.json.tmp").write_bytes(b"half")
    with open_run(tmp_path) as run:
        assert not run.has_shard("two")
        assert not list(run.path.rglob("*.tmp"))
        run.write_shard("two", {"x": np.ones(1)})
        assert run.read_shard("two")["x"] == [1.0]


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_shard_says_the_remedy(tmp_path, harm):
    with open_run(tmp_path) as run:
        run.write_shard("one", {"x": np.zeros(1)})
        path = run.path / "shards" / "one.safetensors"
        raw = bytearray(path.read_bytes())
        raw[-1] ^= 1
        path.unlink() if harm == "remove" else path.write_bytes(raw if harm == "flip" else raw[:-1])
        with pytest.raises(DamagedRunError, match=r"shard 'one' .*`repflow verify --repair"):
            run.read_shard("one")


def test_a_damaged_result_is_not_finished(tmp_path):
    with open_run(tmp_path) as run:
        run.finish(result())
        (run.path / "result.json").write_text("{}")
        assert not run.finished
        with pytest.raises(DamagedRunError, match=r"result.json.*verify --repair"):
            load_result(run.path)
        run.finish(result())
        assert run.finished
        assert list(load_result(run.path)) == ["token_similarity"]


def test_reading_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nothing there"):
        load_result(tmp_path / "none")
    with pytest.raises(InputError, match="a folder without a run"):
        load_result(tmp_path)
    open_run(tmp_path).close()
    with pytest.raises(InputError, match="unfinished"):
        load_result(tmp_path / "run")


def test_a_closed_run_refuses_writes(tmp_path):
    run = open_run(tmp_path)
    run.close()
    run.close()
    for write in (lambda: run.record("plan", {}), lambda: run.write_shard("a", {}), lambda: run.finish(result())):
        with pytest.raises(StoreError, match="open it again"):
            write()
    assert not (run.path / "shards").exists()


def test_a_format_of_the_future_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("repflow.store.record.VERSION", 99)
        open_run(tmp_path).close()
    with pytest.raises(StoreError, match="version 99; install a newer repflow"):
        open_run(tmp_path)


def test_the_store_needs_no_torch():
    import subprocess
    import sys

    code = "import sys, repflow.store; sys.exit(sum(m in sys.modules for m in ('torch', 'pandas', 'xarray', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="names files through /proc")
def test_the_order_of_writes_survives_a_power_cut(tmp_path, monkeypatch):
    """A kill cannot show a missing fsync, as the kernel keeps what was written; so the calls themselves are checked."""
    calls = []

    def spy(name, describe):
        real = getattr(os, name)

        def call(*args, **kwargs):
            calls.append((name, describe(args[0])))
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)

    with open_run(tmp_path) as run:
        run.write_shard("first", {"x": np.zeros(1)})  # makes the folder of shards
        for name in ("write", "fsync"):
            spy(name, lambda fd: Path(f"/proc/self/fd/{fd}").readlink().name)
        spy("replace", lambda path: Path(path).name)
        run.write_shard("s", {"x": np.zeros(1)})
    assert calls == [
        ("write", "s.safetensors.tmp"),
        ("fsync", "s.safetensors.tmp"),
        ("replace", "s.safetensors.tmp"),
        ("fsync", "shards"),
        ("write", "manifest.jsonl"),
        ("fsync", "manifest.jsonl"),
    ]
