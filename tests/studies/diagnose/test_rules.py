"""From numbers to statements, without a model: planted curves, each with one right reading."""

import json
import re

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.core.readout import Counts, Number, ReadOut
from repflow.core.results import Band
from repflow.core.spans import spans
from repflow.studies.diagnose.evidence import FlowEvidence, Interval, ProbeEvidence, held_out, share_interval
from repflow.studies.diagnose.statement import Thresholds
from repflow.studies.diagnose.study import judge

NUMBER = re.compile(r"\d+\.\d+|\d+")


def flow(curve, excess=None, noise=0.005, samples=16, kinds=None, seed=0):
    rng = np.random.default_rng(seed)
    spread = noise * rng.standard_normal((len(curve), samples))
    other = None if excess is None else np.asarray(excess)[:, None] + spread
    names = tuple(kinds or ["attention"] * (len(curve) - 1))
    return FlowEvidence(np.asarray(curve)[:, None] + spread, other, names)


def probe(accuracy, peak, drop, *, classes=10, tied=(), width=0.02, shown=None, covers=True, own=None, **facts):
    """Evidence of a probe; `own` is the accuracy at each seed's own peak and these peaks."""
    accuracy = np.asarray(accuracy, dtype=float)
    chance, last = 1 / classes, len(accuracy) - 1
    top, peaks = own or (Number(accuracy[peak], accuracy[peak] - width, accuracy[peak] + width), (peak,))
    shown = peak < last and drop[1] > 0 if shown is None else shown
    counts = Counts(600, 200, 200, seeds=5, vary="split", covers_refits=covers)
    tied = tuple(sorted({peak, *tied}))
    read_out = ReadOut(
        "index", classes, chance, peak, peaks, last, tied, top, accuracy[-1], Number(*drop), shown, counts
    )  # fmt: skip
    facts = {"accuracy_band": Band(accuracy, accuracy - width, accuracy + width), **facts}
    return ProbeEvidence(accuracy, read_out, "robust", facts)


def found(statements, code, basis=None):
    (one,) = [s for s in statements if s.code == code and (basis is None or s.basis == basis)]
    return one


TRANSFORMER = [0.1, 0.5, 0.9, 0.95, 0.92, 0.9, 0.8, 0.7, 0.6]
STATE_SPACE = [0.1, 0.12, 0.2, 0.3, 0.35, 0.4, 0.45, 0.6, 0.8]


def test_early_homogenisation_and_recovery_of_a_transformer():
    said, _ = judge(flow(TRANSFORMER, np.array(TRANSFORMER) - 0.02), None)
    assert found(said, "homogenise").numbers["state"] == 3
    assert found(said, "homogenise").numbers["half_way_state"] == 2
    assert found(said, "recover").holds is True
    assert (found(said, "recover").numbers["from"], found(said, "recover").numbers["to"]) == (3, 8)
    assert found(said, "recover").numbers["fall"].value == pytest.approx(0.35, abs=0.01)
    for basis in ("published", "judged"):
        assert found(said, "early_similarity", basis).holds is True
        assert found(said, "late_similarity", basis).numbers["threshold"] == 0.7
    assert found(said, "late_similarity", "published").holds is True  # over .7 at 75 % depth
    assert found(said, "late_similarity", "judged").holds is False  # but no spike: earlier states lie higher


def test_late_homogenisation_of_a_state_space_model():
    said, _ = judge(flow(STATE_SPACE, np.array(STATE_SPACE) - 0.02), None)
    assert found(said, "homogenise").numbers["state"] == 8
    assert found(said, "recover").holds is False
    assert "do not separate" in found(said, "recover").text
    for basis in ("published", "judged"):
        assert found(said, "early_similarity", basis).holds is False
        assert found(said, "late_similarity", basis).holds is True


def test_common_direction_is_published_but_not_judged_as_similarity():
    """One vector added to all tokens of all prompts: raw similarity is high, excess is not."""
    said, _ = judge(flow(TRANSFORMER, [0.05] * 9), None)
    assert found(said, "early_similarity", "published").holds is True
    assert found(said, "early_similarity", "judged").holds is False


def test_a_value_at_the_threshold_is_not_decided():
    said, _ = judge(flow([0.1, 0.8, 0.5, 0.3, 0.2], [0.1, 0.8, 0.5, 0.3, 0.2], noise=0.1), None)
    assert found(said, "early_similarity", "judged").holds is None
    assert ": open (" in found(said, "early_similarity", "judged").text


def test_flat_noise_is_not_called_recovery():
    """The highest of many equal states lies above the lowest; on the prompts that chose them it would be a fall."""
    wrong = 0
    for seed in range(40):
        said, _ = judge(flow([0.3] * 33, noise=0.02, samples=8, seed=seed), None)
        wrong += found(said, "recover").holds is True
    assert wrong <= 6  # a 95 % interval on few prompts is a little narrow


def test_held_out_choice_is_unbiased_where_the_plain_maximum_is_not():
    rng = np.random.default_rng(1)
    plain, fair = [], []
    for _ in range(200):
        values = rng.standard_normal((65, 16))
        plain.append(values.mean(1).max())
        fair.append(held_out(values, np.arange(65))[1].value)
    assert np.mean(plain) > 0.4
    assert abs(np.mean(fair)) < 0.1


def test_few_prompts_give_no_interval_and_no_verdict():
    said, missing = judge(flow(TRANSFORMER, samples=1, noise=0), None)
    assert "intervals of the flow (need 6 prompts: --flow-samples 6)" in missing
    assert found(said, "recover").holds is None
    assert "no interval" in found(said, "recover").text
    assert any("excess similarity" in text for text in missing)


def test_probe_loss_is_judged_on_corrected_points_with_intervals():
    evidence = probe([0.1, 0.3, 0.6, 0.5, 0.44], 2, (0.16, 0.12, 0.20))
    said, _ = judge(None, evidence)
    assert found(said, "peak_to_last", "published").holds is True  # 16 points
    judged = found(said, "peak_to_last", "judged")
    assert judged.holds is None  # 17.8 [13.3, 22.2]
    assert judged.numbers["points"].value == pytest.approx(16 / 0.9)
    said, _ = judge(None, probe([0.1, 0.3, 0.9, 0.5, 0.4], 2, (0.5, 0.45, 0.55)))
    assert found(said, "peak_to_last", "judged").holds is True
    said, _ = judge(None, probe([0.1, 0.3, 0.6, 0.6, 0.58], 2, (0.02, -0.02, 0.06)))
    assert found(said, "peak_to_last", "judged").holds is False


def test_intermediate_beats_final_only_if_the_interval_excludes_zero():
    said, _ = judge(None, probe([0.1, 0.6, 0.55], 1, (0.05, 0.01, 0.09)))
    assert found(said, "intermediate").holds is True
    assert found(said, "intermediate").text.startswith("State 1 beats the last one")
    said, _ = judge(None, probe([0.1, 0.6, 0.55], 1, (0.05, -0.01, 0.11), tied=(2,)))
    assert found(said, "intermediate").holds is None
    assert "not shown" not in found(said, "decodable").text
    assert "no reason to read elsewhere" in found(said, "best_state").text
    said, _ = judge(None, probe([0.1, 0.6, 0.65], 2, (0.0, 0.0, 0.0)))
    assert found(said, "intermediate").holds is None  # no earlier state was compared: validation chose the last one
    assert found(said, "intermediate").text.startswith("Validation chose the last state, 2;")


def test_a_loss_that_no_interval_covers_refits_of_is_not_claimed():
    """One seed: the interval over test prompts lies above 0, and still nothing is said to be lost."""
    said, _ = judge(None, probe([0.1, 0.9, 0.4], 1, (0.5, 0.4, 0.6), shown=False, covers=False))
    assert found(said, "intermediate").holds is None
    assert "no interval covers refitting" in found(said, "intermediate").text
    assert found(said, "peak_to_last", "judged").holds is None
    assert found(said, "intermediate").numbers["prompts"]["train"] == 600


def test_a_loss_that_is_not_claimed_is_not_judged_to_be_over_a_limit():
    """The interval lies above 15 points, but the loss does not survive half the training prompts."""
    said, _ = judge(None, probe([0.1, 0.9, 0.4], 1, (0.5, 0.4, 0.6), shown=False))
    assert found(said, "intermediate").holds is None
    assert found(said, "peak_to_last", "judged").holds is None
    said, _ = judge(None, probe([0.1, 0.9, 0.9], 1, (0.0, -0.02, 0.02), shown=False))
    assert found(said, "peak_to_last", "judged").holds is False


def test_counts_stand_beside_every_claim_of_a_probe():
    band = Band(np.array([0.5, -0.3]), np.array([0.4, -0.4]), np.array([0.6, -0.2]))
    facts = {"step": band, "half_step": band, "claim": np.array([1, -1])}
    said, _ = judge(flow([0.1, 0.2, 0.3]), probe([0.1, 0.6, 0.3], 1, (0.3, 0.2, 0.4), **facts))
    for code in ("decodable", "intermediate", "lost_in_block", "gained_in_block"):
        assert "fitted on 600, tested on 200 prompts, 5 splits of the same prompts" in found(said, code).text
        assert found(said, code).numbers["prompts"]["test"] == 200
    assert found(said, "lost_in_block").numbers["block"] == 2
    assert found(said, "lost_in_block").numbers["half"].value == -0.3


def test_a_run_without_claims_says_why_no_block_is_named():
    """Stored before fits on half the training prompts: its intervals are there, its claims are not."""
    band = Band(np.array([0.5, -0.3]), np.array([0.4, -0.4]), np.array([0.6, -0.2]))
    said, _ = judge(flow([0.1, 0.2, 0.3]), probe([0.1, 0.6, 0.3], 1, (0.3, 0.2, 0.4), step=band))
    assert found(said, "lost_in_block").holds is None
    assert "rerun the probe" in found(said, "lost_in_block").text


def test_best_state_names_those_it_cannot_be_told_from():
    said, _ = judge(None, probe([0.1, 0.6, 0.6, 0.6, 0.2], 2, (0.4, 0.3, 0.5), tied=(1, 3)))
    assert "not distinguished from it: states 1, 3" in found(said, "best_state").text


def test_chance_accuracy_is_not_called_decodable():
    said, _ = judge(None, probe([0.1, 0.11, 0.1], 1, (0.01, -0.03, 0.05)))
    assert found(said, "decodable").holds is None
    assert "is not shown to be decodable by these probes" in found(said, "decodable").text
    said, _ = judge(None, probe([0.1, 0.05, 0.1], 1, (-0.05, -0.08, -0.02)))
    assert found(said, "decodable").holds is None  # below chance: these probes do not read it, another one might
    assert "cannot" not in found(said, "decodable").text
    assert "not a recommendation" in found(said, "best_state").text


def test_hybrid_layout_counts_changes_across_blocks():
    kinds = ["ssm", "ssm", "attention", "ssm", "attention"]
    curve = [0.1, 0.15, 0.2, 0.6, 0.55, 0.9]
    evidence = probe([0.1, 0.1, 0.1, 0.8, 0.8, 0.7], 3, (0.1, 0.05, 0.15), tied=(4,))
    said, _ = judge(flow(curve, noise=0, kinds=kinds), evidence)
    assert found(said, "layout").numbers["blocks"] == {"attention": [3, 5], "ssm": [1, 2, 4]}
    assert found(said, "similarity_by_kind").numbers["attention"] == pytest.approx((0.4 + 0.35) / 2)
    assert found(said, "similarity_by_kind").numbers["ssm"] == pytest.approx((0.05 + 0.05 - 0.05) / 3)
    assert found(said, "accuracy_by_kind").numbers["attention"] == pytest.approx((0.7 - 0.1) / 2)
    assert found(said, "best_state_kind").numbers == {"state": 3, "kind": "attention"}


def test_a_pure_model_has_no_layout():
    said, _ = judge(flow(TRANSFORMER), None)
    assert not [s for s in said if s.section == "layout"]


FACTS = {
    "information": np.array([0.0, 1.0, 2.0]),
    "selectivity": Band(np.array([0.0, 0.2, 0.4]), np.array([-0.1, 0.1, 0.3]), np.array([0.1, 0.3, 0.5])),
    "capacity": np.array([0.2, 0.3, 0.5]),
    "twin": {"peak_accuracy": Interval(0.2, 0.18, 0.22), "gain": Interval(0.4, 0.36, 0.44), "state": 1},
    "final_norm": Band(np.array([0.55]), np.array([0.5]), np.array([0.6])),
    "answers": (Interval(0.4, 0.3, 0.5), 50),
    "lens_rank": np.array([90.0, 40.0, 1.0]),
    "unconverged": [0, 1],
}


def test_what_was_measured_is_said_and_what_was_not_is_listed():
    said, missing = judge(None, probe([0.1, 0.6, 0.5], 1, (0.1, 0.05, 0.15), **FACTS))
    codes = {s.code for s in said}
    assert {"final_norm", "selectivity", "twin", "answers", "lens", "unconverged"} <= codes
    assert found(said, "twin").holds is True
    assert missing == [
        "flow between tokens (no finite token similarity of residual states)",
        "whether the model uses what can be decoded (that needs interventions)",
    ]
    said, missing = judge(None, probe([0.1, 0.6, 0.5], 1, (0.1, 0.05, 0.15)))
    assert not {"final_norm", "selectivity", "twin", "answers", "lens", "unconverged"} & {s.code for s in said}
    for word in ("final norm", "control task", "twin", "answers", "lens"):
        assert any(word in text for text in missing)
    said, missing = judge(flow(TRANSFORMER), None)
    assert not any("intervals of the flow" in text for text in missing)
    assert not [s for s in said if s.section == "read-out"]
    assert any("no labels" in text for text in missing)


def said_with(code, own=None, **facts):
    evidence = probe([0.1, 0.6, 0.5], 1, (0.1, 0.05, 0.15), own=own, **{**FACTS, **facts})
    return found(judge(None, evidence)[0], code)


def test_twin_is_judged_by_the_paired_difference_not_by_overlap():
    """Intervals that overlap, and a difference by prompt that does not include 0; and the other way round."""
    near = {"peak_accuracy": Interval(0.59, 0.57, 0.61), "state": 2}
    for gain, holds in (((0.01, 0.002, 0.02), True), ((0.01, -0.01, 0.03), None), ((-0.02, -0.03, -0.01), False)):
        statement = said_with("twin", twin={**near, "gain": Interval(*gain)})
        assert statement.holds is holds
        assert statement.numbers["difference"].value == gain[0]
        assert "the twin's state 2" in statement.text


def test_accuracy_of_each_seeds_own_peak_is_cited_where_it_is_known():
    own = (Number(0.55, 0.5, 0.6), (1, 2))
    decodable = said_with("decodable", own)
    assert decodable.numbers["accuracy"].value == 0.55
    assert decodable.numbers["corrected"] == pytest.approx(0.45 / 0.9)
    assert "state 1 (by seed: 1, 2)" in decodable.text
    assert said_with("best_state", own).numbers["accuracy"].value == 0.55


def test_selectivity_holds_only_where_its_interval_excludes_zero():
    band = Band(np.array([0.0, 0.2, 0.4]), np.array([-0.1, -0.01, 0.3]), np.array([0.1, 0.3, 0.5]))
    assert said_with("selectivity").holds is True
    assert said_with("selectivity", selectivity=band).holds is None


def test_no_right_answers_among_few_have_an_interval():
    share = share_interval(np.zeros(8))
    # Wilson: z² / (n + z²)
    assert (share.value, share.low) == (0.0, 0.0)
    assert share.high == pytest.approx(3.841459 / 11.841459, abs=1e-6)
    full = share_interval(np.ones(8))
    assert (full.value, full.high) == (1.0, pytest.approx(1.0))
    assert full.low == pytest.approx(1 - share.high)


def test_start_value_and_rise_add_up():
    """Odd prompts start lower: the embedding's value must be theirs, as the peak's and the rise are."""
    evidence = flow([0.1, 0.5, 0.9, 0.4, 0.3], noise=0.03, samples=9)
    evidence.similarity[0, 1::2] -= 0.2
    numbers = found(judge(evidence, None)[0], "homogenise").numbers
    assert numbers["similarity"].value - numbers["embedding"] == pytest.approx(numbers["rise"].value, abs=1e-12)
    assert numbers["embedding"] == pytest.approx(evidence.similarity[0, 1::2].mean())


def every_statement():
    kinds = ["ssm", "attention"]
    for facts in ({}, FACTS):
        for width in (0.0, 0.6):
            evidence = probe([0.1, 0.6, 0.5], 1, (0.1, 0.05 - width, 0.15), tied=(2,), width=0.02 + width, **facts)
            for curve in ([0.1, 0.9, 0.3], [0.1, 0.2, 0.9]):
                for samples in (1, 16):
                    excess = None if samples == 1 else curve
                    yield from judge(flow(curve, excess, samples=samples, kinds=kinds), evidence)[0]


def test_every_statement_cites_its_numbers_and_none_says_used():
    count = 0
    for statement in every_statement():
        count += 1
        assert statement.numbers
        assert NUMBER.search(statement.text)
        assert not re.search(r"\b(uses?|used|using|relies|knows?)\b", statement.text)
        assert statement.basis in ("published", "judged", "measured")
        for value in statement.numbers.values():
            if isinstance(value, Interval):
                shown = {f"{value.value:.3f}", f"{value.value:.1f}"}
                assert any(text in statement.text for text in shown), statement
        json.dumps(statement.to_json(), allow_nan=False)
    assert count > 50


@pytest.mark.parametrize("wrong", [{"early_similarity": 1.2}, {"loss_points": -1.0}, {"late_depth": 2.0}])
def test_impossible_thresholds_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"expected {name} from 0 to .*; got .*; see"):
        Thresholds(**wrong)


def test_thresholds_are_options():
    curve = [0.1, 0.5, 0.4, 0.3, 0.2]
    loose, _ = judge(flow(curve, curve), None, Thresholds(early_similarity=0.3))
    strict, _ = judge(flow(curve, curve), None, Thresholds(early_similarity=0.6))
    assert found(loose, "early_similarity", "judged").holds is True
    assert found(strict, "early_similarity", "judged").holds is False


def test_spans():
    assert spans([0, 1, 2, 5, 7, 8]) == "states 0-2, 5, 7-8"
