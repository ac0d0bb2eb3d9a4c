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
from repflow.report.draw.palette import DARK, INK, KINDS, LIGHT
from repflow.report.page import render as page_module
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


def test_policy_names_the_hashes_of_the_two_scripts_and_nothing_else():
    parts = Parts(render(example_page()))
    policy = next(attrs["content"] for tag, attrs in parts.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    own = [text for attrs, text in parts.scripts if "type" not in attrs]
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
    page_module._plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r"no plotly; run `pip install plotly jinja2`"):
        render(example_page())


def test_rendering_never_imports_torch():
    code = "import sys; import repflow.report.page.render as p; from repflow.report.data.model import Page; "
    code += "p.render(Page('a', '', [], [], [])); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_variant_without_numbers_is_drawn_from_defaults():
    variant = Variant({}, [{"y": [1.0, None]}])
    text = render(Page("p", "", [], [], [Section("s", "S", "", [Figure("f", "F", "", "alt", [variant])])]))
    assert "data-f-0" in text


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [0, 1])
def test_text_and_lines_stand_out_from_their_ground(dark):
    ground = [INK["paper"][dark], INK["ground"][dark]]
    for name in ("ink", "muted", "accent", "good", "bad"):
        assert all(contrast(INK[name][dark], paper) >= 4.5 for paper in ground), name
    assert all(contrast(colour, ground[0]) >= 3 for colour in (LIGHT, DARK)[dark])
    assert contrast(INK["edge"][dark], ground[0]) >= 3  # borders of controls
    assert all(contrast(pair[dark], ground[0]) >= 2 for pair in KINDS.values())  # strips: named in text as well


SIGHT = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
"""Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB."""


def lab(colour: str, matrix=None) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    if matrix is not None:
        linear = np.clip(np.array(matrix) @ linear, 0, 1)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    f = np.cbrt(xyz / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", [None, *SIGHT])
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_models_are_told_apart_by_colour_blind_readers(colours, sight):
    seen = [lab(colour, SIGHT.get(sight)) for colour in colours]
    nearest = min(np.linalg.norm(a - b) for at, a in enumerate(seen) for b in seen[at + 1 :])
    assert nearest > 10, nearest  # CIE76; about 2.3 is just noticeable


def test_controls_are_written_out_as_the_script_does_it():
    assert visible("a\tb\nc\x00\x7f\ufeff") == "a\tb\nc[U+0000][U+007F][U+FEFF]"


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_a_missing_browser_is_told_and_in_ci_a_failure(monkeypatch, ci, outcome):
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(page_browser.shutil, "which", lambda name: None)
    with pytest.raises(outcome, match="apt-get install chromium"):
        page_browser.launch(None)
