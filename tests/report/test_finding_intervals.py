"""Intervals of the findings' own numbers against prompts drawn and averaged one by one."""

import numpy as np
import pytest
from stored_runs import keep, measured, probed

from repflow.paper_reading import Training
from repflow.report.finding_intervals import DRAWS, prompt_intervals
from repflow.report.page_build import build_page
from repflow.results import BOOTSTRAP_SEED, Result

PLACE = "kvpr/32"
BEFORE = "Transformers: median layer cosine before the last block ≥ 0.9"
WITHIN = "within a family Sm or St differs by a factor ≥ 1.5"
UNKNOWN = Training(None, None)


def block(page, wanted):
    return next(block for section in page.sections for block in section.blocks if block.id == wanted)


def drawn(count):
    """Prompts of every draw, by number."""
    weights = np.random.default_rng(BOOTSTRAP_SEED).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    return [np.repeat(np.arange(count), row) for row in weights]


def test_a_median_over_blocks_of_ragged_prompts():
    result = measured("gpt", samples=5)
    result.arrays["layer_cosine"][:, 1, 20:] = np.nan
    found = prompt_intervals([result, measured("ssm", kinds=["ssm"] * 4, samples=5)], PLACE)
    values = result["layer_cosine"].astype(float)
    medians = [
        np.median([np.nanmean(values[block][prompts]) for block in range(len(values) - 1)]) for prompts in drawn(5)
    ]
    assert found["F 3.2.1", BEFORE, UNKNOWN, "gpt"] == pytest.approx(np.quantile(medians, [0.025, 0.975]), rel=1e-9)


def test_a_ratio_of_two_models_draws_the_same_prompts_of_both():
    names = {"gpt": "attention", "neo": "attention", "ssm": "ssm", "s6": "ssm"}
    results = {name: measured(name, kinds=[kind] * 4, seed=at) for at, (name, kind) in enumerate(names.items())}
    found = prompt_intervals(list(results.values()), PLACE)
    pairs = [[results[name]["smoothness"][prompts].mean() for name in ("gpt", "neo")] for prompts in drawn(6)]
    factors = [max(pair) / min(pair) for pair in pairs]
    assert found["F 3.3.2", WITHIN, UNKNOWN, "Sm TBM"] == pytest.approx(np.quantile(factors, [0.025, 0.975]), rel=1e-6)


def test_a_number_without_an_interval_says_why(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    keep(tmp_path, "c", probed("gpt"))
    keep(tmp_path, "d", probed("ssm", kinds=["ssm"] * 4))
    rows = block(build_page([tmp_path]), "findings-numbers").rows
    over = {(row[0].text, row[1]): row[6] for row in rows}
    assert over["F 3.3.1", "mean CKA of the first half"] == "none: this CKA is one number of all prompts together"
    assert over["F 3.2.1", "fall at the last block"] == "prompts"
    assert all((row[4] is None) == row[6].startswith("none: ") for row in rows)


def test_runs_of_other_prompts_are_left_out_of_the_findings_unless_asked(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    keep(tmp_path, "c", measured("far", kinds=["ssm"] * 4, prompts="other"))
    plain, mixed = (build_page([tmp_path], allow_mixed=asked) for asked in (False, True))
    named = [
        {row[2] for row in block(page, "findings-numbers").rows} & {"gpt", "ssm", "far"} for page in (plain, mixed)
    ]
    assert named == [{"gpt", "ssm"}, {"gpt", "ssm", "far"}]
    leads = [next(section.lead for section in page.sections if section.id == "findings") for page in (plain, mixed)]
    assert "than the rest: c (--allow-mixed" in leads[0]
    assert "Left out" not in leads[1]


def test_one_prompt_has_no_interval_and_a_run_without_cosines_no_number(tmp_path):
    keep(tmp_path, "a", measured("gpt", samples=1))
    whole = measured("ssm", kinds=["ssm"] * 4)
    arrays = {name: array for name, array in whole.items() if "layer_cosine" not in name}
    keep(tmp_path, "b", Result(arrays, {name: whole.axes[name] for name in arrays}, whole.config, whole.provenance))
    rows = block(build_page([tmp_path]), "findings-numbers").rows
    assert {row[6].partition(":")[0] for row in rows if row[2] == "gpt"} == {"none"}
    assert not [row for row in rows if row[1] == "rise in the last quarter"]
