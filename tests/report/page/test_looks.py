"""How the page looks at both widths and in both themes, how fast it opens, and what the keyboard reaches."""

from __future__ import annotations

import io
import itertools

import pytest

from tests.report.page.browser import APART, OVERLAPS

FIGURES = ("similarity", "accuracy", "cka", "explorer")
SIZE = 12_000_000


def pixels(chart):
    """Share of pixels that differ from the ground, and the number of colours."""
    from PIL import Image

    image = Image.open(io.BytesIO(chart.screenshot())).convert("RGB")
    colours = image.getcolors(1 << 24)
    ground = max(colours)[0]
    return 1 - ground / (image.width * image.height), len(colours), max(colours)[1]


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        (1280, "light"),
        (390, "dark"),
        pytest.param(1280, "dark", marks=pytest.mark.slow),
        pytest.param(390, "light", marks=pytest.mark.slow),
    ],
)
def test_no_chart_is_blank_and_nothing_overlaps(example_file, opened, width, theme):
    page = opened(example_file(6, 24), width=width, height=844, theme=theme)
    for figure in FIGURES:
        chart = page.show(figure)
        share, colours, ground = pixels(chart)
        assert share > 0.02, f"{figure} is blank"
        assert colours > 30, f"{figure} has {colours} colours"
        assert (sum(ground) > 380) == (theme == "light"), f"{figure} on {ground}"
        assert chart.evaluate(OVERLAPS) == [], figure
        assert chart.bounding_box()["width"] > (300 if width == 390 else 400)
    assert page.tab.evaluate(APART) == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") == width
    page.tab.locator("input[name=page-depth][value=absolute]").evaluate("box => box.click()")
    chart = page.show("similarity")
    assert chart.evaluate(OVERLAPS) == []


def test_long_names_are_cut_not_overlaid(example_file, opened):
    page = opened(example_file(3, 12, hostile=True), width=390, height=844)
    for figure in FIGURES:
        assert page.show(figure).evaluate(OVERLAPS) == [], figure
    assert page.tab.evaluate(APART) == []
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 390


def test_menu_of_a_narrow_page_opens_and_closes(example_file, opened):
    page = opened(example_file(), width=390, height=844)
    button, drawer = page.tab.locator("#page-menu"), page.tab.locator("#page-drawer")
    assert not drawer.is_visible()
    button.click()
    assert drawer.is_visible()
    assert button.get_attribute("aria-expanded") == "true"
    page.tab.keyboard.press("Escape")
    assert not drawer.is_visible()
    button.click()
    page.tab.locator("#page-nav a").nth(2).click()
    assert not drawer.is_visible()
    assert page.tab.evaluate("location.hash") == "#layers"


def test_log_axes_write_few_digits_and_strips_are_read_on_their_colours(opened, tmp_path):
    from repflow.report.data.model import Figure, Page, PageModel, Section, Variant
    from repflow.report.draw.depth import strips
    from repflow.report.page.render import render

    models = [PageModel("m", 0, 2, ["ssm", "attention"])]
    spans = {"two": [1, 130], "half": [1, 1.5], "six": [1e-6, 1], "three": [0.01, 6]}
    figures = [
        Figure(name, name, "", "", [Variant({}, [{"x": [1, 40], "y": [0, 1]}], {"xaxis": {"type": "log", **axis}})])
        for name, axis in {"across": {}, "named": {"tickvals": [1, 4, 16]}}.items()
    ]
    for name, y in spans.items():
        layout = {"yaxis": {"type": "log"}} | strips(models)
        traces = [{"x": [0, 1], "y": y, "meta": {"model": "m"}}]
        figures.append(Figure(name, name, "", "", [Variant({}, traces, layout, ["y"], [[1]])]))
    file = tmp_path / "log.html"
    file.write_text(render(Page("Log", "", models, [], [Section("s", "S", "", figures)])), encoding="utf-8")
    page = opened(file)
    told = {}
    for name in spans:
        assert page.show(name).evaluate(OVERLAPS) == [], name
        told[name] = page.layout(name)["yaxis"].get("dtick")
    assert told == {"two": "D2", "half": None, "six": None, "three": 1}
    page.show("across")
    page.show("named")
    assert [page.layout(name)["xaxis"].get("dtick") for name in ("across", "named")] == ["D2", None]
    labels = [shape["label"]["font"]["color"] for shape in page.layout("two")["shapes"]]
    assert labels == ["#000000", "#ffffff"], "dark on orange, white on blue"


def test_six_deep_models_stay_small(example_file, opened):
    """How fast such a page opens: benchmarks/page.py."""
    file = example_file(6, 64)
    assert file.stat().st_size < SIZE
    opened(file)


def test_keyboard_reaches_every_control_and_shows_where_it_is(example_file, opened):
    page = opened(example_file())
    wanted = page.tab.evaluate(
        """() => [...document.querySelectorAll('button, select, summary, a[href], input, .chart, .scroll, pre')]
          .filter((node) => node.checkVisibility({visibilityProperty: true}))
          .filter((node) => node.type !== 'radio' || node.checked).length"""
    )
    seen, unmarked = set(), []
    for _ in range(wanted + 40):
        page.tab.keyboard.press("Tab")
        at, name, marked = page.tab.evaluate(
            """() => { const node = document.activeElement; window.marks = window.marks || new Map();
              if (!window.marks.has(node)) window.marks.set(node, window.marks.size);
              const style = getComputedStyle(node.type === 'radio' ? node.nextElementSibling : node);
              return [window.marks.get(node), node.tagName + '.' + node.className + '#' + node.id,
                style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]; }"""
        )
        if name.startswith("BODY"):
            break
        seen.add(at)
        unmarked += [] if marked else [name]
    assert unmarked == []
    assert len(seen) >= wanted


def test_arrow_keys_read_values_of_a_chart(page):
    from tests.report.page.example import METRICS, curve

    chart = page.show("similarity")
    chart.focus()
    for _ in range(3):
        page.tab.keyboard.press("ArrowRight")
    readout = page.tab.locator("#similarity .readout")
    assert readout.inner_text().endswith(f": {curve(0, METRICS[0], 'kvpr', '300', 12)[2]:.6g}")
    assert readout.inner_text().startswith("model-a")
    page.tab.keyboard.press("ArrowDown")
    assert readout.inner_text().endswith(f": {curve(1, METRICS[0], 'kvpr', '300', 10)[2]:.6g}")
    page.show("cka").focus()
    page.tab.keyboard.press("ArrowRight")
    assert page.tab.locator("#cka .readout").inner_text() == "model-a, 0, 0: 1"


def test_arrow_keys_walk_the_tokens(page):
    page.show("explorer")
    page.tab.locator("#explorer .token").first.focus()
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("ArrowDown")
    page.settle()
    assert page.tab.evaluate("document.activeElement.dataset.at") == "11"
    page.tab.keyboard.press("End")
    page.settle()
    assert page.tab.evaluate("document.activeElement.dataset.at") == "59"
    assert page.traces("explorer")[2]["y"][1] == 61.0


def test_every_part_has_a_name_for_those_who_cannot_see_it(page):
    unnamed = page.tab.evaluate(
        """() => [...document.querySelectorAll('button, select, input, .chart, [role=listbox], [role=region], nav')]
          .filter((node) => !(node.getAttribute('aria-label') || node.getAttribute('aria-labelledby')
            || (node.labels && node.labels.length) || node.textContent.trim()))
          .map((node) => node.outerHTML.slice(0, 120))"""
    )
    assert unnamed == []
    chart = page.tab.locator("#similarity .chart")
    assert "Lines rise from 0.3" in chart.get_attribute("aria-label")
    levels = page.tab.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((node) => Number(node.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
