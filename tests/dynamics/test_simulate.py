"""Trajectories in one dimension against scipy on the P-form, exact solutions and the worked values."""

import math

import numpy as np
import pytest

from repflow.dynamics import convergence_limits, first_token_estimate, first_token_log_rate, simulate
from repflow.dynamics.limits import printed_sign_slopes
from repflow.dynamics.step_size import causal_sum, monotone_from
from tests.dynamics.dynamics_cases import FIG3, FIG4, FIG5, direct_scores, solve

WORKED = [-.60278234, -.19291210, .30459329, -.52162456, .39720305, -.41333590, .55675588, -.42070246, .07930939,
          -.14660102]  # fmt: skip


def test_worked_values_of_figure_3():
    path = simulate(**FIG3, t=[0, 1])
    assert path.tokens[0] == pytest.approx(FIG3["x0"], rel=1e-15)
    assert path.tokens[1] == pytest.approx(WORKED, abs=5.1e-9)
    assert path.events == []


@pytest.mark.parametrize("case", [FIG3, FIG4], ids=["convergence", "slow"])
def test_matches_scipy_on_the_p_form(case):
    times = [0.1, 1.0, 10.0]
    assert simulate(**case, t=times).tokens == pytest.approx(solve(**case, t=times), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_random_systems_match_scipy(seed):
    rng = np.random.default_rng(seed)
    x0 = rng.normal(size=7) + 0.1
    case = {"x0": x0, "mu": rng.normal(), "s_delta": rng.normal(), "a": rng.uniform(0.1, 3)}
    reached = [event.time for event in simulate(**case, t=[2.0]).events]
    times = np.array([0.2, 0.6, 0.9]) * min([2.0, *reached])
    assert simulate(**case, t=times).tokens == pytest.approx(solve(**case, t=times), rel=1e-8)


def test_one_token_without_step_weight_is_exact():
    """S_Δ = 0: x' = μ ln 2 x³, whatever the size of t."""
    times = np.array([1e-9, 1.0, 1e6, 1e12, 1e200])
    exact = 2.0 / np.sqrt(1 + 2 * 0.3 * math.log(2) * 4.0 * times)
    assert simulate([2.0], mu=-0.3, s_delta=0, a=1, t=times).tokens[:, 0] == pytest.approx(exact, rel=1e-11)


def test_recurrence_is_the_p_form():
    rng = np.random.default_rng(1)
    x, mu, s_delta, a = rng.normal(size=9), 0.7, -1.3, 0.9
    step = np.log1p(np.exp(s_delta * x))
    held = causal_sum(np.exp(-a * step), step * x**2)
    assert mu * x * held == pytest.approx(direct_scores(x, mu, s_delta, a) @ x, rel=1e-13)
    path = simulate(x, mu=mu, s_delta=s_delta, a=a, t=[0.0])
    assert path.attention[0] == pytest.approx(direct_scores(x, mu, s_delta, a), rel=1e-13)
    assert path.attention.shape == (1, 9, 9)


def test_exponent_to_l_minus_1_is_another_system():
    """Eq. 26 and 27 as printed change Figure 4's x_10(1) from 109.293 to 106.768."""
    printed = solve(**FIG4, t=[1.0], last=1)[0]
    ours = simulate(**FIG4, t=[1.0]).tokens[0]
    assert (ours[-1], printed[-1]) == pytest.approx((109.293, 106.768), abs=6e-4)
    assert np.abs(printed / ours - 1).max() == pytest.approx(0.023, abs=1e-3)


def test_convergence_reaches_its_exact_limits():
    path = simulate(**FIG3, t=[1e8, 1e12, 1e200])
    limits = convergence_limits(10, mu=FIG3["mu"], a=FIG3["a"])
    assert limits.scaled_tokens[:2] == pytest.approx([0.675684, 0.490498], abs=5e-7)
    scaled = np.sqrt(path.t)[:, None] * np.abs(path.tokens)
    assert scaled[0, 0] == pytest.approx(0.675679, abs=5e-7)
    assert 0.4901 < scaled[0, 1:].min() < scaled[0, 1:].max() < 0.4917
    assert scaled[1] == pytest.approx(limits.scaled_tokens, rel=1e-4)
    assert scaled[2] == pytest.approx(limits.scaled_tokens, rel=1e-9)
    assert 1e12 * np.diag(path.attention_at(1)) == pytest.approx(limits.scaled_diagonal, rel=1e-4)
    assert path.evaluations < 10_000


def test_printed_sign_of_figure_3():
    case = FIG3 | {"a": -1.08}
    path = simulate(**case, t=[1.0, 1e50, 1e100], paper_sign=True)
    assert path.tokens[0, 1] == pytest.approx(-0.032708, abs=5e-7)
    assert np.abs(path.tokens[0, 4:]).max() < 2e-10
    slopes = (path.log_norms[2] - path.log_norms[1]) / math.log(1e50)
    assert slopes == pytest.approx(printed_sign_slopes(10, a=-1.08), rel=1e-6)
    assert [event.kind for event in path.events] == ["paper_sign"]
    assert "a > 0" in path.events[0].message
    assert path.stopped is None


def test_slow_divergence_is_logarithmic_for_every_token():
    """Theorem 4.3 prints O((ln t)^l); ratios to token 1 converge, so that every token is Θ(ln t)."""
    path = simulate(**FIG4, t=[1.0, 100.0, 1e6, 1e12, 1e48, 1e200])
    ratios = path.tokens / path.tokens[:, :1]
    printed = [1, 2.9475, 4.8615, 6.5151, 8.931, 10.5998, 11.9486, 13.9782, 15.0273, 16.8807]
    assert ratios[-1] == pytest.approx(printed, abs=6e-5)
    assert ratios[-2] == pytest.approx(ratios[-1], rel=1e-9)
    rate = path.tokens[-1, 0] / math.log(1e200)
    assert rate == pytest.approx(1.469, abs=5e-4)
    assert path.tokens[-1, 0] == pytest.approx(first_token_estimate(1e200, mu=1.79, s_delta=-0.71), rel=1e-3)
    assert rate > first_token_log_rate(s_delta=-0.71) == pytest.approx(1.408, abs=5e-4)
    assert [path.attention_at(i).max() for i in range(3)] == pytest.approx([12.70, 0.0171, 7.89e-7], rel=2e-3)
    first = path.attention_at(-1)[0, 0] * 1e200 * math.log(1e200)
    assert first == pytest.approx(0.965, abs=1e-3)
    printed_sign = simulate(**FIG4 | {"a": -1.8}, t=[1e24], paper_sign=True).tokens[0]
    assert printed_sign[[1, -1]] / printed_sign[0] == pytest.approx([3.0734, 17.9463], abs=6e-5)


def test_printed_bound_on_p_is_reversed():
    """B.2's last step P_lj ≤ μ x_l² Δ(x_l): at t = 100 P_21 is 2.99e-3, the bound 4.6e-14."""
    path = simulate(**FIG4, t=[100.0])
    x = path.tokens[0]
    bound = 1.79 * x[1] ** 2 * np.log1p(np.exp(-0.71 * x[1]))
    assert path.attention[0][1, 0] == pytest.approx(2.99e-3, rel=2e-3)
    assert bound == pytest.approx(4.6e-14, rel=2e-2)


def test_order_of_tokens_breaks_for_large_a():
    path = simulate([2.2, 5, 5], mu=1, s_delta=-1, a=100, t=[0.1])
    assert path.tokens[0, 2] - path.tokens[0, 1] == pytest.approx(-0.0208, abs=5e-5)


def test_constant_of_lemma_b6():
    assert monotone_from() == pytest.approx(2.1159494320784242, rel=1e-14)
    r = np.linspace(0.01, 20, 200_001)
    assert (r**2 * np.log1p(np.exp(-r))).max() == pytest.approx(0.509473, abs=5e-7)


def test_after_a_blow_up_is_nan_and_the_event_says_when():
    path = simulate(**FIG5, t=[0.1, 0.49, 0.4972409, 0.5, 2.0])
    assert np.isfinite(path.tokens[:3]).all()
    assert np.isnan(path.tokens[3:]).all()
    assert np.isnan(path.attention[3:]).all()
    (event,) = path.events
    assert (event.kind, event.token) == ("blow-up", 5)
    assert event.time == pytest.approx(0.497240909911, abs=5e-13)
    assert path.tokens[:2] == pytest.approx(solve(**FIG5, t=[0.1, 0.49]), rel=1e-9)
    before = simulate(**FIG5 | {"x0": FIG5["x0"][:1]}, t=[0.5, 0.8])
    assert np.isfinite(before.tokens).all()


def test_attention_at_blow_up():
    """Theorem 4.4's "iff" is false: P_6j → 0 for j < 6, P_l6 → ∞ for l ≥ 6."""
    path = simulate(**FIG5, t=[0.497240909911])
    scores = path.attention[0]
    assert path.tokens[0, 5] > 1e3
    assert scores[5, :5].max() < 1e-200
    assert (scores[5:, 5] > 1e3).all()


def test_two_token_blow_up_has_no_attention_to_the_first():
    path = simulate([0.5, 1.5], mu=1, s_delta=1, a=1, t=[0.0919059677692 - 1 / 3e9])
    assert path.tokens[0, 1] == pytest.approx(1e3, rel=0.05)
    assert path.attention[0][1, 1] == pytest.approx(path.tokens[0, 1] ** 3, rel=1e-12)
    assert path.attention[0][1, 0] == 0


def test_tokens_behind_a_blow_up_diverge_too():
    """x_7 ≈ 2.18 at x_6 = 1e3 and grows like ln ln: tokens l > l0 are not defined on [0, T]."""
    lead = 1e3
    time = 0.4972409099112424 - 1 / (3 * 0.76 * 0.59 * lead**3)
    path = simulate(**FIG5, t=[time])
    assert path.tokens[0, 6] == pytest.approx(2.18, abs=0.01)


def test_many_tokens_take_linear_time():
    rng = np.random.default_rng(3)
    path = simulate(rng.normal(size=2000), mu=-1, s_delta=0.5, a=1, t=[1.0, 1e12])
    assert np.isfinite(path.tokens).all()
    assert path.evaluations < 20_000
    with pytest.raises(ValueError, match="attention_at"):
        simulate(rng.normal(size=4000), mu=0, s_delta=0.5, a=1, t=np.arange(10)).attention  # noqa: B018


def test_zero_mu_stands_still():
    assert (simulate([1.0, -2.0], mu=0, s_delta=1, a=1, t=[0, 1e9]).tokens == [[1, -2], [1, -2]]).all()


def test_budget_ends_clearly():
    path = simulate(**FIG4, t=[1.0, 1e200], budget=2000)
    assert np.isfinite(path.tokens[0]).all()
    assert np.isnan(path.tokens[1]).all()
    assert path.stopped.kind == "budget"
    assert "larger budget" in path.stopped.message


def test_times_beyond_float64_are_an_event_and_not_a_blow_up():
    """Convergence goes on for ever, but t = 1.7e308 is more units than float64 has; 1e300 is not."""
    path = simulate([1e-5, 2.0], mu=-1, s_delta=1, a=1, t=[1e300, 1.7e308])
    limits = convergence_limits(2, mu=-1, a=1).scaled_tokens
    assert 1e150 * path.tokens[0] == pytest.approx(limits, rel=1e-9)
    assert np.isnan(path.tokens[1]).all()
    assert [(event.kind, event.token) for event in path.events] == [("overflow", None)]
    assert 1e300 < path.stopped.time < 1.7e308


def test_tensors_of_any_kind_are_taken():
    import torch

    case = {"mu": torch.tensor(-1.0), "s_delta": torch.tensor(0.5), "a": torch.tensor(1.0), "t": torch.tensor([1.0])}
    expected = simulate([1.0, 2.0], mu=-1, s_delta=0.5, a=1, t=[1.0]).tokens
    for kind in (torch.float32, torch.bfloat16, torch.int64):
        x0 = torch.tensor([1.0, 2.0]).to(kind)
        assert simulate(x0.requires_grad_(kind.is_floating_point), **case).tokens == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"a": 0.0}, "a > 0"),
        ({"a": -1.08}, "paper_sign=True"),
        ({"a": [1.0, 2.0]}, "one number"),
        ({"x0": [1.0, 0.0]}, "x_l(0) ≠ 0"),
        ({"x0": [[1.0, 2.0]]}, "shape (token,)"),
        ({"x0": []}, "shape (token,)"),
        ({"x0": [1.0, math.nan]}, "finite x0"),
        ({"x0": ["a"]}, "numbers"),
        ({"x0": ["1"]}, "numbers"),
        ({"a": None}, "got NoneType"),
        ({"mu": math.inf}, "finite mu"),
        ({"mu": [[1.0, 2.0]]}, "mu as one number"),
        ({"t": [0.0, 2.0, 1.0]}, "strictly increasing"),
        ({"t": [0.0, 1.0, 1.0]}, "strictly increasing"),
        ({"t": [-1.0, 1.0]}, "from 0"),
        ({"t": [[0.0, 1.0]]}, "shape (time,)"),
        ({"x0": [1e100]}, "at most 1e+60"),
        ({"budget": 0}, "budget"),
    ],
)
def test_broken_assumptions_are_named(change, words):
    with pytest.raises(ValueError) as error:
        simulate(**{"x0": [1.0, 2.0], "mu": 1.0, "s_delta": 1.0, "a": 1.0, "t": [0.0, 1.0]} | change)
    assert words in str(error.value)
    assert str(error.value).startswith("expected ")
