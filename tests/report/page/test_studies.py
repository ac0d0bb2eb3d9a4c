"""Twins, tables, reproduced recipes, thinning, the size of a page, and text that wants to be code."""

from itertools import pairwise

import numpy as np
import pytest

from repflow.core.readout import ReadOut
from repflow.core.results import Band, Finding, Result
from repflow.papers import values as papers
from repflow.report.page.build import build_page
from repflow.report.page.render import render
from repflow.report.sections import cka as section_cka
from repflow.report.sections import prompts as section_prompts
from repflow.report.sections import tokens as section_tokens
from repflow.studies.diagnose.study import diagnose_results
from tests.report.stored_runs import compared, facts, keep, measured, probed

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\u2028"


def block(page, wanted):
    return next(block for section in page.sections for block in section.blocks if block.id == wanted)


def ids(page):
    return {part.id for section in page.sections for part in section.blocks}


@pytest.fixture
def twins(tmp_path):
    """A folder as `repflow twins` leaves it."""
    folder = tmp_path / "gpt-twins"
    cells = {
        "trained": measured("gpt", task="random", kept=0),
        "x0": measured("gpt", task="random", init="xavier", init_seed=0, seed=1, kept=0),
        "x1": measured("gpt", task="random", init="xavier", init_seed=1, seed=2, kept=0),
        "alien": measured("gpt", task="random", init="xavier", init_seed=2, seed=3, prompts="others", kept=0),
    }
    for name, result in cells.items():
        keep(folder, name, result)
    shape = (1, 2, 1)
    arrays = {f"{m}/late_minus_early_{p}": np.full(shape, v) for m in ("raw", "excess") for p, v in PARTS.items()}
    arrays["excess/late_minus_early_low"][0, 1, 0] = 0.01
    verdict = {"code": "undetermined", "statement": "raw: not called architectural"}
    provenance = {
        "model": facts("gpt"),
        "labels": {"ablation": ["none"], "weights": ["trained", "xavier"], "length": [32]},
        "verdicts": {"raw": verdict, "excess": verdict},
        "break_conditions": {},
        "digests": {"prompts": {"32": "p"}},
    }
    config = {"study": "twins", "model": "models/gpt", "task": "random", "states": "residual", "share": 1 / 3}
    keep(
        folder,
        "summary",
        Result(arrays, dict.fromkeys(arrays, ("ablation", "weights", "length")), config, provenance),
    )
    return folder, cells


PARTS = {"mean": 0.1, "low": -0.1, "high": 0.3}


def test_figure_3_has_a_band_from_the_lowest_to_the_highest_seed(twins):
    folder, cells = twins
    page = build_page([folder])
    found = block(page, "figure-3").variants[0]
    assert found.when == {"task": "random", "length": "32", "states": "residual", "measure": "raw"}
    curves = np.array([cells[name]["token_similarity"].astype(float).mean(1) for name in ("x0", "x1")])
    line = next(t for t in found.traces if t.get("name") == "xavier")
    np.testing.assert_allclose(line["y"], curves.mean(0), rtol=1e-4)
    low, high = (t for t in found.traces if t["legendgroup"] == "xavier" and t["mode"] == "lines" and "name" not in t)
    np.testing.assert_allclose(low["y"], curves.min(0), rtol=1e-4)
    np.testing.assert_allclose(high["y"], curves.max(0), rtol=1e-4)
    assert {row[7] for row in found.rows if row[1] == "xavier"} == {2}  # the one that read other prompts is left out
    trained = next(t for t in found.traces if t.get("name") == "trained")
    np.testing.assert_allclose(trained["y"], cells["trained"]["token_similarity"].astype(float).mean(1), rtol=1e-4)


def test_twins_are_a_table_and_no_models_of_their_own(twins):
    page = build_page([twins[0]])
    assert [model.label for model in page.models] == ["gpt"]
    rows = block(page, "twins-cells").rows
    assert [row[1] for row in rows] == ["trained", "xavier"]
    assert rows[1][4:8] == [0.1, -0.1, 0.3, "?"]
    assert rows[1][11] == "+"
    assert block(page, "twins-verdicts").rows[0] == [
        "gpt",
        "random",
        "raw",
        "undetermined",
        "raw: not called architectural",
    ]
    assert "figure-2" in ids(page), "trained weights are drawn where there is no other run"


def test_tables_have_every_printed_cell_and_ours(tmp_path):
    for task in ("kvpr", "mdqa"):
        seed = list(papers.TASKS).index(task)  # no number is the same in both, or the mean would be either's
        keep(tmp_path, f"flow-{task}", measured("gpt", task=task, length=300, bins=32, seed=seed))
        keep(tmp_path, f"probe-{task}", probed("gpt", task=task, length=300, seed=seed))
    keep(tmp_path, "more", measured("gpt", task="kvpr", length=64))
    page = build_page([tmp_path], papers=True)
    table = block(page, "table-2")
    printed = [row for row in table.rows if row[1] == "paper"]
    expected = [
        [
            f"{words}: {cell.model}",
            papers.short_length(cell.length),
            cell.accuracy,
            cell.drop,
            cell.smoothness,
            cell.stability,
        ]
        for task, words in papers.TASKS.items()
        for cell in papers.TABLE_2.values()
        if cell.task == task
    ]
    assert [[row[0], *row[3:8]] for row in printed] == expected
    ours = [row for row in table.rows if row[1] == "ours"]
    assert [row[3] for row in ours] == ["300", "64", "300"]
    mean = next(row for row in block(page, "table-1").rows if row[1] == "ours")
    both = [row for row in ours if row[3] == "300"]
    for column in range(4, 8):
        assert both[0][column] != both[1][column]
        assert mean[column] == pytest.approx(np.mean([row[column] for row in both]))
    assert len([row for row in block(page, "table-1").rows if row[1] == "paper"]) == len(papers.TABLE_1)


def test_reproduced_recipes_stand_beside_the_printed_values(tmp_path):
    rows = [
        {"model": "GPT-Neo-2.7B", "what": "layer 32", "quantity": "layer_cosine", "task": "kvpr", "length": 2000,
         "init": "trained", "layers": [32, 32], "low": 70.0, "high": 70.0, "place": "", "words": ""},
        {"model": "GPT-Neo-2.7B", "what": "most", "quantity": "token_similarity", "task": "kvpr", "length": 2000,
         "init": "trained", "layers": None, "low": 10.0, "high": 20.0, "place": "", "words": ""},
    ]  # fmt: skip
    name = "GPT-Neo-2.7B/kvpr/2K/trained/residual/layer_cosine"
    arrays = {"ours": np.array([[68.0], [np.nan]]), "score": np.array([[0.2], [np.nan]]), name: np.array([0.5, 0.7])}
    axes = {"ours": ("row", "kind"), "score": ("row", "kind"), name: ("layer",)}
    provenance = {"title": "cosine", "note": "", "kinds": ["residual"], "rows": rows}
    found = [Finding("stand_in", None, "other models stand for the paper's")]
    keep(tmp_path, "fig5", Result(arrays, axes, {"recipe": "flow-fig5", "states": ["residual"]}, provenance, found))
    page = build_page([tmp_path / "fig5"])
    table = block(page, "reproduce-1")
    assert [row[3:] for row in table.rows] == [["70.0", "68.0 *"], ["10 to 20", None]]
    assert "other models stand for the paper's" in table.caption
    drawn = block(page, "reproduce-curves").variants[0]
    assert drawn.traces[0]["y"] == [50.0, 70.0]
    assert drawn.traces[0]["x"] == [0.5, 1.0]
    assert (drawn.traces[1]["x"], drawn.traces[1]["y"]) == ([1.0], [70.0])


def test_flow_check_is_a_table(tmp_path):
    from repflow.studies.reproduce.study import ReproduceConfig, run

    run(ReproduceConfig(recipe="flow-check"), out=tmp_path, name="check")
    table = block(build_page([tmp_path / "check"]), "reproduce-1")
    fits = [row[3] for row in table.rows]
    assert fits == sorted(fits)
    assert "of 72 numbers of Table 1 differ" in table.caption


def test_long_prompts_are_thinned_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(section_tokens, "MOST_CELLS", 64)
    monkeypatch.setattr(section_prompts, "MOST_VALUES", 14 * 60)
    result = measured("gpt", length=100, bins=100, kept=1)
    keep(tmp_path, "one", result)
    page = build_page([tmp_path])
    found = block(page, "figure-1").variants[0]
    assert "gpt: 100 positions are drawn as 15 rows of neighbouring positions, each their mean." in found.note
    stored = result["layer_cosine"].astype(float).mean(1)
    heat = np.array(found.traces[0]["z"])
    np.testing.assert_allclose(heat[0], stored[:, :7].mean(1), atol=1e-4)
    np.testing.assert_allclose(heat[-1], stored[:, 98:].mean(1), atol=1e-4)
    assert found.traces[0]["y"][:2] == [0, 7]
    sample = block(page, "prompts-explorer").samples[0]
    assert len(sample.tokens) == 61
    assert sample.tokens[30] == "…"
    assert (sample.tokens[29], sample.tokens[31]) == ("t29", "t70")
    assert sample.metrics["norm"][0][30] is None
    assert sample.metrics["norm"][2][31] == pytest.approx(float(result["kept/token_norm"][2, 0, 70]), rel=1e-3)
    assert "40 tokens in the middle are left out" in sample.note


def test_too_many_kept_prompts_are_left_out_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(section_prompts, "MOST_VALUES", 14 * 50)
    keep(tmp_path, "one", measured("gpt", length=100, kept=2))
    explorer = block(build_page([tmp_path]), "prompts-explorer")
    assert len(explorer.samples) == 1
    assert explorer.caption == "1 of 2 kept prompts are left out to keep the page small."


def test_many_matrices_are_thinned_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(section_cka, "MOST_CELLS", 20)
    result = measured("gpt", layers=6)
    keep(tmp_path, "one", result)
    found = block(build_page([tmp_path]), "figure-4").variants[0]
    assert "gpt: 4 of 7 by 4 of 7 states drawn" in found.note
    assert found.traces[0]["meta"]["x"]["absolute"] == [0, 2, 4, 6]
    assert found.traces[0]["z"][1][3] == pytest.approx(float(result["cka_pooled"][6, 2]), abs=1e-4)


def test_six_deep_models_stay_under_twelve_megabytes(tmp_path):
    names = [f"model-{i}" for i in range(6)]
    for place, name in enumerate(names):
        kinds = (["ssm"] * 5 + ["attention"]) * 11
        shared = {"layers": 64, "kinds": kinds[:64], "length": 2000, "parameters": 10**6 + place, "seed": place}
        keep(tmp_path, name, measured(name, samples=8, kept=4, **shared))
        keep(tmp_path, f"{name}-probe", probed(name, **shared))
    for a, b in pairwise(names):
        keep(tmp_path, f"{a}-{b}", compared(a, b, layers=(64, 64)))
    page = build_page([tmp_path])
    assert len(page.models) == 6
    assert len(render(page)) < 12e6
    assert any("positions are drawn as" in v.note for v in block(page, "figure-1").variants)


def test_names_and_prompts_stay_text(tmp_path):
    result = measured(HOSTILE, spec=HOSTILE)
    result.config["model"] = HOSTILE
    result.config["task"] = HOSTILE
    result.provenance["kept"] = [{"ids": [0], "tokens": [HOSTILE] * 32, "text": HOSTILE}] * 2
    result.findings.append(Finding("odd", None, HOSTILE))
    keep(tmp_path, "one", result)
    page = build_page([tmp_path])
    assert page.models[0].label == HOSTILE
    assert block(page, "prompts-explorer").samples[0].tokens[0] == HOSTILE
    assert block(page, "made-findings").rows[0][3] == HOSTILE
    assert HOSTILE in block(page, "figure-2").variants[0].rows[0]
    html = render(page)
    assert "<img src=x" not in html
    assert HOSTILE not in html


def test_random_weights_beside_trained_ones_are_twins_and_no_models(tmp_path):
    keep(tmp_path, "trained", measured("gpt"))
    keep(tmp_path, "random", measured("gpt", init="xavier", seed=5))
    keep(tmp_path, "alone", measured("mamba", init="xavier"))
    page = build_page([tmp_path])
    assert [model.label for model in page.models] == ["gpt", "mamba (xavier)"]
    assert {t["name"] for t in block(page, "figure-3").variants[0].traces if "name" in t} == {"trained", "xavier"}
    drawn = {trace["meta"]["model"] for trace in block(page, "figure-2").variants[0].traces}
    assert drawn == {"gpt", "mamba (xavier)", None}, "None: the key of the final norm"


@pytest.mark.parametrize("answer_can_be_read", [True, False])
def test_the_probe_shown_first_is_the_answers_whatever_the_runs_say(tmp_path, answer_can_be_read):
    """Once the label was shown first that most models are shown to hold: a choice made by looking."""
    index, answer = probed("gpt", seed=1), probed("gpt", seed=2)
    unread = index if answer_can_be_read else answer
    unread.bands["probe_peak_accuracy"] = Band(*(np.asarray(value) for value in (0.26, 0.2, 0.3)))
    answer.provenance["probe"]["label"] = "first symbol of the answer"
    answer.config["label"] = "answer"
    keep(tmp_path, "a-index", index)
    keep(tmp_path, "b-answer", answer)
    page = build_page([tmp_path])
    (sentence,) = block(page, "verdict-words").paragraphs
    peak = answer.provenance["probe"]["peak"]
    read = f"the first symbol of the answer is read best at state {peak} of 4"
    assert (read if answer_can_be_read else "the first symbol of the answer is not shown to be decodable") in sentence
    labels = [variant.when["probed_for"] for variant in block(page, "figure-7").variants]
    assert list(dict.fromkeys(labels)) == ["first symbol of the answer", "index of the gold pair"]
    assert "chance 0.25" in block(page, "figure-7").variants[0].reading
    (card,) = [card for card in page.cards if card.title == "Best read-out"]
    assert "chance 0.25" in card.text
    assert "first symbol of the answer" in card.text
    keep(tmp_path / "other", "index", index)
    (sentence,) = block(build_page([tmp_path / "other"]), "verdict-words").paragraphs
    assert "the index of the gold pair is" in sentence, "what was probed for, where nothing asks for the answer"


def test_a_diagnosis_stands_statement_by_statement(tmp_path):
    said = {"code": "homogenise", "section": "flow", "holds": None, "text": "Not decided.", "basis": "measured"}
    provenance = {"model": facts("gpt"), "statements": [said], "not_measured": ["no labels, so no probes"]}
    keep(tmp_path, "diagnosis", Result({}, {}, {"model": "models/gpt", "task": "text"}, provenance))
    page = build_page([tmp_path / "diagnosis"])
    (row,) = block(page, "diagnosis-table").rows
    assert [row[0], row[1].text, *row[2:]] == ["gpt", "Flow between tokens", "Not decided.", "measured", "open"]
    assert block(page, "diagnosis-missing").paragraphs == ["gpt: no labels, so no probes"]


def with_counts(result, train, *, drop, shown):
    """A probed run of so many training prompts that loses so much, as `repflow probe` stores it."""
    about = result.provenance["probe"]
    about |= {"split_sizes": [[train, train // 3, train // 3]] * 5, "covers_refits": True, "seeds_vary": "split"}
    about |= {"peak": 2, "peaks": [2] * 5, "peak_accuracy": 0.8, "last_accuracy": 0.8 - drop[0]}
    about["intermediate_beats_final"] = shown
    result.bands["probe_peak_accuracy"] = Band(*(np.asarray(value) for value in (0.8, 0.7, 0.9)))
    result.bands["probe_drop"] = Band(*(np.asarray(value) for value in drop))
    result.config["samples"] = 5 * train // 3
    return result


def test_verdict_diagnosis_and_table_state_one_loss(tmp_path):
    """A small and a large run of one question: once "no loss shown" stood above "State 2 beats the last one"."""
    small = with_counts(probed("gpt", prompts="a"), 36, drop=(0.5, 0.3, 0.7), shown=True)
    large = with_counts(probed("gpt", prompts="b"), 180, drop=(0.1, -0.05, 0.25), shown=False)
    for name, result in (("small", small), ("large", large)):
        keep(tmp_path, name, result)
        keep(tmp_path, f"{name}-diagnosis", diagnose_results(None, result))
    page = build_page([tmp_path])
    (sentence,) = block(page, "verdict-words").paragraphs
    stated = ReadOut.of(large).statement
    assert (
        stated == "no earlier state is shown to beat the last one: peak minus last 10.0 [-5.0, 25.0] points of accuracy"
    )
    assert stated in sentence
    assert "fitted on 180, tested on 60 prompts, 5 splits of the same prompts" in sentence
    said = [str(row[2]).lower() for row in block(page, "diagnosis-table").rows]
    assert any(text.startswith(stated) for text in said)
    assert not any("beats the last one by" in text for text in said)
    (left,) = block(page, "diagnosis-answered").paragraphs
    assert "small-diagnosis" in left
    counts = {(row[12], row[13], row[14]): row[-1] for row in block(page, "readout").rows}
    assert counts == {(36, 12, 5): "yes", (180, 60, 5): "not shown"}


def test_checkpoints_are_a_heat_map_of_depth_by_step(tmp_path):
    values = np.linspace(0, 1, 10).reshape(2, 5)
    config = {"study": "compare", "model": "models/h", "model_a": "models/h", "task": "text", "length": 8}
    provenance = {"model": facts("h", kinds=["ssm", "ssm", "ssm", "attention"]), "steps": ["step0", "step9"]}
    arrays, axes = {"cka_to_last_pooled": values}, {"cka_to_last_pooled": ("step", "state")}
    keep(tmp_path, "steps", Result(arrays, axes, config | {"states": "residual"}, provenance))
    figure = block(build_page([tmp_path / "steps"]), "steps")
    (found,) = figure.variants
    np.testing.assert_allclose(found.traces[0]["z"], values.T, atol=1e-4)
    assert found.traces[0]["x"] == ["step0", "step9"]
    assert [shape["meta"]["absolute"] for shape in found.layout["shapes"]] == [[0, 3], [3, 4]]
    assert {shape["meta"]["axis"] for shape in found.layout["shapes"]} == {"y"}
