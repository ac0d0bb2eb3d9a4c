"""Which of Plotly's scripts a page brings along."""

from __future__ import annotations

import hashlib
import sys

import pytest

from repflow.core.errors import MissingExtraError
from repflow.report.data.model import Figure, Page, Section, Variant
from repflow.report.page import bundle
from repflow.report.page.render import render
from tests.report.page.example import example_page

PUBLISHED = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


def drawn_as(kind):
    figure = Figure("f", "F", "", "alt", [Variant({}, [{"type": kind, "y": [1.0, 2.0]}])])
    return Page("p", "", [], [], [Section("s", "S", "", [figure])])


def test_the_small_build_is_the_published_one():
    assert hashlib.sha256(bundle.plotly_script([]).encode()).hexdigest() == PUBLISHED


def test_a_page_of_lines_bars_and_maps_brings_the_small_build_along():
    assert len(render(example_page())) < 1_000_000 < len(bundle.plotly_script([]))


def test_a_figure_of_another_kind_brings_the_whole_build_along():
    assert len(render(drawn_as("scatterpolar"))) > 2 * len(render(drawn_as("box")))


def test_a_figure_of_another_kind_needs_the_package(monkeypatch):
    bundle._whole.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    render(drawn_as("scatter"))
    with pytest.raises(MissingExtraError, match=r"no plotly; run `pip install plotly jinja2`"):
        render(drawn_as("scatterpolar"))


def test_the_named_kinds_are_those_that_the_small_build_has(page):
    page.show("similarity")
    assert set(page.tab.evaluate("() => Object.keys(Plotly.PlotSchema.get().traces)")) == bundle.CARTESIAN
