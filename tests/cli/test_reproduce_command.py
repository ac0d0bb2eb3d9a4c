"""`repflow reproduce` through the command line."""

import importlib
import json
import re
import subprocess
import sys

import pytest

from repflow.core.recipes import RECIPES, RecipeRow

SMALL = ("--task", "random", "--length", "24", "--samples", "2")


@pytest.fixture
def stand_ins(checkpoints):
    """Tiny checkpoints without tokenizers for two of the paper's models."""
    return ("--model", f"Pythia-2.8B={checkpoints / 'gpt_neox'}", "--model", f"mamba2-2.7b={checkpoints / 'mamba2'}")


def test_flow_check_lists_disagreements_and_needs_no_model(cli, tmp_path):
    done = cli("reproduce", "flow-check")
    assert done.code == 0, done.err
    assert "of 72 numbers differ by more than rounding" in done.out
    flat = " ".join(done.out.split())
    assert "SSMs having a smaller gap" in flat
    assert "Table 2 kvpr, n = 2K" in flat
    (run,) = (tmp_path / "runs").iterdir()
    assert f"wrote runs/{run.name}" in done.out


def test_flow_check_json(cli):
    data = json.loads(cli("reproduce", "flow-check", "--json").out)
    assert data["metrics"]["gap"]["shape"] == [72]
    assert any(not check["holds"] for check in data["provenance"]["checks"])
    assert any(check["holds"] for check in data["provenance"]["checks"])


def test_flow_check_loads_no_torch(tmp_path):
    code = (
        "import sys\nsys.argv = ['repflow', 'reproduce', 'flow-check', '--json']\nfrom repflow.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nprint('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr.strip().endswith("False")


def test_ours_stand_beside_the_printed_values(cli, stand_ins, tmp_path):
    done = cli("reproduce", "flow-fig1", *SMALL, *stand_ins)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    header = next(words for words in lines if words[:2] == ["model", "of"])
    assert header[-4:] == ["printed", "residual", "branch", "hf-tuple"]
    row = next(words for words in lines if words[:1] == ["Pythia-2.8B"])
    assert "90.0" in row
    flat = " ".join(done.out.split())
    assert "verdict: Pythia-2.8B → gpt_neox, 0.0" in flat
    # two prompts: no interval
    assert re.search(r"open: 0 of \d printed values shown within tolerance, 0 outside, \d open", flat)
    assert "prompts of up to 24 tokens for n = 2K" in flat
    assert "the authors' code was not seen" in flat
    assert "runs, " in done.err
    assert "GPU hours" in done.err
    assert len(list((tmp_path / "runs" / "flow-tiny").glob("[!.]*"))) == 2 * 3


def test_one_kind_of_state(cli, stand_ins):
    done = cli("reproduce", "flow-fig2", *SMALL, *stand_ins, "--states", "branch", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["provenance"]["kinds"] == ["branch"]
    assert data["metrics"]["ours"]["axes"] == ["row", "kind"]
    assert data["run"].startswith("runs/flow-fig2-tiny-")


def test_paper_scale_prints_its_cost_and_waits_for_yes(cli, tmp_path):
    done = cli("reproduce", "flow-table1", "--scale", "paper")
    assert done.code == 2
    assert "GPU hours" in done.err
    assert "GB for checkpoints" in done.err
    assert "expected --yes to start at scale paper" in done.err
    assert not list(tmp_path.iterdir())


def test_paper_scale_runs_small_checkpoints(cli, stand_ins):
    done = cli("reproduce", "flow-fig1", "--scale", "paper", *SMALL, *stand_ins, "--states", "residual", "--yes")
    assert done.code == 0, done.err
    assert "wrote runs/flow-fig1-paper-" in done.out


def test_dry_run_writes_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("repflow.models.load"), "hub_reachable", lambda: True)
    done = cli("reproduce", "flow-fig7", "--scale", "paper", "--dry-run")
    assert done.code == 0
    assert "12 runs, 264,000 prompts" in done.out  # 20,000 to train and 2,000 to test each
    cost = json.loads(cli("reproduce", "flow-fig7", "--scale", "paper", "--dry-run", "--json").out)
    assert cost["runs"] == 12
    assert cost["gpu_hours"] > 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("recipe", "role"), [("flow-fig1", "Mamba-2.8B"), ("recency-fig7", "Mamba-1.4B")])
def test_without_a_network_a_dry_run_of_the_papers_models_is_a_wrong_request(cli, tmp_path, monkeypatch, recipe, role):
    monkeypatch.setattr(importlib.import_module("repflow.models.load"), "hub_reachable", lambda: False)
    done = cli("reproduce", recipe, "--scale", "paper", "--dry-run")
    assert done.code == 2
    wrong = [line for line in done.out.splitlines() if line.startswith("wrong: ")]
    assert len(wrong) == 4
    (mine,) = [line for line in wrong if line.startswith(f"wrong: {role} (")]
    assert mine.endswith(
        f"not here, and the hub cannot be reached; download it first, or name a folder: --model {role}=FOLDER"
    )
    data = json.loads(cli("reproduce", recipe, "--scale", "paper", "--dry-run", "--json").out)
    assert len(data["problems"]) == 4
    assert cli("reproduce", recipe, "--dry-run").code == 0  # tiny models are made by the run itself
    assert not list(tmp_path.iterdir())


def test_what_is_not_reproduced_yet_says_so(cli, tmp_path, monkeypatch):
    waiting = RecipeRow("dynamics-fig99", 3, "something", needs="a planned part")
    monkeypatch.setattr("repflow.core.recipes.RECIPES", (*RECIPES, waiting))
    done = cli("reproduce", waiting.name)
    assert done.code == 2
    assert "got dynamics-fig99, which is not reproduced yet: it needs a planned part" in done.err
    assert "did you mean" not in done.err
    assert not list(tmp_path.iterdir())


def test_help_speaks_of_all_three_papers(cli):
    text = " ".join(cli("reproduce", "--help-all").out.split())
    for word in ("paper 1", "paper 2", "paper 3", "holds, partly holds, does not hold and open"):
        assert word in text


def test_dry_run_says_what_will_run_and_what_is_finished(cli, stand_ins, tmp_path):
    asked = ("reproduce", "flow-fig1", *SMALL, *stand_ins)
    first = cli(*asked, "--dry-run")
    assert first.code == 0, first.err
    line = "measure Pythia-2.8B: random at 24 tokens, residual, branch, hf-tuple states: 3 runs"
    assert line in first.out.splitlines()
    assert not (tmp_path / "runs").exists()
    assert cli(*asked, "--states", "residual").code == 0
    again = cli(*asked, "--dry-run")
    assert f"{line}, 1 finished" in again.out.splitlines()
    data = json.loads(cli(*asked, "--dry-run", "--json").out)
    assert [cell["finished"] for cell in data["cells"]].count(True) == 2
    assert 0 < data["needed"] < data["run_bytes"]
    assert data["free"] > 0
    assert (data["problems"], data["notes"]) == ([], [])


def test_dry_run_names_models_tokenizers_and_lengths_that_do_not_do(cli, stand_ins, tmp_path):
    asked = ("reproduce", "flow-fig1", "--samples", "2", "--dry-run")
    done = cli(*asked, *stand_ins, "--task", "kvpr", "--length", "24")
    assert done.code == 2
    assert done.out.count("no tokenizer beside it, which kvpr needs; pass --tokenizer") == 2
    done = cli(*asked, "--model", f"Pythia-2.8B=config:{tmp_path}/none.json", "--task", "random", "--length", "24")
    assert done.code == 2
    assert "wrong: Pythia-2.8B" in done.out
    done = cli(*asked, *stand_ins, "--task", "random", "--length", "4K")
    assert done.code == 0
    (note,) = [line for line in done.out.splitlines() if line.startswith("note: ")]
    assert "Pythia-2.8B" in note  # the Mamba-2 has no limit
    assert "tokens, so 4K is stored as a run that cannot be" in note


def test_a_disk_without_room_is_refused_before_the_start(cli, stand_ins, tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(10, 9, 1))
    dry = cli("reproduce", "flow-fig1", *SMALL, *stand_ins, "--dry-run")
    assert dry.code == 0
    assert "NOT ENOUGH" in dry.out
    done = cli("reproduce", "flow-fig1", *SMALL, *stand_ins)
    assert done.code == 2
    assert "expected room for the runs in runs; got 0.0 MB free" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_model_that_is_not_there(cli, stand_ins, tmp_path):
    args = (
        "reproduce",
        "flow-fig1",
        *SMALL,
        *stand_ins[:2],
        "--model",
        "Mamba-2.8B=nowhere/at-all",
        "--states",
        "residual",
    )
    done = cli(*args)
    assert done.code == 2
    assert "cannot run" in done.err
    assert "not stored before every run is finished" in done.out
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["flow-tiny"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("flow-fig9",), "unknown recipe 'flow-fig9'; did you mean flow-fig"),
        (("flow-fig1", "--length", "two"), "expected a length such as 300, 1K or 4K; got 'two'"),
        (("flow-fig1", "--name", "a/b"), "expected a run name that is one safe path component"),
        (("flow-fig1", "--states", "residual,branches"), "got 'branches'; did you mean branch"),
    ],
)
def test_wrong_requests(cli, tmp_path, args, message):
    done = cli("reproduce", *args)
    assert done.code == 2
    assert message in done.err
    assert not list(tmp_path.iterdir())


def test_a_damaged_comparison_is_recomputed(cli, stand_ins, tmp_path):
    assert cli("reproduce", "flow-fig2", *SMALL, *stand_ins, "--states", "residual", "--name", "figure").code == 0
    file = tmp_path / "runs" / "figure" / "result.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"0.", b"1.", 1))
    assert cli("verify", "runs/figure").code == 1
    done = cli("verify", "runs/figure", "--repair")
    assert done.code == 0, done.err
    assert file.read_bytes() == whole
