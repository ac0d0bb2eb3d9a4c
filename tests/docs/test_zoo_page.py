"""docs/guides/zoo.md holds what docs/make_zoo.py makes of the records beside the packaged models, and nothing typed."""

import re
import runpy

import pytest
from pages import DOCS

PAGE = DOCS / "guides" / "zoo.md"


@pytest.fixture
def maker(monkeypatch):
    monkeypatch.delenv("REPFLOW_ZOO", raising=False)
    return runpy.run_path(str(DOCS / "make_zoo.py"))


def test_the_page_is_as_the_script_makes_it(maker):
    text = PAGE.read_text(encoding="utf-8")
    assert maker["page"](text) == text
    assert {match["name"] for match in maker["PART"].finditer(text)} == set(maker["PARTS"])


def test_a_changed_number_would_be_seen(maker):
    text = PAGE.read_text(encoding="utf-8")
    number = re.search(r"\| \d\.\d{3} \|", text)[0]
    assert maker["page"](text.replace(number, "| 9.999 |")) == text


def test_the_picture_is_there():
    assert (DOCS / "zoo.png").read_bytes()[:4] == b"\x89PNG"
