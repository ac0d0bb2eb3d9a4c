"""`repflow report`: the page of stored runs through the command line."""

import json
from pathlib import Path

import pytest

from tests.report.stored_runs import keep, measured, probed

HOSTILE = "</script><script>window.hacked=1</script>"


@pytest.fixture
def runs(tmp_path):
    """Two models measured, one probed, in ./runs."""
    keep(tmp_path / "runs", "a", measured("gpt"))
    keep(tmp_path / "runs", "b", measured("mamba", kinds=["ssm"] * 4, seed=1))
    keep(tmp_path / "runs", "c", probed("gpt"))
    return tmp_path / "runs"


def test_named_runs_become_one_page(cli, runs):
    done = cli("report", runs / "a", runs / "b", "--out", "page.html")
    assert done.code == 0, done.err
    assert done.out == "wrote page.html\n"
    text = Path("page.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "gpt" in text
    assert "mamba" in text
    assert "Content-Security-Policy" in text


def test_without_runs_all_in_the_folder_of_runs_are_taken(cli, runs):
    done = cli("report")
    assert done.code == 0, done.err
    assert done.out == "wrote report.html\n"
    assert Path("report.html").stat().st_size < 12_000_000


def test_a_folder_as_out_gets_a_page_in_it_and_an_older_page_is_replaced(cli, runs):
    Path("pages").mkdir()
    assert cli("report", runs / "a", "--out", "pages").out == "wrote pages/report.html\n"
    first = Path("pages/report.html").read_bytes()
    assert cli("report", runs / "a", "--out", "pages").code == 0
    assert Path("pages/report.html").read_bytes() == first
    assert cli("report", runs / "b", "--out", "new/deep/page.html").code == 0
    assert Path("new/deep/page.html").is_file()
    assert not list(Path().rglob("*.tmp"))


def test_the_json_twin_has_what_the_page_shows_and_nothing_else_is_printed(cli, runs):
    done = cli("report", runs, "--out", "page.html", "--json")
    assert done.code == 0, done.err
    twin = json.loads(done.out)
    assert twin["page"] == "page.html"
    assert [card["title"] for card in twin["cards"]] == ["Most alike", "Least alike", "Best read-out", "Farthest reach"]
    assert twin["sentence"] in Path("page.html").read_text(encoding="utf-8")
    assert "findings" not in [section["id"] for section in twin["sections"]]


def test_claims_of_the_papers_are_there_where_asked(cli, runs):
    assert "Eight findings" not in (cli("report", runs).out and Path("report.html").read_text(encoding="utf-8"))
    assert cli("report", runs, "--papers").code == 0
    assert "Eight findings, eight verdicts" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["runs/a", "--out", "page.pdf"], "ends in .html"),
        (["runs/a", "--out", "runs/a/page.html"], "a file outside run folders"),
        (["runs/a", "--out", "runs/a"], "a file outside run folders"),
        (["runs/absent"], "absent"),
        (["runs/a", "--out", "page.html/x.html"], "which is a file"),
    ],
)
def test_wrong_requests_are_taught_and_write_nothing(cli, runs, asked, said):
    Path("page.html").write_text("mine")
    done = cli("report", *asked)
    assert done.code == 2
    assert said in done.err
    assert done.err.startswith("error: expected ")
    assert Path("page.html").read_text() == "mine"
    assert not Path("report.html").exists()


def test_without_any_runs_the_user_is_told_what_to_do(cli):
    done = cli("report")
    assert done.code == 2
    assert "repflow measure" in done.err


def test_a_damaged_run_is_named_on_the_page_and_on_stderr(cli, runs):
    keep(runs, "bad", measured("rwkv", seed=3))
    target = max((runs / "bad").rglob("*.safetensors"), key=lambda file: file.stat().st_size)
    content = bytearray(target.read_bytes())
    content[-3] ^= 1
    target.write_bytes(content)
    done = cli("report", runs, "--out", "page.html")
    assert done.code == 0, done.err
    assert "warning: " in done.err
    assert "bad" in done.err
    assert "bad is left out" in Path("page.html").read_text(encoding="utf-8")


def test_names_of_runs_and_models_are_text(cli, tmp_path):
    keep(tmp_path / "runs", "a", measured(HOSTILE.replace("/", "_")))
    assert cli("report", "--out", "page.html").code == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert "<script>window" not in text
    assert text.count("<script>") == 1


def test_reporting_never_imports_torch(process, runs):
    done = process("report", runs, "--out", "page.html", PYTHONPROFILEIMPORTTIME="1")
    assert done.code == 0, done.err[-2000:]
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.err.splitlines() if line.startswith("import time:")}
    assert "repflow.report.page.render" in imported
    assert not {"torch", "transformers"} & imported
