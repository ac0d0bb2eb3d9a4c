"""A STUDY.toml: expanded, priced, run cell by cell, resumed, split."""

import itertools
import json
import re
import shutil
import signal
import time
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from repflow.cli.main import app
from repflow.core.errors import InputError
from repflow.core.studies import STUDIES
from repflow.models import load
from repflow.store import load_result
from repflow.studies.engine import cells as grid_run
from repflow.studies.engine.cost import PASSES
from repflow.studies.engine.grid import KINDS, cell_name, expand, parse_part, read_study
from repflow.studies.engine.size import model_size
from repflow.studies.engine.table import study_at, study_for
from repflow.studies.measure import MeasureConfig, measure
from tests import warm
from tests.studies.compare.inputs import save

STUDY = """
[study]
kind = "measure"
models = ["a", "b"]
tasks = ["random"]
lengths = [16, 300]
inits = ["trained", "default"]
seeds = [0, 1]
samples = 2
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """a: a Transformer of at most 256 tokens; b: a Mamba, which takes any length."""
    root = tmp_path_factory.mktemp("models")
    save("gpt2", root / "a")
    save("mamba", root / "b")
    return root


@pytest.fixture
def place(models, tmp_path, monkeypatch):
    """A working folder with the models and the study."""
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(models / name)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args):
    done = CliRunner().invoke(app, ["run", *map(str, args)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def write(place, **changes):
    """Change keys of the study; None takes one out."""
    data = {"kind": "measure", "models": ["a"], "lengths": [16], "samples": 2} | changes
    lines = [f"{key} = {json.dumps(value)}" for key, value in data.items() if value is not None]
    (place / "study.toml").write_text("[study]\n" + "\n".join(lines))
    return place / "study.toml"


def test_every_combination_once(place):
    study = read_study("study.toml")
    assert study.name == "study"
    assert len(study.cells) == 16
    seen = {(c.config.model, c.config.length, c.config.init, c.config.seed) for c in study.cells}
    assert len(seen) == 16
    assert len({cell.name for cell in study.cells}) == 16
    assert all(c.config.samples == 2 and c.config.grid == 4 for c in study.cells)
    loads = [grid_run.model_key(cell.config) for cell in study.cells]
    assert sum(x != y for x, y in pairwise(loads)) + 1 == len(set(loads)) == 6


def test_names_follow_the_configuration():
    config = MeasureConfig(model="a")
    assert cell_name(config) == cell_name(replace(config))
    for change in ({"samples": 3}, {"model": "b/a"}, {"dtype": "float64"}, {"metrics": ["token_similarity"]}):
        assert cell_name(replace(config, **change)) != cell_name(config)
    assert len(cell_name(replace(config, model="x" * 500))) < 200


def test_text_goes_to_the_task_text_alone(place):
    (place / "t.txt").write_text("words")
    study = expand(
        {"kind": "measure", "models": ["a"], "tasks": ["random", "text"], "text": ["t.txt"]}, default_name="s"
    )
    assert [cell.config.text for cell in study.cells] == [[], ["t.txt"]]


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 16, 20])
def test_parts_are_disjoint_and_whole(place, parts):
    study = read_study("study.toml")
    shares = [study.part(f"{i + 1}/{parts}") for i in range(parts)]
    assert [cell for share in shares for cell in share] == list(study.cells)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_part_without_cells_ends_well(place):
    done = run("study.toml", "--part", "1/100")
    assert done.exit_code == 0, done.output
    assert "0 cells: none in this part" in done.output


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_bad_parts(place, part):
    with pytest.raises(InputError, match="--part i/k"):
        parse_part(part)
    assert run("study.toml", "--part", part).exit_code == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lenghts": [3]}, "unknown key 'lenghts'.*did you mean lengths"),
        ({"model": "a"}, "did you mean models"),
        ({"kind": "mesure"}, "did you mean measure"),
        ({"kind": None}, "kind = "),
        ({"models": None}, "models = "),
        ({"models": []}, "at least one entry in models"),
        ({"models": "a"}, r"models of type list\[str\]"),
        ({"lengths": ["16"]}, r"lengths of type list\[int\]"),
        ({"seeds": [True]}, r"seeds of type list\[int\]"),
        ({"seeds": [1, 1]}, "1 twice"),
        ({"samples": 2.5}, "samples of type int"),
        ({"samples": 0}, "samples >= 1"),
        ({"lengths": [1]}, "length >= 2"),
        ({"tasks": ["rndom"]}, "unknown task 'rndom'"),
        ({"inits": ["traned"]}, "did you mean trained"),
        ({"metrics": ["token_similarty"]}, "did you mean token_similarity"),
        ({"grid": "x"}, "grid of type int | None"),
        ({"name": "../up"}, "safe path component"),
    ],
)
def test_malformed_study(place, changes, message):
    write(place, **changes)
    done = run("study.toml", "--out", "runs")
    assert done.exit_code == 2
    with pytest.raises(InputError, match=message):
        read_study("study.toml")
    assert not (place / "runs").exists()


@pytest.mark.parametrize(
    ("text", "message"), [("[study", "not valid TOML"), ("[stdy]\n", "did you mean study"), ("", "one table")]
)
def test_unreadable_study(place, text, message):
    (place / "study.toml").write_text(text)
    done = run("study.toml")
    assert (done.exit_code, message in done.stderr) == (2, True)
    assert run("nothing.toml").exit_code == 2


def test_dry_run_writes_nothing(place):
    before = sorted(p.name for p in place.iterdir())
    done = run("study.toml", "--dry-run")
    assert done.exit_code == 0
    assert "16 cells, 32 prompts, 5,056 tokens" in done.stdout
    parameters = {name: sum(p.numel() for p in load(place / name).network.parameters()) for name in ("a", "b")}
    for name, count in parameters.items():
        assert f"{name}: {count:,} parameters" in done.stdout
    cost = json.loads(run("study.toml", "--dry-run", "--json").stdout)
    assert cost["parameters"] == parameters
    assert cost["flops"] == 2 * sum(parameters.values()) * 8 * 316
    assert sorted(p.name for p in place.iterdir()) == before


def test_cost_of_what_is_not_at_hand(place):
    write(place, models=["a", "no/such/folder/x"])
    done = run("study.toml", "--dry-run")
    assert "no/such/folder/x: size unknown" in done.stdout
    assert "at least" in done.stdout


def test_disk_estimate_is_of_the_right_size(place):
    config = MeasureConfig(model="b", length=64, samples=8)
    measure("b", "random", length=64, samples=8, out="runs", name="run")
    stored = sum(file.stat().st_size for file in (place / "runs" / "run").rglob("*") if file.is_file())
    assert stored / 3 < study_for(config).disk_bytes(config, model_size("b")) < stored * 3


def test_a_cell_that_cannot_run_is_a_dash(place):
    done = run("study.toml")
    assert done.exit_code == 0, done.stderr
    assert "16 cells: 12 finished, 4 cannot run" in done.stderr
    assert done.stderr.count(": cannot run: expected") == 1
    assert "\n3 more cells without a result, for the reason of " in done.stderr
    rows = [words for line in done.stdout.splitlines() if (words := line.split())[:1] in (["a"], ["b"])]
    assert len(rows) == 16
    for model, length, _, _, *values in rows:
        assert (values == ["–"] * 4) == (model == "a" and length == "300")
    assert "all cells: task random" in " ".join(done.stdout.split())
    assert "matched grid of 4 relative-depth steps" in done.stdout
    notes = sorted((place / "runs" / "study").glob("*.json"))
    assert len(notes) == 4
    note = json.loads(notes[0].read_text())
    assert (note["status"], note["config"]["length"]) == ("cannot run", 300)
    assert "at most 256 tokens" in note["reason"]
    cell = read_study("study.toml").cells[0]
    stored = load_result(place / "runs" / "study" / cell.name)
    options = {k: v for k, v in asdict(cell.config).items() if k not in ("model", "task", "metrics")}
    np.testing.assert_array_equal(stored["token_similarity"], measure("a", "random", **options)["token_similarity"])


def test_json_is_one_object_per_cell(place):
    write(place, lengths=[16, 300])
    done = run("study.toml", "--json")
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["status"], first["model"], first["task"]) == ("finished", "a", "random")
    assert first["metrics"]["token_similarity"]["axes"] == ["state", "sample"]
    assert (second["status"], second["run"], second["metrics"]) == ("cannot run", None, None)
    assert "at most 256" in second["reason"]


def test_a_failing_cell_fails_the_command_but_not_the_rest(place):
    shutil.copytree(place / "a", place / "c")
    weights = place / "c" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    write(place, models=["c", "a"], seeds=[0, 1])
    done = run("study.toml")
    assert done.exit_code == 1
    assert "4 cells: 2 failed, 2 finished" in done.stderr
    notes = [json.loads(file.read_text()) for file in (place / "runs" / "study").glob("*.json")]
    assert {note["status"] for note in notes} == {"failed"}
    shutil.copy(place / "a" / "model.safetensors", weights)
    again = run("study.toml")
    assert again.exit_code == 1
    assert "4 cells: 2 failed, 2 finished" in again.stderr  # with the reasons they had
    assert "--retry-failed tries it again" in again.stderr
    done = run("study.toml", "--retry-failed")
    assert done.exit_code == 0, done.stderr
    assert not list((place / "runs" / "study").glob("*.json"))


def test_no_tokenizer_for_text_is_a_dash(place):
    (place / "t.txt").write_text("some words " * 50)
    write(place, tasks=["text", "random"], text=["t.txt"])
    done = run("study.toml")
    assert done.exit_code == 0
    assert "2 cells: 1 cannot run, 1 finished" in done.stderr
    assert "tokenizer" in done.stderr


def test_finished_cells_are_not_run_again(place, monkeypatch):
    write(place, lengths=[16, 20], inits=["trained", "default"])
    loads, runs = [], []
    load_model, work_on = grid_run.load_model, grid_run.work_on
    monkeypatch.setattr(grid_run, "load_model", lambda c: (loads.append(c.init), load_model(c))[1])
    monkeypatch.setattr(grid_run, "work_on", lambda c, *more: (runs.append(c.length), work_on(c, *more))[1])
    first = run("study.toml", "--part", "1/4")
    assert (first.exit_code, loads, runs) == (0, ["trained"], [16])
    run("study.toml")
    assert (loads, runs) == (["trained", "trained", "default"], [16, 20, 16, 20])
    again = run("study.toml")
    assert runs == [16, 20, 16, 20]
    assert "4 finished" in again.stderr


def test_resumes_after_a_kill(place):
    """kill -9 of the command in the middle of the grid; the rest ends as if nothing had happened."""
    write(place, models=["a", "b"], inits=["trained", "default"], seeds=[0, 1, 2], samples=4)
    for attempt in itertools.count():  # a busy machine may look too late, when the grid is done
        killed = f"killed{attempt}"
        process = warm.command("run", "study.toml", "--out", killed, cwd=place)
        folder = place / killed / "study"
        while len(list(folder.glob("*/shards"))) < 3 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if process.returncode != 0:
            break
    finished = len(list(folder.glob("*/result.json")))
    assert 1 <= finished < 12
    assert run("study.toml", "--out", killed).exit_code == 0
    assert run("study.toml", "--out", "whole").exit_code == 0
    names = [cell.name for cell in read_study("study.toml").cells]
    for name in names:
        for file in ("result.json", "result.safetensors"):
            assert (folder / name / file).read_bytes() == (place / "whole" / "study" / name / file).read_bytes()


def test_two_grids_side_by_side_both_end_well(place):
    """Each leaves what the other is running for later, waits for it, and ends with every cell."""
    write(place, models=["a", "b"], inits=["trained", "default"], samples=2)
    both = [warm.command("run", "study.toml", "--json", cwd=place) for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    cells = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    assert [cell["cell"] for cell in cells[0]] == [cell["cell"] for cell in cells[1]]
    assert {cell["status"] for cell in cells[0] + cells[1]} == {"finished"}
    assert [cell["metrics"] for cell in cells[0]] == [cell["metrics"] for cell in cells[1]]
    assert not list((place / "runs" / "study").glob("*.json"))


def test_a_cell_that_another_worker_has_is_left_for_later(place):
    """In the order of the cells all the same; once the other has ended without it, it is run."""
    write(place, seeds=[0, 1, 2])
    cells = read_study("study.toml").cells
    folder = place / "runs" / "study"
    other = grid_run.Bench(cells, folder)
    with other:
        held = other.board.take(cells[1].name, "")
        asked = []

        def progress(cell):
            asked.append(cell.name)
            if len(asked) == 3:
                held.release()
            return lambda *_: None

        outcomes = list(grid_run.run_cells(cells, folder, progress=progress))
    assert [outcome.cell.name for outcome in outcomes] == [cell.name for cell in cells]
    assert {outcome.status for outcome in outcomes} == {"finished"}
    assert asked == [cells[number].name for number in (0, 1, 2, 1)]


SMALL = {
    "recency": {"lengths": [8, 12], "samples": 2, "probes": 1},
    "memory": {"lengths": [8, 12], "samples": 2},
    "theory-apply": {"lengths": [6, 8], "samples": 1},
    "twins": {"inits": ["default"], "lengths": ["8"], "seeds": 1, "samples": 2, "tasks": ["random"]},
    "dynamics-apply": {"models": ["b"], "lengths": [6, 8], "samples": 1},
}


@pytest.mark.parametrize("kind", SMALL)
def test_every_study_makes_a_grid(place, kind):
    """Priced, run, shown, and skipped the second time; lists are axes only where the study has no such option."""
    options = {"models": ["a", "b"], "lengths": None} | SMALL[kind]
    write(place, kind=kind, **options)
    cells = read_study("study.toml").cells
    several = len(options["models"]) * (len(options["lengths"]) if kind != "twins" else 1)
    assert len(cells) == several == len({cell.name for cell in cells})
    priced = json.loads(run("study.toml", "--dry-run", "--json").stdout)
    assert priced["cells"] == several
    assert priced["prompts"] >= several
    done = run("study.toml")
    assert f"{several} cells: {several} finished" in done.stderr, done.stderr
    assert done.exit_code == 0
    again = [json.loads(line) for line in run("study.toml", "--json").stdout.splitlines()]
    assert [entry["status"] for entry in again] == ["finished"] * several
    assert all(entry["metrics"] for entry in again)


WITHOUT_MODELS = {
    "compare": {"model_a": "a", "model_b": ["a", "b"], "lengths": [12], "samples": 2, "tasks": ["random"]},
    "theory-verify": {"seeds": [0, 1], "samples": 1000, "quick": True},
    "dynamics-simulate": {"x0": "0.5,1.5", "mu": "1", "s_delta": "1", "a": [0.5, 1.0], "points": 5},
    "recall": {"rows": ["none/4"], "layers": [1], "rates": [0.01], "seeds": [0], "steps": [1, 2], "batch": 2}
    | {"lengths": [16], "vocabulary": 32, "test_rows": 2, "test_length": 16, "flow_samples": 2},
}


@pytest.mark.parametrize("kind", WITHOUT_MODELS)
def test_a_study_without_models_has_a_cell_for_each_entry_of_its_lists(place, kind):
    write(place, **{"kind": kind, "models": None, "lengths": None, "samples": None} | WITHOUT_MODELS[kind])
    cost = json.loads(run("study.toml", "--dry-run", "--json").stdout)
    assert (cost["cells"], cost["trained"]) == (2, cost["tokens"] if kind == "recall" else 0)
    done = run("study.toml")
    assert "2 cells: 2 finished" in done.stderr, done.stderr
    again = [json.loads(line) for line in run("study.toml", "--json").stdout.splitlines()]
    assert [entry["status"] for entry in again] == ["finished"] * 2
    assert len({entry["cell"] for entry in again}) == 2
    assert all(entry["metrics"] for entry in again)


@pytest.mark.parametrize(
    ("kind", "passes", "words"),
    [
        ("measure", ["forward"], "forward passes: 3.45e+06 FLOP (2 per parameter and token)"),
        ("recency", ["forward", "backward"], "forward and backward passes: 3.10e+07 FLOP (2 per parameter and"),
        ("recall", ["training"], "training steps: 1.74e+07 FLOP (6 per parameter and token)"),
    ],
)
def test_the_cost_says_which_passes_it_counts(place, kind, passes, words):
    options = {"models": None, "lengths": None, "samples": None} | WITHOUT_MODELS["recall"]
    if kind != "recall":
        options = {"lengths": [12], "samples": 2} | ({"probes": 8} if kind == "recency" else {})
    write(place, kind=kind, **options)
    assert words in run("study.toml", "--dry-run").stdout
    assert json.loads(run("study.toml", "--dry-run", "--json").stdout)["passes"] == passes


def test_every_study_is_a_kind_or_says_why_not(place):
    for row in STUDIES:
        assert (row.name in KINDS) != bool(row.no_grid)
        if row.no_grid:
            with pytest.raises(InputError, match=re.escape(f"got '{row.name}'; {row.no_grid}")):
                expand({"kind": row.name}, default_name="s")
    assert [row.name for row in STUDIES if row.no_grid] == ["reproduce", "training"]


def test_lists_of_a_study_without_models_are_checked_entry_by_entry(place):
    for changes, message in (
        ({"until": ["x"]}, "until of type float .*see `repflow dynamics simulate --help`"),
        ({"until": []}, "until of type float"),
        ({"a": [1.0, 1.0]}, "'1' twice"),
        ({"b": 1}, "unknown key 'b'"),
    ):
        with pytest.raises(InputError, match=message):
            expand({"kind": "dynamics-simulate", **changes}, default_name="s")


def test_lists_of_a_study_that_are_its_own_options_stay_lists(place):
    (cell,) = expand({"kind": "needle", "models": ["a"], "lengths": ["64", "128"]}, default_name="s").cells
    assert cell.config.lengths == ["64", "128"]
    with pytest.raises(InputError, match="unknown key 'tasks'"):
        expand({"kind": "needle", "models": ["a"], "tasks": ["text"]}, default_name="s")


def test_a_model_that_was_edited_while_workers_ran_is_noticed(place, monkeypatch):
    """Its finished cells are refused by the key that differs, as in any later command; see `config_bytes`."""
    from repflow.cli import grid as command

    folder = place / "own"
    shutil.copytree(place / "a", folder)
    write(place, models=["own"])

    def finished(order, scale):
        """Stands for workers: the cell is finished, then the model is edited."""
        outcomes = list(grid_run.run_cells(order.cells, order.folder))
        text = (folder / "config.json").read_text()
        assert '"layer_norm_epsilon": 1e-05' in text
        (folder / "config.json").write_text(text.replace('"layer_norm_epsilon": 1e-05', '"layer_norm_epsilon": 0.01'))
        return frozenset(outcome.cell.name for outcome in outcomes)

    monkeypatch.setattr(command, "spread", finished)
    done = run("study.toml", "--workers", "1")
    assert done.exit_code == 1
    assert "layer_norm_epsilon" in done.stderr


def test_every_study_says_which_passes_it_takes():
    for row in STUDIES:
        assert {*study_at(row).pass_kinds} <= {*PASSES}, row.name
