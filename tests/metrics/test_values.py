"""Known values, and what the metrics say to wrong input."""

import inspect
import math

import numpy as np
import pytest
import torch

from repflow import metrics as m
from repflow.core.errors import InputError
from repflow.metrics.checks import as_batch
from repflow.metrics.drop import kept_tokens

H = torch.tensor([[[1, 0], [0, 1], [1, 1]], [[2, 0], [0, 2], [1, 3]], [[2, 2], [1, 1], [0, 4]]], dtype=torch.float64)
SINE = torch.sin(torch.arange(1, 61, dtype=torch.float64)).reshape(5, 4, 3)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (lambda: m.token_similarity(H), [0.4714045207910316, 0.421637021355784, 0.8047378541243648]),
        (lambda: m.smoothness(H), 0.6666666666666666),
        (lambda: m.stability(H), 0.6792743756118061),
        (lambda: m.depth_stability(H), 0.5555555555555556),
        (lambda: m.path_energy(H), 14.0),
        (lambda: m.path_energy(H, per_entry=True), 14.0 / 6),
        (lambda: m.linear_cka(H[0], H[1], unbiased=False), 0.7980238751210129),
        (lambda: m.sharpness(H), [0.5, 0.5555555555555556, 0.38461538461538464]),
        (lambda: m.smoothness(SINE), 0.09810183900913348),
        (lambda: m.smoothness(SINE, mode="paper"), 0.14715275851370022),
        (lambda: m.stability(SINE), 0.47631838819718103),
        (lambda: m.stability(SINE, include_embedding=False), 0.39465140441004465),
        (lambda: m.depth_stability(SINE), 0.2525754495290363),
        (lambda: m.path_energy(SINE), 7.531804894989037),
        (lambda: m.linear_cka(SINE[0], SINE[4], unbiased=False), 0.9999819933423928),
        (lambda: m.layer_cosine(H), [[1, 1, 4 / 20**0.5], [0.5**0.5, 0.5**0.5, 12 / (10**0.5 * 4)]]),
        (lambda: m.token_norm(H)[1], [2, 2, 10**0.5]),
        (lambda: m.common_share(H)[0], (4 / 9 + 4 / 9) / (4 / 3)),
        (lambda: m.token_similarity_by_token(H)[0], [0.125**0.5, 0.125**0.5, 0.5**0.5]),
    ],
)
@pytest.mark.filterwarnings("ignore:biased CKA")
def test_worked_values(got, want):
    np.testing.assert_allclose(got().numpy(), want, rtol=0, atol=1e-12)


def test_zero_vectors_and_single_tokens_are_nan_not_zero():
    hidden = torch.ones(3, 2, 2, dtype=torch.float64)
    hidden[1, 0] = 0
    assert m.layer_cosine(hidden)[:, 0].isnan().all()
    assert m.layer_cosine(hidden)[:, 1].isfinite().all()
    assert m.token_similarity(hidden).isnan().tolist() == [False, True, False]
    one = torch.ones(3, 1, 2)
    assert m.token_similarity(one).isnan().all()
    assert m.token_similarity_by_token(one).isnan().all()
    assert m.sharpness(one).isnan().all()
    assert m.effective_rank(one).isnan().all()
    assert m.effective_rank(torch.ones(1, 3, 2)).isnan().all()


def test_a_token_at_the_bound_itself_is_kept():
    """`norm>10` leaves out what is over ten times the median, not what is exactly as long."""
    norm, mask = torch.tensor([[[1.0, 1.0, 1.0, 10.0], [1.0, 1.0, 1.0, 10.1]]]), torch.ones(2, 4, dtype=torch.bool)
    assert kept_tokens(norm, mask, "norm>10")[0, :, 3].tolist() == [True, False]
    assert kept_tokens(norm, mask, "norm>10")[..., :3].all()


def test_resample_depth_keeps_the_ends_and_refuses_a_finer_grid():
    for points in range(1, 5):
        grid = m.resample_depth(SINE, points)
        torch.testing.assert_close(grid[[0, -1]], SINE[[0, -1]])
        at = np.linspace(0, 4, points + 1)
        want = [np.interp(at, range(5), column) for column in SINE.reshape(5, -1).T.numpy()]
        np.testing.assert_allclose(grid.reshape(points + 1, -1).T.numpy(), want, atol=1e-14)
    torch.testing.assert_close(m.resample_depth(SINE, 4), SINE)
    with pytest.raises(InputError, match="expected 1 to 4 grid steps for 4 blocks; got 5"):
        m.resample_depth(SINE, 5)
    with pytest.raises(InputError, match="got 0"):
        m.resample_depth(SINE, 0)


X = torch.randn(3, 2, 6, 4)
ON_STATES = [
    m.layer_cosine,
    m.token_norm,
    m.token_similarity,
    m.token_similarity_by_token,
    m.token_similarity_excess,
    m.common_share,
    m.sharpness,
    m.smoothness,
    m.stability,
    m.relative_smoothness,
    m.relative_stability,
    m.paper_smoothness,
    m.paper_stability,
    m.direction_smoothness,
    m.direction_stability,
    m.depth_stability,
    m.path_energy,
    m.effective_rank,
    m.gram_share,
    m.channel_share,
    m.cka_matrix,
]


@pytest.mark.parametrize("function", ON_STATES)
def test_every_metric_checks_states_and_mask(function):
    with pytest.raises(InputError, match=r"or \(state, batch, token, width\); got shape \(2, 2\)"):
        function(torch.ones(2, 2))
    with pytest.raises(InputError, match=r"floating-point hidden states; got torch.int64"):
        function(torch.ones(3, 2, 6, 4, dtype=torch.long))
    with pytest.raises(InputError, match=r"mask of shape \(batch, token\) = \(2, 6\); got shape \(2, 5\)"):
        function(X, mask=torch.ones(2, 5))
    left = torch.ones(2, 6)
    left[1, 0] = 0
    with pytest.raises(InputError, match=r"right-padded batches.*pad on the right"):
        function(X, mask=left)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: m.smoothness(X, mode="paper"), "at least 3 blocks for mode='paper'.*got 2.*mode='mean'"),
        (lambda: inspect.unwrap(m.smoothness)(X, mode="print"), "mode 'mean' or 'paper'; got 'print'"),
        # unwrapped: under pytest the type checker would answer before the message that users see
        (lambda: inspect.unwrap(as_batch)(np.ones((3, 2, 4))), "torch.Tensor .*got ndarray; use torch.as_tensor"),
        (lambda: m.smoothness(X[:2]), "at least 3 states; got 2"),
        (lambda: m.stability(X[:1]), "at least 2 states; got 1"),
        (lambda: m.stability(X[:2], include_embedding=False), "at least 3 states; got 2"),
        (lambda: m.layer_cosine(X[:1]), "at least 2 states"),
        (lambda: m.token_similarity_excess(X[:, :1]), "at least 2 samples.*got 1"),
        (lambda: m.token_similarity_excess(X[:, 0]), "at least 2 samples.*got 1"),
        (lambda: m.cka_matrix(X[:, :, :3]), "at least 4 tokens for unbiased CKA; got 3.*unbiased=False"),
        (lambda: m.cka_matrix(X[:, :, :1], unbiased=False), "at least 2 tokens for CKA; got 1"),
        (lambda: m.linear_cka(X[0, 0], X[0, 0, :5]), "one row per shared token; got 6 and 5 rows"),
        (lambda: m.linear_cka(X[0], X[0]), r"x as a floating-point matrix \(token, width\)"),
        (lambda: m.token_similarity(X, drop="last"), "drop = none, first, bos or norm>k with k >= 1; got 'last'"),
        (lambda: m.token_similarity(X, drop="norm>0.5"), "norm>k with k >= 1; got 'norm>0.5'"),
        (lambda: m.stability(X, drop="norm>"), "got 'norm>'"),
        (lambda: m.sharpness(X, drop="bos"), "bos=, a .batch, token. mask.*drop='first'"),
        (
            lambda: m.token_similarity(X, center=torch.zeros(4)),
            r"center of shape \(state, width\) = \(3, 4\); got \(4,\)",
        ),
        (lambda: m.direction_stability(X[:2], include_embedding=False), "at least 3 states; got 2"),
    ],
)
def test_wrong_requests_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_biased_cka_warns_when_rows_are_few():
    x = torch.randn(16, 4)
    with pytest.warns(UserWarning, match="n = 15 tokens and width d = 4"):
        m.linear_cka(x[:15], x[:15], unbiased=False)
    assert math.isclose(float(m.linear_cka(x, x, unbiased=False)), 1, abs_tol=1e-6)


def test_biased_cka_of_unrelated_states_is_high_where_unbiased_is_not():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 200, 250, generator=generator).unbind()
    with pytest.warns(UserWarning, match="biased"):
        assert abs(float(m.linear_cka(x, y, unbiased=False)) - 250 / 450) < 0.02
    assert abs(float(m.linear_cka(x, y))) < 0.03
