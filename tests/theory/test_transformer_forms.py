"""Theorems 1 and 2: brute force over Gaussian algebra, simulation, the paper's own formula, and bad input."""

import math
import warnings

import numpy as np
import pytest
import torch

from repflow import theory
from repflow.theory.transformer import SUPPORTED
from tests.theory.theory_inputs import transformer_weights

PAIR = ("attention", "activation")


def linear_trace_by_matrices(w, sigma2, n, *, causal):
    """Trace of σ² M Mᵀ with the whole (n d, n d) matrix M of the linear block."""
    d = len(w["W_V"])
    weights = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None] if causal else np.full((n, n), 1 / n)
    attention = np.kron(weights, w["W_V"])
    inner = 0.5 * np.kron(np.eye(n), w["W2"] @ w["W1"])
    whole = attention + inner @ (np.eye(n * d) + attention)
    return sigma2 * (whole**2).sum()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_linear_forms_are_exact(causal, n):
    w = transformer_weights(1)
    kind = "causal" if causal else "uniform"
    trace = theory.transformer_trace(w["W1"], w["W2"], w["W_V"], sigma2=0.7, n=n, attention=kind)
    assert isinstance(trace, float)
    assert trace == pytest.approx(linear_trace_by_matrices(w, 0.7, n, causal=causal), rel=1e-12)


def test_printed_trace_is_equation_12():
    w = transformer_weights(2)
    t2 = 0.5 * w["W2"] @ w["W1"]
    t1 = np.eye(5) + t2
    expected = 0.3 * (np.trace(t1 @ t1.T) + 4 * np.trace(t2 @ t2.T) + 2 * np.trace(t1 @ w["W_V"] @ t2.T))
    with pytest.warns(theory.HypothesisWarning, match="W_V W_Vᵀ = I"):
        trace = theory.transformer_trace(w["W1"], w["W2"], w["W_V"], sigma2=0.3, n=4, form="printed")
    assert trace == pytest.approx(expected, rel=1e-12)
    for attention in ("causal", "softmax"):
        with pytest.warns(theory.HypothesisWarning, match="uniform attention"):
            again = theory.transformer_trace(
                w["W1"], w["W2"], w["W_V"], sigma2=0.3, n=4, attention=attention, activation="gelu", form="printed"
            )
        assert again == trace


def test_printed_trace_is_right_under_its_own_hypotheses():
    w = transformer_weights(3)
    rotation = np.linalg.qr(w["W_V"])[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        printed = theory.transformer_trace(w["W1"], w["W2"], rotation, sigma2=0.3, n=4, form="printed")
    assert printed == pytest.approx(theory.transformer_trace(w["W1"], w["W2"], rotation, sigma2=0.3, n=4), rel=1e-12)


@pytest.mark.parametrize(
    ("kwargs", "samples"),
    [
        ({"n": 5, "activation": "gelu", "sigma2": 0.8}, 60_000),
        ({"n": 5, "activation": "gelu", "sigma2": 0.05, "b1": None}, 60_000),
        ({"n": 64, "attention": "softmax", "sigma2": 0.3}, 6_000),
        ({"n": 128, "attention": "softmax", "sigma2": 0.5}, 3_000),
    ],
)
def test_corrected_trace_is_that_of_a_simulation(kwargs, samples):
    w = transformer_weights(4)
    kwargs = {"b1": w["b1"], "W_Q": w["W_Q"], "W_K": w["W_K"], **kwargs}
    simulation = theory.simulate("transformer_trace", w["W1"], w["W2"], w["W_V"], samples=samples, seed=3, **kwargs)
    assert simulation.standard_error < 0.005 * simulation.estimate
    assert abs(simulation.gap) < 0.01 + 2 * simulation.standard_error / simulation.estimate


def test_softmax_reduces_to_uniform_without_queries():
    w = transformer_weights(5)
    zero = np.zeros((3, 5))
    options = {"sigma2": 0.6, "n": 7}
    soft = theory.transformer_trace(
        w["W1"], w["W2"], w["W_V"], attention="softmax", W_Q=zero, W_K=w["W_K"][:3], **options
    )
    assert soft == pytest.approx(theory.transformer_trace(w["W1"], w["W2"], w["W_V"], **options), rel=1e-12)


@pytest.mark.parametrize("inner", [0.0, 0.6])
def test_mean_field_by_quadrature_in_one_dimension(inner):
    """Every term to O(1/n), the normaliser expanded by hand: x is the token, y another one."""
    s2, v, b, n = 0.3, 0.7, 0.9, 5
    t2, g, p = inner / 2, (1 + inner / 2) * v, inner / 2 + s2 * (1 + inner / 2) * v * b
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    x, y = math.sqrt(s2) * nodes[:, None], math.sqrt(s2) * nodes[None, :]
    both = weights[:, None] * weights / weights.sum() ** 2
    other, own = np.exp(b * x * y - s2 * (b * x) ** 2 / 2), np.exp(b * x * x - s2 * (b * x) ** 2 / 2)
    centred, seen = g * y - s2 * g * b * x, (g - s2 * g * b) * x
    expected = n * s2 * p**2 + (both * (2 * p * x * (own * seen - other**2 * centred) + (other * centred) ** 2)).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # n is small
        trace = theory.transformer_trace(
            [[1.0]], [[inner]], [[v]], sigma2=s2, n=n, attention="softmax", W_Q=[[b]], W_K=[[1.0]]
        )
    assert t2 + s2 * g * b == pytest.approx(p)
    assert trace == pytest.approx(expected, rel=1e-9)


def test_attention_keeps_a_share_of_its_own_token_for_any_n():
    """Cross terms do not vanish: E‖Attn_t‖² goes to σ⁶‖W_V Bᵀ‖², not to 0 like σ²d/n."""
    w = transformer_weights(6)
    zero = np.zeros((5, 7))
    b = w["W_Q"].T @ w["W_K"] / math.sqrt(5)
    n, s2 = 10**6, 0.4
    trace = theory.transformer_trace(
        zero.T, zero, w["W_V"], sigma2=s2, n=n, attention="softmax", W_Q=w["W_Q"], W_K=w["W_K"]
    )
    assert trace / n == pytest.approx(s2**3 * ((w["W_V"] @ b.T) ** 2).sum(), rel=1e-3)


def test_variance_of_logits_does_not_fall_with_their_width():
    """Eq. 37 and 38: Var(q·k/√d_k) is σ⁴, not σ⁴/√d_k, for entries of variance 1/d."""
    rng = np.random.default_rng(0)
    s2, variances = 0.64, []
    for d in (16, 64):
        wq, wk = (rng.standard_normal((200, d, d)) / math.sqrt(d) for _ in range(2))
        q, k = (np.einsum("bij,bkj->bki", m, math.sqrt(s2) * rng.standard_normal((200, 50, d))) for m in (wq, wk))
        variances.append(float(((q * k).sum(-1) / math.sqrt(d)).var()))
    assert variances == pytest.approx([s2**2, s2**2], rel=0.1)


def test_small_n_warns_in_mean_field_and_infinite_moments_are_refused():
    w = transformer_weights(7)
    options = {"attention": "softmax", "W_Q": 1.4 * w["W_Q"], "W_K": 1.4 * w["W_K"]}
    with pytest.warns(theory.HypothesisWarning, match="n large enough"):
        theory.transformer_trace(w["W1"], w["W2"], w["W_V"], sigma2=0.4, n=2, **options)
    with pytest.raises(ValueError, match=r"I - 2σ⁴ B Bᵀ > 0.*sigma2 must be below"):
        theory.transformer_trace(w["W1"], w["W2"], w["W_V"], sigma2=5.0, n=2, **options)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0])
def test_mean_is_that_of_a_simulation(sigma):
    w = transformer_weights(8)
    args = (w["W1"], w["W2"], w["b1"], np.linspace(-1, 1, 5))
    simulation = theory.simulate("transformer_mean", *args, sigma2=sigma**2, W_V=w["W_V"], n=4, samples=40_000)
    assert simulation.estimate.shape == (5,)
    np.testing.assert_allclose(
        simulation.closed_form, simulation.estimate, atol=float(5 * simulation.standard_error.max())
    )
    with pytest.warns(theory.HypothesisWarning):
        printed = theory.transformer_mean(*args, sigma2=sigma**2, W_V=w["W_V"], n=4, form="printed")
    np.testing.assert_allclose(printed, 0.5 * w["W2"] @ w["b1"] + np.linspace(-1, 1, 5), rtol=1e-14)


def test_printed_mean_is_off_even_at_small_sigma():
    w = transformer_weights(9)
    args = (w["W1"], w["W2"], w["b1"], np.zeros(5))
    simulation = theory.simulate(
        "transformer_mean", *args, sigma2=0.0025, W_V=w["W_V"], n=4, samples=4000, form="printed"
    )
    assert simulation.gap > 0.05


def test_constants_give_the_energy():
    w = transformer_weights(10)
    b2 = np.linspace(0, 1, 5)
    constants = theory.transformer_constants(w["W1"], w["W2"], w["W_V"], w["b1"], b2)
    mean = 0.5 * w["W2"] @ w["b1"] + b2
    expected = 6 * mean @ mean + theory.transformer_trace(w["W1"], w["W2"], w["W_V"], sigma2=0.4, n=6)
    assert theory.transformer_energy(constants, sigma2=0.4, n=6) == pytest.approx(expected, rel=1e-12)
    printed = theory.transformer_constants(w["W1"], w["W2"], w["W_V"], form="printed")
    product = w["W2"] @ w["W1"]
    assert printed.gamma_T == pytest.approx(5 + np.trace(product) + (product**2).sum() / 4, rel=1e-12)


def test_lists_and_tensors_give_the_same_float():
    w = transformer_weights(11)
    kinds = [np.asarray, lambda a: a.tolist(), torch.tensor, lambda a: torch.tensor(a, requires_grad=True)]
    traces = {theory.transformer_trace(*(k(w[n]) for n in ("W1", "W2", "W_V")), sigma2=1, n=3) for k in kinds}
    assert len(traces) == 1


@pytest.mark.parametrize("pair", [("softmax", "gelu"), ("causal", "gelu")])
def test_combinations_without_a_closed_form_name_those_with_one(pair):
    w = transformer_weights(12)
    options = dict(zip(PAIR, pair, strict=True)) | {"W_Q": w["W_Q"], "W_K": w["W_K"], "sigma2": 0.1, "n": 3}
    known = "uniform with linear, causal with linear, softmax with linear, uniform with gelu"
    with pytest.raises(ValueError, match=known):
        theory.transformer_trace(w["W1"], w["W2"], w["W_V"], **options)
    seen = theory.simulate("transformer_trace", w["W1"], w["W2"], w["W_V"], samples=200, **options)
    assert math.isnan(seen.gap)
    assert seen.estimate > 0
    assert pair not in SUPPORTED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma2": 0.0}, r"sigma2 > 0 \(Assumption 1"),
        ({"sigma2": -1.0}, r"sigma2 > 0 \(Assumption 1"),
        ({"sigma2": float("nan")}, "finite sigma2"),
        ({"n": 0}, "n as a whole number ≥ 1"),
        ({"n": 2.5}, "n as a whole number ≥ 1"),
        ({"W1": np.zeros((7, 4))}, r"W2 of shape \(d, d_ff\) with d = 4, as W1 has it"),
        ({"W_V": np.zeros((5, 4))}, r"W_V of shape \(d, d\)"),
        ({"W_V": np.zeros(5)}, r"W_V of shape \(d, d\)"),
        ({"b1": np.zeros(3)}, r"b1 of shape \(d_ff\) with d_ff = 7"),
        ({"attention": "Softmax"}, "attention to be one of"),
        ({"activation": "relu"}, "activation to be one of"),
        ({"attention": "softmax"}, "W_Q and W_K for attention='softmax'"),
        ({"form": "fixed"}, "form to be one of"),
        ({"W2": "weights"}, "W2 made of real numbers"),
        ({"W2": np.full((5, 7), np.inf)}, "finite W2"),
    ],
)
def test_bad_input_names_what_is_broken(change, message):
    w = transformer_weights(13)
    arguments = {"W1": w["W1"], "W2": w["W2"], "W_V": w["W_V"], "sigma2": 0.5, "n": 3} | change
    with pytest.raises(ValueError, match=message):
        theory.transformer_trace(**arguments)


def test_attention_is_odd_only_without_biases_and_centred_only_for_symmetric_laws():
    """Propositions 2 and 3 of paper 1."""
    from repflow.theory.simulate import attend

    w = transformer_weights(14)
    x = np.random.default_rng(0).standard_normal((3, 6, 5))
    matrices = (w["W_Q"], w["W_K"])
    out = [attend(h, h @ w["W_V"].T, "softmax", matrices) for h in (x, -x)]
    np.testing.assert_allclose(out[0], -out[1], atol=1e-14)
    biased = [attend(h, h @ w["W_V"].T + 1, "softmax", matrices) for h in (x, -x)]
    assert np.abs(biased[0] + biased[1]).max() > 1
    one = np.ones((1, 1))
    h = np.random.default_rng(1).exponential(size=(200_000, 4, 1)) - 1
    mean = attend(h, h, "softmax", (one, one))[:, 0, 0]
    assert mean.mean() == pytest.approx(0.1036, abs=0.01)
    assert mean.mean() > 20 * mean.std() / math.sqrt(len(mean))
