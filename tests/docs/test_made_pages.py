"""Pages that a script makes hold what it makes of the packaged records, and nothing typed."""

import re
import runpy

import pytest

from tests.docs.pages import DOCS

MADE = {
    "make_zoo": "guides/zoo.md",
    "make_architecture": "architecture.md",
    "make_recall": "laboratories/recall.md",
    "make_pixels": "laboratories/pixels.md",
    "make_tokens": "laboratories/tokens.md",
    "make_depth": "laboratories/depth.md",
    "make_remedies": "laboratories/remedies.md",
    "make_attention": "guides/place-attention.md",
}


@pytest.fixture(params=MADE)
def maker(request, monkeypatch):
    monkeypatch.delenv("REPFLOW_ZOO", raising=False)
    return runpy.run_path(str(DOCS / f"{request.param}.py"))


def test_the_page_is_as_the_script_makes_it(maker):
    text = maker["PAGE"].read_text(encoding="utf-8")
    assert maker["page"](text) == text
    assert {match["name"] for match in maker["PART"].finditer(text)} == set(maker["PARTS"])


def test_a_changed_number_would_be_seen(maker):
    text = maker["PAGE"].read_text(encoding="utf-8")
    number = re.search(r"\| (\d\.\d{3}|\d\.\d\d ± \d\.\d\d|\d\.\d\d) \|", text)[0]
    assert maker["page"](text.replace(number, "| 9.999 |")) == text


def test_the_picture_is_there(maker):
    if "PICTURE" not in maker:
        pytest.skip("a page without a picture of its own")
    assert maker["PICTURE"].read_bytes()[:4] == b"\x89PNG"


def test_every_maker_of_a_page_is_known():
    makers = {file.stem for file in DOCS.glob("make_*.py") if "PAGE" in file.read_text(encoding="utf-8")}
    # the last three: test_reference.py, tests/models/test_decoders.py, and below
    assert makers == {*MADE, "make_commands", "make_decoders", "make_papers"}


def test_every_maker_has_its_page(maker):
    assert str(maker["PAGE"].relative_to(DOCS)) in MADE.values()


@pytest.fixture(scope="module")
def papers():
    return runpy.run_path(str(DOCS / "make_papers.py"))


def test_what_survives_of_the_papers_is_as_its_sources_have_it(papers):
    text = papers["PAPERS_PAGE"].read_text(encoding="utf-8")
    same = papers["page"](text) == text
    assert same, "run python -m docs.make_papers"
    assert papers["page"](text.replace("**partly holds**: 1 of", "**holds**: 9 of")) == text


def test_every_row_of_the_papers_has_a_status_a_command_and_a_verdict(papers):
    for paper in papers["papers"]():
        for row in paper["rows"]:
            assert row["status"] in papers["STATUS"], row
            ran = row["status"] in ("run", "recipe", "checked")
            assert bool(row.get("command")) >= ran, row
            assert bool(row["verdict"]) == ran, row
            assert bool(row.get("lab")) == (row["status"] == "not yet"), row


@pytest.mark.parametrize(
    ("paper", "figures", "tables"),
    [(0, range(1, 8), range(1, 3)), (1, range(1, 11), range(1, 6)), (2, range(1, 9), range(1, 11))],
)
def test_every_figure_and_table_is_listed(papers, paper, figures, tables):
    items = [row["item"] for row in papers["papers"]()[paper]["rows"]]
    for kind, numbers in (("Figure", figures), ("Table", tables)):
        named = {
            number for item in items if item.startswith(kind) for number in re.findall(r"\b\d+\b", item.split(":")[0])
        }
        assert {str(number) for number in numbers} <= named


def test_commands_of_the_papers_page_exist(papers):
    commands = {words for words, _ in runpy.run_path(str(DOCS / "make_commands.py"))["commands"]()}
    for row in (row for paper in papers["papers"]() for row in paper["rows"]):
        words = row.get("command", "").removeprefix("repflow ").split()
        if row.get("command", "").startswith("repflow "):
            assert {words[0], " ".join(words[:2])} & commands, row
