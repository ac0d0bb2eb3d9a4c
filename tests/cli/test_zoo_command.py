"""`repflow zoo`, `zoo:NAME` as a model, the zoo where no model is named, and `repflow demo`, on a tiny zoo."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repflow import load, load_result, measure, probe
from repflow.core.errors import InputError
from repflow.core.verdict import MEANING
from repflow.papers.findings import FINDINGS
from repflow.spec import zoo
from repflow.studies import demo
from repflow.studies.recency.config import RecencyConfig
from tests.cli.invocation import invoke
from tests.models.tiny_zoo import make_zoo

THREE = ("gpt-neox", "mamba2", "hybrid")
SMALL = ("--length", "48", "--samples", "2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(autouse=True)
def _here(tiny, monkeypatch):
    monkeypatch.setenv(zoo.VARIABLE, str(tiny))


# ---------------------------------------------------------------- the command
def test_list(cli):
    done = cli("zoo", "list")
    assert done.code == 0, done.err
    assert "use: repflow measure zoo:gpt-neox zoo:mamba2 --task" in done.out
    for name in zoo.NAMES:
        row = next(line for line in done.out.splitlines() if line.split()[:1] == [name])
        assert row.split()[1] == f"{zoo.record(name)['parameters']:,}"
        assert row.split()[2:4] == ["6.500", "25.0%"]
    content = json.loads(cli("zoo", "list", "--json").out)
    assert [entry["spec"] for entry in content] == [f"zoo:{name}" for name in zoo.NAMES]
    assert content[0]["retrieval_set"] == "kvpr-256"


def test_card_and_path(cli, tiny):
    assert cli("zoo", "card", "zoo:mamba").out == (tiny / "mamba" / "README.md").read_text()
    assert cli("zoo", "path", "hybrid").out.strip() == str(tiny / "hybrid")


@pytest.mark.parametrize("command", [("zoo", "card"), ("zoo", "path"), ("measure",), ("probe",), ("twins",)])
def test_a_wrong_name_teaches_the_names(cli, command):
    done = cli(*command, "mamba-3" if command[0] == "zoo" else "zoo:mamba-3")
    assert done.code == 2
    assert "unknown model of the zoo 'mamba-3'; did you mean mamba" in done.err
    assert "the zoo has gpt-neo, gpt-neox, mamba, mamba2, hybrid, hybrid-mirror" in done.err


def test_the_zoo_command_needs_no_torch(tiny):
    code = "import sys; from repflow.cli.main import app\ntry: app(['zoo', 'list'])\nexcept SystemExit: pass\n"
    code += "print('LOADED', [n for n in ('torch', 'transformers') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "LOADED []"


# ---------------------------------------------------------------- zoo:NAME as a model
@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_name_is_a_model_with_its_tokenizer(name):
    model = load(f"zoo:{name}")
    assert (model.name, model.spec) == (name, f"zoo:{name}")
    assert model.tokenizer is not None
    result = measure(model, "kvpr", length=200, samples=2)
    assert result["token_similarity"].shape == (model.n_layers + 1, 2)


def test_names_go_through_the_commands(cli, tmp_path):
    done = cli("measure", "zoo:gpt-neox", "zoo:mamba2", "--task", "kvpr", "--length", "200", "--samples", "2")
    assert done.code == 0, done.err
    (stored,) = (tmp_path / "runs").glob("zoo-mamba2-kvpr-200-grid2-*")
    assert load_result(stored).config["model"] == "zoo:mamba2"
    done = cli("compare", "zoo:gpt-neox", "zoo:mamba2", *SMALL)
    assert done.code == 0, done.err


def test_a_name_is_probed():
    result = probe("zoo:mamba2", "kvpr", length=200, samples=40, seeds=1, recipes=["robust"], answers=0, lens=0)
    assert result["probe_accuracy"].shape == (5, 1)


def test_a_damaged_model_is_not_loaded(cli, tiny, tmp_path, monkeypatch):
    shutil.copytree(tiny, tmp_path / "own")
    file = tmp_path / "own" / "mamba" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(bytes(data))
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path / "own"))
    done = cli("measure", "zoo:mamba", *SMALL)
    assert done.code == 1
    assert "expected model.safetensors of zoo:mamba as it was made; got other bytes" in done.err


# ---------------------------------------------------------------- no model named
@pytest.mark.parametrize(
    ("command", "models"),
    [
        (("measure", *SMALL), zoo.NAMES),
        (("compare", *SMALL), ("gpt-neox", "mamba2")),
        (("twins", "--inits", "xavier", "--lengths", "32", "--samples", "4", "--seeds", "2"), ("gpt-neox",)),
        (("theory", "apply", *SMALL), ("gpt-neox",)),
        (("dynamics", "apply", *SMALL), ("mamba",)),
    ],
    ids=["measure", "compare", "twins", "theory", "dynamics"],
)
def test_without_a_model_the_zoo_is_taken_and_said(cli, command, models):
    done = cli(*command)
    assert f"no MODEL given: {' '.join(f'zoo:{name}' for name in models)} of the built-in zoo" in done.err
    assert done.code == 0, done.err


@pytest.mark.parametrize("command", [("probe", "--samples", "3"), ("diagnose", "--length", "3")])
def test_probe_and_diagnose_take_the_zoo_too(cli, command):
    """The rest of the request is wrong here, so that nothing runs."""
    done = cli(*command)
    assert done.code == 2
    assert "no MODEL given: zoo:gpt-neox" in done.err


# ---------------------------------------------------------------- demo
def shorten(monkeypatch, tiny, place):
    """A demo of seconds, on a zoo of three."""
    for name in THREE:
        shutil.copytree(tiny / name, place / "three" / name)
    shutil.copy(tiny / zoo.DIGESTS, place / "three")
    monkeypatch.setenv(zoo.VARIABLE, str(place / "three"))
    small = {"SAMPLES": 2, "GRID": 2, "PROBE_SAMPLES": 40, "PROBED": ("mamba2",)}
    small |= {"REACH_PROBES": 1}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)


@pytest.fixture
def short(monkeypatch, tiny, tmp_path):
    shorten(monkeypatch, tiny, tmp_path)


@pytest.fixture(scope="module")
def shown(tiny, tmp_path_factory):
    """A whole demo, run once: what the command said, and the folder that its runs are in."""
    place = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, tiny, place)
        patch.chdir(place)
        patch.setenv("COLUMNS", "80")
        done = invoke("demo", "--out", "d")
    return done, place / "d"


@pytest.fixture
def stored(shown, tmp_path):
    """The finished runs of a demo, in a folder of the test's own."""
    shutil.copytree(shown[1], tmp_path / "d")


@pytest.mark.usefixtures("short")
def test_the_list_suggests_models_that_are_there(cli, tmp_path):
    shutil.rmtree(tmp_path / "three" / "gpt-neox")
    assert "use: repflow measure zoo:mamba2 --task kvpr" in cli("zoo", "list").out
    shutil.rmtree(tmp_path / "three" / "mamba2")
    assert "use: repflow measure zoo:hybrid --task kvpr" in cli("zoo", "list").out


@pytest.mark.usefixtures("short", "stored")
def test_demo_prints_one_screen(shown, tmp_path):
    done, _ = shown
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80
    words = " ".join(done.out.split())
    assert words.startswith("Three small models that come with repflow look up a value by its key (kvpr, 256 tokens).")
    for name in THREE:
        flow = load_result(tmp_path / "d" / "demo" / f"{name}-flow-kvpr-256-2").mean("token_similarity")
        reach = load_result(tmp_path / "d" / "demo" / f"{name}-reach-trained-kvpr-256-2").mean("half_reach")
        (row,) = [line.split() for line in lines if line.split()[:1] == [name] and len(line.split()) >= 7]
        assert row[2:6] == [f"{value:.2f}" for value in (flow[0], flow.max(), flow[-1])] + [f"{reach:.0f}"]
        assert (tmp_path / "d" / "demo" / f"{name}-xavier-flow-kvpr-256-2").is_dir()
    told = [line for line in lines if line.startswith("- ")]
    assert 4 <= len(told) <= 6, "five sentences, less one that these runs do not carry, and the findings'"
    assert all(re.search(r"\d", text) for text in re.split(r"(?:^|\n)- ", done.out)[1:]), "each with its number"
    assert "half of what moves its last output lies in the last" in words
    assert "Paper 1 (arXiv 2510.06640) reports 8 findings. On these models: 8 open." in words
    assert f"open {Path('d') / 'demo.html'} figures, in a browser" in words
    assert "type repflow measure" in words
    assert "F 3.2.1" not in done.out
    assert "missing from this zoo, so not shown: gpt-neo, mamba, hybrid-mirror" in done.err
    progress = [line for line in done.err.splitlines() if "====" in line]
    assert [line.split()[0] for line in progress] == [name for name in zoo.NAMES if name in THREE], "a line per model"


@pytest.mark.usefixtures("short", "stored")
def test_everything_else_is_verbose_or_json(cli, tmp_path):
    done = cli("demo", "--out", "d", "--verbose")
    assert done.code == 0, done.err
    for finding in FINDINGS:
        assert f"\n{finding.code}: " in done.out
    assert "F 3.4.3: open: 0 of 2 parts in 0 of 1 training (0 seeds, power 0%; residual stream)" in done.out
    assert "F 3.2.1: open: 0 of 4 parts in 1 of 1 training (1 seed" in done.out
    words = " ".join(done.out.split())
    assert all(f"{word}: {meaning}" in words for word, meaning in MEANING.items())
    assert "1 seed of training and it takes 3." in words
    for name in THREE:
        assert f"- {name} (" in done.out
        result = load_result(tmp_path / "d" / "demo" / f"{name}-reach-trained-kvpr-256-2")
        reach, share = result.mean("half_reach"), result.mean("recent_share")[2]  # of the last 64
        assert f"its last output lies in the last {reach:.0f} tokens ({share:.0%} within the last 64)." in words
    assert "How far back tokens reach: kvpr, 256 tokens, 2 prompts" in done.out
    again = cli("demo", "--out", "d", "--json")
    told = json.loads(again.out)
    assert [entry["code"] for entry in told["findings"]] == [finding.code for finding in FINDINGS]
    assert {entry["verdict"] for entry in told["findings"]} == {"open"}
    assert told["findings"][0]["counts"] == "0 of 4 parts in 1 of 1 training"
    assert len(told["runs"]) == 10
    assert [row["model"] for row in told["models"]] == list(told["reach"])
    assert all(isinstance(text, str) for text in told["sentences"])
    assert told["reach"]["hybrid"]["half_within"] == reach
    assert told["reach"]["hybrid"]["last_64"] == share
    assert told["reach"]["hybrid"]["random"] is None, "the complete tables have it"
    written = (tmp_path / told["page"]).read_text(encoding="utf-8")
    assert written.startswith("<!DOCTYPE html>")
    assert "How far back a token reaches" in written
    assert "Eight findings, eight verdicts" in written


@pytest.mark.usefixtures("short", "stored")
def test_demo_tells_further_trainings(cli, tmp_path, monkeypatch):
    """Beside the zoo lie readings of two more trainings of Mamba-2; the demo's words, JSON and page have them."""
    monkeypatch.setattr(demo, "PROBED", ())
    first = json.loads(cli("demo", "--out", "d", "--json").out)
    assert first["further_trainings"] == {}
    (own,) = [entry for entry in first["readings"] if entry["model"] == "mamba2"]
    assert (own["seed"], own["steps"], len(own["data"])) == (0, 0, 16)
    others = [own | {"seed": seed, "steps": 9} for seed in (1, 2)]
    (tmp_path / "three" / zoo.SEEDS).write_text(json.dumps({"format": 1, "readings": others}))
    end = own["trained"]["kvpr/256"]["token_similarity"][-1]
    words = " ".join(cli("demo", "--out", "d", "--verbose").out.split())
    assert f"{end:.2f} to {end:.2f} alike at the end in 2 further trainings of 9 steps" in words
    content = json.loads(cli("demo", "--out", "d", "--json").out)
    assert [entry["seed"] for entry in content["further_trainings"]["mamba2"]["trainings"]] == [1, 2]
    assert {part["seed"] for part in content["findings"][0]["parts"]} == {0, 1, 2}
    assert "The same models, trained again" in (tmp_path / content["page"]).read_text(encoding="utf-8")
    monkeypatch.delenv(zoo.VARIABLE)  # a reader with the packaged zoo, whose trainings are not of these models
    done = cli("report", str(tmp_path / "d" / "demo" / "mamba2-flow-kvpr-256-2"), "--out", "page.html")
    assert done.code == 0, done.err
    assert "The same models, trained again" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("short", "stored")
def test_a_run_that_fails_does_not_take_the_demo_down(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "PROBED", ())
    for run in (tmp_path / "d" / "demo").glob("hybrid-*"):
        shutil.rmtree(run)
    (tmp_path / "three" / "hybrid" / "config.json").write_text("{}")
    done = cli("demo", "--out", "d", "--verbose")
    assert done.code == 1
    assert "error: hybrid, trained: expected config.json of zoo:hybrid as it was made" in done.err
    assert "check REPFLOW_ZOO, or run `python -m tools.zoo.make digests`" in done.err
    assert "\nF 3.2.1: " in done.out
    assert "- hybrid (" not in done.out
    lost = ["hybrid, trained", "hybrid, reach of tokens", "hybrid, random (xavier)"]
    assert f"3 of 9 runs failed and are not in these results: {'; '.join(lost)}" in done.out
    again = cli("demo", "--out", "d", "--json")
    assert again.code == 1
    assert json.loads(again.out)["failed"] == lost


@pytest.mark.usefixtures("short")
def test_a_demo_that_cannot_write_says_so_once(cli):
    done = cli("demo", "--out", "/proc/none")
    assert done.code == 1
    assert len(done.err.strip().splitlines()) == 1
    assert "/proc/none" in done.err


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"format": 99, "readings": []}'])
def test_damaged_further_trainings_are_told(tmp_path, monkeypatch, text):
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path))
    (tmp_path / zoo.SEEDS).write_text(text)
    with pytest.raises(InputError, match=r"expected readings of format 1 in .*seeds.json; got other content; measure"):
        zoo.seed_records()


def test_an_empty_zoo_is_told(cli, tmp_path, monkeypatch):
    monkeypatch.setenv(zoo.VARIABLE, str(tmp_path))
    for command in (("demo",), ("zoo", "list")):
        done = cli(*command)
        assert done.code == 2
        assert "got no weights in" in done.err
        assert "check REPFLOW_ZOO" in done.err


def test_the_complete_tables_hold_the_quick_ones():
    quick, full = demo.jobs(), demo.jobs(full=True)
    assert len({job.name for job in full}) == len(full)
    assert {job.config.model for job in full} == {job.config.model for job in quick}
    assert {(job.config.task, job.config.length) for job in full} == {
        ("kvpr", 256), ("kvpr", 384), ("kvpr", 512), ("mdqa", 512),
    }  # fmt: skip
    assert {job.config.init for job in full} == {"trained", "gaussian", "xavier", "he"}
    assert {job.config.model for job in full if isinstance(job.config, RecencyConfig)} == {j.config.model for j in full}
    assert [job.config.label for job in quick if job.probes] == ["answer"] * 3, "fixed in advance"
    assert {job.config.label for job in full if job.probes} == {"answer", "index"}
    assert not [job for job in quick if not job.probes and getattr(job.config, "states", "residual") != "residual"]
    assert all(job.config.samples >= 300 for job in quick if job.probes)
    assert all(job.config.length <= 256 for job in quick)
    reach = [job for job in quick if isinstance(job.config, RecencyConfig)]
    assert all(job.config.samples == 8 for job in quick if not job.probes and job not in reach)
    assert [job.config.model for job in reach] == [f"zoo:{name}" for name in zoo.NAMES]
    assert all(job.config.samples * job.config.probes <= 4 for job in reach)  # seconds, on the zoo
