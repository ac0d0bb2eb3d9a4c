"""The Monte-Carlo twins themselves: seeds, chunks, errors, and what they refuse."""

import inspect
import subprocess
import sys
import warnings

import numpy as np
import pytest

from repflow import theory
from repflow.theory.sampling import sample_moments
from tests.theory.theory_inputs import mamba_weights, transformer_weights


def test_moments_are_unbiased_and_errors_are_right():
    """Over many seeds the estimates scatter as their standard errors say."""

    def draw(rng, k):
        return 5 + rng.standard_normal((k, 3)) * np.array([1.0, 2.0, 3.0])

    moments = [sample_moments(draw, samples=500, seed=seed, chunk=8) for seed in range(200)]
    traces = np.array([f.trace for f in moments])
    assert traces.mean() == pytest.approx(14, abs=4 * traces.std() / np.sqrt(200))
    assert np.mean([f.trace_error for f in moments]) == pytest.approx(traces.std(), rel=0.2)
    means = np.array([f.mean for f in moments])
    np.testing.assert_allclose(np.mean([f.mean_error for f in moments], axis=0), means.std(0), rtol=0.2)


def test_same_seed_same_number_and_chunks_bound_the_draws():
    w = transformer_weights(1)
    sizes = []
    call = {"sigma2": 0.5, "n": 3, "samples": 1000, "chunk": 300}
    args = (w["W1"], w["W2"], w["W_V"])
    first = theory.simulate(
        "transformer_trace", *args, progress=lambda done, total: sizes.append((done, total)), **call
    )
    assert sizes == [(300, 1000), (600, 1000), (900, 1000), (1000, 1000)]
    assert theory.simulate("transformer_trace", *args, **call) == first
    assert theory.simulate("transformer_trace", *args, seed=1, **call).estimate != first.estimate
    assert first.samples == 1000
    assert first.gap == pytest.approx((first.closed_form - first.estimate) / first.estimate)


def test_fields():
    assert theory.Simulation._fields[:3] == ("estimate", "standard_error", "gap")


def test_gelu_twin():
    simulation = theory.simulate("gelu_moments", 0.3, 0.64, samples=50_000)
    assert abs(simulation.closed_form - simulation.estimate) < 5 * simulation.standard_error


def test_gap_of_the_printed_form():
    w = mamba_weights(1)
    simulation = theory.simulate("mamba_mean", **w, sigma2=1.0, samples=2000, form="printed")
    assert simulation.closed_form.shape == (4,)
    assert simulation.estimate.shape == (6, 4)
    assert simulation.gap > 0.5


def test_unknown_names_and_bad_requests():
    with pytest.raises(ValueError, match="no Monte-Carlo twin of 'mamba_tarce'; did you mean mamba_trace"):
        theory.simulate("mamba_tarce")
    with pytest.raises(ValueError, match="no closed form 'transformer'"):
        theory.hypotheses("transformer")
    with pytest.raises(ValueError, match="at least 2 samples"):
        theory.simulate("gelu_moments", 0.0, 1.0, samples=1)
    with pytest.raises(ValueError, match="sigma2 > 0"):
        theory.simulate("mamba_trace", **mamba_weights(1), sigma2=0.0)


def test_every_closed_form_takes_both_forms_and_refuses_others():
    for name in theory.CLOSED_FORMS:
        parameter = inspect.signature(getattr(theory, name)).parameters["form"]
        assert parameter.default == "corrected"
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


def test_hypotheses_are_collected_without_a_warning():
    w = transformer_weights(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hypotheses = theory.hypotheses(
            "transformer_trace", w["W1"], w["W2"], w["W_V"], sigma2=0.5, n=3, attention="causal", form="printed"
        )
    assert hypotheses.failed == ("uniform attention over all n tokens", "W_V W_Vᵀ = I")
    assert str(hypotheses).startswith("hypotheses not met: uniform attention")


def test_warnings_point_at_the_line_of_the_user(tmp_path):
    """In a process of its own: the type checker of the tests puts frames between."""
    script = tmp_path / "mine.py"
    script.write_text("from repflow import theory\n\ntheory.gelu_moments(0.5, 1.0, form='printed')\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert "mine.py:3: HypothesisWarning: Theorem 1 as printed" in done.stderr


@pytest.mark.parametrize(("value", "words"), [(None, "got None"), ("1", "real numbers"), ([["1"]], "real numbers")])
def test_text_and_nothing_are_no_numbers(value, words):
    with pytest.raises(ValueError, match=words):
        theory.gelu_moments(0.0, value)
    with pytest.raises(ValueError, match=words):
        theory.transformer_trace([[1.0]], [[1.0]], [[1.0]], sigma2=value, n=2)


def test_no_twin_names_the_known_once():
    with pytest.raises(ValueError) as error:
        theory.simulate("poincare_bounds", [[[1.0]], [[2.0]]])
    assert str(error.value).count("mamba_trace") == 1
