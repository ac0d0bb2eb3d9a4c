"""The page of real runs: every section finds what the commands store, and its commands are the same runs again."""

import shlex
from pathlib import Path

import pytest

from repflow.report.page.build import build_page
from repflow.store import runs_in
from tests.studies.probe.inputs import reader, tokenizer


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Folders gpt_neox and mamba2 with a tokenizer."""
    folder = tmp_path_factory.mktemp("readers")
    for kind in ("gpt_neox", "mamba2"):
        reader(kind).network.save_pretrained(folder / kind)
        tokenizer().save_pretrained(folder / kind)
    return folder


def stored(folder):
    """Manifests of all runs below a folder, as bytes: a run that is only read again keeps its own."""
    return {
        path: path.read_bytes()
        for path in sorted(Path(folder).rglob("manifest.jsonl"))
        if path.parent.name != "summary"
    }


def test_the_commands_of_a_page_find_its_runs_again(cli, readers, tmp_path):
    both = (readers / "gpt_neox", readers / "mamba2")
    kvpr = ("--task", "kvpr", "--length", "300", "--items", "3")
    asked = [
        ("measure", *both, *kvpr, "--samples", "3", "--metrics", "default,cka_matrix", "--drop", "first"),
        ("measure", both[0], "--length", "24", "--samples", "2", "--ablate", "norm-affine", "--states", "branch"),
        ("compare", *both, *kvpr, "--samples", "2"),
        ("probe", both[0], *kvpr, "--samples", "30", "--seeds", "2", "--answers", "0", "--epochs", "5", "--allow-leak",
         "--recipes", "paper", "--controls", "none", "--lens", "3"),
        ("twins", both[0], "--inits", "default", "--lengths", "24", "--seeds", "2", "--samples", "2"),
    ]  # fmt: skip
    for request in asked:
        done = cli(*request)
        assert done.code == 0, done.err
    before = stored("runs")
    page = build_page(["runs"], papers=True)
    blocks = {part.id: part for section in page.sections for part in section.blocks}
    expected = {"verdict-table", "findings-table", "figure-1", "figure-2", "figure-3", "figure-4", "figure-4-cross"}
    expected |= {"figure-7", "over-depth", "scaling-size", "table-2", "prompts-explorer", "made-commands"}
    assert expected <= set(blocks)
    *commands, _ = blocks["made-commands"].paragraphs
    assert len(commands) == 6
    for line in commands:
        done = cli(*shlex.split(line)[1:])
        assert done.code == 0, (line, done.err)
    assert stored("runs") == before
    assert len(runs_in("runs")) == 5
