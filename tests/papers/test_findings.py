"""Paper 1's findings on readings whose answers are known by construction."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from repflow.core.intervals import student_interval
from repflow.core.results import Band, Result
from repflow.papers import findings, thresholds
from repflow.papers import values as papers
from repflow.papers.claims import BRANCH, Group, jackknife
from repflow.papers.findings import FINDINGS, WORDS, judge, merge, read_results
from repflow.papers.flow_parts import depth_of_similarity
from repflow.papers.reading import FLOWS, Flow, Probe, Reading, Training, family, further_trainings, training_of

PLACE = "kvpr/256"
SPREAD = 0.004
"""Between seeds; a prompt that is left out changes a twentieth of it."""


def block(depth, inside, across):
    """CKA of states in two halves: `inside` within each, `across` between them."""
    matrix = np.full((depth + 1, depth + 1), across)
    half = (depth + 1) // 2 + 1
    matrix[:half, :half] = inside[0]
    matrix[half:, half:] = inside[1]
    np.fill_diagonal(matrix, 1.0)
    return matrix.tolist()


def probe(peak=0.9, last=0.6, low=0.2, high=0.4, chance=0.25, test=400):
    return Probe([chance, peak, last], 1, peak, peak - 0.05, last, peak - last, low, high, chance, test)


def moved(flow, by):
    """All values of a flow a little higher, late ones more than early ones."""

    def curve(values):
        return [value + by * (0.5 + at / len(values)) for at, value in enumerate(values)]

    return replace(
        flow,
        token_similarity=curve(flow.token_similarity),
        layer_cosine=curve(flow.layer_cosine),
        smoothness=flow.smoothness * (1 + by),
        stability=flow.stability * (1 + by),
        cka=[curve(row) for row in flow.cka],
    )


def seeded(reading, seed, prompts=0):
    """A reading as another seed gives it, with `prompts` prompts to leave out."""
    by = SPREAD * (seed - 1)

    def flow(key, one):
        now = moved(one, 2 * by if key.endswith("/512") else by)
        left = [replace(moved(now, SPREAD / 20 * (at - (prompts - 1) / 2)), cka=[]) for at in range(prompts)]
        return replace(now, without=left)

    def read(key, one):
        last = one.last_accuracy - (2 * by if key.endswith("/512") else by)
        return replace(one, last_accuracy=last, drop=one.drop * (1 + by))

    by_name = {name: {key: flow(key, one) for key, one in getattr(reading, name).items()} for name in FLOWS}
    return replace(reading, seed=seed, **by_name, probes={key: read(key, one) for key, one in reading.probes.items()})


def transformer(seed=0, prompts=0, **changes):
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
    reading = Reading(
        "gpt-neox", "TBM", "gpt_neox", seed, 8, 4_000_000,
        {PLACE: flow, "kvpr/512": long}, {f"xavier/{PLACE}": random},
        {f"index/{PLACE}": probe(), "index/kvpr/512": probe(0.5, 0.35)}, data="d",
    )  # fmt: skip
    return seeded(replace(reading, **changes), seed, prompts)


def ssm(seed=0, prompts=0, **changes):
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
    reading = Reading(
        "mamba2", "SSM", "mamba2", seed, 16, 4_000_000,
        {PLACE: flow, "kvpr/512": long}, {f"xavier/{PLACE}": random},
        {f"index/{PLACE}": probe(0.7, 0.6, 0.05, 0.15), "index/kvpr/512": probe(0.5, 0.4, 0.05, 0.15)},
        data="d",
    )  # fmt: skip
    return seeded(replace(reading, **changes), seed, prompts)


def pair(*seeds, prompts=0):
    return [make(seed, prompts) for seed in seeds for make in (transformer, ssm)]


def trained(reading, **changes):
    """A reading whose flow at the place is changed."""
    return replace(reading, trained={**reading.trained, PLACE: replace(reading.trained[PLACE], **changes)})


def found(readings, code, place=PLACE):
    return next(entry for entry in judge(readings, place=place) if entry.code == code)


def answers(entry):
    return [part.holds for part in entry.parts]


def test_models_that_are_as_the_paper_says_hold_over_three_seeds():
    judged = {entry.code: entry for entry in judge(pair(0, 1, 2), place=PLACE)}
    for code in ("F 3.2.1", "F 3.2.2", "F 3.2.3", "F 3.3.1", "F 3.4.1", "F 3.4.2"):
        entry = judged[code]
        count = len(entry.parts)
        assert entry.verdict == "holds", (code, entry.reason)
        assert str(entry.judgement) == f"holds: {count} of {count} parts in 3 of 3 trainings"
        assert entry.judgement.power > 0.04
    assert judged["F 3.3.2"].verdict == "open"  # one model of each family distinguishes nothing
    assert judged["F 3.4.3"].reason == "all models are of one size: it takes two of one architecture, probed alike"


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_fewer_seeds_leave_everything_open(seeds):
    for entry in judge(pair(*seeds, prompts=8), place=PLACE):
        assert entry.verdict == "open", entry
        assert entry.judgement.power == 0
    verdict = found(pair(*seeds, prompts=8), "F 3.2.1")
    assert f"(so in {len(seeds)} of {len(seeds)}; {len(seeds)} seed" in verdict.reason
    assert all(clause.holds for clause in verdict.clauses)  # each training by itself


def test_two_trainings_of_one_seed_count_as_one():
    """They start from the same weights; a random twin is even the same model."""
    again = [replace(reading, steps=2000) for reading in pair(0, 1)]
    for entry in judge([*pair(0, 1), *again], place=PLACE):
        assert entry.verdict == "open", entry
    entry = found([*pair(0, 1), *again], "F 3.2.3")
    assert entry.judgement.counts == "0 of 4 parts in 4 of 4 trainings"
    assert entry.seeds == 2
    assert list(entry.parts[0].by_seed) == [0, 1]


def test_models_of_unknown_training_are_no_further_seed():
    strangers = [replace(reading, seed=None, data="") for reading in pair(0)]
    assert found([*pair(0, 1), *strangers], "F 3.2.1").verdict == "open"


def test_a_seed_that_lies_elsewhere_leaves_a_part_open():
    broken = trained(ssm(2), layer_cosine=[0.3] * 16)
    entry = found([*pair(0, 1), transformer(2), broken], "F 3.2.1")
    assert answers(entry) == [True, True, True, None]
    assert entry.verdict == "open"
    assert "open: state-space models: mean of the last quarter ≥ 0.05 above that before (so in 2 of 3; margin over" in (
        entry.reason
    )


def test_the_opposite_in_all_parts_does_not_hold():
    readings = [
        reading
        for seed in (0, 1, 2)
        for reading in (
            trained(transformer(seed), layer_cosine=[0.5 + 0.01 * seed] * 7 + [0.9]),
            trained(ssm(seed), layer_cosine=[0.9 + 0.013 * seed] * 12 + [0.5] * 4),
        )
    ]
    entry = found(readings, "F 3.2.1")
    assert entry.verdict == "does not hold"
    assert entry.judgement.counts == "0 of 4 parts in 3 of 3 trainings"


def test_parts_that_are_shown_both_ways_hold_partly():
    readings = [
        reading
        for seed in (0, 1, 2)
        for reading in (transformer(seed), trained(ssm(seed), layer_cosine=[0.97 + 0.001 * seed] * 12 + [0.5] * 4))
    ]
    entry = found(readings, "F 3.2.1")
    assert answers(entry) == [True, True, False, False]
    assert str(entry.judgement) == "partly holds: 2 of 4 parts in 3 of 3 trainings"
    assert entry.reason.startswith("shown: Transformers: median layer cosine")
    assert ". shown not to hold: state-space models: median before" in entry.reason


def test_margins_without_a_spread_between_seeds_show_nothing():
    same = [replace(reading, seed=seed) for seed in (0, 1, 2) for reading in pair(1)]
    assert found(same, "F 3.2.1").verdict == "open"


def coin_readings(rng):
    """Four trainings of three seeds whose margins to F 3.2.1's four parts are tossed around zero."""
    readings = []
    for seed, steps in ((0, 8000), (0, 2000), (1, 2000), (2, 2000)):
        first, second, third, fourth = 0.03 * rng.standard_normal(4)
        steady, early = 0.9 + first, 0.9 + first - 0.05 - third
        tbm = trained(transformer(seed), layer_cosine=[steady] * 7 + [steady - 0.1 - second])
        other = trained(ssm(seed), layer_cosine=[early] * 12 + [early + 0.05 + fourth] * 4)
        readings += [replace(reading, steps=steps) for reading in (tbm, other)]
    return readings


def test_coins_are_hardly_ever_decided(monkeypatch):
    """They were called mixed in every draw; now they are open but for the few that "partly holds" allows."""
    monkeypatch.setattr(findings, "FINDINGS", [entry for entry in FINDINGS if entry.code == "F 3.2.1"])
    rng, draws = np.random.default_rng(5), 150
    words = [found(coin_readings(rng), "F 3.2.1").verdict for _ in range(draws)]
    assert words.count("holds") + words.count("does not hold") == 0  # 0.025⁴ each
    assert words.count("partly holds") <= stats.binom.ppf(0.999, draws, 0.05)


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
    ("code", "part", "which", "change"),
    [(code, at, *entry) for code, listed in CHANGES.items() for at, entry in enumerate(listed)],
)
def test_every_part_can_fail_by_itself(code, part, which, change):
    models = {"tbm": transformer(), "ssm": ssm()}
    models[which] = trained(models[which], **change)
    sides = [clause.side for clause in found(list(models.values()), code).clauses]
    assert not sides[part]
    others = [side for at, side in enumerate(sides) if at != part]
    assert all(others) or (code, which, part) == ("F 3.2.2", "ssm", 2)  # as alike as that is also alike early


# ---------------------------------------------------------------- intervals over prompts
def test_leaving_out_prompts_gives_students_interval_of_a_mean():
    values = np.array([0.3, 0.9, 0.4, 0.7, 0.2])
    left = [np.delete(values, at).mean() for at in range(len(values))]
    band = student_interval(values)
    assert jackknife(values.mean(), left) == pytest.approx((float(band.low), float(band.high)))
    assert all(map(math.isnan, jackknife(0.5, [0.5] * 5)))  # all alike: no spread to judge by
    assert all(map(math.isnan, jackknife(0.5, [0.4, 0.6])))


def test_a_part_whose_prompts_leave_it_open_is_open():
    """Margins agree over seeds, yet prompts differ by more than the margin."""
    readings = []
    for seed in (0, 1, 2):
        reading = transformer(seed)
        flow = reading.trained[PLACE]
        left = [replace(flow, layer_cosine=[value - 0.2 * (at - 1) for value in flow.layer_cosine]) for at in range(3)]
        noisy = transformer(seed, trained={PLACE: flow})
        noisy = replace(noisy, trained={PLACE: replace(noisy.trained[PLACE], without=left)})
        quiet = ssm(seed, 3)
        readings += [noisy, quiet]
    entry = found(readings, "F 3.2.1")
    assert entry.parts[0].holds is None
    assert [clause.over for clause in entry.parts[0].clauses] == ["prompts"] * 3
    assert "an interval over prompts is not on that side" in entry.reason
    assert entry.parts[3].holds is True


def test_models_that_read_other_numbers_of_prompts_have_no_interval():
    group = Group(Training(0, None, "d"), PLACE, (transformer(0, 8), ssm(0, 4)))
    clause = FINDINGS[0].ask(group)[0]
    assert clause.holds is None
    assert clause.over.startswith("none: fewer than three prompts")
    assert clause.side is True


def test_a_training_with_two_models_is_asked_the_same_as_one_with_one():
    """The mean over a family's models: with the lowest of them a second one could only hurt."""
    low = replace(trained(transformer(), layer_cosine=[0.88] * 7 + [0.6]), model="gpt-neo")
    one, two = (
        FINDINGS[0].ask(Group(Training(0, None, "d"), PLACE, tuple(r)))[0] for r in ([low], [low, transformer()])
    )
    assert (one.side, two.side) == (False, True)
    assert two.margin == pytest.approx(np.mean([one.margin, FINDINGS[0].ask(
        Group(Training(0, None, "d"), PLACE, (transformer(),)))[0].margin]))  # fmt: skip
    assert [name for name, _ in two.values] == ["gpt-neo", "gpt-neox"]


def test_flat_curves_have_no_place_of_the_highest():
    """The highest state of a flat curve jumps from one end to the other by a thousandth; its centre does not."""
    flat = [0.5] * 9
    ends = [depth_of_similarity(Flow([*flat[:at], 0.501, *flat[at + 1 :]], [], 0.0, 0.0)) for at in (0, 8)]
    assert np.ptp(ends) < 0.001


# ---------------------------------------------------------------- random twins, branches
def test_random_weights_decide_what_is_architecture():
    low = Flow([0.0] * 9, [0.9] * 8, 0.3, 1.0)
    high = Flow([0.4] * 17, [0.9] * 16, 0.3, 1.0)
    readings = [transformer(1, random={f"he/{PLACE}": low}), ssm(1, random={f"he/{PLACE}": high})]
    entry = found(readings, "F 3.2.3")
    assert [clause.side for clause in entry.clauses] == [False, True, False, True]
    assert "random, last state: gpt-neox (he) 0" in entry.ours
    assert "lift by training: mamba2 (he) 0.3" in entry.ours
    trained_high = ssm(random={f"he/{PLACE}": Flow([0.69] * 17, [0.9] * 16, 0.3, 1.0)})
    assert not found([transformer(), trained_high], "F 3.2.3").clauses[3].side
    bare = found([transformer(random={}), ssm(random={})], "F 3.2.3")
    assert [clause.side for clause in bare.clauses] == [None, True, None, None]


def test_branches_are_judged_beside_the_stream_and_named():
    """F 3.2.1's contrast fails on the stream and holds where the state-space model is read as what its blocks add."""
    added = Flow([0.1] * 16, [0.3] * 15, 0.6, 1.0)
    readings = []
    for seed in (0, 1, 2):
        stream = trained(ssm(seed, branch={PLACE: added}), layer_cosine=[0.95 + SPREAD * seed] * 16)
        readings += [transformer(seed), stream]
    entry = found(readings, "F 3.2.1")
    assert (entry.states, entry.branches.states) == ("residual stream", BRANCH)
    assert entry.parts[2].holds is False
    assert entry.branches.parts[2].holds is True
    assert [part.text for part in entry.on_branches] == [entry.parts[2].text, entry.parts[3].text]
    assert found(pair(0, 1, 2), "F 3.2.1").branches is None
    bare = found([*readings[:4], transformer(2), ssm(2)], "F 3.2.1").branches
    assert "what state-space blocks add was not measured of this training" in bare.clauses[-1].found
    assert found(readings, "F 3.4.1").branches is None


# ---------------------------------------------------------------- F 3.3.2
def many(smoothness, stability, matched=None):
    """Three Transformers and three state-space models of one training with these Sm and St."""
    readings = []
    for at, (sm, st) in enumerate(zip(smoothness, stability, strict=True)):
        base = transformer(1) if at < 3 else ssm(1)
        change = {"smoothness": sm, "stability": st, "matched_smoothness": sm, "matched_stability": st}
        change |= {"matched_smoothness": matched[at]} if matched else {}
        readings.append(trained(replace(base, model=f"m{at}"), **change))
    return readings


def test_families_that_part_in_smoothness_contradict_by_both_conventions():
    apart, alike = [0.1, 0.1, 0.101, 1.0, 1.0, 1.01], [1.0, 1.01, 0.99, 1.0, 1.01, 0.99]
    clauses = found(many(apart, alike), "F 3.3.2").clauses
    assert [clause.holds for clause in clauses] == [False, True, None]
    assert clauses[0].also.holds is False
    split = found(many(apart, alike, matched=alike), "F 3.3.2")
    first = split.clauses[0]
    assert (first.interval[1] < 0, first.also.holds, first.holds, first.side) == (True, True, None, False)
    assert "Sm from block to block, as the paper has it: m0 0.1" in split.ours
    assert "Sm on a grid of relative depth: m0 1" in split.ours


def test_two_models_against_two_settle_no_contrast():
    readings = many([0.1, 0.1, 0.1, 1.0, 1.0, 1.0], [1.0] * 6)
    entry = found([*readings[:2], *readings[3:5]], "F 3.3.2")
    assert [clause.holds for clause in entry.clauses] == [None] * 3
    assert entry.clauses[0].over.startswith("none: two models against two fail to overlap in a third of draws")
    alone = found(readings[2:4], "F 3.3.2")
    assert alone.verdict == "open"
    assert "two Transformers and two state-space models" in alone.reason


# ---------------------------------------------------------------- probes
def test_probes_at_chance_settle_nothing():
    nothing = {f"index/{PLACE}": probe(0.27, 0.26, -0.05, 0.06)}
    entry = found([transformer(1, probes=nothing), ssm(1, probes=nothing)], "F 3.4.1")
    assert str(entry.judgement) == "open: 0 of 3 parts in 0 of 1 training"
    assert "nothing is decodable above chance in Transformers: gpt-neox index 0.27 (chance 0.25)" in entry.reason
    none = found([transformer(probes={}), ssm(probes={})], "F 3.4.1")
    assert "no probes of Transformers and state-space models" in none.reason


def test_a_part_on_transformers_is_asked_where_theirs_is_decodable():
    """It was asked only where both families' label was, which dropped the drops in its favour."""
    nothing = {f"index/{PLACE}": probe(0.27, 0.26, -0.05, 0.06)}
    drop = {f"index/{PLACE}": probe(0.38, 0.265, 0.05, 0.175)}
    readings = [r for seed in (0, 1, 2) for r in (transformer(seed, probes=drop), ssm(seed, probes=nothing))]
    entry = found(readings, "F 3.4.1")
    assert answers(entry) == [True, None, None]
    assert [clause.holds for clause in entry.clauses[::3]] == [True] * 3
    assert entry.judgement.counts == "1 of 3 parts in 3 of 3 trainings"
    assert "peak minus last for the gold index: gpt-neox 0.1" in entry.ours


def test_the_label_is_the_same_in_all_trainings():
    """Where the index is decodable in one training, others are not answered with another label."""
    both = {f"index/{PLACE}": probe(), f"answer/{PLACE}": probe(0.9, 0.9, -0.02, 0.02)}
    lost = both | {f"index/{PLACE}": probe(0.27, 0.26)}
    entry = found([transformer(0, probes=both), ssm(0), transformer(1, probes=lost), ssm(1)], "F 3.4.1")
    asked = [clause for clause in entry.clauses if clause.text.startswith("Transformers")]
    assert [clause.asked for clause in asked] == [True, False]
    assert asked[1].found == (
        "the gold index is not decodable above chance in Transformers: gpt-neox index 0.27 (chance 0.25)"
    )
    alone = found([transformer(1, probes=lost), ssm(1, probes=lost)], "F 3.4.1")
    assert "the answer's first symbol" in alone.clauses[0].found


def test_prompts_without_a_discordant_pair_do_not_prove_that_nothing_is_lost():
    """Sixty leave a share of 6 % open, of which a drop of 0.05 is part; 400 do not."""
    few, many_prompts, unknown = (probe(0.6, 0.6, 0.0, 0.0, test=test) for test in (60, 400, 0))
    assert few.drop_ends == pytest.approx((-0.0596, 0.0596), abs=1e-4)
    sides = [
        found([transformer(1, probes={f"index/{PLACE}": one}), ssm(1)], "F 3.4.1").clauses[0].holds
        for one in (few, many_prompts, unknown)
    ]
    assert sides == [None, False, None]


def test_few_prompts_settle_neither_a_drop_nor_its_absence():
    wide = {f"index/{PLACE}": probe(0.7, 0.6, -0.1, 0.3)}
    entry = found([transformer(1, probes=wide), ssm(1, probes=wide)], "F 3.4.1")
    assert [clause.holds for clause in entry.clauses] == [None, None, None]


def test_the_papers_own_table_is_held_against_its_sentence():
    assert "Table 2 contradicts it on kvpr at n = 300, 1K, 2K" in found(pair(0), "F 3.4.1").caution
    assert "on mdqa at n = 300: the" in found(pair(0), "F 3.4.1", place="mdqa/256").caution
    assert found(pair(0), "F 3.4.1", place="recall/256").caution == ""
    assert found(pair(0), "F 3.2.1").caution == ""


def test_context_length_needs_two_lengths():
    one = [replace(reading, trained={PLACE: reading.trained[PLACE]}) for reading in pair(1)]
    entry = found(one, "F 3.4.2")
    assert entry.verdict == "open"
    assert "one length only; it takes two (repflow demo --full)" in entry.reason
    grown = replace(ssm(1).trained[PLACE], stability=2.6)
    entry = found([transformer(1), ssm(1, trained={PLACE: ssm(1).trained[PLACE], "kvpr/512": grown})], "F 3.4.2")
    assert [clause.side for clause in entry.clauses] == [True, True, True]  # 15 % over both families
    assert "from n = 256 to 512" in entry.clauses[0].text
    better = ssm(1, probes={f"index/{PLACE}": probe(0.7, 0.6), "index/kvpr/512": probe(0.7, 0.75)})
    assert [c.holds for c in found([transformer(1), better], "F 3.4.2").clauses] == [None, True, False]


def test_a_fall_within_its_error_is_open():
    """A margin of 0.05 decided at a standard error of about 0.05, and no state-space model entered."""
    small = {f"index/{PLACE}": probe(0.7, 0.62, test=60), "index/kvpr/512": probe(0.7, 0.55, test=60)}
    nothing = {f"index/{PLACE}": probe(0.27, 0.26), "index/kvpr/512": probe(0.27, 0.26)}
    clauses = found([transformer(1, probes=small), ssm(1, probes=nothing)], "F 3.4.2").clauses
    assert clauses[1].holds is None
    assert clauses[1].interval[0] < 0 < clauses[1].interval[1]
    assert not clauses[2].asked
    assert "no probes of state-space models at two lengths" in clauses[2].found


def test_the_fall_with_length_is_corrected_for_chance():
    """0.62 of two classes is less than 0.6 of four."""
    probes = {f"index/{PLACE}": probe(0.7, 0.62, chance=0.5), "index/kvpr/512": probe(0.7, 0.6, chance=0.25)}
    assert not found([transformer(1), ssm(1, probes=probes)], "F 3.4.2").clauses[2].side


def test_model_size_needs_two_sizes_of_one_architecture():
    probes = {f"index/{PLACE}": probe(0.98, 0.75, 0.2, 0.26)}
    large = ssm(1, model="mamba2-large", parameters=9_000_000, probes=probes)
    entry = found([transformer(1), ssm(1), large], "F 3.4.3")
    assert [clause.side for clause in entry.clauses] == [True, True]
    assert "mamba2-large over mamba2" in entry.ours
    similar = replace(large, parameters=7_000_000)
    assert found([transformer(1), ssm(1), similar], "F 3.4.3").judgement.asked == 0


def test_another_size_is_asked_about_size_alone():
    probes = {f"index/{PLACE}": probe(0.5, 0.3, 0.2, 0.26)}
    models = [transformer(1), ssm(1)]
    small = ssm(1, model="mamba2-narrow", parameters=1_500_000, probes=probes, size_of="mamba2")
    small = trained(small, layer_cosine=[-1.0] * 16)
    before, now = judge(models), judge([*models, small])
    for one, other in zip(before[:-1], now[:-1], strict=True):
        assert [clause.found for clause in one.clauses] == [clause.found for clause in other.clauses]
    assert (before[-1].judgement.asked, now[-1].judgement.asked) == (0, 1)
    assert "mamba2 over mamba2-narrow" in now[-1].ours


def test_other_sizes_come_with_their_model_and_are_kept_as_such():
    own = replace(ssm(1), data="d", seed=1, steps=9)
    small = replace(own, model="mamba2-narrow", parameters=1_500_000, size_of="mamba2")
    assert merge([own], [small, replace(small, size_of="gpt-neox"), replace(small, data="e")]) == [own, small]
    assert Reading.from_json(small.to_json()).size_of == "mamba2"
    assert "size_of" not in own.to_json()


def test_nothing_at_all_is_open():
    for readings in ([], [replace(transformer(), family="hybrid")], [transformer(trained={}, probes={}, random={})]):
        assert {entry.verdict for entry in judge(readings)} == {"open"}


def test_a_family_alone_never_holds_a_contrast():
    entry = found([transformer(seed) for seed in (0, 1, 2)], "F 3.2.1")
    assert answers(entry) == [True, True, None, None]
    assert entry.verdict == "open"


def test_values_that_are_not_finite_are_not_asked():
    holed = trained(transformer(1), layer_cosine=[math.nan] * 8)
    assert [clause.side for clause in found([holed, ssm(1)], "F 3.2.1").clauses] == [None, None, None, True]


@pytest.mark.parametrize("at", [0, 5, 12, 16])
def test_a_state_without_a_value_is_not_passed_over(at):
    """It may have been the highest: what asks for a highest state has no answer then."""
    curve = [math.nan if state == at else value for state, value in enumerate(ssm().trained[PLACE].token_similarity)]
    judged = judge([transformer(), trained(ssm(), token_similarity=curve)], place=PLACE)
    assert [clause.side for clause in judged[1].clauses] == [True, True, None, None]
    assert [clause.side for clause in judged[2].clauses] == [True, True, True, None]
    twin = replace(ssm().random[f"xavier/{PLACE}"], token_similarity=[*curve[:1], math.nan, *curve[2:]])
    assert found([transformer(), ssm(random={f"xavier/{PLACE}": twin})], "F 3.2.3").clauses[2].side is None
    curve = [0.1, 0.7, math.nan, 0.9, 0.9, 0.9, 0.9, 0.9, 0.3]
    holed = trained(transformer(), token_similarity=curve)
    assert [clause.side for clause in found([holed, ssm()], "F 3.2.2").clauses] == [None] * 4


def test_the_papers_task_and_the_longest_common_length_are_judged():
    models = pair(0)
    assert any("from n" in c.text for c in judge(models)[6].clauses)
    short = replace(models[0], trained={PLACE: models[0].trained[PLACE], "random/1024": models[0].trained[PLACE]})
    assert len(judge([short, models[1]])[0].trainings) == 1


# ---------------------------------------------------------------- thresholds
def test_thresholds_follow_the_printed_numbers():
    """Recomputed by hand: St of Mamba-2.8B on kvpr, 0.337 to 0.425; three times; 100 to 70; 70 to 30."""
    assert pytest.approx(0.425 / 0.337 - 1, abs=5e-4) == thresholds.STABLE
    assert pytest.approx(math.sqrt(3), abs=5e-3) == thresholds.FACTOR
    assert pytest.approx(0.30 / 3, abs=5e-4) == thresholds.SHIFT
    assert pytest.approx(0.40 / 3, abs=5e-4) == thresholds.PARTING
    assert (thresholds.STEADY, thresholds.APART) == (0.9, 0.25)


def test_thresholds_are_computed_from_the_tables(monkeypatch):
    table = {key: replace(cell, stability=1.0 + (cell.length == 300)) for key, cell in papers.TABLE_2.items()}
    monkeypatch.setattr(thresholds, "TABLE_2", table)
    assert thresholds._largest_change("stability") == pytest.approx(1.0)


# ---------------------------------------------------------------- the paper's words
def test_findings_are_the_papers_eight():
    assert [finding.code for finding in FINDINGS] == [
        *(f"F 3.2.{number}" for number in (1, 2, 3)),
        *(f"F 3.3.{number}" for number in (1, 2)),
        *(f"F 3.4.{number}" for number in (1, 2, 3)),
    ]
    assert all(finding.place.startswith(papers.FLOW) for finding in FINDINGS)
    assert WORDS == ("holds", "partly holds", "does not hold", "open")


@pytest.mark.shared
def test_findings_are_as_printed():
    import os
    from pathlib import Path

    root = Path(os.environ.get("REPFLOW_SHARED", Path(__file__).parents[2].parent / "shared")) / "seeds"
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
    fields = {"model": model, "task": "kvpr", "length": 256, "states": states, "init": init, **config}
    return Result(arrays, axes, fields, {"model": about})


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
    index_probe = first.probes[f"index/{PLACE}"]
    assert index_probe.accuracy == pytest.approx([0.3, 0.8, 0.5])
    assert (index_probe.peak, index_probe.drop_low, index_probe.decodable) == (1, 0.1, True)
    assert index_probe.corrected_last == pytest.approx(1 / 3)


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
        assert again.trained[PLACE].token_similarity == pytest.approx(reading.trained[PLACE].token_similarity, abs=1e-6)
    assert math.isnan(again.trained[PLACE].matched_smoothness)


def test_merging_adds_seeds_and_what_was_not_measured_here():
    own = trained(transformer(0, probes={}), smoothness=9.0)
    stranger = replace(ssm(1), model="elsewhere")
    merged = merge([own], [transformer(0), transformer(1), stranger])
    assert [(reading.model, reading.seed) for reading in merged] == [("gpt-neox", 0), ("gpt-neox", 1)]
    assert merged[0].trained[PLACE].smoothness == 9.0  # ours wins
    assert "kvpr/512" in merged[0].trained
    assert f"index/{PLACE}" in merged[0].probes
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
    """`tools.zoo.make train --seconds` stops before the requested steps."""
    digests = {"prose.npy": "1", "valid.npy": "2"}
    record = {"config": {"seed": 3, "steps": 400}, "steps": 50, "data": {"digests": digests}}
    training = training_of(record)
    assert training[:2] == (3, 50)
    assert training == training_of(record | {"data": {"digests": dict(reversed(digests.items()))}})
    assert training != training_of(record | {"data": {"digests": digests | {"prose.npy": "3"}}})
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
    merged = merge([own], [short])
    assert merged == [own, short]
    assert [clause.training for clause in judge(merged, place=PLACE)[0].clauses[::4]] == [
        Training(0, 8000, "d"),
        Training(0, 2000, "d"),
    ]


def test_a_part_is_one_part_however_it_is_worded():
    """A training at one length cannot be asked of two: the same three parts, answered in two of three trainings."""
    one_length = [replace(r, seed=5, trained={PLACE: r.trained[PLACE]}) for r in pair(0)]
    entry = found([*pair(0, 1), *one_length], "F 3.4.2")
    assert entry.judgement.counts == "0 of 3 parts in 2 of 3 trainings"
    assert [training.seed for training in entry.trainings] == [0, 1]
    assert len(entry.parts) == 3
    assert all("from n = 256 to 512" in part.text for part in entry.parts)
    assert all(len(part.clauses) == 3 for part in entry.parts)


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.code)
def test_every_training_is_asked_the_same_parts(finding):
    """Parts are matched by their place."""
    groups = [pair(0), pair(0)[:1], [replace(r, probes={}, random={}) for r in pair(0)], []]
    counts = {len(finding.ask(Group(Training(0, None), PLACE, tuple(readings)))) for readings in groups}
    assert len(counts) == 1


def test_families_by_kinds_of_block():
    assert family(["attention", "ssm"]) == "hybrid"
    assert family(["recurrent"]) == "SSM"
