"""Every control of the page in a real browser: what it draws is what the data says."""

from __future__ import annotations

import csv
import io
import math

import pytest

from tests.report.page.example import METRICS, curve, example_page, model_list

LAYERS = 12


def lines(traces: list[dict]) -> dict[str, list]:
    return {trace["name"]: trace["y"] for trace in traces if trace.get("name")}


@pytest.mark.parametrize(("count", "layers"), [(1, 12), (6, 24)])
def test_pages_of_one_two_and_six_models_open_and_draw(example_file, opened, count, layers):
    page = opened(example_file(count, layers))
    for figure in ("similarity", "accuracy", "cka", "explorer"):
        page.show(figure)
        assert page.traces(figure)
    assert set(lines(page.traces("similarity"))) == {model.label for model in model_list(count, layers)}
    assert len(page.tab.query_selector_all("input[name=models]")) == (count if count > 1 else 0)


def test_figures_are_drawn_only_when_they_come_into_view(example_file, opened):
    page = opened(example_file())
    assert page.tab.locator("#cka .main-svg").count() == 0
    page.show("cka")
    assert page.tab.locator("#cka .main-svg").count() > 0


def test_menus_show_the_variant_that_was_asked_for(page):
    page.show("similarity")
    label = model_list(2, LAYERS)[1].label
    for metric in METRICS:
        for task in ("mdqa", "kvpr"):
            for length in ("1000", "300"):
                for name, value in (("metric", metric), ("task", task), ("length", length)):
                    page.tab.select_option(f"#similarity select[data-control={name}]", value)
                page.settle()
                assert lines(page.traces("similarity"))[label] == curve(1, metric, task, length, LAYERS - 2)


def test_a_shared_menu_sets_every_figure_and_tells_when_they_differ(page):
    shared = page.tab.locator("select[data-shared=task]")
    assert page.tab.locator("select[data-shared=metric]").count() == 0  # one figure has it
    shared.select_option("mdqa")
    for figure in ("similarity", "accuracy"):
        page.show(figure)
        assert page.tab.locator(f"#{figure} select[data-control=task]").input_value() == "mdqa"
    assert lines(page.traces("similarity"))["model-b"] == curve(1, METRICS[0], "mdqa", "300", LAYERS - 2)
    page.tab.select_option("#accuracy select[data-control=task]", "kvpr")
    assert shared.input_value() == ""
    page.tab.select_option("#accuracy select[data-control=task]", "mdqa")
    assert shared.input_value() == "mdqa"


def test_unchosen_models_leave_lines_strips_and_panels(example_file, opened):
    page = opened(example_file(6, 16))
    page.show("similarity")
    shapes = len(page.layout("similarity")["shapes"])
    box = page.tab.locator("input[name=models]")
    box.nth(1).uncheck()
    box.nth(3).uncheck()
    page.settle()
    kept = [model for at, model in enumerate(model_list(6, 16)) if at not in (1, 3)]
    assert list(lines(page.traces("similarity"))) == [model.label for model in kept]
    assert len(page.layout("similarity")["shapes"]) == sum(model.layers for model in kept) < shapes
    page.show("cka")
    panels = page.traces("cka")
    assert [(panel["name"], panel.get("xaxis", "x")) for panel in panels] == [
        (model.label, "x" if at == 0 else f"x{at + 1}") for at, model in enumerate(kept)
    ]
    heads = [note["text"] for note in page.layout("cka")["annotations"]]
    assert heads == [model.label for model in kept]
    page.tab.get_by_role("button", name="None", exact=True).click()
    page.settle()
    assert page.traces("cka") == []
    assert "No model" in page.layout("cka")["annotations"][0]["text"]
    page.tab.get_by_role("button", name="All", exact=True).click()
    page.settle()
    assert len(page.traces("cka")) == 6


def test_depth_is_relative_or_in_layers_for_lines_strips_and_heat_maps(page):
    for where, last in (("relative", 1), ("absolute", LAYERS), ("relative", 1)):
        page.tab.locator(f"input[name=page-depth][value={where}]").check()
        page.show("similarity")
        first = next(trace for trace in page.traces("similarity") if trace.get("name") == "model-a")
        assert first["x"][0] == 0
        assert first["x"][-1] == last
        strip = page.layout("similarity")["shapes"][LAYERS - 1]
        assert strip["x1"] == last
        page.show("cka")
        assert page.traces("cka")[0]["y"][-1] == last
        title = page.layout("cka")["xaxis"]["title"]["text"]
        assert ("relative" in title) == (where == "relative")


def test_log_scale_is_a_choice_of_each_figure(page):
    page.show("similarity")
    page.tab.locator("#similarity input[value=log]").check()
    page.settle()
    assert page.layout("similarity")["yaxis"]["type"] == "log"
    page.tab.locator("#similarity input[value=linear]").check()
    page.settle()
    assert page.layout("similarity")["yaxis"].get("type", "linear") == "linear"


def test_hover_tells_the_exact_value(example_file, opened):
    page = opened(example_file(1))
    page.show("similarity")
    value = curve(0, METRICS[0], "kvpr", "300", LAYERS)[3]
    point = page.tab.evaluate(
        """() => { const points = [...document.querySelectorAll('#similarity .scatterlayer .points path')];
          const box = points[3].getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }"""
    )
    page.tab.mouse.move(*point)
    page.tab.locator("#similarity .hoverlayer .hovertext").first.wait_for()
    told = page.tab.locator("#similarity .hoverlayer").text_content()
    assert f"{value:.6g}" in told


def test_a_gap_is_drawn_as_a_gap_and_named(page):
    page.show("similarity")
    traces = page.traces("similarity")
    assert lines(traces)["model-a"][5] is None
    assert page.tab.locator("#similarity .note").inner_text() == "State 5 of the first model is NaN: a gap."
    band = next(trace for trace in traces if trace.get("fill") == "toself")  # would be filled across the gap otherwise
    assert band["y"].count(None) == 2
    paths = page.tab.locator("#similarity .scatterlayer .trace").last.locator("path.js-line").count()
    assert paths >= 1


def test_csv_holds_the_numbers_of_the_shown_variant(page):
    page.show("similarity")
    page.tab.select_option("#similarity select[data-control=length]", "1000")
    name, content = page.download("similarity", "CSV")
    assert name.endswith(".csv")
    assert "1000" in name
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert rows[0] == ["model", "state", METRICS[0]]
    own = [(float(row[2]) if row[2] else None) for row in rows[1:] if row[0] == "model-b"]
    assert own == curve(1, METRICS[0], "kvpr", "1000", LAYERS - 2)  # repr and back: not a bit is lost
    assert [row[2] for row in rows[1:] if row[:2] == ["model-a", "5"]] == [""]
    _, table = page.download("verdicts", "CSV")
    assert list(csv.reader(io.StringIO(table.decode())))[1] == ["model-a", "0.50", "0.123456789", "", ""]


def test_pictures_are_saved_as_svg_and_png(page):
    from PIL import Image

    for figure in ("similarity", "cka", "explorer"):
        page.show(figure)
        name, svg = page.download(figure, "SVG")
        assert name.endswith(".svg")
        assert svg.startswith(b"<svg")
        assert b"model-a" in svg
        _, png = page.download(figure, "PNG")
        picture = Image.open(io.BytesIO(png))
        assert picture.width >= 1800  # 900 pixels, twice as fine
        assert len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_a_figure_that_was_never_seen_can_be_saved(example_file, opened):
    page = opened(example_file())
    page.tab.evaluate("document.querySelector('#cka .tools button:nth-child(2)').scrollIntoView = () => {}")
    with page.tab.expect_download() as waited:
        page.tab.evaluate("document.querySelector('#cka .tools button:nth-child(2)').click()")
    assert waited.value.suggested_filename.endswith("cka-unbiased.svg")


def test_data_table_is_filled_when_opened_and_follows_the_menus(page):
    page.show("similarity")
    page.tab.locator("#similarity summary").click()
    cells = page.tab.locator("#similarity details td")
    cells.first.wait_for()
    assert cells.nth(2).get_attribute("title") == repr(curve(0, METRICS[0], "kvpr", "300", LAYERS)[0])
    page.tab.select_option("#similarity select[data-control=task]", "mdqa")
    page.settle()
    assert cells.nth(2).get_attribute("title") == repr(curve(0, METRICS[0], "mdqa", "300", LAYERS)[0])
    page.show("cka")
    page.tab.locator("#cka summary").click()
    page.tab.locator("#cka details .note").wait_for()
    assert f"of {13 * 13 + 11 * 11} rows" in page.tab.locator("#cka details .note").inner_text()


def test_theme_follows_the_system_and_the_switch(example_file, opened):
    page = opened(example_file(), theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.tab.evaluate(ground)
    page.show("similarity")
    assert page.layout("similarity")["paper_bgcolor"] == "#171c21"
    page.tab.locator("#page-theme").click()
    page.settle()
    assert page.tab.evaluate(ground) != dark
    assert page.layout("similarity")["paper_bgcolor"] == "#ffffff"
    line = next(trace for trace in page.traces("similarity") if trace.get("name") == "model-a")["line"]["color"]
    assert line == "#0072b2"
    page.tab.locator("#page-theme").click()
    page.tab.locator("#page-theme").click()
    assert page.tab.evaluate(ground) == dark


def test_links_of_the_verdict_lead_to_their_figure(page):
    page.tab.locator("#verdicts a").first.click()
    page.settle()
    assert page.tab.evaluate("location.hash") == "#similarity"
    assert page.tab.locator("#similarity").bounding_box()["y"] < 900


def test_a_link_stays_at_its_figure_while_others_are_drawn_above_it(example_file, opened):
    page = opened(example_file(6, 24))
    page.tab.evaluate("location.hash = '#explorer'")
    # it scrolls smoothly and as fast as the machine lets it: there is where it rests, not where it passes by
    rests = """() => {
      const y = document.querySelector('#explorer').getBoundingClientRect().y;
      const still = window.lastY === y;
      window.lastY = y;
      return still && Math.abs(y) < 60;
    }"""
    page.tab.wait_for_function(rests, polling=100)
    page.settle()
    page.tab.wait_for_function(rests, polling=100)


def test_explorer_shows_a_token_s_path_beside_the_text(page):
    page.show("explorer")
    sample = example_page(2).sections[3].blocks[0].samples[0]
    token = page.tab.locator("#explorer .token").nth(7)
    token.click()
    page.settle()
    traces = page.traces("explorer")
    assert [trace["name"] for trace in traces] == ["model-a", "model-b"] * 3
    assert traces[0]["y"] == [row[7] for row in sample.metrics["layer_cosine"]]
    assert traces[2]["y"] == [row[7] for row in sample.metrics["token_norm"]]
    assert token.get_attribute("aria-selected") == "true"
    page.tab.select_option("#explorer select[data-control=colour]", "token_norm")
    page.tab.locator("#explorer input[type=range]").fill("3")
    page.settle()
    told = page.tab.locator("#explorer .readout").inner_text()
    assert f"{sample.metrics['token_norm'][3][7]:g} at layer 3" in told
    colours = page.tab.evaluate(
        "[...document.querySelectorAll('#explorer .token')].map((t) => getComputedStyle(t).backgroundColor)"
    )
    assert len(set(colours)) > 20
    ends = page.tab.locator("#explorer .ramp span").all_inner_texts()
    page.tab.locator("#explorer input[value=all]").check()
    page.settle()
    assert page.tab.locator("#explorer .ramp span").all_inner_texts() != ends  # of all layers now
    page.tab.select_option("#explorer select[data-control=sample]", "kvpr, sample 1")
    page.settle()
    assert page.tab.locator("#explorer .token").first.inner_text().strip() == "word59"
    page.tab.select_option("#explorer select[data-control=model]", "model-b")
    page.settle()
    assert page.traces("explorer")[0]["name"] == "model-b"
    _, content = page.download("explorer", "CSV")
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert rows[0] == ["metric", "depth", "position", "token", "value"]
    assert rows[1][:3] == ["layer_cosine", "1", "0"]
    assert float(rows[1][4]) == math.cos(0.1)
