"""More than one dimension: scipy on the P-form, Figure 6, and the counter-examples to appendix C's conjecture."""

import numpy as np
import pytest

from repflow.dynamics import classify_nd, simulate, simulate_nd, symmetric_eigenvalues
from repflow.dynamics.system import VectorSystem
from tests.dynamics.dynamics_cases import FIG3, MIXED, NEGATIVE, POSITIVE, direct_scores_nd, solve_nd

SPIRAL = {
    "io_matrix": [[-1, -6], [6, -1]], "s_delta": [[-0.3, -1.2], [-1, 1.3]], "a": 1, "x0": [[0.9, 1.5], [1, 0.1]],
}  # fmt: skip
SADDLE = {"io_matrix": [[1, 0], [0, -1]], "s_delta": np.zeros((2, 2)), "a": 1, "x0": [[0.1, 1], [0.15, 1.5]]}


def test_one_dimension_is_simulate():
    case = {key: value for key, value in FIG3.items() if key != "mu"} | {"x0": np.array(FIG3["x0"])[:, None]}
    path = simulate_nd(**case, io_matrix=FIG3["mu"], t=[1.0, 1e6])
    assert path.tokens[:, :, 0] == pytest.approx(simulate(**FIG3, t=[1.0, 1e6]).tokens, rel=1e-11)


@pytest.mark.parametrize("case", [NEGATIVE, MIXED, POSITIVE], ids=["negative", "mixed", "positive"])
def test_figure_6_matches_scipy(case):
    times = [0.03, 0.1]
    path = simulate_nd(**case, t=times)
    assert path.tokens == pytest.approx(solve_nd(**case, t=times), rel=1e-7)
    assert path.attention.shape == (2, 2, 4, 4)
    assert path.attention[1] == pytest.approx(
        direct_scores_nd(path.tokens[1], case["io_matrix"], case["s_delta"], case["a"]), rel=1e-11
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_systems_with_a_decay_per_channel(seed):
    rng = np.random.default_rng(seed)
    case = {
        "io_matrix": rng.normal(size=(3, 3)), "s_delta": rng.normal(size=(3, 3)), "a": rng.uniform(0.2, 2, size=3),
        "x0": rng.normal(size=(5, 3)),
    }  # fmt: skip
    ended = [event.time for event in simulate_nd(**case, t=[0.5]).events]
    times = np.array([0.3, 0.8]) * min([0.5, *ended])
    expected = solve_nd(**case, t=times)
    size = np.linalg.norm(expected, axis=2, keepdims=True)
    assert np.abs((simulate_nd(**case, t=times).tokens - expected) / size).max() < 1e-7


def test_negative_eigenvalues_of_figure_6():
    path = simulate_nd(**NEGATIVE, t=[1e6, 1e12])
    assert np.sqrt(1e6) * np.exp(path.log_norms[0]) == pytest.approx([1.1428, 1.0277, 0.6846, 0.6584], abs=5e-5)
    assert path.events == []
    assert symmetric_eigenvalues(np.array(NEGATIVE["io_matrix"]))[0] == pytest.approx([-0.967445, -0.552276], abs=5e-7)


def test_positive_eigenvalues_of_figure_6():
    path = simulate_nd(**POSITIVE, t=[0.1, 1.0])
    assert path.stopped.kind == "blow-up"
    assert path.stopped.token == 2
    assert path.stopped.time == pytest.approx(0.112517, abs=5e-7)
    assert np.isnan(path.tokens[1]).all()


def test_mixed_eigenvalues_of_figure_6():
    """Token 4 is 1e3 long at t = .10664 and grows on exponentially: no blow-up, but beyond what float64 resolves."""
    path = simulate_nd(**MIXED, t=[0.1, 0.1067, 1.0])
    large, end = path.events
    assert (large.kind, large.token, round(large.time, 5)) == ("large", 3, 0.10664)
    assert (end.kind, end.token) == ("unresolved", 3)
    expected = solve_nd(**MIXED, t=[0.1, 0.1067], method="Radau", rtol=1e-8)
    assert path.tokens[:2] == pytest.approx(expected, rel=1e-6)
    assert np.isnan(path.tokens[2]).all()


def test_first_token_of_the_mixed_case_settles():
    """Autonomous, it goes to a finite equilibrium with xᵀ M x = 0: "all tokens diverge" is false."""
    path = simulate_nd(**MIXED | {"x0": MIXED["x0"][:1]}, t=[1e3, 1e12])
    assert path.tokens[1, 0] == pytest.approx([19.82543528, 1.97533712], abs=2e-8)
    x = path.tokens[1, 0]
    assert abs(x @ np.array(MIXED["io_matrix"]) @ x) < 1e-6
    assert path.events == []


def test_a_positive_eigenvalue_does_not_make_tokens_diverge():
    path = simulate_nd(**SADDLE, t=[1e12])
    assert np.sqrt(1e12) * np.exp(path.log_norms[0, 0]) == pytest.approx(0.85786, abs=5e-6)
    verdict = classify_nd(SADDLE["io_matrix"], SADDLE["x0"], s_delta=SADDLE["s_delta"], a=1)
    assert (verdict.verdict, verdict.heuristic) == ("divergence", True)
    assert verdict.outcomes == ("to zero", "to zero")
    assert verdict.evidence["conjecture_holds"] is False
    assert verdict.signs.tolist() == [-1, -1]


def test_negative_eigenvalues_do_not_make_tokens_converge():
    path = simulate_nd(**SPIRAL, t=[1, 10, 100, 1e3, 1e4])
    assert np.exp(path.log_norms[:, 1]) == pytest.approx([10.163, 216.60, 3814.1, 53241, 683402], rel=5e-5)
    assert np.exp(path.log_norms[-1, 0]) < 0.01
    verdict = classify_nd(SPIRAL["io_matrix"], SPIRAL["x0"], s_delta=SPIRAL["s_delta"], a=1, until=1e3)
    assert verdict.verdict == "convergence"
    assert verdict.eigenvalues == pytest.approx([-1, -1])
    assert verdict.outcomes == ("to zero", "grows")
    assert verdict.evidence["conjecture_holds"] is False


@pytest.mark.parametrize("seed", range(8))
def test_single_tokens_near_the_negative_direction_converge(seed):
    """M = diag(1, -1), random S_Δ, started near e2: a positive eigenvalue, and to zero."""
    rng = np.random.default_rng(seed)
    start = [[0.05 * rng.normal(), 1 + 0.1 * rng.normal()]]
    path = simulate_nd(start, io_matrix=np.diag([1.0, -1.0]), s_delta=0.5 * rng.normal(size=(2, 2)), a=1, t=[1e6])
    assert path.events == []
    assert np.exp(path.log_norms[0, 0]) < 0.01


def test_zeros_of_rank_deficiency_do_not_count():
    rng = np.random.default_rng(0)
    lower = rng.normal(size=(6, 2))
    verdict = classify_nd(-lower @ lower.T, rng.normal(size=(3, 6)))
    assert (verdict.verdict, verdict.zeros) == ("convergence", 4)
    assert verdict.outcomes == ()
    assert (verdict.forms < 0).all()


def test_without_the_rest_it_only_guesses():
    verdict = classify_nd([[0, 1], [-1, 0]], [[1.0, 2.0]])
    assert (verdict.verdict, verdict.zeros) == ("undecided", 2)
    assert "heuristic" in verdict.evidence["caution"]
    with pytest.raises(ValueError, match="together"):
        classify_nd([[0, 1], [-1, 0]], [[1.0, 2.0]], a=1.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x0": [[1.0, 0.0], [0.0, 0.0]]}, "zero at token 1"),
        ({"x0": [1.0, 2.0]}, "(token, dim)"),
        ({"x0": [[1.0, 2.0, 3.0]]}, "(token, 2)"),
        ({"io_matrix": [[1.0, 2.0]]}, "square"),
        ({"s_delta": np.eye(3)}, "(2, 2)"),
        ({"a": [1.0, 2.0, 3.0]}, "(2,)"),
        ({"a": [1.0, -1.0]}, "a > 0"),
        ({"t": [1.0, 0.5]}, "increasing"),
    ],
)
def test_broken_assumptions_are_named(change, words):
    with pytest.raises(ValueError) as error:
        simulate_nd(**{"x0": [[1.0, 2.0]], "io_matrix": np.eye(2), "s_delta": np.eye(2), "a": 1.0, "t": [1.0]} | change)
    assert words in str(error.value)


def test_the_budget_counts_what_implicit_steps_cost(monkeypatch):
    """scipy does not count the evaluations of a Jacobian, of which a step of 100 tokens needs hundreds."""
    spent = 0
    plain = VectorSystem.pulls

    def counted(*args):
        nonlocal spent
        spent += 1
        return plain(*args)

    monkeypatch.setattr(VectorSystem, "pulls", counted)
    rng = np.random.default_rng(7)
    start, matrix, weights = rng.normal(size=(40, 4)), rng.normal(size=(4, 4)), 3 * rng.normal(size=(4, 4))
    path = simulate_nd(start, io_matrix=matrix, s_delta=weights, a=0.5, t=[1e6], budget=8000)
    assert path.stopped.kind == "budget"
    assert spent < 1.2 * 8000
