"""Intervals, signs and what is said of them."""

import numpy as np
import pytest

from repflow.errors import InputError
from repflow.studies.twins_verdict import (
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
    ("blocks", "share", "count"), [(12, 1 / 3, 4), (4, 1 / 3, 1), (2, 1 / 3, 1), (5, 0.5, 2), (3, 0.5, 1)]
)
def test_ends_of_the_depth(blocks, share, count):
    values = np.random.default_rng(0).normal(size=(blocks, 3))
    early, late = depth_ends(values, share)
    assert early == pytest.approx(sum(values[i] for i in range(count)) / count)
    assert late == pytest.approx(sum(values[blocks - 1 - i] for i in range(count)) / count)


def test_one_block_has_no_ends():
    with pytest.raises(InputError, match="at least two blocks"):
        depth_ends(np.zeros((1, 3)), 1 / 3)


def test_interval_against_a_plain_bootstrap():
    """Seeds and prompts drawn with replacement by loops; seeds differ more than prompts here."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4, 1)) + 0.2 * rng.normal(size=(1, 6)) + 0.05 * rng.normal(size=(4, 6))
    drawn = []
    for _ in range(4000):
        seeds, prompts = rng.integers(0, 4, 4), rng.integers(0, 6, 6)
        drawn.append(np.mean([[values[s, p] for p in prompts] for s in seeds]))
    mean, low, high = crossed_interval(values)
    spread = np.std(drawn)
    assert mean == pytest.approx(values.mean())
    assert (low, high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.12 * spread)
    _, narrow, wide = crossed_interval(values[:1])
    assert wide - narrow < (high - low) / 2  # one seed hides what seeds do


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
        ({1: FLAT}, [], "training", 1, ["trained n=2000"]),
        ({3: DOWN}, [], "depends", 1, ["default n=2000"]),
        ({5: FLAT}, [], "depends", 1, ["xavier n=2000"]),
        ({0: DOWN, 1: DOWN, 3: DOWN}, [], "depends", -1, ["default n=128", "xavier n=128", "xavier n=2000"]),
        (dict.fromkeys(range(6), DOWN), [], "architectural", -1, []),
        ({**dict.fromkeys(range(6), FLAT), 4: DOWN}, [], "depends", -1, None),
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


def test_without_twins_nothing_is_judged():
    missing = (np.nan, np.nan, np.nan)
    for cells in ([cell("trained", 128)], [cell("trained", 128), cell("he", 128, missing)]):
        assert judge("raw", cells, []).code == "none"
    assert isinstance(judge("raw", [cell("he", 128)], []), Verdict)
    alone = judge("raw", [cell("he", 128)], []).statement
    assert "and 0 of trained" not in alone
    assert "no trained weights to hold against them" in alone
    assert "no trained weights" not in judge("raw", WHOLE, []).statement


def test_no_sign_anywhere():
    flat = [CellSign(c.weights, c.length, *FLAT) for c in WHOLE[1:]] + [cell("he", 128, (-0.05, -0.2, 0.1))]
    verdict = judge("excess", flat, [])
    assert (verdict.code, verdict.sign, len(verdict.breaks)) == ("undetermined", 0, 6)
    assert "no sign in any of 6 cells; at most he n=128 (-0.050 [-0.200, +0.100])" in verdict.statement


def test_whole_grids():
    whole = ["default", "gaussian:0.1", "xavier:2+residual", "he"]
    assert grid_gaps(whole, [128, 512, 2000], 2, []) == []
    assert grid_gaps(whole, [100, 4000], 2, []) == []
    assert grid_gaps(whole[1:], [128, 2000], 2, []) == ["no twin by default"]
    assert "does not span 128 … 2000" in grid_gaps(whole, [128, 1000], 2, [])[0]
    assert "n = 2000 does not span" in grid_gaps(whole, [2000], 2, [])[0]
    assert "one draw" in grid_gaps(whole, [128, 2000], 1, [])[0]
    assert (
        "1 cells were not measured: he n=2000 (too long)"
        in grid_gaps(whole, [128, 2000], 2, ["he n=2000 (too long)"])[0]
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
