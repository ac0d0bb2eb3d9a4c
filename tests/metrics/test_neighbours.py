"""Mutual nearest neighbours against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from repflow.core.errors import InputError
from repflow.metrics import mutual_neighbours, neighbour_chance, neighbours


def naive(states_a, states_b, k):
    def sets(rows):
        near = NearestNeighbors(n_neighbors=k, metric="cosine", algorithm="brute").fit(rows.numpy())
        return [set(row) for row in near.kneighbors(return_distance=False)]

    near_a, near_b = [sets(x) for x in states_a], [sets(x) for x in states_b]
    return [[np.mean([len(p & q) / k for p, q in zip(a, b, strict=True)]) for b in near_b] for a in near_a]


def states(seed, count, widths):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((count, 3))
    return [
        torch.from_numpy(common @ rng.standard_normal((3, d)) + 0.3 * rng.standard_normal((count, d))) for d in widths
    ]


@pytest.mark.parametrize("chunk", [10**6, 300, 1])
@pytest.mark.parametrize(("count", "k"), [(40, 10), (12, 1), (11, 10)])
def test_equals_sklearn(count, k, chunk, monkeypatch):
    monkeypatch.setattr(neighbours, "CHUNK_ENTRIES", chunk)
    a, b = states(count, count, (4, 7, 5)), states(count, count, (6, 3))
    got = mutual_neighbours(a, b, k=k)
    assert got.shape == (3, 2)
    np.testing.assert_allclose(got, naive(a, b, k), atol=1e-12)
    assert torch.equal(mutual_neighbours(b, a, k=k), got.T)


def test_a_state_with_itself_is_one_and_unrelated_states_are_at_chance():
    generator = torch.Generator().manual_seed(0)
    xs, ys = torch.randn(2, 12, 200, 20, generator=generator).unbind()
    x = xs[0]
    assert float(mutual_neighbours([x], [x])) == 1
    every = mutual_neighbours(list(xs), list(ys))
    error = 4 * float(every.std()) / 12  # rows and columns share states: 12 independent values at worst, 144 at best
    assert float(every.mean()) == pytest.approx(neighbour_chance(10, 200), abs=error)
    assert error < 0.005
    assert float(mutual_neighbours([x.bfloat16()], [x])) > 0.8


def test_states_without_directions_are_nan():
    a = states(1, 12, (4, 4, 4))
    a[1][3] = 0
    a[2][5, 1] = float("nan")
    whole = states(2, 12, (5,))
    assert mutual_neighbours(a, whole, k=3)[:, 0].isnan().tolist() == [False, True, True]
    assert mutual_neighbours(whole, a, k=3)[0].isnan().tolist() == [False, True, True]


def test_wrong_requests_say_what_to_do():
    x = torch.randn(8, 3)
    with pytest.raises(InputError, match="1 <= k < 8 neighbours for 8 tokens; got k = 8"):
        mutual_neighbours([x], [x], k=8)
    with pytest.raises(InputError, match=r"one row per shared token; got \[7, 8\] rows"):
        mutual_neighbours([x], [x[:7]], k=2)
    with pytest.raises(InputError, match="at least one state on each side; got 1 and 0"):
        mutual_neighbours([x], [], k=2)
    with pytest.raises(InputError, match="states_b as a floating-point matrix"):
        mutual_neighbours([x], [x.long()], k=2)
