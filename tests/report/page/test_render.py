"""The page as text: escapes, policy, sizes, refusals. Needs no browser."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from repflow.core.errors import InputError, MissingExtraError
from repflow.core.visible import visible
from repflow.report.data.model import Figure, Link, Page, Section, Table, Text, Variant
from repflow.report.data.text import json_text, packed
from repflow.report.page.render import render
from tests.report.page import browser as page_browser
from tests.report.page.example import HOSTILE, IMAGE, example_page


class Parts(HTMLParser):
    """Elements of a page, and the text of its scripts by type."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.scripts: list[tuple[dict, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.scripts:
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)

    def handle_endtag(self, tag):
        if tag == "script":
            self.tags.append(("/script", {}))


def unpack(text: str):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_policy_names_the_hashes_of_the_script_and_of_plotly_and_nothing_else():
    parts = Parts(render(example_page()))
    policy = next(attrs["content"] for tag, attrs in parts.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    own = [text for attrs, text in parts.scripts if "type" not in attrs]
    (packed_plotly,) = [text for attrs, text in parts.scripts if attrs.get("id") == "page-plotly"]
    own.append(gzip.decompress(base64.b64decode(packed_plotly)).decode())
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in own]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert len(own) == 2
    assert sorted(rules["script-src"].split()) == sorted(hashes)
    assert rules["default-src"] == "'none'"
    assert "http" not in policy


def test_no_element_names_another_host():
    parts = Parts(render(example_page(hostile=True, count=3)))
    outside = [
        (tag, attrs)
        for tag, attrs in parts.tags
        for name in ("src", "href", "action", "data", "srcset", "poster")
        if name in attrs and not str(attrs[name]).startswith(("#", "data:,"))
    ]
    assert outside == []
    assert not any(name.startswith("on") for _, attrs in parts.tags for name in attrs)


def test_hostile_text_stays_text_in_the_source():
    text = render(example_page(hostile=True, count=3))
    body = text.split("</style>", 1)[1].split('<script type="application/json"')[0]
    assert HOSTILE not in body
    assert IMAGE not in body
    assert not {"\u202e", "\u2028"} & set(body)
    settings = re.search(r'id="page-settings">(.*?)</script>', text, re.DOTALL).group(1)
    assert not set("<>&\u2028") & set(settings)
    assert json.loads(settings)["models"][0]["label"] == HOSTILE


def test_the_same_page_gives_the_same_text():
    assert render(example_page(6, 16)) == render(example_page(6, 16))


def test_numbers_travel_exactly_and_gaps_as_null():
    values = np.random.default_rng(0).standard_normal(50)
    values[7] = np.nan
    sent = unpack(packed({"y": values, "n": np.int64(3), "inf": float("inf")}))
    assert sent["n"] == 3
    assert sent["inf"] is None
    assert [value is None for value in sent["y"]] == [at == 7 for at in range(50)]
    assert all(a == b for a, b in zip(sent["y"], values, strict=True) if a is not None)


def test_variants_are_packed_one_by_one():
    page = example_page()
    figure = page.sections[1].blocks[0]
    parts = Parts(render(page))
    found = {attrs["id"]: text for attrs, text in parts.scripts if attrs.get("id", "").startswith("data-similarity-")}
    assert len(found) == len(figure.variants) == 8
    third = unpack(found["data-similarity-3"])
    assert third["rows"] == [list(row) for row in figure.variants[3].rows]
    assert third["note"] == figure.variants[3].note


def test_a_lone_surrogate_can_be_written():
    page = example_page()
    broken = replace(
        page, subtitle="half \ud800", sections=[Section("s", "t \udc00", "", [Text("x", "y", ["\ud83d"])])]
    )
    text = render(broken).encode()
    assert b"half [U+D800]" in text
    assert json.loads(json_text({"a": "\ud800"})) == {"a": "\ud800"}


def test_links_to_parts_that_are_not_there_are_plain_text():
    table = Table("t", "T", ["a"], [[Link("one", "t")], [Link("two", "absent")]])
    text = render(Page("p", "", [], [], [Section("s", "S", "", [table])]))
    assert '<a href="#t"><bdi>one</bdi></a>' in text
    assert "<bdi>two</bdi>" in text
    assert "#absent" not in text


def test_cells_are_short_on_the_page_and_exact_in_the_data():
    table = Table("t", "T", ["a"], [[0.123456789], [None], [float("nan")], [12], [np.float64(2.5)]])
    text = render(Page("p", "", [], [], [Section("s", "S", "", [table])]))
    assert re.findall(r"<td[^>]*>(?:<bdi>)?([^<]*)", text) == ["0.1235", "–", "–", "12", "2.5"]
    assert 'title="0.123456789"' in text
    packed_rows = re.search(r'id="data-t">([^<]*)<', text).group(1)
    assert unpack(packed_rows)["rows"] == [[0.123456789], [None], [None], [12], [2.5]]


@pytest.mark.parametrize("name", ["", "a b", "1st", "page-x", "data-x", "é", 'x"onload='])
def test_an_id_that_is_no_anchor_is_refused(name):
    with pytest.raises(InputError, match=r"expected ids of letters.*rename"):
        render(Page("p", "", [], [], [Section(name, "S", "", [])]))


def test_an_id_used_twice_is_refused():
    blocks = [Text("same", "a", []), Text("same", "b", [])]
    with pytest.raises(InputError, match="'same', 2 times"):
        render(Page("p", "", [], [], [Section("s", "S", "", blocks)]))


def test_a_figure_without_a_variant_and_a_label_used_twice_are_refused():
    empty = Figure("f", "F", "", "", [])
    with pytest.raises(InputError, match="none in figure 'f'"):
        render(Page("p", "", [], [], [Section("s", "S", "", [empty])]))
    model = example_page().models[0]
    with pytest.raises(InputError, match="more than once"):
        render(Page("p", "", [model, model], [], []))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"no jinja2; run `pip install plotly jinja2`"):
        render(example_page())


def test_rendering_never_imports_torch():
    code = "import sys; import repflow.report.page.render as p; from repflow.report.data.model import Page; "
    code += "p.render(Page('a', '', [], [], [])); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_variant_without_numbers_is_drawn_from_defaults():
    variant = Variant({}, [{"y": [1.0, None]}])
    text = render(Page("p", "", [], [], [Section("s", "S", "", [Figure("f", "F", "", "alt", [variant])])]))
    assert "data-f-0" in text


def test_controls_are_written_out_as_the_script_does_it():
    assert visible("a\tb\nc\x00\x7f\ufeff") == "a\tb\nc[U+0000][U+007F][U+FEFF]"


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_browser_is_told_and_in_ci_a_failure(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(page_browser.shutil, "which", lambda name: None)
    with pytest.raises(outcome, match="apt-get install chromium"):
        page_browser.launch(None)
