"""The four words: what each takes, what runs on disk may have instead, and how often the rule is wrong."""

import importlib.util
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from repflow.core.errors import InputError
from repflow.core.verdict import (
    DOES_NOT,
    FORMER,
    HOLDS,
    OPEN,
    PARTLY,
    TAIL,
    WORDS,
    WRONG,
    Part,
    decide,
    power,
    read_word,
    settle,
)

ROOT = Path(__file__).parents[2]
TOSS_LIMIT = 6
"""Trainings from which a rule can guard against a part that is tossed beside others that are true."""


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "benchmarks" / "verdicts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts(*answers, tail=0.001):
    return [Part(str(at), answer, tail) for at, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ((True, True, True), HOLDS),
        ((False, False, False, False), DOES_NOT),
        ((True, False, None), PARTLY),
        ((True, True, None), OPEN),
        ((False, False, None), OPEN),
        ((None,), OPEN),
        ((), OPEN),
    ],
)
def test_words(answers, word):
    verdict = decide(parts(*answers), asked=4, trainings=4, units=6)
    assert verdict.word == word
    assert (verdict.held, verdict.failed) == (answers.count(True), answers.count(False))


def test_partly_takes_more_than_one_interval_among_many():
    assert decide(parts(True, False, True, True, tail=TAIL)).word == OPEN  # 2.5 % of each of four is 10 % of all
    assert decide(parts(True, False, True, True, tail=WRONG / 4)).word == PARTLY
    assert decide(parts(True, False, tail=TAIL)).word == PARTLY


def test_counts_stand_with_every_word():
    assert str(decide(parts(True, True), asked=3, trainings=4, units=3)) == "holds: 2 of 2 parts in 3 of 4 trainings"
    assert str(decide(parts(None), asked=0, trainings=1)) == "open: 0 of 1 part in 0 of 1 training"


def test_few_cells_decide_nothing():
    assert decide(parts(True), units=5).word == OPEN  # five tosses fall alike in 6.2 %
    assert decide(parts(True), units=6).word == HOLDS
    assert power(1, 5) == 0.0


def test_margins_are_settled_as_students_interval_has_it():
    rng = np.random.default_rng(3)
    for count in (3, 4, 9):
        for shift in (-3, 0, 1, 3):
            margins = rng.standard_normal(count) + shift
            low, high = stats.t.interval(0.95, count - 1, margins.mean(), stats.sem(margins))
            expected = True if low > 0 else False if high < 0 else None
            answer, tail = settle(margins.tolist())
            assert answer is expected
            assert tail == pytest.approx(stats.ttest_1samp(margins, 0).pvalue / 2)


def test_margins_that_settle_nothing():
    assert settle([0.5, 0.6]) == (None, 1.0)
    assert settle([0.5, 0.6, math.nan])[0] is None
    assert settle([0.5] * 3) == (None, 0.125)  # without a spread the signs are all there is
    assert settle([0.5] * 6) == (True, 0.5**6)


def test_below_the_zone_a_part_is_shown_not_to_hold():
    around_zero = [0.01, -0.01, 0.02, -0.02]
    assert settle(around_zero)[0] is None
    answer, tail = settle(around_zero, zone=0.05)
    assert answer is False
    assert tail == pytest.approx(stats.ttest_1samp(around_zero, 0.05).pvalue / 2)
    assert settle(around_zero, zone=-0.05)[0] is None
    assert settle([0.5, 0.6, 0.55], zone=0.9)[0] is True  # what is shown to be above zero holds first


def test_former_words_are_read():
    assert [read_word(word) for word in WORDS] == list(WORDS)
    assert [read_word(word) for word in ("agrees", "mixed", "differs", "not measurable")] == [
        HOLDS,
        OPEN,
        DOES_NOT,
        OPEN,
    ]
    assert set(FORMER.values()) <= set(WORDS)
    with pytest.raises(InputError, match="unknown verdict 'agree'; did you mean agrees"):
        read_word("agree")


def test_power_is_that_of_the_rule(simulation):
    for count, trainings in ((2, 4), (4, 6)):
        share = simulation.rates("true 2", count, trainings, draws=1000, seed=1)[HOLDS]
        low, high = stats.binom.interval(0.999, 1000, power(count, trainings))
        assert low <= 1000 * share <= high


@pytest.mark.parametrize("truth", ["coin", "toss", "weak link", "half", "true 1"])
def test_wrong_words_are_rare(simulation, truth):
    draws = 400
    for trainings in (3, 4):
        rates = simulation.rates(truth, 4, trainings, draws=draws, seed=7)
        assert rates["wrong"] * draws <= stats.binom.ppf(0.999, draws, WRONG)


def test_coins_are_open_and_what_is_true_holds(simulation):
    """Parts tossed in four trainings were called mixed in every draw, and those true in 90 % of them in 83 %."""
    tossed = simulation.rates("toss", 4, 4, draws=400, seed=7)
    assert tossed[OPEN] > 0.9
    assert simulation.rates("true 5", 4, 4, draws=400, seed=7)[HOLDS] > 0.95


def test_the_stored_table_is_within_the_bound():
    table = json.loads((ROOT / "benchmarks" / "verdicts.json").read_text(encoding="utf-8"))
    most = stats.binom.ppf(0.999, table["draws"], WRONG) / table["draws"]
    for row in table["rows"]:
        if row["truth"] != "weak toss" or row["trainings"] >= TOSS_LIMIT:
            assert row["wrong"] <= most, row
        assert sum(row[word] for word in WORDS) == pytest.approx(1)
