"""Text from runs is shown, never run: prompts, model and run names in a real browser."""

from __future__ import annotations

import csv
import io

import pytest

from tests.report.page.example import HOSTILE, IMAGE, LINK, MARKS

SHOWN_MARKS = "abc[U+202E]def[U+2028]ghi[U+2066]"


@pytest.fixture(scope="module")
def hostile(browser, example_file):
    from tests.report.page.browser import Opened

    tab = Opened(browser, example_file(3, 12, hostile=True))
    yield tab
    tab.close()


@pytest.fixture
def page(hostile):
    yield hostile
    hostile.check()


def test_markup_is_shown_as_it_stands(page):
    heading = page.tab.locator("h1").inner_text()
    assert HOSTILE in heading
    assert IMAGE in heading
    assert IMAGE + SHOWN_MARKS in page.tab.locator(".warning").inner_text()
    cells = page.tab.locator("#verdicts td").all_inner_texts()
    assert HOSTILE in cells
    assert LINK in cells
    assert page.tab.title() == f"How representations flow {HOSTILE} {IMAGE}"


def test_nothing_of_a_run_becomes_an_element(page):
    for figure in ("similarity", "accuracy", "cka", "explorer"):
        page.show(figure)
    assert page.tab.locator("img").count() == 0
    assert page.tab.locator("main a:not([href^='#'])").count() == 0
    assert page.tab.locator("svg a").count() == 0
    assert page.tab.locator("script:not([type])").count() == 2  # Plotly's and the page's own


def test_plotly_shows_names_as_they_stand(page):
    page.show("similarity")
    told = page.tab.locator("#similarity .legendtext").all_text_contents()
    assert told == [HOSTILE, IMAGE + SHOWN_MARKS, LINK]
    page.show("cka")
    heads = page.tab.locator("#cka .annotation-text").all_text_contents()
    assert heads[0] == HOSTILE[: len(heads[0]) - 1] + "…"  # cut to the panel, whole when pointed at
    page.tab.evaluate(
        "Plotly.Fx.hover(document.querySelector('#similarity .chart'), [{curveNumber: 8, pointNumber: 2}])"
    )
    page.tab.locator("#similarity .hoverlayer .hovertext").first.wait_for()
    assert LINK in page.tab.locator("#similarity .hoverlayer").text_content()


def test_tokens_are_text_with_their_marks_written_out(page):
    page.show("explorer")
    tokens = page.tab.locator("#explorer .token").all_text_contents()
    assert tokens[:6] == [HOSTILE, IMAGE, LINK, SHOWN_MARKS, "⏎\n", "<b>bold</b>"]
    page.tab.locator("#explorer .token").nth(1).click()
    page.settle()
    assert IMAGE in page.tab.locator("#explorer .readout").inner_text()
    assert page.tab.locator("#explorer .token").nth(3).get_attribute("aria-label") == f"token 3: {SHOWN_MARKS}"


def test_downloads_keep_the_text_exactly(page):
    page.show("explorer")
    name, content = page.download("explorer", "CSV")
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert [row[3] for row in rows[1:7]] == [HOSTILE, IMAGE, LINK, MARKS, "\n", "<b>bold</b>"]
    assert not set(name) & set("<>/\\:'\"\u202e ")


def test_a_script_put_into_the_page_does_not_run(page):
    page.tab.evaluate(
        """() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 4';
          document.body.append(script); const image = document.createElement('div');
          image.setAttribute('onclick', 'window.hacked = 5'); document.body.append(image); image.click(); }"""
    )
    refused = [told for told in page.complaints if "Content Security Policy" in told]
    assert len(refused) == 2
    page.complaints.clear()


def test_a_request_to_another_host_is_refused_by_the_page_itself(page):
    answer = page.tab.evaluate("() => fetch('https://example.org/').then(() => 'sent', () => 'refused')")
    assert answer == "refused"
    assert any("Content Security Policy" in told for told in page.complaints)
    assert not any(told.startswith("request to") for told in page.complaints)
    page.complaints.clear()
