"""States that are not finite are a finding of probe and diagnose: NaN where nothing can be measured, never a stop."""

import io
import json

import numpy as np
import pytest
import torch

import repflow
from repflow.core.results import Result
from repflow.report.terminal.probe import side_by_side, summary_lines, view
from repflow.studies.diagnose.evidence import FlowEvidence, ProbeEvidence
from tests.studies.probe.inputs import PlantedModel, PlantedTask, planted_prompts

QUICK = {"length": 64, "samples": 120, "seeds": 2, "answers": 0, "lens": 0, "recipes": ["robust"]}


class BrokenModel(PlantedModel):
    """Planted states that are NaN from one on."""

    def __init__(self, first_bad, **planted):
        super().__init__(**planted)
        self.first_bad = first_bad

    def _made(self, ids, lengths, label, state):
        values = super()._made(ids, lengths, label, state)
        return values * torch.nan if state >= self.first_bad else values


@pytest.fixture(scope="module")
def late():
    return repflow.probe(BrokenModel(3, label_at=1, alike_at=2), PlantedTask(), **QUICK, sweep=["0"])


@pytest.fixture(scope="module")
def lost():
    return repflow.probe(BrokenModel(0), PlantedTask(), **QUICK)


def test_a_broken_embedding_is_a_finding_and_every_number_is_nan(lost, recwarn):
    assert np.isnan(lost["probe_accuracy"]).all()
    for name in ("probe_drop", "probe_peak_accuracy", "probe_corrected", "probe_selectivity", "probe_capacity"):
        assert np.isnan(lost[name]).all(), name
    about = lost.provenance["probe"]
    assert (about["peak_accuracy"], about["tied"], about["intermediate_beats_final"]) == (None, [], False)
    (finding,) = [f for f in lost.findings if f.code == "nonfinite_state"]
    assert finding.message.startswith("5 of 5 states, the first of them state 0, are not finite")
    assert [s["name"] for s in lost.provenance["sentinels"]] == ["length and counts", "bag of tokens"]
    json.dumps(lost.to_json(), allow_nan=False)
    assert summary_lines(lost) == ["no state is finite, so nothing could be probed"]
    assert view(lost)
    assert not [warning for warning in recwarn if "NaN" in str(warning.message) or "empty" in str(warning.message)]


def test_the_last_state_is_never_an_earlier_one(late):
    about = late.provenance["probe"]
    assert (about["peak"], about["last"], about["last_accuracy"]) == (1, 4, None)
    assert about["peak_accuracy"] > 0.9
    assert np.isnan(late["probe_drop"])
    assert about["intermediate_beats_final"] is False
    assert np.isfinite(late["probe_accuracy"][:3]).all()
    assert np.isnan(late["probe_accuracy"][3:]).all()
    assert "nothing to compare it with" in " ".join(summary_lines(late))
    assert "nan" not in " ".join(summary_lines(late))


def test_tables_print_a_dash(late, lost):
    from rich.console import Console

    console = Console(width=200, record=True, file=io.StringIO())
    for result in (late, lost):
        for part in view(result):
            console.print(part)
    console.print(side_by_side([late, lost]))
    text = console.export_text()
    assert "nan" not in text.replace("NaN", "")
    assert "–" in text


def test_diagnosis_measures_what_is_finite_and_claims_no_loss():
    result = repflow.diagnose(BrokenModel(3, label_at=1, alike_at=1), PlantedTask(), **QUICK_DIAGNOSIS)
    codes = {s["code"] for s in result.provenance["statements"]}
    assert {"homogenise", "decodable", "best_state"} <= codes
    assert not codes & {"peak_to_last", "intermediate", "late_similarity", "final_norm"}
    early = [s for s in result.provenance["statements"] if s["code"] == "early_similarity"]
    assert early  # states 1 and 2 of 4 are finite
    missing = " ".join(result.provenance["not_measured"])
    assert "flow at states 3 to 4, which are not finite" in missing
    assert "the last state, which is not finite, so no loss" in missing
    assert "nan" not in " ".join(s["text"] for s in result.provenance["statements"])


QUICK_DIAGNOSIS = {k: v for k, v in QUICK.items() if k != "recipes"} | {"flow_samples": 8}


def test_diagnosis_of_a_model_without_any_finite_state_says_so():
    result = repflow.diagnose(BrokenModel(0), PlantedTask(), **QUICK_DIAGNOSIS)
    assert result.provenance["statements"] == []
    missing = " ".join(result.provenance["not_measured"])
    assert "no finite token similarity" in missing
    assert "what can be decoded (no state is finite)" in missing


def test_flow_evidence_keeps_the_states_before_the_first_that_is_nan():
    similarity = np.full((6, 4), np.nan)
    similarity[:4] = np.arange(4)[:, None] / 10
    result = Result({"token_similarity": similarity}, {"token_similarity": ("state", "sample")})
    evidence = FlowEvidence.of(result)
    assert (evidence.states, evidence.all_states, evidence.partial) == (4, 6, True)
    whole = FlowEvidence.of(Result({"token_similarity": similarity[:4]}, {"token_similarity": ("state", "sample")}))
    assert (whole.states, whole.partial) == (4, False)


def test_probe_evidence_is_none_where_nothing_was_probed(lost, late):
    assert ProbeEvidence.of(lost) is None
    assert not ProbeEvidence.of(late).last_probed


def test_lens_keeps_the_place_of_a_prompt_without_an_answer():
    from dataclasses import replace

    from repflow.tasks import Prompts
    from tests.studies.probe.inputs import reader

    plain = planted_prompts(120, words=2)
    answered = [replace(p, answers=("a",) if i % 3 else (), text="Key:") for i, p in enumerate(plain)]
    prompts = Prompts("own", tuple(answered), plain.classes)
    result = repflow.probe(reader("gpt_neox"), prompts, **QUICK | {"lens": 7}, controls=[], allow_leak=True)
    assert result["lens_rank"].shape == (5, 7)
    without = np.arange(7) % 3 == 0
    assert np.isnan(result["lens_rank"][:, without]).all()
    assert np.isfinite(result["lens_rank"][:, ~without]).all()
    assert np.isnan(result["lens_logprob"][:, without]).all()
