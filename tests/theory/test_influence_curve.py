"""Numbers of an influence curve against their definitions, SciPy's regression, and curves whose answer is known."""

import numpy as np
import pytest
from scipy import stats

from repflow.core.catalogue import EXPONENTIAL_R2
from repflow.core.errors import InputError
from repflow.core.intervals import rate_interval
from repflow.theory import lti_influence
from repflow.theory.influence_curve import (
    exponential_fit,
    half_reach,
    kappas,
    lost_in_the_middle,
    ratio_fit,
    recent_share,
)


def noisy(kappa, *, samples=6, distances=200, noise=0.3, seed=0):
    rng = np.random.default_rng(seed)
    return 1.5 - kappa * np.arange(distances) + noise * rng.standard_normal((samples, distances))


def test_fit_is_scipys_regression_on_the_mean_curve():
    curves = noisy(0.05)
    fit = exponential_fit(curves, first=3, last=150)
    distances = np.arange(3, 151)
    mean = curves.mean(0)[3:151]
    line = stats.linregress(distances, mean)
    power = stats.linregress(np.log(distances), mean)
    assert (fit.first, fit.last) == (3, 150)
    np.testing.assert_allclose(
        [fit.kappa, fit.intercept, fit.r2, fit.power, fit.power_r2],
        [-line.slope, line.intercept, line.rvalue**2, -power.slope, power.rvalue**2],
        rtol=1e-9,
    )
    left = mean - line.intercept - line.slope * distances
    assert fit.rmse == pytest.approx(np.sqrt((left**2).mean()))
    np.testing.assert_allclose(fit.line(distances), line.intercept + line.slope * distances)


def test_kappa_of_the_mean_is_the_mean_of_the_kappas_and_its_interval_holds_it():
    fits = [exponential_fit(noisy(0.05, seed=seed)) for seed in range(60)]
    each = kappas(noisy(0.05, seed=0), fits[0].first, fits[0].last)
    assert fits[0].kappa == pytest.approx(each.mean())
    assert (fits[0].kappa_low, fits[0].kappa_high) == pytest.approx(tuple(map(float, rate_interval(each)[1:])))


@pytest.mark.parametrize("samples", [3, 4, 8, 16])
def test_the_interval_of_kappa_covers(samples):
    """Prompts that decay differently; a percentile bootstrap of them covers 75, 80, 88 and 92 %."""
    rng = np.random.default_rng(samples)
    each = 0.05 + 0.02 * rng.standard_normal((1500, samples, 1))
    curves = -each * np.arange(30) + 0.1 * rng.standard_normal((1500, samples, 30))
    fits = [exponential_fit(table) for table in curves]
    assert 0.93 <= np.mean([fit.kappa_low <= 0.05 <= fit.kappa_high for fit in fits]) <= 0.97


def test_below_three_prompts_there_is_no_interval():
    two = exponential_fit(noisy(0.05, samples=2))
    assert np.isnan([two.kappa_low, two.kappa_high]).all()
    assert two.to_json()["half_life_low"] is None
    assert np.isfinite(exponential_fit(noisy(0.05, samples=3)).kappa_low)


def test_a_half_life_is_that_of_an_exponential():
    """Paper 2's demo case: R² of a tenth. The slope is there, a half-life is not."""
    bent = 3.0 * np.exp(-np.arange(200) / 5.0) - 0.001 * np.arange(200)
    fit = exponential_fit(np.stack([bent] * 4))
    assert fit.kappa > 0
    assert fit.r2 < 0.5
    assert not fit.exponential
    said = fit.to_json()
    assert said["exponential"] is False
    assert said["half_life"] is said["half_life_low"] is said["half_life_high"] is None
    straight = exponential_fit(noisy(0.05, noise=0.1)).to_json()
    assert straight["exponential"] is True
    assert straight["half_life"] == pytest.approx(np.log(2) / straight["kappa"])


def test_the_threshold_is_where_one_half_decays_twice_as_fast_as_the_other():
    place = np.linspace(-1, 1, 4001)
    curve = -place + (place**2 - 1 / 3) / 3  # slopes of the halves: −4/3 and −2/3
    near, far = curve[2000] - curve[0], curve[4000] - curve[2000]
    assert near / far == pytest.approx(2.0)
    assert exponential_fit(np.append(0.0, curve)).r2 == pytest.approx(EXPONENTIAL_R2, abs=0.002)


def test_one_curve_has_no_interval_and_no_decay_has_no_half_life():
    fit = exponential_fit(np.full((1, 20), 3.0) + 0.01 * np.arange(20))
    assert np.isnan([fit.kappa_low, fit.kappa_high]).all()
    assert fit.half_life[0] == np.inf
    said = fit.to_json()
    assert said["half_life"] is None
    assert said["kappa_low"] is None
    assert said["kappa"] == pytest.approx(-0.01)


def test_half_life_halves_the_fit_and_its_interval_is_turned_round():
    fit = exponential_fit(noisy(0.1))
    life, low, high = fit.half_life
    assert low < life < high
    assert np.diff(fit.line(np.array([0.0, life])))[0] == pytest.approx(-np.log(2))


def test_a_power_law_is_told_from_an_exponential():
    distances = np.arange(400.0)
    power = exponential_fit(-1.5 * np.log(np.maximum(distances, 1)))
    assert power.power_r2 == pytest.approx(1)
    assert power.power == pytest.approx(1.5)
    assert power.r2 < 0.8
    straight = exponential_fit(-0.02 * distances)
    assert straight.r2 == pytest.approx(1)
    assert straight.power_r2 < 0.9


def test_stacked_layers_peak_away_from_zero():
    # four equal layers of decay a: C(lag + 3, 3) a^lag, largest near 3 a / (1 - a)
    lag = np.arange(200)
    curve = np.log((lag + 1) * (lag + 2) * (lag + 3) / 6) + lag * np.log(0.9)
    assert exponential_fit(curve).peak == int(curve[1:].argmax()) + 1 == 27
    tail = exponential_fit(curve, first=27)
    assert exponential_fit(curve).kappa < tail.kappa < -np.log(0.9)


def test_ragged_prompts_leave_out_what_they_lack():
    curves = noisy(0.05, samples=3, distances=50, noise=0.0)
    curves[0, 20:] = np.nan
    fit = exponential_fit(curves)
    assert fit.kappa == pytest.approx(0.05)
    assert fit.last == 49
    np.testing.assert_allclose(kappas(curves, 1, 49), 0.05)


@pytest.mark.parametrize("seed", range(3))
def test_shares_and_half_reach_by_their_definitions(seed):
    influence = np.random.default_rng(seed).exponential(size=(4, 100))
    shares = recent_share(np.log(influence))
    for row, value in zip(influence, shares, strict=True):
        np.testing.assert_allclose(value[:3], [row[:w].sum() / row.sum() for w in (1, 16, 64)])
        assert np.isnan(value[3])  # 100 tokens say nothing of 256
    for row, value in zip(influence, half_reach(np.log(influence)), strict=True):
        assert next(k for k in range(1, 101) if row[:k].sum() >= row.sum() / 2) == value


def test_share_of_a_curve_that_is_zero_far_away():
    curve = np.array([0.0, np.nan, np.nan, np.nan])
    assert np.isnan(recent_share(curve, windows=(1,))[0])
    assert recent_share(curve, windows=(1,), lengths=np.array(4))[0] == 1
    assert half_reach(curve) == 1


def test_shares_do_not_overflow():
    curve = 2000.0 - 0.5 * np.arange(100)
    np.testing.assert_allclose(recent_share(curve, (16,)), recent_share(curve - 2000, (16,)))


def test_lost_in_the_middle_tells_shapes_apart():
    place = np.linspace(-1, 1, 101)
    assert lost_in_the_middle(place**2) > 0.5
    assert lost_in_the_middle(-(place**2)) < -0.5
    assert lost_in_the_middle(-np.arange(101.0)) < 0  # a plain decay
    assert lost_in_the_middle(np.arange(101.0)) < 0  # and its mirror: both ends must stand out
    assert np.isnan(lost_in_the_middle(np.zeros(9)))
    assert lost_in_the_middle(place**2 + 7) == pytest.approx(lost_in_the_middle(place**2))


@pytest.mark.parametrize("tokens", [10, 12, 15, 23, 101])
def test_lost_in_the_middle_is_its_definition(tokens):
    """Fifths of both ends, and of the middle: as many tokens before it as behind it, one more behind at most."""
    curve = np.random.default_rng(tokens).standard_normal(tokens)
    fifth = tokens // 5
    before = (tokens - fifth) // 2
    assert 0 <= tokens - fifth - 2 * before <= 1
    ends = min(curve[:fifth].mean(), curve[-fifth:].mean())
    assert lost_in_the_middle(curve) == pytest.approx(ends - curve[before : before + fifth].mean())


def test_a_far_sink_is_no_peak_of_the_decay():
    curve = -0.1 * np.abs(np.arange(60.0) - 7)
    assert exponential_fit(curve).peak == 7
    curve[-1] = 5.0  # the first token of the prompt
    assert exponential_fit(curve).peak == 7


def test_ratio_of_two_exponentials_decays_with_the_difference():
    a, b = noisy(0.08, noise=0.1), noisy(0.03, noise=0.1, seed=1)
    paired = ratio_fit(a, b, paired=True, nearest=64)
    assert len(paired.log_ratio) == 64
    np.testing.assert_allclose(paired.log_ratio, (a - b).mean(0)[:64])
    assert paired.fit.kappa == pytest.approx(0.05, abs=0.003)
    assert paired.fit.kappa_low < 0.05 < paired.fit.kappa_high
    assert ((paired.low <= paired.log_ratio) & (paired.log_ratio <= paired.high)).all()
    assert (paired.fit.first, paired.fit.last) == (1, 63)


def test_pairing_takes_the_prompts_own_spread_out_of_the_ratio():
    shared = 2.0 * np.random.default_rng(0).standard_normal((8, 1)) * np.linspace(0, 1, 50)
    a, b = noisy(0.08, samples=8, distances=50, noise=0.05), noisy(0.03, samples=8, distances=50, noise=0.05, seed=1)
    widths = [
        fit.kappa_high - fit.kappa_low
        for fit in (ratio_fit(a + shared, b + shared, paired=p).fit for p in (True, False))
    ]
    assert 4 * widths[0] < widths[1]


def test_ratio_of_other_prompts_and_of_single_ones():
    loose = ratio_fit(noisy(0.08, samples=3), noisy(0.03, samples=5), paired=False)
    assert np.isfinite(loose.fit.kappa_low)
    alone = ratio_fit(noisy(0.08, samples=1), noisy(0.03, samples=1), paired=True)
    assert np.isnan(alone.fit.kappa_low)
    assert np.isnan(alone.low).all()
    with pytest.raises(InputError, match="same prompts of both models; got 3 and 5"):
        ratio_fit(noisy(0.1, samples=3), noisy(0.1, samples=5), paired=True)


def test_a_curve_too_short_is_refused():
    with pytest.raises(InputError, match="at least 3 distances to fit; got distances 1 to 2; use longer prompts"):
        exponential_fit(np.zeros((2, 3)))
    with pytest.raises(InputError, match="distances 90 to 49"):
        exponential_fit(noisy(0.1, distances=50), first=90)


def test_kappa_of_a_single_state_is_the_theorems():
    curve = np.log(lti_influence([0.93], [2.0], [0.5], range(60)))
    fit = exponential_fit(curve)
    assert fit.kappa == pytest.approx(-np.log(0.93))
    assert fit.r2 == pytest.approx(1)


def ragged_levels():
    """Five prompts of one decay whose level and length go together: the long ones are the weak ones."""
    rng = np.random.default_rng(4)
    curves = np.full((5, 60), np.nan)
    for row, (length, level) in enumerate(((12, 3.0), (20, 1.0), (31, 0.0), (45, -2.0), (60, -4.0))):
        curves[row, :length] = level - 0.02 * np.arange(length) + 0.05 * rng.standard_normal(length)
    return curves


def test_prompts_of_other_levels_and_lengths_are_no_decay():
    """Least squares with a dummy for each prompt; the line through the mean curve is four times as steep."""
    curves = ragged_levels()
    fit = exponential_fit(curves)
    rows, places = np.nonzero(np.isfinite(curves[:, 1:]))
    design = np.column_stack([places + 1.0, np.eye(5)[rows]])
    solution = np.linalg.lstsq(design, curves[rows, places + 1], rcond=None)[0]
    np.testing.assert_allclose([fit.kappa, fit.intercept], [-solution[0], solution[1:].mean()], rtol=1e-9)
    assert fit.kappa == pytest.approx(0.02, abs=2e-3)
    assert fit.kappa_low < fit.kappa < fit.kappa_high < 0.03
    assert exponential_fit(np.nanmean(curves, axis=0)).kappa > 0.08
    assert fit.r2 > 0.95


def test_prompts_too_short_for_a_line_are_left_out_and_none_is_refused():
    curves = noisy(0.05, samples=3, distances=30, noise=0.0)
    curves[0, 3:] = np.nan
    assert exponential_fit(curves).kappa == pytest.approx(0.05)
    curves[:, 3:] = np.nan
    curves[1, 3:6] = 0.0
    curves[1, :3] = np.nan
    with pytest.raises(InputError, match="at least 3 distances"):
        exponential_fit(np.where(np.arange(30) % 2, curves, np.nan))


def test_a_far_end_without_influence_does_not_shorten_the_prompt():
    curve = np.where(np.arange(50) < 30, -0.1 * np.arange(50), np.nan)
    assert np.isnan(lost_in_the_middle(curve, lengths=np.array(50)))
    assert lost_in_the_middle(curve) == lost_in_the_middle(curve[:30])


def test_paired_ratio_compares_the_same_prompts():
    line = -0.1 * np.arange(30.0)
    a, b = np.stack([line, line + 5, line - 2]), np.stack([0.5 * line, 0.5 * line + 5, 0.5 * line - 2])
    b[1, 10:] = np.nan  # zero influence, or a prompt that ends, in one model
    fit = ratio_fit(a, b, paired=True)
    np.testing.assert_allclose(fit.log_ratio, 0.5 * line, atol=1e-12)
    assert fit.fit.kappa == pytest.approx(0.05)
    assert fit.fit.kappa_low == pytest.approx(fit.fit.kappa_high)
