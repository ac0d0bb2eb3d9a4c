"""`repflow recency` and `repflow reproduce recency-fig1|7` on tiny checkpoints: tables, JSON, exit codes, resume."""

import importlib
import json

import numpy as np
import pytest

from repflow.core.catalogue import is_exponential
from repflow.core.intervals import student_interval
from repflow.store import load_result, verify

ASKED = ("--length", "24", "--samples", "2", "--probes", "2")


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def test_recency_prints_tables_and_stores_the_run(cli, checkpoints, tmp_path):
    asked = (
        "recency",
        checkpoints / "mamba2",
        *ASKED,
        "--out",
        "o",
        "--name",
        "n",
        "--twin",
        "default",
        "--to",
        "final,2",
    )
    done = cli(*asked)
    assert done.code == 0, done.err
    for word in (
        "ln influence",
        "twin, default",
        "to state 2",
        "half-life",
        "Thm 3.1",
        "2 ±1 probes",
        "From each depth",
    ):
        assert word in done.out
    assert "exponential_fit: κ = " in done.out
    assert done.out.rstrip().endswith("wrote o/n")
    assert verify(tmp_path / "o" / "n") == []
    result = load_result(tmp_path / "o" / "n")
    assert result.config["study"] == "recency"
    (line,) = [line for line in done.out.splitlines() if line.split()[:1] == ["16"]]
    assert line.split()[1] == f"{result.mean('log_influence')[16]:.3f}"
    again = cli(*asked)
    assert (again.code, again.out) == (0, done.out)
    listed = cli("list", "o")
    assert "finished" in listed.out
    exported = cli("export", "o/n", "--to", "csv")
    assert exported.code == 0, exported.err


def test_two_models_give_their_ratio(cli, checkpoints, tmp_path):
    done = cli("recency", checkpoints / "mamba2", checkpoints / "gpt_neox", *ASKED, "--nearest", "10")
    assert done.code == 0, done.err
    assert "Ratio of influence" in done.out
    (ratio,) = [folder for folder in (tmp_path / "runs").iterdir() if folder.name.startswith("recency-ratio")]
    result = load_result(ratio)
    assert result["log_ratio"].shape == (10,)
    assert result.provenance["ratio"]["paired"]
    assert f"wrote runs/{ratio.name}" in done.out
    runs = [load_result(folder) for folder in sorted((tmp_path / "runs").iterdir()) if folder != ratio]
    curves = {run.provenance["model"]["type"]: run.mean("log_influence")[:10] for run in runs}
    np.testing.assert_allclose(result["log_ratio"], curves["mamba2"] - curves["gpt_neox"])


@pytest.mark.parametrize("short", [("--length", "3"), ("--at", "2")])
def test_a_ratio_that_cannot_be_fitted_is_refused_before_anything_runs(cli, checkpoints, tmp_path, short):
    done = cli("recency", checkpoints / "mamba2", checkpoints / "gpt_neox", *ASKED, *short)
    assert done.code == 2
    assert "at least 3 tokens before token t, so that the ratio of two models can be fitted; got 2" in done.err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())
    assert cli("recency", checkpoints / "mamba2", *ASKED, *short).code == 0


def test_json_is_all_that_is_printed(cli, checkpoints):
    done = cli("recency", checkpoints / "mamba2", checkpoints / "gpt_neox", *ASKED, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line, parse_constant=no_constant) for line in done.out.splitlines()]
    assert [entry["provenance"]["model"]["type"] for entry in rows] == ["mamba2", "gpt_neox"]
    for entry in rows:
        assert set(entry) == {"run", "model", "task", "metrics", "findings", "provenance"}
        assert entry["metrics"]["log_influence"]["axes"] == ["sample", "distance"]
        assert entry["metrics"]["log_influence"]["shape"] == [2, 24]
        assert entry["provenance"]["recency"]["fit"]["kappa"] is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "24"), "--at from -24 to 23 with --length 24; got 24"),
        (("--to", "9"), "--to final or a state from 0 to 4; got 9"),
        (("--to", "x"), "--to final, or the number of a state; got 'x'"),
        (("--probes", "-2"), "--probes of at least 0; got -2"),
        (("--twin", "trained"), "a random scheme for the twin"),
        (("--init", "nonsense"), "nonsense"),
        (("--fit-first", "22"), "--fit-first of at most 21, which leaves 3 distances to fit; got 22"),
        (("--at", "1", "--fit-first", "1"), "pass a later --at"),
        (("--fit-last", "2"), "--fit-last of at least 3; got 2"),
        (("--samples", "999999999999"), "at most 1,000,000,000 tokens in all prompts; got 999999999999 prompts of 24"),
        (("--length", "999999999999"), "at most 1,000,000,000 tokens in all prompts"),
    ],
)
def test_wrong_requests_exit_with_2_and_leave_nothing(cli, checkpoints, tmp_path, options, message):
    done = cli("recency", checkpoints / "mamba2", *ASKED, *options)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_one_model_that_fails_does_not_stop_the_other(cli, checkpoints):
    done = cli("recency", "no/such-folder-here/x", checkpoints / "mamba2", *ASKED)
    assert done.code == 2
    assert "no/such-folder-here/x" in done.err
    assert "wrote runs/" in done.out
    assert "Ratio" not in done.out


def test_a_damaged_run_is_computed_again(cli, checkpoints, tmp_path):
    assert cli("recency", checkpoints / "mamba2", *ASKED, "--name", "n").code == 0
    before = load_result(tmp_path / "runs" / "n")["log_influence"]
    shard = next((tmp_path / "runs" / "n" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-3] + b"xyz")
    done = cli("verify", "runs/n", "--repair")
    assert done.code == 0, done.err
    assert "is repaired" in done.out
    np.testing.assert_array_equal(load_result(tmp_path / "runs" / "n")["log_influence"], before)


@pytest.fixture
def stand_ins(checkpoints):
    return {"mamba": f"Mamba-130M={checkpoints / 'mamba2'}", "pythia": f"Pythia-160M={checkpoints / 'gpt_neox'}"}


def reproduce(cli, recipe, *models, length="24", samples=3):
    chosen = [word for model in models for word in ("--model", model)]
    return cli("reproduce", recipe, *chosen, "--task", "random", "--length", length, "--samples", samples)


def apart(above, below):
    """Whether one interval lies above the other, None where they meet."""
    if min(above) > max(below):
        return True
    return False if max(above) < min(below) else None


def ends(band):
    return [float(band.low), float(band.high)]


def test_figure_1_holds_the_papers_words_against_trained_and_untrained(cli, stand_ins, tmp_path):
    done = reproduce(cli, "recency-fig1", stand_ins["mamba"])
    assert done.code == 0, done.err
    flat = " ".join(done.out.split())
    for word in ("Mamba-130M → mamba2, ", "Theorem 3.1", "4 statements: "):
        assert word in flat
    assert "stand_in: " in done.out
    name = done.out.rstrip().rpartition("wrote ")[2]
    result = load_result(tmp_path / name)
    assert (result.config["study"], result.config["recipe"]) == ("recency-figure", "recency-fig1")
    assert result["Mamba-130M/twin/log_influence"].shape == (3, 24)
    lines = result.provenance["lines"]
    fits = result.provenance["fits"]["Mamba-130M"]
    sides = [[fits[side][f"kappa_{end}"] for end in ("low", "high")] for side in ("twin", "trained")]
    assert lines[2]["holds"] is apart(*sides)
    names = ("trained", "without training", "initialization", "bound")
    assert [line["what"] for line in lines] == [f"Mamba-130M, {name}" for name in names]
    label = result.provenance["stand_ins"]["Mamba-130M"]
    assert [line["of"] for line in lines] == [f"{label}: {name}" for name in names]
    assert f"next: repflow figures runs/{result.provenance['runs']['Mamba-130M']}\nwrote " in done.out
    run = load_result(tmp_path / "runs" / result.provenance["runs"]["Mamba-130M"])
    np.testing.assert_array_equal(run["log_influence"], result["Mamba-130M/log_influence"])
    assert verify(tmp_path / name) == []


def test_figure_7_has_shapes_and_the_ratio(cli, stand_ins, tmp_path):
    done = reproduce(cli, "recency-fig7", *stand_ins.values())
    assert done.code == 0, done.err
    result = load_result(tmp_path / done.out.rstrip().rpartition("wrote ")[2])
    ratio = result["Mamba-130M over Pythia-160M/log_ratio"]
    curves = [result.mean(f"{role}/log_influence") for role in ("Mamba-130M", "Pythia-160M")]
    np.testing.assert_allclose(ratio, curves[0] - curves[1])
    shape, concentration, last = result.provenance["lines"]
    index = student_interval(result["Pythia-160M/lost_in_the_middle"])
    assert shape["holds"] is apart(ends(index), [0.0])
    assert f"index {index.mean:+.2f} [{index.low:+.2f}, {index.high:+.2f}]" in shape["ours"]
    reach = [result.band(f"{role}/half_reach") for role in ("Pythia-160M", "Mamba-130M")]
    assert concentration["holds"] is apart(*map(ends, reach))
    assert f"half of all influence within the last {reach[1].mean:.1f} [" in concentration["ours"]
    facts = result.provenance["ratios"]["Mamba-130M over Pythia-160M"]
    falls = apart([facts["kappa_low"], facts["kappa_high"]], [0.0])
    assert last["holds"] is (None if falls and not is_exponential(facts) else falls)
    assert last["of"].startswith("Mamba-130M → mamba2, ")
    assert " over Pythia-160M → gpt_neox, " in last["of"]
    assert reproduce(cli, "recency-fig7", stand_ins["pythia"]).code == 0  # without its partner there is no ratio


def test_below_three_prompts_a_figure_judges_nothing(cli, stand_ins, tmp_path):
    done = reproduce(cli, "recency-fig7", *stand_ins.values(), samples=2)
    assert done.code == 0, done.err
    result = load_result(tmp_path / done.out.rstrip().rpartition("wrote ")[2])
    assert [line["holds"] for line in result.provenance["lines"]] == [None] * 3
    assert "nan" not in json.dumps(result.provenance["lines"])


def test_a_dry_run_writes_nothing_and_scale_paper_wants_a_yes(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("repflow.models.load"), "hub_reachable", lambda: True)
    done = cli("reproduce", "recency-fig7", "--scale", "paper", "--dry-run")
    assert done.code == 0, done.err
    assert "recency Mamba-1.4B: kvpr at 512 tokens" in done.out
    assert "4 runs, 128 prompts" in done.out
    assert "GB for checkpoints" in done.out
    refused = cli("reproduce", "recency-fig7", "--scale", "paper")
    assert refused.code == 2
    assert "--yes to start at scale paper" in refused.err
    outcome = json.loads(cli("reproduce", "recency-fig1", "--dry-run", "--json").out)
    assert [cell["model"] for cell in outcome["cells"]] == ["Mamba-130M"]  # one random Mamba stands for both sizes
    assert (outcome["runs"], outcome["prompts"], outcome["problems"]) == (1, 8, [])  # four prompts, and the twin's
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--model", "Mamba-130M"), "--model ROLE=SPEC"),
        (("--model", "Pythia-2.8B=x"), "unknown model of the paper 'Pythia-2.8B'"),
        (("--model", "Mistral-7B=x"), "a --model for one of Mamba-130M, Mamba-1.4B; got others; recency-fig1 shows no"),
        (("--probe-seeds", "3"), "recency-fig1 without --probe-seeds"),
        (("--scale", "huge"), "--scale tiny, zoo or paper"),
        (("--samples", "0"), "--samples of at least 1; got 0"),
    ],
)
def test_options_that_a_figure_does_not_take_are_refused(cli, options, message):
    done = cli("reproduce", "recency-fig1", *options)
    assert done.code == 2
    assert message in done.err


def test_a_figure_is_repaired_from_its_runs(cli, stand_ins, tmp_path):
    done = reproduce(cli, "recency-fig1", stand_ins["mamba"])
    folder = tmp_path / done.out.rstrip().rpartition("wrote ")[2]
    (folder / "result.json").write_text("{}", encoding="utf-8")
    mended = cli("verify", folder, "--repair")
    assert mended.code == 0, mended.err
    assert "is repaired" in mended.out
