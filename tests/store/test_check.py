import json

import numpy as np
import pytest

from repflow.core.errors import DamagedRunError, InputError, RunLockedError
from repflow.core.results import Result
from repflow.store import Damage, RunFolder, damaged_shards, heal, read_record, verify
from repflow.store.manifest import is_complete, read_manifest


def open_run(parent):
    return RunFolder.open(parent, "run", config={"length": 8}, provenance={})


@pytest.fixture
def folder(tmp_path):
    with open_run(tmp_path) as run:
        run.record("plan", {"batches": 3})
        for i in range(3):
            run.write_shard(f"s{i}", {"x": np.full(2, i)})
        run.finish(Result({"m": np.zeros(2)}, {"m": ("state",)}))
    return tmp_path / "run"


def lines(folder):
    return (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)


def write_lines(folder, kept):
    (folder / "manifest.jsonl").write_bytes(b"".join(kept))


def test_a_sound_run_has_no_damage(folder):
    assert verify(folder) == []
    assert heal(folder) == []


def test_every_kind_of_damage_is_named(folder):
    (folder / "shards" / "s0.safetensors").unlink()
    (folder / "shards" / "s1.safetensors").write_bytes(b"short")
    (folder / "result.safetensors").unlink()
    (folder / "run.json").write_text("{}")
    size = len((folder / "shards" / "s2.safetensors").read_bytes())
    damages = verify(folder)
    assert damages == [
        Damage("run.json", "content does not match its checksum"),
        Damage("shards/s0.safetensors", "missing", "s0"),
        Damage("shards/s1.safetensors", f"5 bytes instead of {size}", "s1"),
        Damage("result.safetensors", "missing"),
    ]
    assert str(damages[1]) == "shards/s0.safetensors: missing"
    assert damaged_shards(folder) == ["s0", "s1"]


def test_heal_discards_what_is_damaged_and_keeps_the_rest(folder, tmp_path):
    (folder / "shards" / "s1.safetensors").write_bytes(b"short")
    (folder / "result.json").unlink()
    assert [damage.file for damage in heal(folder)] == ["shards/s1.safetensors", "result.json"]
    with open_run(tmp_path) as run:
        assert run.shards() == ["s0", "s2"]
        assert not run.finished
        assert run.events("discard") == [{"name": "s1", "reason": "damaged"}]
    assert verify(folder) == []


def test_without_its_result_a_run_is_not_complete(folder):
    """Nothing else is damaged: the line that says so is all that keeps a study from taking it for finished."""
    assert is_complete(read_manifest(folder).good)
    (folder / "result.json").unlink()
    assert heal(folder) == [Damage("result.json", "missing")]
    assert read_manifest(folder).good[-1].kind == "discard_result"
    assert not is_complete(read_manifest(folder).good)


def test_run_json_and_the_first_line_rebuild_each_other(folder, tmp_path):
    original = (folder / "run.json").read_bytes()
    (folder / "run.json").unlink()
    assert read_record(folder).config == {"length": 8}
    with pytest.raises(DamagedRunError, match=r"run.json is damaged; .*--repair"):
        open_run(tmp_path)
    heal(folder)
    assert (folder / "run.json").read_bytes() == original

    stored_lines = lines(folder)
    write_lines(folder, [stored_lines[0].replace(b"length", b"lengtH"), *stored_lines[1:]])
    assert [damage.file for damage in verify(folder)] == ["manifest.jsonl"]
    heal(folder)
    assert verify(folder) == []
    with open_run(tmp_path) as run:
        assert run.shards() == ["s0", "s1", "s2"]


def test_both_copies_damaged_cannot_be_repaired(folder):
    stored_lines = lines(folder)
    write_lines(folder, [stored_lines[0].replace(b"length", b"lengtH"), *stored_lines[1:]])
    (folder / "run.json").write_text("{}")
    with pytest.raises(DamagedRunError, match="cannot be repaired: delete the folder"):
        heal(folder)


def test_a_damaged_middle_line_is_reported_not_cut(folder, tmp_path):
    stored_lines = lines(folder)
    stored_lines[3] = stored_lines[3].replace(b'"bytes":', b'"bytez":')
    write_lines(folder, stored_lines)
    with pytest.raises(DamagedRunError, match=r"manifest.jsonl: line 4 does not match its checksum.*--repair"):
        open_run(tmp_path)
    assert lines(folder) == stored_lines
    assert heal(folder) == [Damage("manifest.jsonl", "line 4 does not match its checksum")]
    with open_run(tmp_path) as run:
        assert run.shards() == ["s0", "s2"]
        assert not run.finished


def test_a_lost_plan_takes_what_followed_it_along(folder, tmp_path):
    stored_lines = lines(folder)
    write_lines(folder, [stored_lines[0], stored_lines[1].replace(b"3", b"4"), *stored_lines[2:]])
    heal(folder)
    with open_run(tmp_path) as run:
        assert run.events("plan") == []
        assert run.shards() == []


@pytest.mark.parametrize(("change", "left"), [("join", ["s1", "s2"]), ("split", ["s1", "s2"]), ("drop", [])])
def test_joined_split_and_missing_lines(folder, tmp_path, change, left):
    stored_lines = lines(folder)
    if change == "join":  # the newline between s0 and s1 flips: both are lost
        stored_lines[2] = stored_lines[2][:-1] + b"\x0b"
        left = ["s2"]
    elif change == "split":
        stored_lines[2] = stored_lines[2].replace(b'"bytes"', b'"byt\ns"')
    else:  # nothing tells what the missing line was
        del stored_lines[2]
    write_lines(folder, stored_lines)
    broken = ["line 3 does not match its checksum", "line 4 does not match its checksum"]
    told = {"join": broken[:1], "split": broken, "drop": ["1 line is missing before line 3"]}[change]
    assert verify(folder) == [Damage("manifest.jsonl", words) for words in told]
    heal(folder)
    assert verify(folder) == []
    assert [entry.seq for entry in read_manifest(folder).good] == list(range(len(lines(folder))))
    with open_run(tmp_path) as run:
        assert run.shards() == left


def test_missing_manifest(folder, tmp_path):
    (folder / "manifest.jsonl").unlink()
    assert verify(folder) == [Damage("manifest.jsonl", "missing")]
    heal(folder)
    with open_run(tmp_path) as run:
        assert run.shards() == []
    assert verify(folder) == []


def test_files_of_two_runs_mixed_up(folder, tmp_path):
    RunFolder.open(tmp_path, "other", config={"length": 9}, provenance={}).close()
    (folder / "run.json").write_bytes((tmp_path / "other" / "run.json").read_bytes())
    assert verify(folder) == [Damage("run.json", "differs from its copy in the manifest")]
    with pytest.raises(DamagedRunError, match="different runs"):
        open_run(tmp_path)
    with pytest.raises(DamagedRunError, match="different runs"):
        heal(folder)


def test_verify_and_heal_elsewhere(tmp_path):
    for function in (verify, heal, damaged_shards):
        with pytest.raises(InputError, match="expected a run folder"):
            function(tmp_path)


def test_heal_waits_for_the_writer(folder, tmp_path):
    (folder / "shards" / "s1.safetensors").unlink()
    with open_run(tmp_path), pytest.raises(RunLockedError):
        heal(folder)


def test_a_manifest_cannot_point_outside(folder, tmp_path):
    from repflow.store.manifest import encode

    evil = {"name": "../../secret", "file": "x", "bytes": 1, "sha256": "0", "meta": {}}
    write_lines(folder, [*lines(folder), encode(6, "shard", evil)])
    with pytest.raises(InputError, match="shard name"):
        verify(folder)


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_lines_cut_off_at_the_end_are_noticed(folder, tmp_path, kept):
    whole = lines(folder)
    write_lines(folder, whole[:kept])
    count = len(whole) - kept
    words = (
        "1 line is missing at the end, which was" if count == 1 else f"{count} lines are missing at the end, which were"
    )
    missing = f"{words} there when it was last written"
    assert Damage("manifest.jsonl", missing) in verify(folder)
    heal(folder)
    assert verify(folder) == []


def test_a_damaged_last_line_is_not_missing_too(folder):
    whole = lines(folder)
    write_lines(folder, [*whole[:-1], whole[-1].replace(b"1", b"2", 1)])
    assert verify(folder) == [Damage("manifest.jsonl", f"line {len(whole)} does not match its checksum")]


def test_a_run_of_an_older_version_has_no_count_of_lines(folder):
    (folder / ".repflow.lock").write_text('{"pid": 1, "host": "a"}')
    write_lines(folder, lines(folder)[:2])
    assert verify(folder) == []


def test_a_run_that_was_killed_before_its_first_line_is_sound(tmp_path):
    open_run(tmp_path).close()
    run = tmp_path / "run"
    for rest in (b"", (run / "manifest.jsonl").read_bytes()[:20]):
        (run / "manifest.jsonl").write_bytes(rest)
        (run / ".repflow.lock").write_bytes(b"")
        assert verify(run) == []
        assert heal(run) == []
    (run / "manifest.jsonl").unlink()
    assert verify(run) == []
    with open_run(tmp_path) as opened:
        assert opened.shards() == []


WRONG = (
    {},
    [],
    {"metrics": {"other": {"axes": ["state"]}}},
    {"metrics": {"m": 3}},
    {"findings": [{"code": 1, "x": 2}]},
)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_result_with_digests_that_fit_what_we_never_wrote(folder, monkeypatch, wrong):
    """Whoever can write a file can write its digest."""
    from repflow.store import load_result, outcome

    real = outcome.read_stamped

    def resealed(path, stamp):
        raw, fault = real(path, stamp)
        if path.name != "result.json":
            return raw, fault
        whole = {**json.loads(raw), **wrong} if wrong and isinstance(wrong, dict) else wrong
        return json.dumps(whole).encode(), None

    monkeypatch.setattr(outcome, "read_stamped", resealed)
    with pytest.raises(DamagedRunError, match=r"(?s)does not describe a result: .*; `repflow verify --repair"):
        load_result(folder)
