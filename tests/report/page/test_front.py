"""The page of six models as a reader meets it: first screen, length, links, contrast, print; by hand and by address."""

from __future__ import annotations

import re

import pytest

from repflow.report.page.build import build_page
from repflow.report.page.render import render
from tests.report.page.browser import Opened
from tests.report.stored_runs import keep, measured, probed, reached

LAYERS = 8
HYBRID = ["ssm"] * 6 + ["attention"] * 2
MODELS = {
    "gpt-neo": ["attention"] * LAYERS,
    "gpt-neox": ["attention"] * LAYERS,
    "mamba": ["ssm"] * LAYERS,
    "mamba2": ["ssm"] * LAYERS,
    "hybrid": HYBRID,
    "hybrid-mirror": HYBRID[::-1],
}
WIDE, HIGH = 1280, 800
SCREENS = 12
MEGABYTES = 4.0
CONTRAST = """() => {
  const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) =>
    0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const words = [...node.childNodes].some((part) => part.nodeType === 3 && part.textContent.trim());
    if (!words || node.closest('svg') || !node.checkVisibility({visibilityProperty: true})) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(style.color)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) poor.push(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.fixture(scope="module")
def front_file(tmp_path_factory):
    """The page of six models, each measured, probed and traced, one of them with random weights too."""
    folder = tmp_path_factory.mktemp("front")
    for at, (name, kinds) in enumerate(MODELS.items()):
        about = {"layers": LAYERS, "kinds": kinds, "parameters": 10**6}
        keep(folder / "runs", f"flow-{name}", measured(name, seed=at, **about))
        keep(folder / "runs", f"random-{name}", measured(name, seed=9 + at, init="xavier", **about))
        keep(folder / "runs", f"probe-{name}", probed(name, seed=at, **about))
        keep(folder / "runs", f"reach-{name}", reached(name, half=3.0 + at, **about))
    path = folder / "page.html"
    path.write_text(render(build_page([folder / "runs"], papers=True)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def wide(browser, front_file):
    """The page at 1280 by 800, in one tab for all tests here."""
    page = Opened(browser, front_file, width=WIDE, height=HIGH)
    yield page
    page.check()
    page.close()


def test_the_file_is_small(front_file):
    assert front_file.stat().st_size < MEGABYTES * 1e6


def test_the_first_screen_is_title_sentence_headline_figure_and_four_cards(wide):
    tab = wide.tab
    tab.evaluate("window.scrollTo(0, 0)")
    wide.settle()
    for part in ("h1", "#page-sentence", "#figure-2 .chart", *(f".fact:nth-child({n})" for n in range(1, 5))):
        box = tab.locator(part).bounding_box()
        assert box is not None, part
        assert box["y"] + box["height"] <= HIGH, part
    names = {trace.get("name") for trace in wide.traces("figure-2")}
    assert set(MODELS) <= names
    assert tab.locator(".fact-title").all_inner_texts() == [
        "Most alike",
        "Least alike",
        "Farthest reach",
        "Best read-out",
    ]
    assert tab.locator("#figure-2 .chart").bounding_box()["y"] < HIGH / 2


def test_the_page_is_at_most_twelve_screens_long(wide):
    wide.tab.evaluate("document.querySelectorAll('details.more').forEach((fold) => { fold.open = true; })")
    charts = "[...document.querySelectorAll('[data-figure], [data-prompts]')]"
    for figure in wide.tab.evaluate(f"{charts}.filter((node) => node.checkVisibility()).map((node) => node.id)"):
        wide.show(figure)
    assert wide.tab.evaluate("document.documentElement.scrollHeight") <= SCREENS * HIGH
    wide.tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = false; })")


def test_tables_and_evidence_are_folded_and_not_lost(wide):
    ids = wide.tab.evaluate("[...document.querySelectorAll('[data-table]')].map((node) => node.id)")
    assert {"findings-table", "findings-parts", "findings-numbers", "verdict-table", "readout", "made-runs"} <= set(ids)
    shown = wide.tab.evaluate(
        "[...document.querySelectorAll('[data-table]')].filter((n) => n.checkVisibility()).map((n) => n.id)"
    )
    assert shown == ["findings-verdicts"]
    wide.show_part("findings-parts")
    assert wide.tab.locator("#findings-parts").is_visible()


def test_every_link_leads_somewhere_and_opens_the_folds_on_its_way(wide):
    tab = wide.tab
    targets = set(tab.evaluate("[...document.querySelectorAll('a[href^=\"#\"]')].map((link) => link.hash.slice(1))"))
    assert {"figure-2", "figure-7", "recency-influence", "findings"} <= targets
    assert tab.evaluate("(ids) => ids.filter((id) => !document.getElementById(id))", sorted(targets)) == []
    tab.evaluate("location.hash = 'readout'")
    tab.locator("#readout").wait_for(state="visible")
    tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = false; })")
    tab.evaluate("history.replaceState(null, '', ' ')")


def test_a_link_brings_back_the_figure_with_its_settings(wide, browser, front_file):
    wide.show("figure-2")
    tab = wide.tab
    tab.locator("#figure-2 select[data-control=measure]").select_option("excess over other prompts")
    tab.locator("input[name=models][value=mamba]").uncheck()
    tab.locator("input[name=page-depth][value=absolute]").evaluate("box => box.click()")
    wide.settle()
    tab.locator("#figure-2 .tools").get_by_text("Link", exact=True).click()
    address = tab.evaluate("location.href")
    assert "#figure-2?" in address
    assert "without=mamba" in address
    drawn = [(trace.get("name"), trace["x"]) for trace in wide.traces("figure-2")]
    other = Opened(browser, front_file, width=WIDE, height=HIGH, address=address.partition("#")[2])
    try:
        other.show("figure-2")
        assert other.tab.locator("#figure-2 select[data-control=measure]").input_value() == "excess over other prompts"
        assert [(trace.get("name"), trace["x"]) for trace in other.traces("figure-2")] == drawn
        assert "mamba" not in [name for name, _ in drawn]
        other.check()
    finally:
        other.close()
    wide.reset()
    tab.evaluate("history.replaceState(null, '', ' ')")


def test_words_and_alternative_follow_the_menu(wide):
    chart = wide.show("figure-2")
    first = chart.get_attribute("aria-label")
    assert all(name in first for name in MODELS)
    assert re.search(r"gpt-neo from 0\.\d+ to 0\.\d+", first)
    wide.tab.locator("#figure-2 select[data-control=measure]").select_option("excess over other prompts")
    wide.settle()
    assert chart.get_attribute("aria-label") != first
    assert "32 tokens, 6 prompts" in wide.tab.locator("#figure-2 .basis").inner_text()
    wide.reset()


@pytest.mark.parametrize(("width", "theme"), [(WIDE, "light"), (390, "dark")])
def test_text_has_the_contrast_of_aa(browser, front_file, width, theme):
    page = Opened(browser, front_file, width=width, height=844, theme=theme)
    try:
        page.tab.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
        page.show("prompts-explorer")
        assert page.tab.evaluate(CONTRAST) == []
        assert page.tab.evaluate("document.documentElement.scrollWidth") == width
        page.check()
    finally:
        page.close()


def test_a_printed_page_is_light_and_has_every_open_figure(browser, front_file):
    page = Opened(browser, front_file, width=WIDE, height=HIGH, theme="dark")
    try:
        page.tab.wait_for_timeout(300)  # what will be printed is unpacked while the page has nothing to do
        page.tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        page.settle()
        found = page.tab.evaluate(
            """() => [...document.querySelectorAll('[data-figure]')]
              .filter((node) => !node.parentElement.closest('details:not([open])'))
              .map((node) => [node.id, node.querySelector('.chart').layout])
              .map(([id, layout]) => [id, layout && layout.width, layout && layout.paper_bgcolor])"""
        )
        assert len(found) >= 6
        assert {width for _, width, _ in found} == {660}
        assert {colour for _, _, colour in found} == {found[0][2]} != {None}
        page.tab.emulate_media(media="print")
        assert not page.tab.locator("#page-side").is_visible()
        assert not page.tab.locator("#figure-2 .tools").is_visible()
        page.tab.emulate_media(media="screen")
        page.tab.evaluate("window.dispatchEvent(new Event('afterprint'))")
        page.settle()
        assert page.layout("figure-2").get("width") != 660
        page.check()
    finally:
        page.close()
