import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.core.results import Result
from repflow.store import RunFolder, list_runs


def test_runs_in_every_state(tmp_path):
    def start(name, **config):
        return RunFolder.open(tmp_path, name, config={"model": name, "task": "random", **config}, provenance={})

    with start("a-done", samples=2) as run:
        run.write_shard("s", {"x": np.zeros(1)}, {"samples": 2})
        run.finish(Result({}, {}))
    with start("b-half") as run:
        run.record("plan", {"samples": [0, 1, 2, 3]})
        run.write_shard("s", {"x": np.zeros(1)}, {"samples": [0, 1, 2]})
    start("c-started").close()
    with start("d-damaged") as run:
        run.write_shard("s", {"x": np.zeros(1)}, {"samples": 1})
        (run.path / "shards" / "s.safetensors").unlink()
    start("e-wrecked").close()
    (tmp_path / "e-wrecked" / "run.json").write_text("repflow-run")
    (tmp_path / "e-wrecked" / "manifest.jsonl").write_text("?\n")
    start("f-mended").close()
    (tmp_path / "f-mended" / "run.json").write_text("?")
    (tmp_path / "g-killed-at-start").mkdir()
    (tmp_path / "g-killed-at-start" / ".repflow.lock").touch()
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "file").touch()

    runs = {run.name: run for run in list_runs(tmp_path)}
    assert [(r.name[0], r.finished, r.done, r.total, bool(r.damaged)) for r in runs.values()] == [
        ("a", True, 2, 2, False),
        ("b", False, 3, 4, False),
        ("c", False, 0, None, False),
        ("d", False, 1, None, True),
        ("e", False, None, None, True),
        ("f", False, 0, None, True),
        ("g", False, None, None, False),
    ]
    assert (runs["a-done"].model, runs["a-done"].task) == ("a-done", "random")
    assert "shards/s.safetensors is missing" in runs["d-damaged"].damaged
    assert runs["f-mended"].model == "f-mended"
    assert list_runs(tmp_path / "b-half") == [runs["b-half"]]


@pytest.mark.parametrize("file", ["result.json", "result.safetensors"])
def test_a_run_without_one_file_of_its_result_is_not_finished(tmp_path, file):
    with RunFolder.open(tmp_path, "a", config={}, provenance={}) as run:
        run.finish(Result({"x": np.zeros(1)}, {"x": ("sample",)}))
    assert [run.finished for run in list_runs(tmp_path)] == [True]
    (tmp_path / "a" / file).unlink()
    assert [run.finished for run in list_runs(tmp_path)] == [False]


def test_a_reproduction_names_its_recipe_and_what_ran(tmp_path):
    asked = {"recipe": "flow-fig2", "scale": "zoo", "models": []}
    for name, more in (("a", {}), ("b", {"models": ["x", "y"]})):
        RunFolder.open(tmp_path, name, config={**asked, **more}, provenance={}).close()
    assert [(run.task, run.model) for run in list_runs(tmp_path)] == [
        ("flow-fig2", "zoo models"),
        ("flow-fig2", "x, y"),
    ]


def test_no_such_folder(tmp_path):
    with pytest.raises(InputError, match="expected a folder of runs"):
        list_runs(tmp_path / "none")


def test_what_is_left_of_a_damaged_run_is_listed_with_the_reason(tmp_path):
    for name in ("a-no-record", "b-no-manifest", "c-neither", "d-garbled"):
        with RunFolder.open(tmp_path, name, config={"model": name}, provenance={}) as run:
            run.write_shard("s", {"x": np.zeros(1)}, {"samples": 1})
        (tmp_path / name / ".repflow.lock").unlink(missing_ok=True)
    for name, file in (("a", "run.json"), ("b", "manifest.jsonl"), ("c", "run.json"), ("c", "manifest.jsonl")):
        next(tmp_path.glob(f"{name}-*/{file}")).unlink()
    for file in ("run.json", "manifest.jsonl"):
        (tmp_path / "d-garbled" / file).write_bytes(bytes(range(200, 256)))
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").touch()
    damaged = {run.name[0]: run.damaged for run in list_runs(tmp_path)}
    assert list(damaged) == ["a", "b", "c", "d"]
    assert "run.json is damaged" in damaged["a"]
    assert "manifest.jsonl is missing or empty" in damaged["b"]
    for name in ("c", "d"):
        assert "neither run.json nor manifest.jsonl says what ran here" in damaged[name]


def reseal(folder, **changes):
    """Store other values under whole checksums, in both copies."""
    from repflow.store.canonical import seal
    from repflow.store.manifest import encode

    content = {"format": "repflow-run", "version": 1, "created": "now", "config": {}, "provenance": {}} | changes
    (folder / "run.json").write_bytes(seal(content, indent=2))
    (folder / "manifest.jsonl").write_bytes(encode(0, "run", content))


@pytest.mark.parametrize(
    "changes",
    [
        {"config": []},
        {"config": {"models": 5}},
        {"config": {"model": {"a": [1]}, "task": [None], "samples": {}}},
        {"provenance": "x"},
        {"created": None},
        {"version": "2"},
        {"version": 99},
    ],
    ids=str,
)
def test_a_folder_with_values_of_wrong_types_does_not_stop_the_list(tmp_path, changes):
    for name in ("a-wrong", "b-right"):
        RunFolder.open(tmp_path, name, config={"model": name}, provenance={}).close()
    reseal(tmp_path / "a-wrong", **changes)
    assert [run.name for run in list_runs(tmp_path)] == ["a-wrong", "b-right"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [("shard", {}), ("shard", {"name": 3, "bytes": 1, "sha256": "0", "meta": {}}), ("result", {"files": []}),
     ("discard", {"name": []}), ("result", {"files": {"result.json": 3}}), ("plan", {"samples": "x"})],
)  # fmt: skip
def test_a_line_of_wrong_types_does_not_stop_the_list(tmp_path, kind, data):
    from repflow.store import verify
    from repflow.store.manifest import encode

    RunFolder.open(tmp_path, "a", config={"model": "a"}, provenance={}).close()
    with (tmp_path / "a" / "manifest.jsonl").open("ab") as file:
        file.write(encode(1, kind, data))
    assert [run.name for run in list_runs(tmp_path)] == ["a"]
    assert bool(verify(tmp_path / "a")) == (kind != "plan")


def test_a_run_that_is_starting_is_not_to_be_deleted(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".repflow.lock").touch()
    RunFolder.open(tmp_path, "b", config={"model": "b"}, provenance={}).close()
    (tmp_path / "b" / "manifest.jsonl").unlink()
    (tmp_path / "b" / ".repflow.lock").write_bytes(b"")
    assert [(run.name, run.damaged, run.finished) for run in list_runs(tmp_path)] == [
        ("a", "", False),
        ("b", "", False),
    ]
