"""Pages of stored runs in a real browser: every control of every figure, at both widths."""

from __future__ import annotations

import pytest

from repflow.report.page.build import build_page
from repflow.report.page.render import render
from tests.report.page.browser import APART, OVERLAPS, Opened
from tests.report.stored_runs import compared, keep, measured, probed

LAYERS = 8
HYBRID = ["ssm", "ssm", "ssm", "attention"] * 2
MODELS = {
    "gpt-neo": ["attention"] * LAYERS,
    "gpt-neox": ["attention"] * LAYERS,
    "mamba": ["ssm"] * LAYERS,
    "mamba2": ["ssm"] * LAYERS,
    "hybrid": HYBRID,
    "hybrid-mirror": HYBRID[::-1],
}


@pytest.fixture(scope="module")
def real_file(tmp_path_factory):
    """Page of stored runs of one, two or six models."""
    folder = tmp_path_factory.mktemp("real")

    def file(count: int):
        path = folder / f"{count}.html"
        if path.exists():
            return path
        runs = folder / f"runs{count}"
        for at, (name, kinds) in enumerate(list(MODELS.items())[:count]):
            about = {"layers": LAYERS, "kinds": kinds, "seed": at, "parameters": 10**6 * (at + 1)}
            for length in (32, 64):
                keep(runs, f"{name}-{length}", measured(name, length=length, **about))
            keep(runs, f"probe-{name}", probed(name, **about))
        if count > 1:
            keep(runs, "pair", compared("gpt-neo", "gpt-neox", layers=(LAYERS, LAYERS)))
        path.write_text(render(build_page([runs])), encoding="utf-8")
        return path

    return file


@pytest.mark.parametrize(
    ("count", "width", "theme"),
    [pytest.param(1, 390, "dark", marks=pytest.mark.slow), (6, 390, "light"), (6, 1280, "dark")],
)
def test_every_figure_is_drawn_and_nothing_overlaps(browser, real_file, count, width, theme):
    page = Opened(browser, real_file(count), width=width, theme=theme)
    try:
        for figure in page.tab.evaluate(
            "[...document.querySelectorAll('[data-figure], [data-prompts]')].map((n) => n.id)"
        ):
            chart = page.show(figure)
            assert chart.evaluate(OVERLAPS) == [], figure
            assert chart.evaluate("chart => chart.data.length") > 0, figure
        assert page.tab.evaluate(APART) == []
        assert page.tab.evaluate("document.documentElement.scrollWidth") == width
        page.check()
    finally:
        page.close()


def test_a_window_that_becomes_narrow_and_wide_again_keeps_every_panel(browser, real_file):
    page = Opened(browser, real_file(6))
    try:
        page.show("figure-1")
        for width in (390, 1280):
            page.tab.set_viewport_size({"width": width, "height": 844})
            page.tab.wait_for_timeout(150)  # Plotly waits before it follows the window
            chart = page.show("figure-1")
            tall = chart.evaluate(
                "chart => Object.entries(chart._fullLayout).filter(([k]) => /^yaxis/.test(k)).map(([, a]) => a._length)"
            )
            assert len(tall) == len(MODELS)
            assert min(tall) > 150, width
            top = chart.evaluate("chart => chart._fullLayout._size.t")
            assert top < 60, "no room for a legend that heat maps do not have"
            table = page.tab.locator("#verdict-table .scroll")
            assert table.evaluate("node => node.scrollWidth <= node.clientWidth"), "the verdict needs no pushing about"
        page.check()
    finally:
        page.close()


def test_every_control_of_every_figure_can_be_used(browser, real_file):
    page = Opened(browser, real_file(2))
    try:
        used = 0
        for figure in page.tab.evaluate(
            "[...document.querySelectorAll('[data-figure], [data-prompts]')].map((n) => n.id)"
        ):
            page.show(figure)
            menus = page.tab.locator(f"#{figure} .menus select")
            for at in range(menus.count()):
                for value in menus.nth(at).evaluate("menu => [...menu.options].map((option) => option.value)"):
                    menus.nth(at).select_option(value)
                    page.settle()
                    assert menus.nth(at).input_value() == value
                    used += 1
            for button in page.tab.locator(f"#{figure} .segments input").all():
                button.check()
                page.settle()
                used += 1
        for menu in page.tab.locator("select[data-shared]").all():
            for value in menu.evaluate("menu => [...menu.options].filter((o) => !o.disabled).map((o) => o.value)"):
                menu.select_option(value)
                page.settle()
                used += 1
        assert used > 30
        page.check()
    finally:
        page.close()
