"""The recall laboratory's study: claims judged on simulated trainings whose truth is known, phases, parts to carry."""

import json
from pathlib import Path

import numpy as np
import pytest

from repflow.store.claims.attempt import OWN
from repflow.store.claims.ledger import Entry, Kind, add_entry, attempt_name, last_entry
from repflow.store.claims.liveness import Watch, Worker
from repflow.store.claims.place import FolderPlace
from tests.tools.phases import carried, program
from tools import carry
from tools.phases import trained_cells
from tools.recall import claims, run
from tools.recall.claims import CLAIMS, FACTORS, SWITCHES, Study, read_study

PAIRS = (16, 32, 64)


def simulated(pole=1.0, state=0.2, fixed=0.0, deep=-0.5, follows=True, seeds=5):
    """Trainings with these log-odds; reach and similarity follow the poles, or are noise."""
    rng, cells = np.random.default_rng(0), []
    for seed in range(seeds):
        luck = 0.3 * rng.standard_normal()
        for row, (more, frozen, at_poles) in SWITCHES.items():
            for layers in (2, 4):
                odds = luck + pole * at_poles + state * more + fixed * frozen + deep * (layers == 4)
                odds = odds + 0.05 * rng.standard_normal(3) + np.array([2.0, 1.0, 0.0])
                reach = 10 * np.exp((0.7 * at_poles + 0.3 * more) * follows + 0.05 * rng.standard_normal())
                similar = 0.5 - 0.2 * odds[2] * follows + 0.01 * rng.standard_normal()
                cells.append(
                    {
                        **{"row": row, "layers": layers, "seed": seed, "accuracy": (1 / (1 + np.exp(-odds))).tolist()},
                        **{"half_reach": reach, "token_similarity": [0.1, *[similar] * layers, *[None] * (4 - layers)]},
                    }
                )
    return Study(cells, PAIRS)


def words(study):
    return [claim.verdict(study)[0] for claim in CLAIMS]


def test_what_is_true_of_simulated_trainings_is_said():
    assert words(simulated()) == ["holds"] * 8


def test_what_is_false_of_them_is_said_too():
    said = words(simulated(pole=-1.0, state=0.5, fixed=1.0, deep=0.5))
    assert said[:4] == ["does not hold"] * 4
    assert words(simulated(pole=0.0, state=0.8))[1] == "does not hold"


def test_noise_decides_nothing_and_no_data_is_open():
    said = words(simulated(pole=0.0, state=0.0, deep=0.0, follows=False))
    assert said[2] == "holds"  # that fixed decays change nothing
    assert {*said[:2], *said[3:]} <= {"open", "partly holds"}
    assert said.count("open") >= 6
    assert {claim.verdict(None) for claim in CLAIMS} == {("open", "not run")}


def test_effects_are_those_that_were_put_in():
    study = simulated(pole=1.2, state=0.3, fixed=-0.4, deep=-0.6)
    fitted = study.effects(study.odds(2))
    for name, true in zip((*FACTORS, "4 layers"), (0.3, -0.4, 1.2, -0.6), strict=True):
        assert fitted[name].mean == pytest.approx(true, abs=0.15)
    assert study.at_depth(fitted, FACTORS[2], 4).mean == pytest.approx(1.2, abs=0.15)


def test_the_page_reads_what_is_stored_and_takes_no_half_finished_phase():
    cells = [dict(cell) for cell in simulated().cells]
    whole = {"core-seeds": {"cells": cells, "recall": {"pairs": list(PAIRS)}}}
    assert read_study(json.loads(json.dumps(whole))).pairs == list(PAIRS)
    assert read_study({"core-seeds": {"unfinished": True, "cells": []}}) is None
    assert read_study({}) is None


SMALL = ["--steps", "3", "--lengths", "16", "--vocabulary", "32", "--batch", "2"]
SMALL += ["--test-rows", "2", "--rates", "0.01,0.02"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "LAYERS", (1,))
    monkeypatch.setattr(run, "SEEDS", range(1, 3))
    monkeypatch.setitem(run.ROWS, "core", ("right", ("none/4", "both/4")))
    return program(run, monkeypatch)


@pytest.mark.slow  # CI has those of the token laboratory, by the same tools/phases.py
def test_phases_follow_one_another_and_are_carried_half_done(small, tmp_path, capsys):
    here = carried(small, SMALL, ("screen", "confirm", "seeds"), "core", tmp_path, capsys)
    small("table", "--out", here, "--to", tmp_path / "numbers.json")
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert [len(numbers[f"core-{phase}"]["cells"]) for phase in ("screen", "confirm", "seeds")] == [4, 4, 4]
    assert {cell["seed"] for cell in numbers["core-seeds"]["cells"]} == {1, 2}
    assert "half_reach" in numbers["core-seeds"]["cells"][0]


def test_parts_are_small_and_half_trained_models_stay_behind_where_they_do_not_fit(tmp_path):
    runs, parts, again = (tmp_path / name for name in ("runs", "parts", "again"))
    (runs / "a").mkdir(parents=True)
    (runs / "a" / "result").write_bytes(bytes(3000))
    far, near = (
        ".repflow/work/a.2-of-2@1/a.training/group-001/checkpoint-000000400",
        "a.training/group-000/checkpoint-200",
    )
    for name in (far, near):
        (runs / name).parent.mkdir(parents=True)
        (runs / name).write_bytes(bytes(50_000))
    assert "runs and 2 of 2 half-trained models: 0.1 MiB" in carry.pack(runs, parts, part=20_000, parts=8)
    assert max(file.stat().st_size for file in parts.iterdir()) <= 20_000
    again.mkdir()
    carry.unpack(parts, again)
    assert (again / near).read_bytes() == (again / far).read_bytes() == bytes(50_000)
    assert "runs and 1 of 2 half-trained models" in carry.pack(runs, parts, part=20_000, parts=4)
    carry.unpack(parts, tmp_path / "some")
    assert (tmp_path / "some" / far).exists()
    assert not (tmp_path / "some" / near).exists()
    assert "runs and 0 of 2 half-trained models" in carry.pack(runs, parts, part=20_000, parts=2)
    assert len(list(parts.iterdir())) <= 2
    with pytest.raises(SystemExit, match="no parts in"):
        carry.unpack(again, runs)


def test_runs_that_change_while_they_are_packed(tmp_path, monkeypatch):
    """A checkpoint goes between its listing and its reading: it is left out, and all else is there."""
    runs, parts = tmp_path / "runs", tmp_path / "parts"
    (runs / "a").mkdir(parents=True)
    for name in ("gone", "stays"):
        (runs / "a" / name).write_bytes(bytes(9))
    usual = Path.read_bytes

    def read(self):
        if self.name == "gone":
            self.unlink()
        return usual(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    assert carry.pack(runs, parts) == "packed runs: 0.0 MiB in 1 part"
    carry.unpack(parts, tmp_path / "again")
    assert [path.name for path in (tmp_path / "again" / "a").iterdir()] == ["stays"]


def test_kept_runs_have_their_finished_shares_and_what_is_half_trained_where_it_is_asked_for(tmp_path):
    runs, parts, again = (tmp_path / name for name in ("runs", "parts", "again"))
    files = (
        "grid/a/result.json",
        "grid/a/shards/cell-0.safetensors",
        "grid/.repflow/claims/c.1-of-2",
        "grid/.repflow/shares/c.1-of-2/shards/cell-0.safetensors",
        ".repflow/shares/d.1-of-2/run.json",
        "b/shards/cell-0.safetensors",
    )
    left = ("a.training/group-000/checkpoint-200", "grid/a.models/model.safetensors", "grid/.repflow/work/c/run.json")
    for name in (*files, *left, ".repflow/logs/worker-0.log"):
        (runs / name).parent.mkdir(parents=True, exist_ok=True)
        (runs / name).write_bytes(bytes(50_000))
    cases = (
        ({}, set(files)),
        ({"results": True}, {*files} - {files[1]}),
        ({"halves": True}, {*files, left[0], left[2]}),
    )
    for number, (asked, there) in enumerate(cases):
        assert carry.keep(runs, parts, **asked) == "kept 0.0 MiB in 1 part"
        carry.unpack(parts, again / str(number))
        found = {
            str(path.relative_to(again / str(number))) for path in (again / str(number)).rglob("*") if path.is_file()
        }
        assert found == there


def test_models_of_a_run_that_is_stored_as_a_result_alone_are_not_taken_for_none(tmp_path):
    (tmp_path / "screen").mkdir()
    for name in ("run.json", "result.json"):
        (tmp_path / "screen" / name).write_text("{}")
    with pytest.raises(SystemExit, match="stored without its models one by one"):
        trained_cells(tmp_path, "screen")
    assert trained_cells(tmp_path, "other") == []


def test_rows_are_switches():
    assert set(claims.SWITCHES) == set(run.ROWS["core"][1])


def test_work_in_hand_is_free_once_it_is_carried(tmp_path):
    """A worker of another machine is waited for as long as its heartbeat may be late; not one that was left behind."""
    place = FolderPlace(tmp_path / "runs" / "study" / OWN)
    worker = Worker(machine="elsewhere")
    facts = worker.facts()
    for cell in ("first", "second"):
        claim = Entry(1, Kind.CLAIM, cell=cell, attempt=attempt_name(cell, 1, worker.token), **facts)
        assert add_entry(place, claim)
    assert add_entry(
        place, Entry(2, Kind.DONE, cell="second", attempt=attempt_name("second", 1, worker.token), **facts)
    )
    before = last_entry(place, "second")
    assert not Watch(place).gone(last_entry(place, "first"))
    carry.pack(tmp_path / "runs", tmp_path / "parts")
    carry.unpack(tmp_path / "parts", tmp_path / "there")
    there = FolderPlace(tmp_path / "there" / "study" / OWN)
    claim = last_entry(there, "first")
    assert Watch(there).gone(claim)
    assert (claim.kind, claim.token, claim.attempt) == (
        Kind.CLAIM,
        worker.token,
        attempt_name("first", 1, worker.token),
    )
    assert last_entry(there, "second") == before
