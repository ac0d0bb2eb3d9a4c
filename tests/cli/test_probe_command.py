"""`repflow probe` and `repflow diagnose` on real tiny checkpoints: table, JSON, exit codes, several models, resume."""

import json

import pytest

from repflow.store import load_result, verify
from tests.studies.probe.inputs import reader, tokenizer

ASKED = ("--length", "300", "--items", "3", "--samples", "30", "--seeds", "2", "--answers", "2", "--answer-tokens", "3")
ASKED += ("--lens", "3", "--epochs", "20", "--allow-leak")
QUICK = (*ASKED, "--recipes", "paper", "--controls", "none")


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Folders gpt_neox and mamba2 with a tokenizer."""
    folder = tmp_path_factory.mktemp("readers")
    for kind in ("gpt_neox", "mamba2"):
        reader(kind).network.save_pretrained(folder / kind)
        tokenizer().save_pretrained(folder / kind)
    return folder


def no_constant(name):
    raise ValueError(f"{name} is not JSON")


def test_probe_prints_a_table_and_stores_the_run(cli, readers, tmp_path):
    done = cli("probe", readers / "gpt_neox", *ASKED, "--out", "o", "--name", "n", "--twin", "default")
    assert done.code == 0, done.err
    for word in ("test", "valid", "corrected", "bits", "selectivity", "twin", "lens rank", "3 classes", "chance 0.333"):
        assert word in done.out
    assert "chosen on validation" in done.out
    assert "greedy answers that hold the right one" in done.out
    assert done.out.rstrip().endswith("wrote o/n")
    assert verify(tmp_path / "o" / "n") == []
    result = load_result(tmp_path / "o" / "n")
    peak = result.provenance["probe"]["peak"]
    (line,) = [line for line in done.out.splitlines() if line.split()[:1] == [f"{peak}*"]]
    assert line.split()[1] == f"{result['probe_accuracy'][peak].mean():.3f}"
    said = "beats the last one by" in done.out
    assert said == result.provenance["probe"]["intermediate_beats_final"]
    again = cli("probe", readers / "gpt_neox", *ASKED, "--out", "o", "--name", "n", "--twin", "default")
    assert (again.code, again.out) == (0, done.out)


def test_several_models_read_the_same_text_and_json_is_all(cli, readers):
    done = cli("probe", readers / "gpt_neox", readers / "mamba2", *QUICK, "--json")
    assert done.code == 0, done.err
    rows = [json.loads(line, parse_constant=no_constant) for line in done.out.splitlines()]
    assert [entry["provenance"]["model"]["type"] for entry in rows] == ["gpt_neox", "mamba2"]
    for entry in rows:
        assert set(entry) == {"run", "model", "task", "metrics", "findings", "provenance"}
        assert entry["metrics"]["probe_accuracy"]["axes"] == ["state", "seed"]
        assert entry["metrics"]["probe_accuracy"]["shape"] == [5, 2]
    assert len({entry["provenance"]["digests"]["prompts"] for entry in rows}) == 1


def test_several_models_side_by_side(cli, readers):
    done = cli("probe", readers / "gpt_neox", readers / "mamba2", *QUICK, "--seeds", "1")
    assert done.code == 0, done.err
    assert "Probes side by side" in done.out
    assert "same token sequences" in done.out


def test_one_bad_model_does_not_take_the_other_down(cli, readers):
    done = cli("probe", readers / "nothing", readers / "mamba2", *QUICK, "--seeds", "1")
    assert done.code == 2
    assert "does not exist" in done.err
    assert "wrote" in done.out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--task", "random"), "expected a task with labels"),
        (("--seeds-vary", "nothing"), "--seeds-vary split, all or init"),
        (("--recipes", "papr"), "did you mean paper"),
        (("--position", "first"), "last, mean or a relative position"),
        (("--items", "40"), "pass --length"),
        (("--samples", "12", "--items", "2", "--index", "1"), "a gold index that varies"),
    ],
)
def test_wrong_requests_exit_with_2_and_leave_nothing(cli, readers, tmp_path, wrong, message):
    done = cli("probe", readers / "mamba2", *QUICK, *wrong)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "runs").exists()


def test_a_leak_exits_with_2_and_names_it(cli, readers, tmp_path):
    lines = [{"prompt": f"Key: {i} data {'ab'[i % 2]}", "label": i % 2} for i in range(60)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = ("--task", "own.jsonl", "--length", "40", "--samples", "60", "--seeds", "1", "--recipes", "robust")
    done = cli("probe", readers / "mamba2", *asked)
    assert done.code == 2
    assert "got a leak: state 0 at the last token reads the label" in " ".join(done.err.split())
    assert not (tmp_path / "runs").exists()
    done = cli("probe", readers / "mamba2", *asked, "--allow-leak")
    assert done.code == 0, done.err
    assert "finding leak" in done.out


def test_diagnose_prints_one_page_and_the_same_as_json(cli, readers, tmp_path):
    asked = ("--length", "300", "--items", "3", "--samples", "30", "--seeds", "1", "--answers", "0", "--lens", "0")
    done = cli("diagnose", readers / "mamba2", *asked, "--flow-samples", "6", "--allow-leak", "--name", "d")
    assert done.code == 0, done.err
    for word in ("Flow between tokens", "What can be decoded", "Published failure signatures", "Not measured"):
        assert word in done.out
    assert "as published" in done.out
    assert "as judged" in done.out
    assert "used" not in done.out
    assert done.out.rstrip().endswith("wrote runs/d")
    assert len(list((tmp_path / "runs").iterdir())) == 3
    stored = load_result(tmp_path / "runs" / "d")
    page = " ".join(done.out.split())
    for statement in stored.provenance["statements"]:
        assert " ".join(statement["text"].split()) in page
    again = cli("diagnose", readers / "mamba2", *asked, "--flow-samples", "6", "--allow-leak", "--name", "d", "--json")
    content = json.loads(again.out, parse_constant=no_constant)
    assert content["statements"] == stored.provenance["statements"]
    assert content["thresholds"]["early_similarity"] == 0.8
    assert content["runs"]["flow"]
    assert content["runs"]["probe"]


def test_diagnose_without_labels_claims_no_read_out(cli, readers):
    done = cli("diagnose", readers / "gpt_neox", "--task", "random", "--length", "40", "--flow-samples", "4", "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    assert {s["section"] for s in content["statements"]} <= {"flow", "signature"}
    assert any("no labels" in text for text in content["not_measured"])


def test_diagnose_refuses_impossible_thresholds(cli, readers):
    done = cli("diagnose", readers / "gpt_neox", "--early-similarity", "1.5")
    assert done.code == 2
    assert "expected --early-similarity from 0 to 1; got 1.5" in done.err


def test_damaged_probe_runs_are_repaired(cli, readers, tmp_path):
    assert cli("probe", readers / "mamba2", *QUICK, "--seeds", "1", "--name", "n").code == 0
    run = tmp_path / "runs" / "n"
    before = {file.name: file.read_bytes() for file in [*(run / "shards").iterdir(), run / "result.json"]}
    assert "30/30" in cli("list").out
    for name in ("model-0-batch-000000-30.safetensors", "lens.safetensors"):
        file = run / "shards" / name
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(bytes(data))
    assert cli("verify", run).code == 1
    done = cli("verify", run, "--repair")
    assert done.code == 0, done.err
    assert {file.name: file.read_bytes() for file in [*(run / "shards").iterdir(), run / "result.json"]} == before
