"""Pages that a script makes hold what it makes of the packaged records, and nothing typed."""

import re
import runpy

import pytest

from tests.docs.pages import DOCS

MADE = {"make_zoo": "guides/zoo.md", "make_architecture": "architecture.md"}


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
    number = re.search(r"\| (\d\.\d{3}|\d\.\d\d ± \d\.\d\d) \|", text)[0]
    assert maker["page"](text.replace(number, "| 9.999 |")) == text


def test_the_picture_is_there(maker):
    assert maker["PICTURE"].read_bytes()[:4] == b"\x89PNG"


def test_every_maker_of_a_page_is_known():
    makers = {file.stem for file in DOCS.glob("make_*.py") if "PAGE" in file.read_text(encoding="utf-8")}
    assert makers == set(MADE)


def test_every_maker_has_its_page(maker):
    assert str(maker["PAGE"].relative_to(DOCS)) in MADE.values()
