"""Figure 2's verdicts on results whose slopes are known."""

import numpy as np
import pytest

from repflow.core.intervals import share_interval
from repflow.core.results import Finding, Result, sample_band
from repflow.studies.needle.scores import log_odds, rank, slope
from repflow.studies.reproduce.needle import RECIPES, SSM, TRANSFORMER, position_slope

figure_lines = RECIPES["recency-fig2"].lines
DEPTH = np.broadcast_to(np.linspace(0, 1, 5)[None, :, None], (2, 5, 12))


def made(accuracy, gain, *codes):
    """A result with these scores (position,) for all needles but noise of the needles' own."""
    noise = np.random.default_rng(0).normal(0, 0.1, (2, 5, 12))
    correct = np.broadcast_to(np.array(accuracy)[None, :, None], DEPTH.shape).copy()
    scores = {"answer_correct": correct, "gain": np.array(gain)[None, :, None] + noise, "first": correct}
    arrays = dict(scores)
    axes = dict.fromkeys(scores, ("length", "position", "sample"))
    for name in ("answer_correct", "gain"):
        arrays[f"slope_all/{name}"], axes[f"slope_all/{name}"] = slope(scores[name], DEPTH).mean(0), ("sample",)
    findings = [Finding(code, None, "") for code in codes]
    return Result(arrays, axes, {}, {"chance": [0.125]}, findings)


FLAT, RISING, FALLING = [1, 1, 1, 1, 1], [0, 0, 0, 1, 1], [1, 1, 0, 0, 0]


def test_the_papers_picture_holds():
    found = {SSM: made(RISING, [0, 1, 2, 3, 4]), TRANSFORMER: made(FLAT, [4, 4, 4, 4, 4])}
    lines = figure_lines(found)
    assert [line.holds for line in lines] == [True, True, True]
    assert "points of greedy accuracy" in lines[1].ours
    assert "nats of log-odds" in lines[0].ours  # an accuracy that never changes has no slope to speak of
    assert position_slope(found[SSM])[0] == "answer_correct"


def test_the_opposite_does_not():
    found = {SSM: made(FALLING, [4, 3, 2, 1, 0]), TRANSFORMER: made(RISING, [0, 1, 2, 3, 4])}
    assert [line.holds for line in figure_lines(found)] == [False, False, False]


def test_a_slope_whose_interval_holds_zero_decides_nothing():
    found = {SSM: made(FLAT, [4, 4, 4, 4, 4]), TRANSFORMER: made(FLAT, [4, 4, 4, 4, 4])}
    assert [line.holds for line in figure_lines(found)] == [True, None, None]


@pytest.mark.parametrize("code", ["needle_unused", "few_needles"])
def test_models_that_do_not_read_needles_decide_nothing(code):
    found = {SSM: made(RISING, [0, 1, 2, 3, 4], code), TRANSFORMER: made(FLAT, [4, 4, 4, 4, 4])}
    assert [line.holds for line in figure_lines(found)] == [True, None, None]


def test_a_wide_interval_around_zero_is_not_stability():
    rng = np.random.default_rng(3)
    wide = made(FLAT, [4, 4, 4, 4, 4])
    wide.arrays["slope_all/gain"] = rng.normal(0, 5, 12)
    (line,) = figure_lines({TRANSFORMER: wide})
    assert line.holds is None
    assert "stable: within ±1 nat" in line.ours


def test_slope_is_that_of_least_squares():
    rng = np.random.default_rng(1)
    values, depth = rng.normal(size=(3, 6, 4)), np.sort(rng.random((3, 6, 4)), axis=1)
    expected = [[np.polyfit(depth[i, :, k], values[i, :, k], 1)[0] for k in range(4)] for i in range(3)]
    np.testing.assert_allclose(slope(values, depth), expected)
    assert np.isnan(slope(values[:, :1], depth[:, :1])).all()
    values[0, 2, 1] = np.nan
    assert np.isnan(slope(values, depth)[0, 1])


def test_ranks_and_odds_by_hand():
    drawn = np.log(np.random.default_rng(2).dirichlet(np.ones(6), size=(2, 3)))
    for where in np.ndindex(2, 3):
        chances = np.exp(drawn[where])
        assert rank(drawn)[where] == sorted(chances, reverse=True).index(chances[0]) + 1
        assert log_odds(drawn)[where] == pytest.approx(np.log(chances[0] / chances[1:].sum()))


def test_wilson_interval_is_that_of_scipy():
    from scipy.stats import binomtest

    values = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=float)
    band = share_interval(values, axis=-1)
    for row, low, high in zip(values, band.low, band.high, strict=True):
        expected = binomtest(int(row.sum()), len(row)).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert np.isnan(share_interval(np.full((1, 3), np.nan), axis=-1).mean).all()


def test_bands_of_slopes_come_from_needles():
    result = made(RISING, [0, 1, 2, 3, 4])
    band = result.band("slope_all/gain")
    own = sample_band(result["slope_all/gain"], ("sample",))
    assert (band.low, band.high) == (own.low, own.high)
