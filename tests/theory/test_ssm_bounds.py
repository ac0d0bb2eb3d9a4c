"""Paper 2's bounds: worked values, counter-examples, random systems, autograd, quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from repflow import theory
from repflow.theory.check import Session
from repflow.theory.statements.delta_rule import delta_checks, entry_lengths, spread_broken
from repflow.theory.statements.state_space import influence_ratio, lemma_broken


def test_worked_influence():
    influence = theory.lti_influence([0.9, 0.5, 0.2], [1, -2, 0.5], [0.3, 1, 2], range(6))
    np.testing.assert_allclose(influence, [0.7, 0.53, 0.217, 0.0233, 0.07343, 0.114967], rtol=1e-9)


def test_influence_is_the_gradient_of_the_recurrence():
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in ([0.9, -0.5], [1.0, 2.0], [0.3, 1.0]))
    x = torch.zeros(7, dtype=torch.float64, requires_grad=True)
    h = torch.zeros(2, dtype=torch.float64)
    for token in x:
        h = a * h + b * token
    row = torch.autograd.grad((c * h).sum(), x)[0].abs().flip(0)
    np.testing.assert_allclose(theory.lti_influence(a, b, c, np.arange(7)), row.numpy(), rtol=1e-12)


def test_influence_of_several_states_is_not_monotone():
    influence = theory.lti_influence([0.9, 0.8], [1, 1], [1, -1.2], range(8))
    np.testing.assert_allclose(influence, [0.2, 0.06, 0.042, 0.115, 0.165, 0.197, 0.217, 0.227], atol=6e-4)
    for a, c in ((0.9, 1.0), (0.8, -1.2)):
        assert (np.diff(theory.lti_influence([a], [1], [c], range(8))) < 0).all()


def test_stacked_layers_peak_away_from_the_last_token():
    """L layers of the same decay: the peak lies near lag (L-1) a/(1-a)."""
    kernel, whole, a = 0.9 ** np.arange(300), np.array([1.0]), 0.9
    peaks = {}
    for depth in range(1, 9):
        whole = np.convolve(whole, kernel)[:300]
        peaks[depth] = int(whole.argmax())
    assert peaks[1] == 0
    assert all(abs(peaks[depth] - (depth - 1) * a / (1 - a)) <= 1.01 for depth in (2, 4, 8))


def test_no_decay_at_one_warns():
    with pytest.warns(theory.HypothesisWarning, match=r"\|a_n\| < 1"):
        np.testing.assert_allclose(theory.lti_influence([1.0], [1.0], [2.0], [0, 50, 5000]), 2.0)


@pytest.mark.parametrize("a_max", [1.0, 1.2, 0.0, -0.5])
def test_bound_needs_a_contractive_state(a_max):
    with pytest.raises(ValueError, match=r"A_max in \(0, 1\) \(assumption \(iii\)"):
        theory.influence_bound(a_max, 1.0, [0, 1])


def test_bound_is_exponential():
    np.testing.assert_allclose(theory.influence_bound(0.8, 3.0, [0, 1, 5]), 3 * 0.8 ** np.array([0, 1, 5]), rtol=1e-14)
    with pytest.raises(ValueError, match="lags"):
        theory.influence_bound(0.8, 3.0, [-1])


def test_explicit_constant_bounds_autograd_influence():
    broken, largest = influence_ratio(0)
    assert broken == 0
    assert 0.001 < largest < 1


def test_worked_cutoff_and_it_bounds_random_systems():
    assert theory.low_pass_cutoff([-1, -3], [1, 2], [0.5, -1], 0.01) == pytest.approx(253, rel=1e-12)
    assert theory.low_pass_cutoff([-1, -3], [1, 2], [0.5, -1], 0.01, form="printed") == pytest.approx(253, rel=1e-12)
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = rng.integers(1, 5)
        a = -rng.exponential(size=n) - 1e-3 + 5j * rng.standard_normal(n)
        b, c = (rng.standard_normal(n) + 1j * rng.standard_normal(n) for _ in range(2))
        omega = theory.low_pass_cutoff(a, b, c, 0.1)
        assert np.abs(theory.frequency_response(a, b, c, omega * np.linspace(1, 5, 20))).max() <= 0.1 * (1 + 1e-12)


def test_response_is_the_fourier_transform():
    a, b, c = np.array([-1.0, -0.5 + 2j]), np.array([1.0, -0.3]), np.array([0.7, 1j])
    for omega in (0.0, 1.3):

        def kernel(t, part, omega=omega):
            return getattr((c * b * np.exp(a * t)).sum() * np.exp(-1j * omega * t), part)

        real, imaginary = (integrate.quad(kernel, 0, 80, (part,), limit=400)[0] for part in ("real", "imag"))
        expected = real + 1j * imaginary
        assert complex(theory.frequency_response(a, b, c, omega)) == pytest.approx(expected, abs=1e-8)


def test_a_system_of_definition_d3_need_not_be_low_pass():
    band = np.abs(theory.frequency_response([-1, -2], [1, 1], [1, -2], [0.0, math.sqrt(2), 100.0]))
    assert band[0] == pytest.approx(0, abs=1e-15)
    assert band[1] == pytest.approx(1 / 3, rel=1e-12)
    peak = np.abs(theory.frequency_response([-0.05 + 5j], [1], [1], [0.0, 5.0]))
    assert peak == pytest.approx([0.2, 20.0], rel=1e-3)


@pytest.mark.parametrize("function", [theory.low_pass_cutoff, theory.frequency_response])
def test_unstable_systems_are_refused(function):
    with pytest.raises(ValueError, match="A with negative real parts"):
        function([0.0, -1.0], [1, 1], [1, 1], 0.1)
    with pytest.raises(ValueError, match=r"b of shape \(N\) with N = 2"):
        function([-2.0, -1.0], [1], [1, 1], 0.1)


def test_eps_must_be_positive():
    with pytest.raises(ValueError, match="eps > 0"):
        theory.low_pass_cutoff([-1.0], [1], [1], 0)
    with pytest.warns(theory.HypothesisWarning, match="0 < eps < 1"):
        theory.low_pass_cutoff([-1.0], [1], [1], 2)


def test_theorem_d5_i_is_false_as_printed():
    args = ([[0.5], [0.5]], [0.5, 0.5], [[1.0], [1.0]])
    printed, fixed = theory.memory_contraction(*args, form="printed"), theory.memory_contraction(*args)
    assert (printed.lhs, printed.rhs) == (0.25, 0.0)
    assert (fixed.lhs, fixed.rhs) == (0.25, 0.5)
    assert printed.hypotheses.failed == ("(ii) m_n ≤ 0 ≤ M_n",)
    assert fixed.hypotheses.all_hold


def test_random_systems_keep_the_corrected_bound():
    rng = np.random.default_rng(1)
    broken = 0
    for _ in range(2000):
        t, n = rng.integers(2, 8), rng.integers(1, 4)
        decay, b = rng.uniform(0, 1, (t, n)), rng.standard_normal((t, n)) + rng.normal()
        step = (1 - decay.max(1)) * rng.uniform(0, 1, t)
        contraction = theory.memory_contraction(decay, step, b)
        assert contraction.lhs <= contraction.rhs + 1e-12
        assert contraction.hypotheses.all_hold
        states = [np.zeros(n)]
        for i in range(t):
            states.append(decay[i] * states[-1] + step[i] * b[i])
        pairs = [np.abs(p - q).max() for p in states[1:] for q in states[1:]]
        assert contraction.lhs == pytest.approx(max(pairs), rel=1e-12)
        equal = theory.memory_contraction(decay[:, :1], 1 - decay[:, 0], b[:, :1], form="printed")
        broken += equal.lhs > equal.rhs + 1e-12
    assert broken > 20


def test_without_the_hypothesis_the_bound_fails_and_the_state_is_named():
    b = np.ones((20, 1))
    b[1] = -1
    contraction = theory.memory_contraction(np.full((20, 1), 0.9), np.ones(20), b)
    assert contraction.lhs == pytest.approx(8.584, abs=5e-4)
    assert contraction.rhs == pytest.approx(1.730, abs=5e-4)
    assert contraction.hypotheses.failed == ("A + Δ ≤ 1",)
    assert "1 of 1 states: state 0" in str(contraction.hypotheses)


@pytest.mark.parametrize(("rate", "largest"), [(2, 0.796812), (3, 0.940480), (4, 0.980173), (16, 0.99999989)])
def test_mamba_meets_the_hypothesis_up_to_a_step(rate, largest):
    for step, holds in ((largest - 2e-6 if rate < 16 else 0.9999998, True), (largest + 2e-6, False)):
        contraction = theory.memory_contraction(
            np.full((3, 1), math.exp(-rate * step)), np.full(3, step), [[1.0], [-1], [0]]
        )
        assert contraction.hypotheses.all_hold is holds
    first = theory.memory_contraction(np.full((3, 1), math.exp(-1e-3)), np.full(3, 1e-3), [[1.0], [-1], [0]])
    assert first.hypotheses.failed == ("A + Δ ≤ 1",)  # the first state of the standard init never meets it


def test_lemma_d6_needs_the_first_state_to_be_the_first_input():
    rng = np.random.default_rng(2)
    decay = rng.uniform(0.1, 0.9, 5)
    z = rng.standard_normal(5)
    step = 1 - decay
    assert lemma_broken(decay, step, z)
    assert not lemma_broken(decay, np.concatenate([[1.0], step[1:]]), z)


def test_hypotheses_function_gives_the_same_list():
    args = ([[0.5], [0.5]], [0.9, 0.5], [[1.0], [1.0]])
    assert theory.hypotheses("memory_contraction", *args) == theory.memory_contraction(*args).hypotheses
    per_state = theory.memory_contraction(np.full((2, 3), 0.5), np.full((2, 3), [0.1, 0.6, 0.7]), np.zeros((2, 3)))
    assert "2 of 3 states: state 1, 2" in str(per_state.hypotheses)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.memory_contraction([[1.1]], [0.1], [[1.0]]), r"A in \[0, 1\].*contractive"),
        (lambda: theory.memory_contraction([[0.5, 0.5]], [0.1], [[1.0]]), r"b of shape \(T, N\) with N = 2"),
        (lambda: theory.memory_contraction([[0.5]], [0.1, 0.2], [[1.0]]), "delta of shape"),
        (lambda: theory.smoothing_rate(1.5, 4, 2), r"A_min in \[0, 1\]"),
        (lambda: theory.smoothing_rate(0.5, 0, 2), "T as a whole number"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_smoothing_rate():
    assert theory.smoothing_rate(0.9, 5, 3) == pytest.approx((1 - 0.9**4) ** 3, rel=1e-14)
    assert theory.smoothing_rate(0.9, 5, 3, form="printed") == pytest.approx((1 - 0.9**5) ** 3, rel=1e-14)


def test_norm_of_a_delta_step():
    """Against singular values; equal where the step has one decay."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        k, decay, beta = rng.standard_normal(3), rng.uniform(0.1, 1, 3), rng.uniform(0, 2)
        step = (np.eye(3) - beta * np.outer(k, k)) * decay
        length = np.linalg.norm(k)
        assert np.linalg.norm(step, 2) <= theory.operator_norm(decay.max(), beta, length) * (1 + 1e-12)
        even = np.eye(3) - beta * np.outer(k, k)
        np.testing.assert_allclose(np.linalg.norm(0.7 * even, 2), theory.operator_norm(0.7, beta, length), rtol=1e-12)
    np.testing.assert_allclose(entry_lengths(np.ones((3, 2)), np.ones(3), np.eye(2)[[0, 1, 0]]), [1, 1, 0], atol=1e-12)


def test_what_the_delta_rule_keeps_of_the_theorems():
    recency, smoothing = delta_checks(Session(seed=1, samples=5000))
    assert recency.printed > 0
    assert recency.corrected == smoothing.corrected == 0
    assert smoothing.printed == 1
    assert spread_broken(erasing=True)
    assert not spread_broken(erasing=False)
