"""Lemmas 1 and 2 and Theorem 6 of paper 1."""

import math

import numpy as np
import pytest
import torch

from repflow import metrics, theory


@pytest.mark.parametrize("states", [2, 3, 8])
def test_bounds_hold_on_random_paths_and_value_is_the_metric(states):
    rng = np.random.default_rng(states)
    for _ in range(50):
        hidden = rng.standard_normal((states, 4, 3)).cumsum(0)
        bounds = theory.poincare_bounds(hidden)
        assert bounds.lower <= bounds.value * (1 + 1e-12)
        assert bounds.value <= bounds.upper * (1 + 1e-12)
        expected = metrics.depth_stability(torch.tensor(hidden)).item()
        assert bounds.value == pytest.approx(expected, rel=1e-12)
        energy = metrics.path_energy(torch.tensor(hidden)).item()
        theta, size = math.pi / (2 * states), 4 * hidden[0].size
        assert bounds.upper == pytest.approx(energy / (size * states * math.sin(theta) ** 2), rel=1e-12)
        printed = theory.poincare_bounds(hidden, form="printed")
        assert printed.upper == pytest.approx(states * bounds.upper, rel=1e-12)
        assert printed.lower == 0


@pytest.mark.parametrize("states", [2, 5, 12])
def test_both_bounds_are_attained(states):
    at = np.arange(states) + 0.5
    slow, fast = (np.cos(math.pi * k * at / states)[:, None, None] for k in (1, states - 1))
    assert theory.poincare_bounds(slow).upper == pytest.approx(theory.poincare_bounds(slow).value, rel=1e-12)
    assert theory.poincare_bounds(fast).lower == pytest.approx(theory.poincare_bounds(fast).value, rel=1e-12)
    # the remark's constant is too small: the extreme path passes it
    energy = (np.diff(slow, axis=0) ** 2).sum()
    assert theory.poincare_bounds(slow).value > states**2 / math.pi**2 * energy / (states * slow[0].size)


def test_worked_tensor():
    hidden = [[[1, 0], [0, 1], [1, 1]], [[2, 0], [0, 2], [1, 3]], [[2, 2], [1, 1], [0, 4]]]
    assert theory.poincare_bounds(hidden).value == pytest.approx(0.5555555555555556, rel=1e-14)


@pytest.mark.parametrize("hidden", [np.zeros((1, 2, 3)), np.zeros((4, 3)), np.zeros((3, 0, 2))])
def test_states_must_be_states(hidden):
    with pytest.raises(ValueError, match=r"\(state, token, width\) with at least 2 states"):
        theory.poincare_bounds(hidden)


def test_path_energy_does_not_order_stability():
    """Zig-zag of steps ±√1.5 against a straight path of steps 1, L = 10."""
    steps = math.sqrt(1.5) * (-1.0) ** np.arange(10)
    zigzag, straight = (np.concatenate([[0.0], s]).cumsum()[:, None, None] for s in (steps, np.ones(10)))
    values = [theory.poincare_bounds(path).value for path in (zigzag, straight)]
    assert values == pytest.approx([0.3719, 10.0], abs=1e-4)
    ordering = theory.depth_ordering(15, 10, n_layers=10)
    assert ordering.path_ordered is True
    assert ordering.stability_guaranteed is False
    assert ordering.needed_ratio == pytest.approx(48.4, abs=0.05)
    assert theory.depth_ordering(15, 10, n_layers=10, form="printed").stability_guaranteed is True


def test_needed_ratio_suffices():
    """At the needed ratio the lower bound of one reaches the upper bound of the other."""
    for layers in (1, 2, 7):
        needed = theory.depth_ordering(1, 1, n_layers=layers).needed_ratio
        theta = math.pi / (2 * (layers + 1))
        assert needed / math.cos(theta) ** 2 == pytest.approx(1 / math.sin(theta) ** 2, rel=1e-12)
        assert theory.depth_ordering(needed, 1, n_layers=layers).stability_guaranteed is True
        assert theory.depth_ordering(0.99 * needed, 1, n_layers=layers).stability_guaranteed is False
    assert theory.depth_ordering(3, 3, n_layers=1).stability_guaranteed is True
    assert theory.depth_ordering(3, 0, n_layers=5).stability_guaranteed is True
    assert theory.depth_ordering(1, 2, n_layers=5).path_ordered is False


def test_uncorrelated_increments():
    energy = [1.0, 3.0, 0.5, 2.0]
    simulation = theory.simulate("expected_depth_stability", energy, n=3, d=2, samples=60_000, seed=4)
    assert abs(simulation.gap) < 4 * simulation.standard_error / simulation.estimate
    assert simulation.standard_error < 0.005 * simulation.estimate
    # Assumption 8 then orders St_L²: it is increasing in every increment
    more = theory.expected_depth_stability([1.1, 3.0, 0.5, 2.0], n=3, d=2)
    assert more > simulation.closed_form
    assert theory.expected_depth_stability([4.0], n=2, d=1) == pytest.approx(0.5)  # ‖Δ‖²/(4nd)


def test_lemma_2_fails_where_blocks_and_updates_are_mixed():
    h, layers = 1.0, 5
    for block, product in ((0.5 * h, 0.5**layers), (-h, 1.0)):  # F = h/2 and F = -h with Lipschitz constants ½ and 1
        assert abs(block - h) > product * abs(block)
        assert abs((h + block) - h) == abs(block)  # residual form: the increment is F itself


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.depth_ordering(-1, 1, n_layers=2), "path_energy_T ≥ 0"),
        (lambda: theory.depth_ordering(1, 1, n_layers=0), "n_layers as a whole number"),
        (lambda: theory.expected_depth_stability([-1.0], n=1, d=1), "increment_energy"),
        (lambda: theory.expected_depth_stability([1.0], n=1, d=1, form="printed"), "form='corrected'"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
