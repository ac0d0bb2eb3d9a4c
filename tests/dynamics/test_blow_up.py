"""Blow-up times against quadrature in 30 digits, closed forms and the worked values."""

import math

import mpmath
import numpy as np
import pytest

from repflow.core.errors import RepflowError
from repflow.dynamics import blow_up_time, classify, simulate
from tests.dynamics.dynamics_cases import FIG3, FIG4, FIG5, solve


def quadrature(x, mu, s_delta):
    """∫ dx / (μ x³ Δ(x)) of one token, in ln x."""
    with mpmath.workdps(30):
        x, mu, s_delta = mpmath.mpf(x), mpmath.mpf(mu), mpmath.mpf(s_delta)
        places = [mpmath.log(x), 1, 2, 3, 5, 10, 40]
        return float(
            mpmath.quad(
                lambda v: mpmath.e ** (-2 * v) / (mu * mpmath.log1p(mpmath.e ** (s_delta * mpmath.e**v))), places
            )
        )


def test_figure_5():
    end = blow_up_time(**FIG5)
    assert f"{end.time:.12f}" == "0.497240909911"
    assert end.token == 5
    assert end.upper_bound == pytest.approx(0.653446, abs=5e-7)


def test_two_tokens():
    end = blow_up_time([0.5, 1.5], mu=1, s_delta=1, a=1)
    assert f"{end.time:.13f}" == "0.0919059677692"
    assert end.token == 1


def test_one_token_by_quadrature():
    end = blow_up_time([0.83], mu=0.76, s_delta=0.59, a=1.66)
    assert f"{end.time:.12f}" == "0.808192406986"
    for x, mu, s_delta in (("0.83", "0.76", "0.59"), ("-0.2", "3", "-2"), ("1.5", "1e-3", "1e-4")):
        time = blow_up_time([float(x)], mu=float(mu), s_delta=float(s_delta), a=1.0).time
        sign = -1 if x.startswith("-") else 1
        assert time == pytest.approx(quadrature(x.lstrip("-"), mu, str(sign * float(s_delta))), rel=1e-13)


def test_no_step_weight_is_closed_form():
    assert blow_up_time([2.0], mu=0.5, s_delta=0, a=1).time == pytest.approx(1 / (2 * 0.5 * math.log(2) * 4), rel=1e-14)


@pytest.mark.parametrize("power", [-8, -3, 3, 8])
def test_time_scales_with_mu(power):
    scale = 10.0**power
    scaled = blow_up_time(**FIG5 | {"mu": FIG5["mu"] * scale})
    assert scaled.time * scale == pytest.approx(blow_up_time(**FIG5).time, rel=1e-13)
    assert scaled.token == 5


def test_eq_26_would_change_the_time_and_the_token():
    """With the exponent to l - 1 Figure 5 ends at .378617, with token 7 or 8 ahead, where ours is at 3."""
    times = np.array([0.3, 0.3786])
    printed = solve(**FIG5, t=times, last=1)
    ours = simulate(**FIG5, t=times).tokens
    assert np.abs(printed[1]).max() > 20
    assert np.abs(printed[1]).argmax() in (6, 7)
    assert np.abs(ours[1]).max() < 3


def test_a_token_carried_along_is_not_the_one_that_blows_up():
    """A token with S_Δ x < 0 behind the driving one grows in proportion to it; the driving one is named."""
    end = blow_up_time([1.0, -5.0], mu=1, s_delta=1, a=1)
    alone = blow_up_time([1.0], mu=1, s_delta=1, a=1)
    assert end.token == 0
    assert end.time == pytest.approx(alone.time, rel=1e-13)


@pytest.mark.parametrize("case", [FIG3, FIG4], ids=["convergence", "slow"])
def test_never(case):
    end = blow_up_time(**case)
    assert end.time == math.inf
    assert end.token is None


def test_spent_budget_is_an_error():
    with pytest.raises(RepflowError, match="budget"):
        blow_up_time(**FIG5, budget=50)


def test_classes():
    three, four, five = (classify(**case) for case in (FIG3, FIG4, FIG5))
    assert (three.scenario, three.theorem) == ("convergence", "Theorem 4.1")
    assert three.evidence["scaled_token_limits"][:2] == pytest.approx([0.675684, 0.490498], abs=5e-7)
    assert four.scenario == "slow-divergence"
    assert four.theorem.startswith("Lemma 4.2")
    assert four.evidence["hypothesis_12"] is False
    assert four.evidence["hypothesis_12_broken"] == ["S_Δ x is -1.101 > -2.1159 at token 0"]
    assert (five.scenario, five.theorem) == ("fast-divergence", "Theorem 4.4")
    assert five.evidence["blow_up_token"] == 5
    assert classify([3.0, 3.0, 4.0], mu=1, s_delta=-1, a=1).theorem == "Theorem 4.3"
    assert classify([-3.0, -4.0], mu=1, s_delta=1, a=1).theorem == "Theorem 4.3"
    assert "rises" in classify([4.0, 3.0], mu=1, s_delta=-1, a=1).evidence["hypothesis_12_broken"][0]
    assert classify([1.0], mu=0, s_delta=1, a=1).scenario == "constant"
    assert classify([1.0], mu=1, s_delta=0, a=1).scenario == "fast-divergence"
    assert not classify([3.0, 4.0], mu=1, s_delta=-1, a=100).evidence["order_kept"]


@pytest.mark.parametrize("change", [{"a": -1.0}, {"a": 0}, {"x0": [0.0]}, {"x0": [[1.0]]}])
def test_broken_assumptions(change):
    for function in (classify, blow_up_time):
        with pytest.raises(ValueError, match="expected"):
            function(**{"x0": [1.0], "mu": 1.0, "s_delta": 1.0, "a": 1.0} | change)


def test_tokens_whose_time_is_beyond_float64_still_blow_up():
    """x = 1e-200: T is about 1e400. It is not a slow divergence, and `never` would be wrong."""
    verdict = classify([1e-200], mu=1, s_delta=1, a=1)
    assert (verdict.scenario, verdict.theorem) == ("fast-divergence", "Theorem 4.4")
    assert "float64" in verdict.evidence["blow_up_time_unknown"]
    with pytest.raises(RepflowError, match="float64"):
        blow_up_time([1e-200], mu=1, s_delta=1, a=1)
    assert blow_up_time([-1e-200], mu=1, s_delta=1, a=1).time == math.inf


def test_a_token_that_is_carried_along_is_not_the_one():
    """S_Δ x_2 < 0: its step size dies out and it grows with token 1, larger than it, to the same time."""
    end = blow_up_time([1.0, -5.0], mu=1, s_delta=1, a=0.1)
    assert end.token == 0
    assert end.time == pytest.approx(quadrature(1.0, 1, 1), rel=1e-12)
    assert abs(simulate([1.0, -5.0], mu=1, s_delta=1, a=0.1, t=[end.time * (1 - 1e-9)]).tokens[0, 1]) > 1e3
