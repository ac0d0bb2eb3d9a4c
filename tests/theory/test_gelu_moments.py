"""GELU of a Gaussian against quadrature; its covariance against two-dimensional quadrature."""

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.special import ndtr
from scipy.stats import multivariate_normal, norm

from repflow import theory
from repflow.theory.gelu import bivariate_normal, gelu_covariance


def by_quadrature(function, m, s2):
    s = np.sqrt(s2)
    return integrate.quad(lambda x: function(m + s * x) * norm.pdf(x), -12, 12, epsabs=1e-13, epsrel=1e-13, limit=400)[
        0
    ]


def test_worked_value():
    moments = theory.gelu_moments(0.3, 0.64)
    assert moments.mean == pytest.approx(0.3717601672726338, rel=1e-12)
    assert moments.gain == pytest.approx(0.6480519629541144, rel=1e-12)


@pytest.mark.parametrize(("m", "s2"), [(0.0, 1.0), (-1.3, 0.2), (2.0, 4.0), (0.4, 25.0)])
def test_moments_are_those_of_quadrature(m, s2):
    moments = theory.gelu_moments(m, s2)
    assert moments.mean == pytest.approx(by_quadrature(lambda a: a * ndtr(a), m, s2), abs=1e-10)
    assert moments.gain == pytest.approx(by_quadrature(lambda a: ndtr(a) + a * norm.pdf(a), m, s2), abs=1e-10)


def test_gain_is_half_without_bias_and_mean_is_not_zero():
    moments = theory.gelu_moments(0.0, 0.7)
    assert moments.gain == pytest.approx(0.5, rel=1e-15)
    assert moments.mean == pytest.approx(0.7 / np.sqrt(2 * np.pi * 1.7), rel=1e-12)


def test_arrays_lists_and_tensors():
    m, s2 = np.array([0.1, -0.4]), np.array([0.5, 2.0])
    whole = theory.gelu_moments(m, s2)
    single = theory.gelu_moments(-0.4, 2.0)
    assert isinstance(single.mean, float)
    assert whole.mean[1] == pytest.approx(single.mean, rel=1e-15)
    for kind in (list, torch.tensor):
        again = theory.gelu_moments(kind(m), kind(s2))
        np.testing.assert_array_equal(again.gain, whole.gain)


def test_printed_form_is_half_and_warns():
    with pytest.warns(theory.HypothesisWarning, match=r"Theorem 1 as printed.*\|b1\| ≪ 1"):
        moments = theory.gelu_moments(0.3, 0.64, form="printed")
    assert moments == (0.15, 0.5)


@pytest.mark.parametrize("variance", [0.0, -1.0, [0.5, -0.1]])
def test_variance_must_be_positive(variance):
    with pytest.raises(ValueError, match="variance > 0"):
        theory.gelu_moments(0.0, variance)


def test_shapes_must_fit():
    with pytest.raises(ValueError, match="variance like mean"):
        theory.gelu_moments([1.0, 2.0], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "point", [(0.0, 0.0), (0.0, 0.7), (0.0, -0.7), (1.2, 0.0), (-0.3, 0.8), (-1.0, -2.0), (1.0, 1.0)]
)
@pytest.mark.parametrize("r", [-0.95, 0.0, 0.4, 0.999])
def test_bivariate_normal(point, r):
    expected = multivariate_normal.cdf(point, [0, 0], [[1, r], [r, 1]], abseps=1e-12, releps=1e-12)
    probability = bivariate_normal(*(np.array(v) for v in (*point, r)))
    assert float(probability) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_covariance_is_that_of_two_dimensional_quadrature(scale):
    rng = np.random.default_rng(5)
    m = np.array([0.4, -0.8, 0.0])
    root = scale * rng.standard_normal((3, 3))
    covariance = root @ root.T
    computed = gelu_covariance(m, covariance)
    nodes, weights = np.polynomial.hermite_e.hermegauss(180)
    weights = weights / weights.sum()
    for i in range(3):
        for j in range(3):
            pair = covariance[np.ix_([i, j], [i, j])]
            if i == j:
                second = by_quadrature(lambda a: (a * ndtr(a)) ** 2, m[i], pair[0, 0])
            else:
                factor = np.linalg.cholesky(pair)
                a = m[i] + factor[0, 0] * nodes[:, None]
                b = m[j] + factor[1, 0] * nodes[:, None] + factor[1, 1] * nodes[None, :]
                second = float((weights[:, None] * weights * a * ndtr(a) * b * ndtr(b)).sum())
            means = [theory.gelu_moments(m[k], covariance[k, k]).mean for k in (i, j)]
            assert computed[i, j] == pytest.approx(second - means[0] * means[1], rel=1e-6, abs=1e-8)
    np.testing.assert_allclose(gelu_covariance(m, covariance, slice(1, 2)), computed[1:2], rtol=1e-14)
