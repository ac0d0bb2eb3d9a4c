"""Intervals, signs and what is said of them."""

import numpy as np
import pytest
from scipy import stats

from repflow.core.errors import InputError
from repflow.studies.twins.verdict import (
    CellSign,
    Verdict,
    break_statement,
    crossed_interval,
    depth_ends,
    grid_gaps,
    judge,
)

UP, DOWN, FLAT = (0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.02, -0.1, 0.1)


def cell(weights, length, numbers=UP):
    return CellSign(weights, length, *numbers)


@pytest.mark.parametrize(
    ("blocks", "share", "count"),
    [(12, 1 / 3, 4), (4, 1 / 3, 1), (2, 1 / 3, 1), (5, 0.5, 2), (3, 0.5, 1), (4, 0.9, 2), (3, 1.0, 1)],
)
def test_ends_of_the_depth(blocks, share, count):
    values = np.random.default_rng(0).normal(size=(blocks, 3))
    early, late = depth_ends(values, share)
    assert early == pytest.approx(sum(values[i] for i in range(count)) / count)
    assert late == pytest.approx(sum(values[blocks - 1 - i] for i in range(count)) / count)


def test_one_block_has_no_ends():
    with pytest.raises(InputError, match="at least two blocks"):
        depth_ends(np.zeros((1, 3)), 1 / 3)


def test_interval_against_scipy():
    """With prompts alike it is the t interval of the seed means; with seeds alike, or one, that of the prompt means."""
    rng = np.random.default_rng(1)
    seeds, prompts = rng.normal(size=4), rng.normal(size=6)
    for values, drawn in (
        (np.repeat(seeds[:, None], 6, 1), seeds),
        (np.repeat(prompts[None], 4, 0), prompts),
        (prompts[None], prompts),
    ):
        ours = crossed_interval(values)
        theirs = stats.ttest_1samp(drawn, 0).confidence_interval(0.95)
        assert ours == pytest.approx((drawn.mean(), theirs.low, theirs.high))
    both = crossed_interval(seeds[:, None] + prompts)
    halves = [crossed_interval(part) for part in (np.repeat(seeds[:, None], 6, 1), prompts[None])]
    assert (both[2] - both[0]) ** 2 == pytest.approx(sum((high - mean) ** 2 for mean, _, high in halves))


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("of_seed", "of_prompt", "rest", "exact"), [(1, 0, 0.1, True), (0, 1, 0.02, True), (1, 1, 1, False)]
)
def test_false_signs_are_five_in_a_hundred(seeds, of_seed, of_prompt, rest, exact):
    """Mean zero, 4 prompts: a sign where only seeds or only prompts differ in 5 % of 1000 draws, else in fewer."""
    rng = np.random.default_rng(7)
    false = 0
    for _ in range(1000):
        values = of_seed * rng.normal(size=(seeds, 1)) + of_prompt * rng.normal(size=(1, 4))
        false += CellSign("he", 8, *crossed_interval(values + rest * rng.normal(size=(seeds, 4)))).sign != 0
    assert false / 1000 <= 0.071  # three standard errors
    assert not exact or false / 1000 >= 0.029


def test_interval_leaves_out_what_is_missing():
    values = np.array([[0.1, 0.3, np.nan], [np.nan] * 3])
    assert crossed_interval(values)[0] == pytest.approx(0.2)
    assert np.isnan(crossed_interval(np.full((2, 3), np.nan))).all()
    assert np.isnan(crossed_interval(np.ones((2, 1)))[1:]).all()


def test_signs():
    assert [cell("he", 1, numbers).sign for numbers in (UP, DOWN, FLAT)] == [1, -1, 0]
    assert cell("he", 1, (0.2, np.nan, np.nan)).sign == 0


WHOLE = [cell(w, n) for w in ("trained", "default", "xavier") for n in (128, 2000)]


@pytest.mark.parametrize(
    ("change", "gaps", "code", "sign", "broken"),
    [
        ({}, [], "architectural", 1, []),
        ({}, ["n = 16"], "holds", 1, []),
        ({0: DOWN}, [], "training", 1, ["trained n=128"]),
        ({1: FLAT}, [], "trained_undetermined", 1, ["trained n=2000"]),
        ({0: FLAT, 1: FLAT}, ["n = 16"], "trained_undetermined", 1, ["trained n=128", "trained n=2000"]),
        ({0: DOWN, 1: FLAT}, [], "training", 1, ["trained n=128", "trained n=2000"]),
        ({3: DOWN}, [], "depends", 1, ["default n=2000"]),
        ({5: FLAT}, [], "undetermined", 1, ["xavier n=2000"]),
        ({0: FLAT, 5: FLAT}, [], "undetermined", 1, ["trained n=128", "xavier n=2000"]),
        ({0: DOWN, 1: DOWN, 5: FLAT}, [], "depends", -1, None),
        ({3: DOWN, 5: FLAT}, [], "depends", 1, ["default n=2000", "xavier n=2000"]),
        ({0: DOWN, 1: DOWN, 3: DOWN}, [], "depends", -1, ["default n=128", "xavier n=128", "xavier n=2000"]),
        (dict.fromkeys(range(6), DOWN), [], "architectural", -1, []),
        ({**dict.fromkeys(range(6), FLAT), 4: DOWN}, [], "undetermined", -1, None),
    ],
)
def test_verdicts(change, gaps, code, sign, broken):
    cells = [CellSign(c.weights, c.length, *change[i]) if i in change else c for i, c in enumerate(WHOLE)]
    verdict = judge("raw", cells, gaps)
    assert (verdict.code, verdict.sign) == (code, sign)
    said = verdict.statement.startswith("raw: architectural")
    assert said == (code == "architectural")
    if broken is not None:
        assert [f"{c.weights} n={c.length}" for c in verdict.breaks] == broken
    for c in verdict.breaks:
        assert str(c) in verdict.statement
    assert all(gap in verdict.statement for gap in (gaps if code == "holds" else []))
    assert ("the trained model leaves it open" in verdict.statement) == (code == "trained_undetermined")
    assert ("these leave it open" in verdict.statement) == (code == "undetermined")


@pytest.mark.parametrize("sign", [1, -1])
def test_the_interval_that_comes_nearest_to_zero_is_named(sign):
    near = (0.1, 0.15, 0.12, 0.05, 0.2, 0.1)
    ends = [sorted((sign * end, sign * 0.4)) for end in near]
    cells = [CellSign(c.weights, c.length, sign * 0.3, *pair) for c, pair in zip(WHOLE, ends, strict=True)]
    assert "no interval nearer to 0 than 0.050" in judge("raw", cells, []).statement


def test_without_twins_nothing_is_judged():
    missing = (np.nan, np.nan, np.nan)
    for cells in ([cell("trained", 128)], [cell("trained", 128), cell("he", 128, missing)]):
        assert judge("raw", cells, []).code == "none"
    assert isinstance(judge("raw", [cell("he", 128)], []), Verdict)
    alone = judge("raw", [cell("he", 128)], []).statement
    assert "and 0 of trained" not in alone
    assert "no trained weights to compare them with" in alone
    assert "no trained weights" not in judge("raw", WHOLE, []).statement


def test_no_sign_anywhere():
    flat = [CellSign(c.weights, c.length, *FLAT) for c in WHOLE[1:]] + [cell("he", 128, (-0.05, -0.2, 0.1))]
    verdict = judge("excess", flat, [])
    assert (verdict.code, verdict.sign, len(verdict.breaks)) == ("undetermined", 0, 6)
    assert "no sign in any of 6 cells; at most he n=128 (-0.050 [-0.200, +0.100])" in verdict.statement


def test_whole_grids():
    whole = ["default", "gaussian:0.1", "xavier:2+residual", "he"]
    assert grid_gaps(whole, [128, 512, 2000], 3, []) == []
    assert grid_gaps(whole, [100, 4000], 3, []) == []
    assert grid_gaps(whole[1:], [128, 2000], 3, []) == ["no twin by default"]
    plain = [init.partition("+")[0] for init in whole]
    assert grid_gaps(plain, [128, 2000], 3, []) == ["no twin with scaled residual branches"]
    assert grid_gaps([*plain, "he+norms+residual:0.5"], [128, 2000], 3, []) == []
    assert "does not span 128 … 2000" in grid_gaps(whole, [128, 1000], 3, [])[0]
    assert "n = 2000 does not span" in grid_gaps(whole, [2000], 3, [])[0]
    assert grid_gaps(whole, [128, 2000], 1, []) == ["1 seed of each twin, fewer than 3"]
    assert grid_gaps(whole, [128, 2000], 2, []) == ["2 seeds of each twin, fewer than 3"]
    assert (
        "1 cells were not measured: he n=2000 (too long)"
        in grid_gaps(whole, [128, 2000], 3, ["he n=2000 (too long)"])[0]
    )


def test_break_conditions_are_counted():
    changes = [
        cell("trained", 128, DOWN),
        cell("he", 128, UP),
        cell("xavier", 128, FLAT),
        cell("default", 128, (0.0, 0.0, 0.0)),
    ]
    text = break_statement("norm-affine", changes)
    assert "falls in 1 of 4 cells, rises in 1, undetermined in 1, the same in 1" in text
    assert "trained n=128 (-0.200 [-0.300, -0.100])" in text
