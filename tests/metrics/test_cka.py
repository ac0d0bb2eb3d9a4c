"""CKA: both forms, precision, non-finite states, and the permutation null."""

import itertools

import numpy as np
import pytest
import torch

from repflow.metrics import cka, linear_cka
from repflow.metrics.cka import (
    all_pairs,
    centre,
    hsic_factor,
    hsic_matrix,
    normalise_hsic,
    permutation_null,
)
from tests.metrics import oracles as oracle

pytestmark = pytest.mark.filterwarnings("ignore:biased CKA")


def random_states(seed, count, widths, dtype=np.float64, offset=0.0):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((count, 2))
    states = [common @ rng.standard_normal((2, d)) + rng.standard_normal((count, d)) + offset for d in widths]
    return [torch.from_numpy(x.astype(dtype)) for x in states]


@pytest.mark.parametrize("form", [cka._hsic_by_gram, cka._hsic_by_features])
@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("count", [4, 5, 13, 40])
def test_both_forms_are_song_and_gretton(form, unbiased, count, monkeypatch):
    monkeypatch.setattr(cka, "TILE", 6)  # several tiles, the last one short
    monkeypatch.setattr(cka, "FEATURE_ROWS", 7)
    states = random_states(count, count, (3, 5, 4))
    got = form([centre(x) for x in states], unbiased) * hsic_factor(count, unbiased)
    naive = oracle.hsic_unbiased if unbiased else oracle.hsic_biased
    want = [[naive(x.numpy(), y.numpy()) for y in states] for x in states]
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_the_cheaper_form_is_taken(monkeypatch):
    taken = []
    for name in ("_hsic_by_gram", "_hsic_by_features"):
        monkeypatch.setattr(cka, name, lambda centred, unbiased, name=name: taken.append(name) or torch.ones(2, 2))
    all_pairs([torch.ones(30, 40)] * 2, True)
    all_pairs([torch.ones(300, 4)] * 2, True)
    assert taken == ["_hsic_by_gram", "_hsic_by_features"]


def test_known_small_case_differs_by_estimator():
    x, y = random_states(0, 7, (5, 5))
    for unbiased in (True, False):
        want = oracle.cka(x.numpy(), y.numpy(), unbiased)
        assert float(linear_cka(x, y, unbiased=unbiased)) == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize(("count", "width"), [(700, 96), (3000, 8)])
def test_float32_is_accurate_with_a_large_common_offset(unbiased, count, width):
    """CKA(X, X) = 1 within 1e-6, and every pair as in float64 of the same numbers."""
    states = random_states(1, count, (width, width), np.float32, offset=300.0)
    assert float(linear_cka(states[0], states[0].clone(), unbiased=unbiased)) == pytest.approx(1, abs=1e-6)
    got = normalise_hsic(hsic_matrix(states, unbiased=unbiased))
    want = normalise_hsic(hsic_matrix([x.double() for x in states], unbiased=unbiased))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("count", [20, 400])
@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_state_is_nan_only_in_its_pairs(count, unbiased, bad):
    states = random_states(2, count, (6, 6, 6))
    clean = normalise_hsic(hsic_matrix(states, unbiased=unbiased))
    states[1][3, 2] = bad
    got = normalise_hsic(hsic_matrix(states, unbiased=unbiased))
    touched = torch.zeros(3, 3, dtype=torch.bool)
    touched[1] = touched[:, 1] = True
    assert torch.equal(got.isnan(), touched)
    assert torch.equal(got[~touched], clean[~touched])
    null = permutation_null(states, unbiased=unbiased)
    assert torch.equal(null.mean.isnan(), touched)
    assert torch.equal(null.sd.isnan(), touched)


def test_a_constant_state_has_no_cka():
    x = torch.randn(8, 3)
    assert linear_cka(x, torch.ones(8, 3)).isnan()
    assert linear_cka(torch.ones(8, 3), x, unbiased=False).isnan()


@pytest.mark.parametrize("unbiased", [True, False])
@pytest.mark.parametrize("count", [5, 6])
def test_permutation_null_is_that_of_all_permutations(unbiased, count):
    states = random_states(3, count, (2, 3))
    null = permutation_null(states, unbiased=unbiased)
    x, y = (s.numpy() for s in states)
    for (i, a), (j, b) in itertools.product(enumerate((x, y)), repeat=2):
        values = [oracle.cka(a, b[list(order)], unbiased) for order in itertools.permutations(range(count))]
        assert float(null.mean[i, j]) == pytest.approx(np.mean(values), abs=1e-12)
        assert float(null.sd[i, j]) == pytest.approx(np.std(values), abs=1e-10)


def test_gram_form_holds_nothing_of_the_size_of_a_gram_matrix(monkeypatch):
    seen = []
    stack = torch.stack

    def watch(tensors, *args, **kwargs):
        out = stack(tensors, *args, **kwargs)
        seen.append(out.numel())
        return out

    monkeypatch.setattr(torch, "stack", watch)
    cka._hsic_by_gram([centre(torch.randn(1500, 16)) for _ in range(3)], True)
    assert max(seen) <= 3 * cka.TILE**2
