"""What a reader who has not read the paper needs: words, order and switches that say what is shown."""

import re

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.core.verdict import MEANING, WORDS
from repflow.report.data.model import Figure, Page, PageModel, Section, Table, Variant
from repflow.report.page.build import build_page
from repflow.report.page.render import render
from repflow.report.sections.findings import PLAIN, TARGETS
from tests.report.stored_runs import keep, measured, probed

KINDS = ["ssm", "ssm", "attention", "ssm"]


def block(page, wanted):
    return next(block for section in page.sections for block in section.blocks if block.id == wanted)


def page_with(*figures, models=()):
    return Page("Title", "", list(models), [], [Section("s", "S", "", list(figures))])


def test_every_finding_is_said_in_plain_words(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    page = build_page([tmp_path], papers=True)
    table = block(page, "findings-table")
    assert set(PLAIN) == set(TARGETS)
    place = table.columns.index("in plain words")
    assert [row[place] for row in table.rows] == [PLAIN[row[0].text] for row in table.rows]
    assert not [text for text in PLAIN.values() if "TBM" in text or "SSM" in text], "no short form of the paper's"
    assert table.stacked
    short = block(page, "findings-verdicts")
    assert [row[1] for row in short.rows] == [PLAIN[row[0].text] for row in short.rows]
    assert {row[2] for row in short.rows} <= set(WORDS)
    assert all(row[3].endswith(".") and row[3].count(". ") == 0 for row in short.rows), "one plain sentence each"
    assert all(meaning in short.caption for meaning in MEANING.values())


def test_rows_of_sentences_carry_the_names_of_their_columns():
    text = render(page_with(Table("t", "T", ["<b>", "n"], [["one", 2.5]], stacked=True)))
    assert re.findall(r'data-name="([^"]*)"', text) == ["&lt;b&gt;", "n"]
    assert 'data-name="' not in render(page_with(Table("t", "T", ["a"], [["one"]])))
    assert 'data-name="a"' in render(page_with(Table("t", "T", ["a"], [["one"]], narrow=True)))


def test_probes_for_two_labels_are_no_mixture(tmp_path):
    for name, label, prompts in (("a", "answer", "p"), ("b", "index", "q")):
        result = probed("gpt", prompts=prompts)
        result.provenance["probe"]["label"] = label
        keep(tmp_path, name, result)
    assert build_page([tmp_path]).warnings == []
    result = probed("other", prompts="third")
    result.provenance["probe"]["label"] = "index"
    keep(tmp_path, "c", result)
    assert "read different prompts" in "".join(build_page([tmp_path]).warnings)


def test_the_verdicts_smoothness_is_the_one_its_figure_opens_with(tmp_path):
    results = {name: measured(name, seed=at) for at, name in enumerate(("a", "bb"))}
    for name, result in results.items():
        keep(tmp_path, name, result)
    page = build_page([tmp_path])
    opens = block(page, "over-depth").variants[0]
    assert opens.when["metric"] == "smoothness Sm, matched depth"
    table = block(page, "verdict-table")
    for row, trace in zip(table.rows, opens.traces, strict=True):
        expected = results[row[0]]["matched/smoothness"].mean()
        assert trace["y"][0] == pytest.approx(expected, rel=1e-4)
        shown = row[table.columns.index("Sm")].text.partition(" [")[0]  # with the decimals that its interval allows
        assert shown == f"{expected:.{len(shown.partition('.')[2])}f}"


def test_models_of_one_size_say_nothing_about_size(tmp_path):
    for at, name in enumerate(("a", "bb", "ccc")):
        keep(tmp_path, name, measured(name, parameters=1000 + at))
    assert "says nothing about size" in block(build_page([tmp_path]), "scaling-size").variants[0].note
    keep(tmp_path, "large", measured("large", parameters=2000))
    assert block(build_page([tmp_path]), "scaling-size").variants[0].note == ""


def test_captions_name_the_strips_that_are_drawn(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("hybrid", kinds=KINDS))
    keep(tmp_path, "p", probed("gpt"))
    page = build_page([tmp_path])
    assert "hybrid: ssm in blocks" in block(page, "figure-2").caption
    assert "Coloured strip" not in block(page, "figure-7").caption, "the hybrid was not probed"
    assert "(none)" not in block(page, "depth-metrics").caption


def test_our_task_comes_first_in_table_2(tmp_path):
    keep(tmp_path, "a", measured("gpt", task="kvpr", length=300, bins=32))
    page = build_page([tmp_path], papers=True)
    assert block(page, "table-2").rows[0][1] == "ours"
    tables = [part.id for section in page.sections if section.id == "tables" for part in section.blocks]
    assert tables == ["table-2", "table-1"], "the mean over both tasks has none of ours"


def test_states_without_a_finite_value_are_unusual(tmp_path):
    for name, rows in (("part", [2]), ("none", range(5))):
        result = measured(name)
        arrays = {key: np.array(result[key]) for key in result}
        arrays["token_similarity"][list(rows)] = np.nan
        keep(tmp_path, name, Result(arrays, dict(result.axes), result.config, result.provenance))
    table = block(build_page([tmp_path]), "verdict-table")
    unusual = {row[0]: row[-1] for row in table.rows}
    assert "token similarity is not finite at state 2" in unusual["part"]
    assert "token similarity is finite at no state" in unusual["none"]


def test_a_file_in_place_of_a_run_is_called_one(tmp_path):
    keep(tmp_path, "run", measured("gpt"))
    (tmp_path / "notes.txt").write_text("x")
    told = build_page([tmp_path / "run", tmp_path / "notes.txt", tmp_path / "gone"]).warnings
    assert told[0] == f"{tmp_path / 'notes.txt'} is a file, not the folder of a run"
    assert told[1] == f"{tmp_path / 'gone'} is missing: no folder has this name"


def line(**more):
    return {"type": "scatter", "x": ["a", "b"], "y": [1, 100], "name": "m", **more}


def heat(place, model, z):
    own = "" if place == 0 else str(place + 1)
    return {
        "type": "heatmap", "name": model, "z": z, "xaxis": f"x{own}", "yaxis": f"y{own}", "zmin": 0, "zmax": 1,
        "showscale": place == 0, "colorbar": {"title": {"text": "cosine"}}, "meta": {"model": model},
    }  # fmt: skip


def test_switches_bars_and_menus_say_what_is_shown(opened, tmp_path):
    long = "x" * 300
    steep = Figure("steep", "Steep", "", "", [Variant({}, [line()], {"yaxis": {"type": "log"}})], log_axis=True)
    names = [Variant({"quantity": q}, [line(x=[long, "b"])], {"xaxis": {"type": "category"}}) for q in "ab"]
    others = [Variant({"quantity": q}, [line()], {}) for q in "cd"]
    grid = {"grid": {"rows": 1, "columns": 3, "pattern": "independent"}}
    full = [[0.1, 0.2], [0.3, 0.4]]
    maps = [heat(0, "one", full), heat(1, "two", [[None, None]] * 2), heat(2, "three", full)]
    models = [PageModel(name, at, 4) for at, name in enumerate(("one", "two", "three"))]
    figures = [steep, Figure("names", "Names", "", "", names), Figure("others", "Others", "", "", others)]
    figures.append(Figure("maps", "Maps", "", "", [Variant({}, maps, grid)]))
    file = tmp_path / "page.html"
    file.write_text(render(page_with(*figures, models=models)), encoding="utf-8")
    page = opened(file)
    page.show("steep")
    assert page.tab.locator("#steep .segments input:checked").input_value() == "log"
    assert page.layout("steep")["yaxis"]["type"] == "log"
    page.tab.locator("#steep .segments input[value=linear]").check()
    page.settle()
    assert page.layout("steep")["yaxis"]["type"] == "linear"
    page.show("names")
    assert [len(text) for text in page.layout("names")["xaxis"]["ticktext"]] == [28, 1]
    assert page.tab.locator("select[data-shared]").count() == 0, "no value of the menu is known to both figures"
    page.show("maps")
    assert [trace["name"] for trace in page.traces("maps")] == ["one", "three"], "a panel of nothing is left out"
    page.tab.locator("input[name=models]").first.uncheck()
    page.settle()
    assert [trace.get("showscale") for trace in page.traces("maps")] == [True], "the colour bar stays"


def test_menus_that_figures_share_stay(page):
    assert page.tab.locator("select[data-shared=task]").count() == 1
