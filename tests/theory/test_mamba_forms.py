"""Theorems 3 to 5: brute-force sums over the definition, simulation, Isserlis, and bad input."""

import math

import numpy as np
import pytest

from repflow import theory
from repflow.theory import channel
from repflow.theory.channel import (
    ChannelBlock,
    channel_contractivity,
    channel_mean,
    channel_output,
    channel_trace,
)
from tests.theory.theory_inputs import mamba_weights


def response(w, t, m):
    """M_{t,m} by its definition, with matrix products."""
    dense = [np.diag(a) if a.ndim == 1 else a for a in w["A"]]
    taps = [np.diag(tap) if tap.ndim == 1 else tap for tap in w["W_c"]]
    total = np.zeros((w["C"].shape[1], w["W_h"].shape[1]))
    for k in range(min(len(taps) - 1, t - m) + 1):
        product = np.eye(len(dense[0]))
        for i in range(m + k + 1, t + 1):
            product = dense[i] @ product
        total += w["C"][t] @ product @ w["B"][m + k] @ taps[k] @ w["W_h"]
    return total


def trace_by_isserlis(w, sigma2):
    """Sum of variances from fourth moments of Gaussians, entry by entry, without any matrix identity."""
    total, s4 = 0.0, sigma2**2
    for t in range(len(w["A"])):
        maps = [response(w, t, m) for m in range(t + 1)]
        for r, gate in enumerate(w["W_z"]):
            second = sum(s4 * (maps[m][r] @ maps[m][r]) * (gate @ gate) for m in range(t))
            own = maps[t][r]
            second += s4 * ((own @ own) * (gate @ gate) + 2 * (own @ gate) ** 2)
            mean = sigma2 * (own @ gate)
            total += (second - mean**2) / 16
    return total


CASES = [
    {"lags": 1},
    {"lags": 3},
    {"lags": 3, "dense": True},
    {"lags": 2, "channelwise": True},
    {"n": 1},
    {"n": 2, "lags": 4},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trace_and_mean_by_their_definition(case):
    w = mamba_weights(1, **case)
    assert theory.mamba_trace(**w, sigma2=0.6) == pytest.approx(trace_by_isserlis(w, 0.6), rel=1e-11)
    rows = theory.mamba_mean(**w, sigma2=0.6)
    expected = [0.15 * np.diag(response(w, t, t) @ w["W_z"].T) for t in range(len(w["A"]))]
    np.testing.assert_allclose(rows, expected, rtol=1e-11)
    if len(rows) > 1:
        with pytest.warns(theory.HypothesisWarning, match="all rows of μ_F equal"):
            printed = theory.mamba_mean(**w, sigma2=0.6, form="printed")
        np.testing.assert_allclose(printed, rows.mean(0), rtol=1e-12)


@pytest.mark.parametrize("lags", [1, 3])
def test_trace_and_mean_are_those_of_a_simulation(lags):
    w = mamba_weights(2, n=5, lags=lags)
    simulation = theory.simulate("mamba_trace", **w, sigma2=0.8, samples=100_000, seed=1)
    assert abs(simulation.gap) < 4 * simulation.standard_error / simulation.estimate
    assert simulation.standard_error < 0.01 * simulation.estimate
    mean = theory.simulate("mamba_mean", **w, sigma2=0.8, samples=100_000, seed=2)
    np.testing.assert_allclose(mean.closed_form, mean.estimate, atol=float(5 * mean.standard_error.max()))


def test_printed_trace_is_equation_14_summed_over_tokens():
    w = mamba_weights(3, lags=1)
    gates, total = w["W_z"] @ w["W_z"].T, 0.0
    for t in range(len(w["A"])):
        s = sum((response(w, t, j) @ response(w, t, j).T for j in range(t)), np.zeros((4, 4)))
        own = response(w, t, t)
        total += np.trace(gates * s) + np.trace((own @ w["W_z"].T) * (w["W_z"] @ own.T))
    assert theory.mamba_trace(**w, sigma2=0.5, form="printed") == pytest.approx(0.25 / 4 * total, rel=1e-12)


def test_printed_trace_reads_lag_0_and_says_so():
    w = mamba_weights(3, lags=3)
    single = {**w, "W_c": w["W_c"][:1]}
    with pytest.warns(theory.HypothesisWarning, match=r"one convolution lag \(K = 1\)"):
        several = theory.mamba_trace(**w, sigma2=0.5, form="printed")
    assert several == theory.mamba_trace(**single, sigma2=0.5, form="printed")


def test_second_moment_has_twice_the_mean():
    """E‖F‖² = TrΣ + ‖μ‖² = σ⁴/16 Σ_t{... + 2Σ_r(m_r·w_r)²}."""
    w = mamba_weights(4, n=1, lags=1)
    own = response(w, 0, 0)
    expected = (own**2).sum(1) @ (w["W_z"] ** 2).sum(1) + 2 * ((own * w["W_z"]).sum(1) ** 2).sum()
    energy = theory.mamba_trace(**w, sigma2=1.0) + (theory.mamba_mean(**w, sigma2=1.0) ** 2).sum()
    assert energy == pytest.approx(expected / 16, rel=1e-12)


def test_selection_changes_the_order_in_sigma():
    rng = np.random.default_rng(5)
    args = [rng.standard_normal(shape) / 2 for shape in ((3, 4), (3, 4), (4, 5), (4, 5))]
    options = {"n": 4, "step": 0.7, "decay": 0.8}
    simulation = theory.simulate("selective_mamba_mean", *args, sigma2=1.0, samples=200_000, **options)
    np.testing.assert_allclose(
        simulation.closed_form, simulation.estimate, atol=float(5 * simulation.standard_error.max())
    )
    small, large = (theory.selective_mamba_mean(*args, sigma2=s2, **options) for s2 in (0.1, 0.2))
    np.testing.assert_allclose(large, 4 * small, rtol=1e-12)
    with pytest.raises(ValueError, match="form='corrected'"):
        theory.selective_mamba_mean(*args, sigma2=1.0, form="printed", **options)


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_true_silu_is_far_from_its_linearisation(sigma):
    w = mamba_weights(6, n=3, lags=1)
    simulation = theory.simulate("mamba_trace", **w, sigma2=sigma**2, samples=40_000, activation="silu")
    assert simulation.gap < (-0.1 if sigma == 1.0 else 0.05)


def test_channels_give_what_the_dense_form_gives():
    rng = np.random.default_rng(7)
    n, e, size, d, lags = 5, 3, 2, 4, 3
    block = ChannelBlock(
        rng.uniform(0.2, 0.95, (n, e, size)),
        rng.uniform(0.1, 1.0, (n, e)),
        rng.standard_normal((n, 1, size)),
        rng.standard_normal((n, 1, size)),
        rng.standard_normal((lags, e)),
        rng.standard_normal((e, d)),
        rng.standard_normal((e, d)),
    )
    dense = {"A": block.decay.reshape(n, e * size), "B": np.zeros((n, e, size, e)), "C": np.zeros((n, e, e, size))}
    for r in range(e):
        dense["B"][:, r, :, r] = block.drive[:, r, None] * block.B[:, 0]
        dense["C"][:, r, r] = block.C[:, 0]
    dense = dense | {"B": dense["B"].reshape(n, -1, e), "C": dense["C"].reshape(n, e, -1)}
    dense |= {"W_c": block.taps, "W_h": block.W_h, "W_z": block.W_z}
    assert channel_trace(block, 0.7) == pytest.approx(theory.mamba_trace(**dense, sigma2=0.7), rel=1e-12)
    single = {**dense, "W_c": block.taps[:1]}
    printed = theory.mamba_trace(**single, sigma2=0.7, form="printed")
    assert channel_trace(block, 0.7, printed=True) == pytest.approx(printed, rel=1e-12)
    np.testing.assert_allclose(channel_mean(block, 0.7), theory.mamba_mean(**dense, sigma2=0.7), rtol=1e-12)
    np.testing.assert_allclose(channel_contractivity(block), theory.contractivity(**dense), rtol=1e-10)
    inputs = rng.standard_normal((n, e))
    state, out = np.zeros(e * size), []
    for t in range(n):
        state = dense["A"][t] * state + dense["B"][t] @ inputs[t]
        out.append(dense["C"][t] @ state)
    np.testing.assert_allclose(channel_output(block, inputs), out, rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma2": 0.0}, r"sigma2 > 0 \(Assumption 1"),
        ({"A": np.full((6, 3), 1.0)}, "contractive A .*Theorem 5.*exp"),
        ({"A": np.stack([1.2 * np.eye(3)] * 6)}, "contractive A"),
        ({"A": np.zeros((5, 3))}, r"B of shape \(n, N, e\) with n = 5, as A has it"),
        ({"C": np.zeros((6, 4, 2))}, r"C of shape \(n, e, N\) with N = 3"),
        ({"W_c": np.zeros((3, 5))}, r"W_c of shape \(K, e, e\) or \(K, e\) with e = 4"),
        ({"W_z": np.zeros((4, 3))}, r"W_z of shape \(e, d\) with d = 5, as W_h has it"),
        ({"B": np.zeros((6, 3))}, r"B of shape \(n, N, e\)"),
    ],
)
@pytest.mark.parametrize("function", [theory.mamba_trace, theory.mamba_mean])
def test_bad_input_names_what_is_broken(function, change, message):
    with pytest.raises(ValueError, match=message):
        function(**{**mamba_weights(8), "sigma2": 0.5} | change)


def test_norms_above_one_are_a_warning_while_the_state_still_decays():
    w = mamba_weights(9)
    w["A"] = np.stack([np.array([[0.5, 3.0, 0], [0, 0.5, 0], [0, 0, 0.1]])] * 6)
    with pytest.warns(theory.HypothesisWarning, match=r"‖A_t‖₂ < 1"):
        value = theory.mamba_trace(**w, sigma2=0.5)
    assert value == pytest.approx(trace_by_isserlis(w, 0.5), rel=1e-11)


def counter_example(n):
    eye = np.eye(4)
    return {
        "A": np.full((n, 4), 0.9),
        "B": np.tile(eye, (n, 1, 1)),
        "C": np.tile(eye, (n, 1, 1)),
        "W_c": np.ones((1, 4)),
        "W_h": eye,
        "W_z": eye,
    }


def test_counter_example_of_theorem_5():
    """Every hypothesis met, Q(n) > 0 for all n, and E_T < E_M from some n on."""
    small, eye = math.sqrt(0.05) * np.eye(4), np.eye(4)
    constants = theory.transformer_constants(small, small, eye)
    norms = theory.contractivity(**counter_example(3))
    assert norms == pytest.approx((0.9, 1, 1, 1, 2))
    mamba = theory.mamba_constants(*norms)
    ordering = theory.stability_ordering(
        *constants, mamba.alpha_M, mamba.beta_M, sigma2=0.5, beta_prime=mamba.beta_prime
    )
    e_t, e_m = [], []
    for n in (1, 4, 8, 16, 64):
        w = counter_example(n)
        e_t.append(theory.transformer_energy(constants, sigma2=0.5, n=n))
        e_m.append(theory.mamba_trace(**w, sigma2=0.5) + (theory.mamba_mean(**w, sigma2=0.5) ** 2).sum())
        assert ordering.q(n) > 0
        assert e_m[-1] <= n * 0.25 / 16 * mamba.beta_prime
    assert np.round(e_t, 3).tolist() == pytest.approx([2.205, 2.209, 2.214, 2.224, 2.284], abs=1e-3)
    assert e_m == pytest.approx([0.1875, 1.017, 2.489, 5.909, 27.65], rel=1e-3)
    assert ordering.guaranteed is False
    printed = theory.stability_ordering(
        0, 0.01, 4, mamba.alpha_M, mamba.beta_M, sigma2=0.5, beta_prime=mamba.beta_prime
    )
    assert printed.n_star == pytest.approx(4.42, abs=0.005)
    assert all(t > m for t, m, n in zip(e_t, e_m, (1, 4, 8, 16, 64), strict=True) if n < ordering.n_star)


def test_worked_values_of_theorem_5():
    ordering = theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=0.5)
    assert ordering.q(1) == 73.75
    assert ordering.q(10) == 11049.25
    np.testing.assert_allclose(ordering.q(np.array([1, 10])), [73.75, 11049.25])
    assert ordering.sigma2_max == pytest.approx(15.169707421783029, rel=1e-14)
    assert ordering.guaranteed is None
    assert ordering.n_star is None
    assert ordering._fields == ("q", "sigma2_max", "guaranteed", "n_star")
    at_root = theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=ordering.sigma2_max)
    assert at_root.q(1) == pytest.approx(0, abs=1e-9)


def test_guarantee_holds_up_to_its_threshold():
    s2 = theory.guaranteed_sigma2(0.5, 2, 29.0)
    below, above = (
        theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=s2 * f, beta_prime=29.0) for f in (1 - 1e-9, 1 + 1e-9)
    )
    assert below.guaranteed is True
    assert below.n_star == math.inf
    assert above.guaranteed is False
    assert above.n_star > 1e6
    one = theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=4.0, beta_prime=29.0)
    e_t = one.n_star * 0.5 + 4 * (one.n_star * 2 / 4 + 8)
    assert e_t == pytest.approx(one.n_star * 16 / 16 * 29.0, rel=1e-12)  # the bounds meet at n*


def test_printed_ordering_claims_all_n():
    ordering = theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=0.5, form="printed")
    assert ordering.guaranteed is True
    assert ordering.n_star == math.inf
    with pytest.warns(theory.HypothesisWarning, match="σ² < σ²_max"):
        assert theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=20, form="printed").guaranteed is False


def test_mean_bound_of_theorem_5_needs_1_over_n():
    """Jensen gives 1/n Σ: with n = 8 and X = diag(1, 2) the left side .3125 passes the printed .0390625."""
    x = np.diag([1.0, 2.0])
    n = 8
    left = ((n * np.diag(x) / n) ** 2).sum() / 16
    printed, jensen = n * (x**2).sum() / (16 * n**2), n * (x**2).sum() / (16 * n)
    assert left == pytest.approx(0.3125)
    assert printed == pytest.approx(0.0390625)
    assert printed < left <= jensen


@pytest.mark.parametrize("rho", [1.0, 1.5, -0.1])
def test_constants_need_contractivity(rho):
    with pytest.raises(ValueError, match=r"rho in \[0, 1\) \(uniform contractivity"):
        theory.mamba_constants(rho, 1, 1, 1, 1)


def test_constants():
    constants = theory.mamba_constants(0.5, 2, 3, 0.5, 1.5)
    scale = (2 * 3 * 0.5 * 1.5) ** 2
    assert constants == pytest.approx((scale, scale * (1 + 4 / 3), scale * (2 + 4 / 3)))
    assert constants._fields == ("alpha_M", "beta_M", "beta_prime")
    with pytest.raises(ValueError, match="c ≥ 0"):
        theory.mamba_constants(0.5, -2, 3, 0.5, 1.5)
    with pytest.raises(ValueError, match="sigma2 > 0"):
        theory.stability_ordering(0.5, 2, 8, 3, 1.5, sigma2=0)
    with pytest.raises(ValueError, match="alpha_T ≥ 0"):
        theory.stability_ordering(-0.5, 2, 8, 3, 1.5, sigma2=1)


def shared_block(rng, n=6, channels=12, heads=4, groups=2, size=3, width=5, lags=3):
    """A block as Mamba-2 has them: heads of channels with one decay, groups of heads with one B and C."""
    return ChannelBlock(
        rng.uniform(0.2, 0.95, (n, heads, 1)),
        rng.uniform(0.1, 1.0, (n, heads)),
        rng.standard_normal((n, groups, size)),
        rng.standard_normal((n, groups, size)),
        rng.standard_normal((lags, channels)),
        rng.standard_normal((channels, width)),
        rng.standard_normal((channels, width)),
    )


def test_heads_and_groups_give_what_their_channels_give_one_by_one():
    block = shared_block(np.random.default_rng(8))
    wide = block._replace(
        decay=np.broadcast_to(block.decay.repeat(3, 1), (6, 12, 3)),
        drive=block.drive.repeat(3, 1),
        B=block.B.repeat(6, 1),
        C=block.C.repeat(6, 1),
    )
    for printed in (False, True):
        alone = channel_trace(wide, 0.7, printed=printed)
        assert channel_trace(block, 0.7, printed=printed) == pytest.approx(alone, rel=1e-12)
    np.testing.assert_allclose(channel_mean(block, 0.7), channel_mean(wide, 0.7), rtol=1e-12)
    np.testing.assert_allclose(channel_contractivity(block), channel_contractivity(wide), rtol=1e-12)
    inputs = np.random.default_rng(9).standard_normal((6, 12))
    np.testing.assert_allclose(channel_output(block, inputs), channel_output(wide, inputs), rtol=1e-12, atol=1e-13)


def test_slabs_of_heads_give_what_all_at_once_give(monkeypatch):
    block = shared_block(np.random.default_rng(10))
    whole = channel_trace(block, 0.7)
    monkeypatch.setattr(channel, "ROOM", 1)
    assert channel_trace(block, 0.7) == pytest.approx(whole, rel=1e-12)


def test_the_largest_singular_value_of_a_wide_matrix_needs_no_others(monkeypatch):
    rng = np.random.default_rng(11)
    taps, weight = rng.standard_normal((2, 60)), rng.standard_normal((60, 40))
    expected = sum(np.linalg.norm(tap[:, None] * weight, 2) for tap in taps)
    assert channel.filter_norm(taps, weight) == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(channel, "DENSE", 8)
    assert channel.filter_norm(taps, weight) == pytest.approx(expected, rel=1e-10)
