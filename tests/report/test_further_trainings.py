"""Further trainings of the built-in models: in the demo's words and JSON, and as bands on the page."""

from dataclasses import replace

import numpy as np
import pytest
from stored_runs import keep, measured

from repflow.paper_findings import judge, merge, read_results
from repflow.paper_reading import Training
from repflow.report import section_trainings
from repflow.report.demo_view import demo_json, model_verdict
from repflow.report.page_build import build_page

PLACE = "kvpr/32"
OWN = {"gpt-neox": "attention", "mamba2": "ssm", "hybrid": "ssm"}


@pytest.fixture
def runs():
    """Runs of packaged models, whose records tell their trainings."""
    return [measured(name, spec=f"zoo:{name}", kinds=[kind] * 4) for name, kind in OWN.items()]


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
    assert own[0].training == Training(0, 8000)
    end = own[0].trained[PLACE].token_similarity[-1]
    words = f"{end + 0.1:.2f} to {end + 0.3:.2f} alike at the end in 3 further trainings of 50 steps"
    assert words in model_verdict(own[0], PLACE, others=known[:3])
    assert "further" not in model_verdict(own[2], PLACE)
    told = demo_json(own, judge(merge(own, known), place=PLACE), [], {}, known, PLACE)
    assert set(told["further_trainings"]) == {"gpt-neox", "mamba2"}
    assert told["further_trainings"]["gpt-neox"] == {
        "trainings": [{"seed": seed, "steps": 50} for seed in range(3)],
        "last_similarity": {"low": pytest.approx(end + 0.1), "high": pytest.approx(end + 0.3)},
    }
    assert told["findings"][0]["trainings"] == [{"seed": 0, "steps": 8000}] + [
        {"seed": seed, "steps": 50} for seed in range(3)
    ]
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
