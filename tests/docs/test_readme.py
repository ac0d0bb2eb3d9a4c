"""README keeps its promises: short, a picture, five questions, how to cite; no link of the documentation is dead."""

import re

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, blocks, links, name, prose

README = ROOT / "README.md"
LINES = 90
PICTURE_BYTES = 150_000
LATER = {"docs/benchmarks.md"}


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LINES


def test_readme_has_a_picture_that_is_there():
    pictures = re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", prose(README))
    assert len(pictures) == 1
    for picture in pictures:
        file = ROOT / picture
        assert 0 < file.stat().st_size < PICTURE_BYTES
        assert file.read_bytes()[:4] == b"\x89PNG"


def test_readme_has_one_python_block_and_the_front_doors():
    text = README.read_text(encoding="utf-8")
    assert sum(block.language == "python" for block in blocks(README)) == 1
    assert "make demo" in text
    assert "make test" in text
    assert "Apache-2.0" in text


def test_readme_has_the_five_questions_and_python_in_ten_lines():
    from repflow.cli.help import QUESTIONS

    text = README.read_text(encoding="utf-8")
    assert all(f"| {question} | `{command}` |" in text for question, command in QUESTIONS)
    (block,) = [block for block in blocks(README) if block.language == "python"]
    assert len(block.body.splitlines()) <= 10
    assert "It does not train" not in text


def test_the_citation_names_the_version():
    from repflow import __version__

    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text
    assert "(CITATION.cff)" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_relative_links_resolve(page):
    for target in links(page):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if name(file) in LATER and not file.exists():
            continue
        assert file.exists(), f"{name(page)} links to {target}"
        outside = page.is_relative_to(DOCS) and not file.is_relative_to(DOCS)
        assert not outside, f"{name(page)} links to {target}, which leaves docs/: a site holds docs/ alone"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{name(page)} links to {target}"


def anchors(page):
    """Anchors that a reader's browser makes of the headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_index_links_every_page():
    entries = [DOCS / "index.md", DOCS / "api" / "index.md"]
    linked = {(entry.parent / target.partition("#")[0]).resolve() for entry in entries for target in links(entry)}
    missing = [name(page) for page in DOCS.rglob("*.md") if page.name != "index.md" and page.resolve() not in linked]
    assert not missing


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name)
def test_no_machine_paths(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.])/(?:home|root|tmp|work|mnt|opt)/\S*", text)
