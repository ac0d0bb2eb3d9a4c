"""Intervals of the findings' own numbers against prompts left out one by one, and how the page shows them."""

import numpy as np
import pytest

from repflow.core.intervals import student_quantile
from repflow.core.results import Result
from repflow.core.verdict import WORDS
from repflow.papers.claims import Group
from repflow.papers.findings import judge, read_results
from repflow.papers.reading import Training
from repflow.report.page.build import build_page
from tests.report.stored_runs import keep, measured, probed

PLACE = "kvpr/32"
UNKNOWN = Training(None, None)


def block(page, wanted):
    return next(block for section in page.sections for block in section.blocks if block.id == wanted)


def left_out(number, count):
    """95 % interval of a number of prompts, by the textbook's jackknife."""
    whole = number(np.arange(count))
    parts = np.array([number(np.delete(np.arange(count), at)) for at in range(count)])
    error = np.sqrt((count - 1) / count * ((parts - parts.mean()) ** 2).sum())
    half = float(student_quantile(count - 1)) * error
    return whole - half, whole + half


def clause(results, code, at):
    entry = next(entry for entry in judge(read_results(results), place=PLACE) if entry.code == code)
    return entry.clauses[at]


def test_a_median_over_blocks_of_ragged_prompts():
    result = measured("gpt", samples=5)
    result.arrays["layer_cosine"][:, 1, 20:] = np.nan
    found = clause([result, measured("ssm", kinds=["ssm"] * 4, samples=5)], "F 3.2.1", 0)
    values = result["layer_cosine"].astype(float)

    def median(prompts):
        return np.median([np.nanmean(values[block][prompts]) for block in range(len(values) - 1)])

    assert found.ends["gpt"] == pytest.approx(left_out(median, 5), rel=1e-9)
    assert found.over == "prompts"


def test_a_contrast_leaves_the_same_prompt_out_of_both_models():
    names = {"gpt": "attention", "ssm": "ssm"}
    results = {name: measured(name, kinds=[kind] * 4, seed=at) for at, (name, kind) in enumerate(names.items())}
    found = clause(list(results.values()), "F 3.2.2", 2)

    def gap(prompts):
        medians = [
            np.median(results[name]["token_similarity"][:, prompts].astype(float).mean(1)) for name in ("gpt", "ssm")
        ]
        return medians[0] - medians[1] - 0.05

    assert found.interval == pytest.approx(left_out(gap, 6), rel=1e-6)


def test_long_prompts_weigh_every_token_alike():
    """Beyond 256 tokens a stored position is the mean of a span: the first four weigh one token each."""
    result = measured("gpt", samples=3)
    tokens = result["layer_cosine"].shape[2]
    starts = [*range(4), *range(4, 4 + 3 * (tokens - 4), 3)]
    result.provenance |= {"positions": starts, "lengths": [starts[-1] + 3] * 3}
    (reading,) = read_results([result])
    weights = np.array([1.0] * 4 + [3.0] * (tokens - 4))
    wanted = np.average(result["layer_cosine"].astype(float).mean(1), axis=1, weights=weights)
    assert reading.trained[PLACE].layer_cosine == pytest.approx(wanted.tolist(), rel=1e-6)


def test_prompts_are_left_out_of_every_model_or_of_none():
    runs = read_results([measured("gpt", samples=6), measured("ssm", kinds=["ssm"] * 4, samples=4)])
    assert Group(UNKNOWN, PLACE, tuple(runs)).without == ()


def test_a_number_without_an_interval_says_why(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    keep(tmp_path, "c", probed("gpt"))
    keep(tmp_path, "d", probed("ssm", kinds=["ssm"] * 4))
    rows = block(build_page([tmp_path], papers=True), "findings-numbers").rows
    over = {(row[0].text, row[1]): row[6] for row in rows}
    assert over["F 3.3.1", "mean CKA of the first half"] == "none: this CKA is one number of all prompts together"
    assert over["F 3.2.1", "fall at the last block"] == "prompts"
    assert over["F 3.4.1", "peak minus last for the gold index"] == "test prompts"
    assert all((row[4] is None) == row[6].startswith("none: ") for row in rows)


def test_the_page_gives_every_verdict_with_its_counts(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    page = build_page([tmp_path], papers=True)
    verdicts = [row[3] for row in block(page, "findings-table").rows]
    for told in verdicts:
        assert told.partition(":")[0] in WORDS
        assert "training (0 seeds, power 0%; residual stream)" in told
    parts = block(page, "findings-parts")
    assert {row[3] for row in parts.rows} <= {"holds", "does not hold", "open"}
    lead = next(section.lead for section in page.sections if section.id == "findings")
    assert "so the stream alone is judged" in lead


def test_branches_of_state_space_models_stand_beside_the_stream(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    added = measured("ssm", kinds=["ssm"] * 4, seed=3)
    added.config["states"] = "branch"
    keep(tmp_path, "c", added)
    page = build_page([tmp_path], papers=True)
    table = block(page, "findings-table").rows
    assert [len(row[3].splitlines()) for row in table] == [2] * 5 + [1] * 3
    assert table[0][3].splitlines()[1].endswith("state-space branches)")
    assert "With state-space branches: state-space models: median before the last quarter" in table[0][4]
    assert {row[6] for row in block(page, "findings-parts").rows} == {"residual stream", "state-space branches"}


def test_runs_of_other_prompts_are_left_out_of_the_findings_unless_asked(tmp_path):
    keep(tmp_path, "a", measured("gpt"))
    keep(tmp_path, "b", measured("ssm", kinds=["ssm"] * 4))
    keep(tmp_path, "c", measured("far", kinds=["ssm"] * 4, prompts="other"))
    plain, mixed = (build_page([tmp_path], allow_mixed=asked, papers=True) for asked in (False, True))
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
    rows = block(build_page([tmp_path], papers=True), "findings-numbers").rows
    assert {row[6].partition(":")[0] for row in rows if row[2] == "gpt"} == {"none"}
    assert not [row for row in rows if row[1] == "rise in the last quarter"]
