"""Greedy answers in a probe: only where the right one fits, one entry for each prompt asked."""

from dataclasses import replace

import numpy as np
import pytest

from repflow.core.results import Result
from repflow.report.terminal.probe import summary_lines
from repflow.studies.diagnose.evidence import ProbeEvidence
from repflow.studies.engine.feature_sink import MemoryKeeper
from repflow.studies.probe.answers import answer_table
from repflow.studies.probe.config import ProbeConfig
from repflow.tasks import Prompt, Prompts
from tests.studies.probe.inputs import reader, tokenizer

ANSWER = "7f666c61-0000"


def asked(lengths, answers):
    rng = np.random.default_rng(0)
    prompts = [
        Prompt(tuple(rng.integers(5, 500, n).tolist()), answers=a) for n, a in zip(lengths, answers, strict=True)
    ]
    return Prompts("t", tuple(prompts))


def table(prompts, **options):
    return answer_table(reader("gpt_neox"), prompts, ProbeConfig(**options), MemoryKeeper())


def test_answers_are_judged_only_where_the_longest_right_one_fits():
    model = reader("gpt_neox")
    need = len(tokenizer()(f" {ANSWER}", add_special_tokens=False)["input_ids"])
    assert need > len(tokenizer()("7", add_special_tokens=False)["input_ids"]) + 1
    room = model.max_length - need
    prompts = asked([room, room + 1, model.max_length, 40, 40], [("7", ANSWER)] * 4 + [()])
    arrays, examples, findings = table(prompts, answers=5)
    axes, correct = arrays["answer_correct"]
    assert axes == ("sample",)
    assert np.isnan(correct).tolist() == [False, True, True, False, True]
    assert [entry["sample"] for entry in examples] == [0, 3]
    (finding,) = findings
    assert finding.code == "no_room"
    assert finding.message.startswith("2 of 4 prompts leave no room for a right answer within 512 tokens")


def test_answers_longer_than_what_was_asked_for_are_a_finding():
    _, _, findings = table(asked([40, 40], [(ANSWER,)] * 2), answers=2, answer_tokens=3)
    assert [(f.code, f.message[:22]) for f in findings] == [("answers_cut", "2 of 2 right answers a")]


def test_no_room_anywhere_gives_no_array():
    arrays, examples, findings = table(asked([512], [(ANSWER,)]), answers=1)
    assert (arrays, examples, [f.code for f in findings]) == ({}, [], ["no_room"])


def test_readers_leave_out_what_was_not_judged():
    about = {"peak": 0, "peaks": [0], "last": 0, "tied": [0], "recipe": "robust", "label": "label", "classes": 2}
    about |= {"intermediate_beats_final": False, "peak_accuracy": 0.5, "last_accuracy": 0.5, "chance": 0.5}
    state = {name: np.full((1, 1), 0.5) for name in ("probe_accuracy",)}
    arrays = {**state, "probe_corrected": np.zeros(1), "probe_chance": np.array(0.5), "probe_drop": np.array(0.0)}
    arrays["answer_correct"] = np.array([1.0, np.nan, 0.0, 0.0, np.nan, 0.0])
    axes = {"probe_accuracy": ("state", "seed"), "probe_corrected": ("state",), "probe_chance": (), "probe_drop": ()}
    result = Result(arrays, axes | {"answer_correct": ("sample",)}, provenance={"probe": about})
    result = replace(result, bands={"probe_drop": result.band("probe_drop")})
    assert "greedy answers that hold the right one: 1 of 4" in summary_lines(result)
    share, count = ProbeEvidence.of(result).facts["answers"]
    assert (share.value, count) == (pytest.approx(0.25), 4)
