"""Paper 1's findings on readings whose answers are known by construction."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from repflow import papers
from repflow.paper_findings import FINDINGS, VERDICTS, judge, merge, read_results
from repflow.paper_parts import Group
from repflow.paper_reading import Flow, Probe, Reading, Training, family, further_trainings, training_of
from repflow.results import Band, Result

PLACE = "kvpr/256"


def block(depth, inside, across):
    """CKA of states in two halves: `inside` within each, `across` between them."""
    matrix = np.full((depth + 1, depth + 1), across)
    half = (depth + 1) // 2 + 1
    matrix[:half, :half] = inside[0]
    matrix[half:, half:] = inside[1]
    np.fill_diagonal(matrix, 1.0)
    return matrix.tolist()


def probe(peak=0.9, last=0.6, low=0.2, high=0.4, chance=0.25):
    return Probe([chance, peak, last], 1, peak, peak - 0.05, last, peak - last, low, high, chance)


def transformer(seed=0, **changes):
    """As the paper describes it: steady and alike until the last block, also with random weights."""
    flow = Flow(
        [0.1, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3],
        [0.95] * 7 + [0.7],
        0.3,
        1.0,
        cka=block(8, (0.95, 0.9), 0.4),
    )
    random = Flow([0.0, 0.4, 0.6, 0.7, 0.8, 0.8, 0.9, 0.9, 0.9], [0.9] * 8, 0.3, 1.0)
    long = replace(flow, smoothness=0.31)
    made = Reading(
        "gpt-neox", "TBM", "gpt_neox", seed, 8, 4_000_000,
        {PLACE: flow, "kvpr/512": long}, {f"xavier/{PLACE}": random},
        {f"index/{PLACE}": probe(), "index/kvpr/512": probe(0.8, 0.5)}, data="d",
    )  # fmt: skip
    return replace(made, **changes)


def ssm(seed=0, **changes):
    """As the paper describes it: other directions, then convergence; tokens apart until late; random ones apart."""
    flow = Flow(
        [0.1] * 12 + [0.3, 0.4, 0.5, 0.6, 0.7],
        [0.3] * 12 + [0.5, 0.6, 0.7, 0.8],
        0.2,
        2.0,
        cka=block(16, (0.5, 0.9), 0.3),
    )
    random = Flow([0.05] * 17, [0.95] * 16, 0.2, 2.0)
    long = replace(flow, stability=1.9)
    made = Reading(
        "mamba2", "SSM", "mamba2", seed, 16, 4_000_000,
        {PLACE: flow, "kvpr/512": long}, {f"xavier/{PLACE}": random},
        {f"index/{PLACE}": probe(0.7, 0.6, 0.05, 0.15), "index/kvpr/512": probe(0.5, 0.4, 0.05, 0.15)},
        data="d",
    )  # fmt: skip
    return replace(made, **changes)


def others(seed=0):
    """A second model of each family, with other Sm and St."""
    first, second = transformer(seed), ssm(seed)
    flow = replace(first.trained[PLACE], smoothness=0.1, stability=3.0)
    other = replace(second.trained[PLACE], smoothness=0.4, stability=0.5)
    return [
        replace(first, model="gpt-neo", kind="gpt_neo", trained={PLACE: flow, "kvpr/512": flow}),
        replace(second, model="mamba", kind="mamba", trained={PLACE: other, "kvpr/512": other}),
    ]


def whole(seed=0):
    return [transformer(seed), ssm(seed), *others(seed)]


def verdicts(readings, place=PLACE):
    return {entry.code: entry.verdict for entry in judge(readings, place=place)}


def test_models_that_are_as_the_paper_says_agree_on_every_seed():
    found = verdicts([*whole(0), *whole(1), *whole(2)])
    assert found.pop("F 3.4.3") == "not measurable"
    assert set(found.values()) == {"agrees"}


def test_one_seed_does_not_make_agreement():
    for entry in judge(whole(), place=PLACE)[:-1]:
        assert entry.verdict == "mixed", entry
        assert entry.reason == "agrees on the one training seed measured; another may not"
        assert [training.seed for training in entry.trainings] == [0]


def test_a_seed_that_breaks_a_part_makes_it_mixed():
    flow = ssm(2).trained[PLACE]
    broken = ssm(2, trained={PLACE: replace(flow, layer_cosine=[0.3] * 16)})
    found = judge([*whole(0), *whole(1), transformer(2), broken], place=PLACE)
    assert found[0].verdict == "mixed"
    assert "3 of 4 parts hold in every one of 3 trainings; not: state-space models: mean of the last" in (
        found[0].reason
    )
    assert found[0].reason.endswith("(holds in 2 of 3)")
    assert found[1].verdict == "agrees"


def test_models_of_unknown_training_are_no_second_seed():
    strangers = [replace(reading, seed=None, data="") for reading in whole()]
    for entry in judge([*whole(0), *strangers], place=PLACE)[:-1]:
        assert entry.verdict == "mixed", entry


def test_a_training_that_cannot_be_asked_keeps_a_finding_from_agreeing():
    bare = [replace(reading, random={}) for reading in whole(2)]
    entry = judge([*whole(0), *whole(1), *bare], place=PLACE)[2]
    assert entry.verdict == "mixed"
    assert entry.reason.startswith("all that could be settled holds; not settled in every training: random Trans")
    assert entry.reason.count("(asked in 2 of 3)") == 3  # the part on trained weights was asked in all
    assert entry.where == "in every training that could be asked"


def test_a_model_that_is_the_opposite_in_all_parts_differs():
    flat = Flow([0.5] + [0.1] * 8, [0.5] * 7 + [0.9], 1.0, 1.0)
    other = Flow([0.9] + [0.8] * 16, [0.9] * 12 + [0.5] * 4, 1.0, 1.0)
    readings = [
        transformer(seed, trained={PLACE: flat}) for seed in (0, 1)
    ] + [ssm(seed, trained={PLACE: other}) for seed in (0, 1)]  # fmt: skip
    found = {entry.code: entry for entry in judge(readings, place=PLACE)}
    assert found["F 3.2.1"].verdict == "differs"
    assert found["F 3.2.1"].reason.startswith("no part holds in any one of 2 trainings: Transformers: median")
    assert found["F 3.2.2"].verdict == "mixed"  # the last state does lie below the first


CHANGES = {
    "F 3.2.1": [
        ("tbm", {"layer_cosine": [0.8] * 7 + [0.5]}),
        ("tbm", {"layer_cosine": [0.95] * 8}),
        ("ssm", {"layer_cosine": [0.92] * 12 + [0.99] * 4}),
        ("ssm", {"layer_cosine": [0.5] * 12 + [0.5] * 4}),
    ],
    "F 3.2.2": [
        ("tbm", {"token_similarity": [0.1, 0.2, 0.3, 0.4, 0.4, 0.9, 0.9, 0.9, 0.3]}),
        ("tbm", {"token_similarity": [0.1, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.85]}),
        ("ssm", {"token_similarity": [0.1] + [0.88] * 15 + [0.95]}),
        ("ssm", {"token_similarity": [0.1, 0.3] + [0.2] * 15}),
    ],
    "F 3.3.1": [
        ("tbm", {"cka": block(8, (0.5, 0.9), 0.3)}),
        ("tbm", {"cka": block(8, (0.95, 0.9), 0.92)}),
        ("ssm", {"cka": block(16, (0.5, 0.5), 0.3)}),
    ],
}


@pytest.mark.parametrize(
    ("code", "which", "change"), [(code, *entry) for code, listed in CHANGES.items() for entry in listed]
)
def test_every_part_can_fail_by_itself(code, which, change):
    models = {"tbm": transformer(), "ssm": ssm()}
    flow = replace(models[which].trained[PLACE], **change)
    models[which] = replace(models[which], trained={PLACE: flow})
    found = next(entry for entry in judge([*models.values(), *whole(1)], place=PLACE) if entry.code == code)
    assert [clause.holds for clause in found.clauses if clause.training.seed == 0].count(False) == 1
    assert found.verdict == "mixed"


def test_random_weights_decide_what_is_architecture():
    low = Flow([0.0] * 9, [0.9] * 8, 0.3, 1.0)
    high = Flow([0.4] * 17, [0.9] * 16, 0.3, 1.0)
    readings = [transformer(random={f"he/{PLACE}": low}), ssm(random={f"he/{PLACE}": high})]
    found = judge(readings, place=PLACE)[2]
    assert [clause.holds for clause in found.clauses] == [False, True, False, True]
    assert "random, last state: gpt-neox (he) 0" in found.ours
    assert "lift by training: mamba2 (he) 0.3" in found.ours
    trained_high = ssm(random={f"he/{PLACE}": Flow([0.69] * 17, [0.9] * 16, 0.3, 1.0)})
    assert not judge([transformer(), trained_high], place=PLACE)[2].clauses[3].holds
    bare = judge([transformer(random={}), ssm(random={})], place=PLACE)[2]
    assert [clause.holds for clause in bare.clauses] == [None, True, None, None]


def test_families_that_part_in_smoothness_contradict():
    second = [
        replace(other, trained={PLACE: replace(other.trained[PLACE], smoothness=value, stability=1.0)})
        for other, value in zip(others(), (0.35, 0.21), strict=True)
    ]
    first, state = transformer(), ssm()
    entry = judge([first, state, *second], place=PLACE)[4]
    assert [clause.holds for clause in entry.clauses] == [False, True, True]  # Sm 0.3, 0.35 against 0.2, 0.21
    assert "as the paper has it: gpt-neox 0.3, gpt-neo 0.35, mamba2 0.2, mamba 0.21; St from block" in entry.ours
    alone = judge([first, state], place=PLACE)[4]
    assert alone.verdict == "not measurable"
    assert "two Transformers and two state-space models" in alone.reason


def test_probes_at_chance_settle_nothing():
    nothing = {f"index/{PLACE}": probe(0.27, 0.26, -0.05, 0.06)}
    entry = judge([transformer(probes=nothing), ssm(probes=nothing)], place=PLACE)[5]
    assert entry.verdict == "not measurable"
    assert "nothing is decodable above chance in both families: gpt-neox index 0.27 (chance 0.25)" in entry.reason
    none = judge([transformer(probes={}), ssm(probes={})], place=PLACE)[5]
    assert "no probes of a Transformer and a state-space model" in none.reason


def test_the_answer_is_asked_where_the_index_is_not_decodable():
    label = f"answer/{PLACE}"
    first = transformer(probes={f"index/{PLACE}": probe(0.27, 0.26), label: probe(0.9, 0.5, 0.3, 0.5, 0.06)})
    second = ssm(probes={f"index/{PLACE}": probe(), label: probe(0.9, 0.85, 0.01, 0.09, 0.06)})
    entry = judge([first, second], place=PLACE)[5]
    assert "the answer's first symbol" in entry.clauses[0].text
    assert [clause.holds for clause in entry.clauses] == [True, True, True]
    worse = ssm(probes={label: probe(0.9, 0.3, 0.55, 0.65, 0.06)})
    assert [clause.holds for clause in judge([first, worse], place=PLACE)[5].clauses] == [True, True, False]
    flat = ssm(probes={label: probe(0.9, 0.89, -0.02, 0.04, 0.06)})
    assert [clause.holds for clause in judge([first, flat], place=PLACE)[5].clauses] == [True, False, True]


def test_what_is_half_settled_does_not_differ():
    settled = {f"index/{PLACE}": probe(0.6, 0.59, -0.02, 0.04)}
    wide = {f"index/{PLACE}": probe(0.7, 0.6, -0.1, 0.3)}
    entry = judge([transformer(probes=wide), ssm(probes=settled)], place=PLACE)[5]
    assert [clause.holds for clause in entry.clauses] == [None, False, None]
    assert entry.verdict == "mixed"
    assert entry.reason.startswith("0 of 1 parts hold in the one training measured; not: state-space models")
    assert "; not settled: Transformers: an earlier state" in entry.reason


def test_few_prompts_settle_neither_a_drop_nor_its_absence():
    wide = {f"index/{PLACE}": probe(0.7, 0.6, -0.1, 0.3)}
    entry = judge([transformer(probes=wide), ssm(probes=wide)], place=PLACE)[5]
    assert [clause.holds for clause in entry.clauses] == [None, None, None]
    assert entry.verdict == "not measurable"
    assert "peak minus last for the gold index: gpt-neox 0.1, which too few prompts leave open" in entry.reason


def test_context_length_needs_two_lengths():
    one = [replace(reading, trained={PLACE: reading.trained[PLACE]}) for reading in (transformer(), ssm())]
    entry = judge(one, place=PLACE)[6]
    assert entry.verdict == "not measurable"
    assert "one length only; it takes two (repflow demo --full)" in entry.reason
    grown = replace(ssm().trained[PLACE], stability=2.6)
    entry = judge([transformer(), ssm(trained={PLACE: ssm().trained[PLACE], "kvpr/512": grown})], place=PLACE)[6]
    assert [clause.holds for clause in entry.clauses] == [False, True]
    assert "from n = 256 to 512" in entry.clauses[0].text
    better = ssm(probes={f"index/{PLACE}": probe(0.7, 0.6), "index/kvpr/512": probe(0.7, 0.65)})
    assert not judge([transformer(), better], place=PLACE)[6].clauses[1].holds


def test_the_fall_with_length_is_corrected_for_chance():
    """0.62 of two classes is less than 0.6 of four."""
    probes = {f"index/{PLACE}": probe(0.7, 0.62, chance=0.5), "index/kvpr/512": probe(0.7, 0.6, chance=0.25)}
    assert not judge([transformer(), ssm(probes=probes)], place=PLACE)[6].clauses[1].holds


def test_model_size_needs_two_sizes_of_one_architecture():
    large = ssm(model="mamba2-large", parameters=9_000_000, probes={f"index/{PLACE}": probe(0.95, 0.65, 0.2, 0.4)})
    entry = judge([transformer(), ssm(), large], place=PLACE)[7]
    assert [clause.holds for clause in entry.clauses] == [True, True]
    assert "mamba2-large over mamba2" in entry.ours
    similar = replace(large, parameters=7_000_000)
    assert judge([transformer(), ssm(), similar], place=PLACE)[7].verdict == "not measurable"


def test_nothing_at_all_is_not_measurable():
    for readings in ([], [replace(transformer(), family="hybrid")], [transformer(trained={}, probes={}, random={})]):
        assert set(verdicts(readings, place=None).values()) == {"not measurable"}


def test_a_family_alone_never_agrees_with_a_contrast():
    found = verdicts([transformer(0), transformer(1)])
    assert found["F 3.2.1"] == found["F 3.2.2"] == "mixed"
    assert "not settled: state-space models" in judge([transformer(0), transformer(1)], place=PLACE)[0].reason


def test_values_that_are_not_finite_are_not_asked():
    flow = replace(transformer().trained[PLACE], layer_cosine=[math.nan] * 8)
    entry = judge([transformer(trained={PLACE: flow}), ssm()], place=PLACE)[0]
    assert [clause.holds for clause in entry.clauses] == [None, None, None, True]


@pytest.mark.parametrize("at", [0, 5, 12, 16])
def test_a_state_without_a_value_is_not_passed_over(at):
    """It may have been the highest: what asks for a highest state has no answer then."""
    curve = [math.nan if state == at else value for state, value in enumerate(ssm().trained[PLACE].token_similarity)]
    holed = ssm(trained={PLACE: replace(ssm().trained[PLACE], token_similarity=curve)})
    found = judge([transformer(), holed], place=PLACE)
    assert [clause.holds for clause in found[1].clauses] == [True, True, None, None]
    assert [clause.holds for clause in found[2].clauses] == [True, True, True, None]
    twin = replace(ssm().random[f"xavier/{PLACE}"], token_similarity=[*curve[:1], math.nan, *curve[2:]])
    assert judge([transformer(), ssm(random={f"xavier/{PLACE}": twin})], place=PLACE)[2].clauses[2].holds is None
    curve = [0.1, 0.7, math.nan, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3]
    holed = transformer(trained={PLACE: replace(transformer().trained[PLACE], token_similarity=curve)})
    assert [clause.holds for clause in judge([holed, ssm()], place=PLACE)[1].clauses] == [None] * 4


def test_a_contrast_of_families_needs_both():
    assert [clause.holds for clause in judge([transformer()], place=PLACE)[0].clauses] == [True, True, None, None]
    assert [clause.holds for clause in judge([ssm()], place=PLACE)[0].clauses] == [None, None, None, True]


def test_the_papers_task_and_the_longest_common_length_are_judged():
    models = [transformer(), ssm()]
    assert any("from n" in c.text for c in judge(models)[6].clauses)
    short = replace(models[0], trained={PLACE: models[0].trained[PLACE], "random/1024": models[0].trained[PLACE]})
    assert len(judge([short, models[1]])[0].trainings) == 1


# ---------------------------------------------------------------- the paper's words
def test_findings_are_the_papers_eight():
    assert [finding.code for finding in FINDINGS] == [
        *(f"F 3.2.{number}" for number in (1, 2, 3)),
        *(f"F 3.3.{number}" for number in (1, 2)),
        *(f"F 3.4.{number}" for number in (1, 2, 3)),
    ]
    assert all(finding.place.startswith(papers.FLOW) for finding in FINDINGS)
    assert VERDICTS == ("agrees", "mixed", "differs", "not measurable")


@pytest.mark.shared
def test_findings_are_as_printed():
    import os
    from pathlib import Path

    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[1].parent / "shared")) / "seeds"
    files = sorted(root.glob("000_*.txt"))
    if not files:
        pytest.skip(f"no paper at {root}")
    text = files[0].read_text(encoding="utf-8").replace("**", "")
    for finding in FINDINGS:
        assert f"{finding.code}. {finding.words}" in text


# ---------------------------------------------------------------- reading runs
def measured(model="zoo:gpt-neox", init="trained", states="residual", **config):
    name = model.removeprefix("zoo:")
    about = {
        "name": name, "spec": model, "type": "gpt_neox", "init": init, "ablate": [], "layers": 2,
        "layer_kinds": ["attention"] * 2, "parameters": 10,
    }  # fmt: skip
    arrays = {
        "token_similarity": np.array([[0.1, 0.3], [0.2, 0.4], [0.5, 0.7]]),
        "layer_cosine": np.array([[[0.5, np.nan], [0.7, 0.9]], [[1.0, 1.0], [0.0, 0.0]]]),
        "smoothness": np.array([1.0, 2.0]),
        "stability": np.array([3.0, 5.0]),
        "cka_pooled": np.eye(3),
    }
    axes = {
        "token_similarity": ("state", "sample"), "layer_cosine": ("layer", "sample", "token"),
        "smoothness": ("sample",), "stability": ("sample",), "cka_pooled": ("state", "state"),
    }  # fmt: skip
    told = {"model": model, "task": "kvpr", "length": 256, "states": states, "init": init, **config}
    return Result(arrays, axes, told, {"model": about})


def probed(model="zoo:gpt-neox"):
    result = measured(model)
    about = {"peak": 1, "peak_accuracy": 0.8, "last_accuracy": 0.5, "chance": 0.25}
    return Result(
        {"probe_accuracy": np.array([[0.2, 0.4], [0.7, 0.9], [0.5, 0.5]])},
        {"probe_accuracy": ("state", "seed")},
        {**result.config, "label": "index"},
        {**result.provenance, "probe": about},
        bands={
            "probe_drop": Band(np.array(0.3), np.array(0.1), np.array(0.4)),
            "probe_peak_accuracy": Band(np.array(0.8), np.array(0.7), np.array(0.9)),
        },
    )


def test_runs_are_read_by_model_weights_and_place():
    results = [measured(), measured(init="xavier"), probed(), measured("mine/model"), measured(states="branch")]
    first, second = read_results(results, training=Training(7, 2000))
    assert (first.model, first.family, first.training, second.model) == (
        "gpt-neox",
        "TBM",
        Training(7, 2000),
        "mine/model",
    )
    flow = first.trained[PLACE]
    assert flow.token_similarity == pytest.approx([0.2, 0.3, 0.6])
    assert flow.layer_cosine == pytest.approx([0.7, 0.5])  # the padded token is left out
    assert (flow.smoothness, flow.stability) == (1.5, 4.0)
    assert list(first.random) == [f"xavier/{PLACE}"]
    found = first.probes[f"index/{PLACE}"]
    assert found.accuracy == pytest.approx([0.3, 0.8, 0.5])
    assert (found.peak, found.drop_low, found.decodable) == (1, 0.1, True)
    assert found.corrected_last == pytest.approx(1 / 3)


def test_runs_that_say_nothing_to_the_findings_are_left_aside():
    other = Result({"x": np.ones(2)}, {"x": ("row",)}, {"study": "reproduce"}, {})
    ablated = measured()
    ablated.provenance["model"]["ablate"] = ["norm"]
    assert read_results([other, ablated, measured(states="hf-tuple")]) == []


def test_readings_survive_json():
    for reading in (transformer(), read_results([measured(), probed()], training=Training(1, 50))[0]):
        text = json.dumps(reading.to_json(), allow_nan=False)
        again = Reading.from_json(json.loads(text))
        assert again.to_json() == reading.to_json()
        assert again.trained[PLACE].token_similarity == pytest.approx(reading.trained[PLACE].token_similarity)
    assert math.isnan(again.trained[PLACE].matched_smoothness)


def test_merging_adds_seeds_and_what_was_not_measured_here():
    own = transformer(0, trained={PLACE: replace(transformer().trained[PLACE], smoothness=9.0)}, probes={})
    stranger = replace(ssm(1), model="elsewhere")
    made = merge([own], [transformer(0), transformer(1), stranger])
    assert [(reading.model, reading.seed) for reading in made] == [("gpt-neox", 0), ("gpt-neox", 1)]
    assert made[0].trained[PLACE].smoothness == 9.0  # ours wins
    assert "kvpr/512" in made[0].trained
    assert f"index/{PLACE}" in made[0].probes
    unknown = replace(own, seed=None)
    assert merge([unknown], [transformer(0)]) == [unknown]


@pytest.mark.parametrize("other", [{"layers": 9}, {"parameters": 1}, {"data": "e"}, {"model": "gpt-neo"}])
def test_another_model_of_the_same_name_is_no_further_training(other):
    """A zoo of one's own has the packaged names."""
    own, stranger = transformer(0), transformer(1, **other)
    assert merge([own], [stranger]) == [own]
    assert further_trainings(own, [stranger], PLACE) == []


def test_further_trainings_are_others_at_the_same_place():
    own = transformer(0, steps=8000)
    known = [transformer(0, steps=8000), transformer(0, steps=2000), transformer(1), transformer(2, trained={})]
    assert further_trainings(own, known, PLACE) == known[1:3]
    assert further_trainings(replace(own, seed=None), known, PLACE) == []
    assert further_trainings(replace(own, data=""), [replace(r, data="") for r in known], PLACE) == []


def test_a_training_is_told_by_the_steps_that_were_done():
    """`train_zoo train --seconds` stops before the steps that were asked for."""
    digests = {"prose.npy": "1", "valid.npy": "2"}
    record = {"config": {"seed": 3, "steps": 400}, "steps": 50, "data": {"digests": digests}}
    found = training_of(record)
    assert found[:2] == (3, 50)
    assert found == training_of(record | {"data": {"digests": dict(reversed(digests.items()))}})
    assert found != training_of(record | {"data": {"digests": digests | {"prose.npy": "3"}}})
    assert training_of({}) == Training(None, None)


def test_runs_tell_their_training():
    result = measured()
    assert read_results([result])[0].training == Training(None, None)  # a name and a spec do not make a training
    result.provenance["model"]["training"] = {"seed": 4, "steps": 7, "data": "d"}
    assert read_results([result])[0].training == Training(4, 7, "d")


def test_a_training_of_other_length_is_another_one():
    """A short training of the same seed is asked by itself: its curves are never joined with those of the long one."""
    own = transformer(0, steps=8000, trained={PLACE: transformer().trained[PLACE]}, probes={})
    short = transformer(0, steps=2000)
    made = merge([own], [short])
    assert made == [own, short]
    assert [clause.training for clause in judge(made, place=PLACE)[0].clauses[::4]] == [
        Training(0, 8000, "d"),
        Training(0, 2000, "d"),
    ]


def test_two_trainings_of_one_seed_do_not_make_agreement():
    models = [replace(reading, steps=steps) for steps in (2000, 8000) for reading in whole(0)]
    for entry in judge(models, place=PLACE)[:7]:
        assert entry.verdict == "mixed"
        assert entry.reason == "agrees on the one training seed measured; another may not"
        assert entry.ours.startswith("seed 0, 2,000 steps: ")


def test_a_part_is_one_part_however_it_is_worded():
    """A training at one length cannot be asked of two: the same two parts, answered in two of three trainings."""
    one_length = [replace(r, seed=5, trained={PLACE: r.trained[PLACE]}) for r in whole(0)]
    found = {entry.code: entry for entry in judge([*whole(0), *whole(1), *one_length], place=PLACE)}["F 3.4.2"]
    assert found.verdict == "mixed"
    assert found.reason.count("(asked in 2 of 3)") == 2
    assert [training.seed for training in found.trainings] == [0, 1]
    assert len(found.parts) == 2
    assert all("from n = 256 to 512" in part.text for part in found.parts)
    assert all(len(part.clauses) == 3 for part in found.parts)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.code)
def test_every_training_is_asked_the_same_parts(finding):
    """Parts are matched by their place."""
    groups = [whole(0), whole(0)[:1], [replace(r, probes={}, random={}) for r in whole(0)], []]
    counts = {len(finding.ask(Group(Training(0, None), PLACE, tuple(readings)))) for readings in groups}
    assert len(counts) == 1


def test_families_by_kinds_of_block():
    assert family(["attention", "ssm"]) == "hybrid"
    assert family(["recurrent"]) == "SSM"
