"""Further trainings of the built-in models: in the demo's words and JSON, and as bands on the page."""

from dataclasses import replace

import numpy as np
import pytest

from repflow.papers.findings import judge, merge, read_results
from repflow.papers.reading import Training
from repflow.report.page.build import build_page
from repflow.report.sections import findings as section_findings
from repflow.report.sections import trainings as section_trainings
from repflow.report.terminal.demo import demo_json, model_verdict
from tests.report.stored_runs import keep, measured

PLACE = "kvpr/32"
OWN = {"gpt-neox": "attention", "mamba2": "ssm", "hybrid": "ssm"}


@pytest.fixture
def runs():
    """Runs of packaged models, which tell their training."""
    made = [measured(name, spec=f"zoo:{name}", kinds=[kind] * 4) for name, kind in OWN.items()]
    for result in made:
        result.provenance["model"]["training"] = {"seed": 0, "steps": 8000, "data": "d"}
    return made


@pytest.fixture
def known(runs):
    """Three further trainings of two of them; curves shifted by 0.1, 0.2 and 0.3."""
    made = []
    for reading in read_results(runs)[:2]:
        for seed in range(3):
            flow = reading.trained[PLACE]
            curve = [value + 0.1 * (seed + 1) for value in flow.token_similarity]
            made.append(replace(reading, seed=seed, steps=50, trained={PLACE: replace(flow, token_similarity=curve)}))
    return made


def test_the_verdict_and_the_json_tell_how_far_they_lie_apart(runs, known):
    own = read_results(runs)
    assert own[0].training == Training(0, 8000, "d")
    end = own[0].trained[PLACE].token_similarity[-1]
    words = f"{end + 0.1:.2f} to {end + 0.3:.2f} alike at the end in 3 further trainings of 50 steps"
    assert words in model_verdict(own[0], PLACE, others=known[:3])
    assert "further" not in model_verdict(own[2], PLACE)
    told = demo_json(own, judge(merge(own, known), place=PLACE), [], {}, known, PLACE)
    assert set(told["further_trainings"]) == {"gpt-neox", "mamba2"}
    assert told["further_trainings"]["gpt-neox"] == {
        "trainings": [{"seed": seed, "steps": 50, "data": "d"} for seed in range(3)],
        "last_similarity": {"low": pytest.approx(end + 0.1), "high": pytest.approx(end + 0.3)},
    }
    assert [(entry["seed"], entry["steps"]) for entry in told["findings"][0]["trainings"]] == [
        (0, 8000), (0, 50), (1, 50), (2, 50),
    ]  # fmt: skip
    assert {(part["seed"], part["steps"]) for part in told["findings"][0]["parts"]} == {
        (0, 8000), (0, 50), (1, 50), (2, 50),
    }  # fmt: skip


def test_the_page_draws_the_band_of_the_lowest_and_the_highest(runs, known, tmp_path, monkeypatch):
    monkeypatch.setattr(section_trainings, "known_readings", lambda: known)
    page = build_page([keep(tmp_path, f"run{at}", result) for at, result in enumerate(runs)])
    (figure,) = [block for section in page.sections for block in section.blocks if block.id == "trainings"]
    assert {variant.when["measure"] for variant in figure.variants} == {"token similarity", "layer cosine"}
    (variant,) = [one for one in figure.variants if one.when["measure"] == "token similarity"]
    mine = {trace["meta"]["model"] for trace in variant.traces}
    assert mine == {"gpt-neox", "mamba2"}  # the hybrid has no further training here
    traces = [trace for trace in variant.traces if trace["meta"]["model"] == "gpt-neox"]
    low, high, mean, own = (np.asarray(trace["y"]) for trace in traces)
    curve = np.asarray(read_results(runs)[0].trained[PLACE].token_similarity)
    for drawn, wanted in ((low, curve + 0.1), (high, curve + 0.3), (mean, curve + 0.2), (own, curve)):
        np.testing.assert_allclose(drawn, wanted, rtol=1e-8)
    assert [trace.get("name") for trace in traces[2:]] == [
        "3 further trainings of 50 steps", "this page (seed 0, 8,000 steps)",
    ]  # fmt: skip
    assert {row[2] for row in variant.rows} == {"seed 0, 8,000 steps", *(f"seed {seed}, 50 steps" for seed in range(3))}


def test_models_from_elsewhere_get_no_band(known, tmp_path, monkeypatch):
    monkeypatch.setattr(section_trainings, "known_readings", lambda: known)
    page = build_page([keep(tmp_path, "run", measured("gpt-neox"))])
    assert "trainings" not in {block.id for section in page.sections for block in section.blocks}


def trainings_figure(page):
    return {block.id: block for section in page.sections for block in section.blocks}.get("trainings")


def test_a_run_without_a_curve_has_no_band_of_it(runs, known, tmp_path, monkeypatch):
    """`repflow measure --metrics token_similarity`, while the packaged readings have both curves."""
    monkeypatch.setattr(section_trainings, "known_readings", lambda: known)
    for result in runs:
        for name in [name for name in result.arrays if name.endswith("layer_cosine")]:
            del result.arrays[name], result.axes[name]
    figure = trainings_figure(build_page([keep(tmp_path, f"run{at}", result) for at, result in enumerate(runs)]))
    assert {variant.when["measure"] for variant in figure.variants} == {"token similarity"}


def test_a_band_needs_the_same_prompts_and_two_trainings(runs, known, tmp_path, monkeypatch):
    stored = [keep(tmp_path, "run", runs[0])]
    mine = known[:3]
    flow = mine[0].trained[PLACE]
    elsewhere = [replace(reading, trained={"kvpr/64": flow}) for reading in mine]
    other_prompts = [replace(reading, trained={PLACE: replace(flow, prompts="others")}) for reading in mine]
    for found, drawn in ((mine, True), (mine[:2], True), (mine[:1], False), (elsewhere, False), (other_prompts, False)):
        monkeypatch.setattr(section_trainings, "known_readings", lambda found=found: found)
        assert (trainings_figure(build_page(stored)) is not None) is drawn


def test_findings_name_the_training_of_their_numbers(runs, known, tmp_path, monkeypatch):
    monkeypatch.setattr(section_findings, "known_readings", lambda: known)
    page = build_page([keep(tmp_path, f"run{at}", result) for at, result in enumerate(runs)], papers=True)
    (section,) = [section for section in page.sections if section.id == "findings"]
    assert "and against further trainings of the built-in models that repflow brings" in section.lead
    (table,) = [block for block in section.blocks if block.id == "findings-table"]
    head, *parts = table.rows[0][-1].splitlines()
    assert head == "seed 0, 8,000 steps:"
    finding = judge(merge(read_results(runs), known))[0]
    for part, text in zip(finding.parts, parts, strict=True):
        said = sum(clause.side for clause in part.asked)
        assert text.endswith(f"The numbers say so in {said} of 4 trainings.")
    monkeypatch.setattr(section_findings, "known_readings", list)
    page = build_page([keep(tmp_path, f"own{at}", result) for at, result in enumerate(runs)], papers=True)
    (section,) = [section for section in page.sections if section.id == "findings"]
    assert "further trainings" not in section.lead


def test_a_band_with_a_gap_is_not_told(runs, known):
    own = read_results(runs)[0]
    flow = known[0].trained[PLACE]
    holed = replace(known[0], trained={PLACE: replace(flow, token_similarity=[*flow.token_similarity[:-1], np.nan])})
    for others in ([holed, *known[1:3]], [*known[1:3], holed], known[:1]):
        assert "further" not in model_verdict(own, PLACE, others=others)
    gone = replace(own, trained={PLACE: holed.trained[PLACE]})
    assert "token similarity has no value at 1 of 5 states" in model_verdict(gone, PLACE)
