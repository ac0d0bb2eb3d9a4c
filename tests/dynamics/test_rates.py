"""Rates of the three scenarios: what follows which, against the simulated dynamics of the paper."""

import numpy as np
import pytest

from repflow.core.errors import InputError
from repflow.dynamics import simulate
from repflow.dynamics.rates import REGIMES, fit_rates, rate_curve


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("scale", [0.06, 0.09])
def test_a_scenario_is_found_again_beside_noise(regime, scale):
    steps = np.arange(11)
    noise = np.exp(0.01 * np.random.default_rng(0).standard_normal(11))
    fit = fit_rates(3 * rate_curve(regime, scale, steps) * noise)
    assert fit.followed == regime
    assert fit.errors[REGIMES.index(regime)] < 0.02
    assert fit.curves.shape == (3, 11)


def test_what_is_none_of_them():
    assert fit_rates(np.exp(0.5 * np.arange(12))).followed is None  # exponential, as tokens of attention
    assert fit_rates(np.full(12, 2.0)).followed is None
    assert fit_rates(np.array([1.0, 2.0])).followed is None
    assert fit_rates(np.array([1.0, 1.1, np.inf, 3.0])).followed is None
    overflowed = fit_rates(np.array([*(1 / np.sqrt(1 - 0.1 * np.arange(9))), np.inf]))
    assert overflowed.followed == "fast divergence"
    with pytest.raises(InputError, match="norms"):
        fit_rates(np.ones((2, 3)))


@pytest.mark.parametrize(
    ("mu", "s_delta", "regime"),
    [(-1.58, -0.17, "convergence"), (1.79, -0.71, "slow divergence"), (0.76, 0.59, "fast divergence")],
)
def test_the_papers_own_tokens_follow_their_scenario(mu, s_delta, regime):
    """One token of Eq. 9 with the parameters of Figures 3, 4 and 5, seen at twelve equal steps."""
    system = {"mu": mu, "s_delta": s_delta, "a": 1.0}
    until = 6.0
    if regime == "fast divergence":
        (event,) = simulate([0.9], t=[0.0, 100.0], **system).events
        until = 0.98 * event.time
    path = simulate([0.9], t=np.linspace(0, until, 13), **system)
    assert fit_rates(np.abs(path.tokens[:, 0])).followed == regime
