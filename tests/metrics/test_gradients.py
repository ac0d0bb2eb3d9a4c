"""Metrics are differentiable where the mathematics is, and padding never poisons a gradient."""

import pytest
import torch

from repflow import metrics as m
from tests.metrics.inputs import pad, sample_states

pytestmark = pytest.mark.filterwarnings("ignore:biased CKA")

SMOOTH = {
    "layer_cosine": m.layer_cosine,
    "token_norm": m.token_norm,
    "token_similarity": m.token_similarity,
    "token_similarity, norm>3": lambda h, mask: m.token_similarity(h, mask=mask, drop="norm>3"),
    "token_similarity_by_token": m.token_similarity_by_token,
    "token_similarity_excess": m.token_similarity_excess,
    "common_share": m.common_share,
    "sharpness": m.sharpness,
    "smoothness": m.smoothness,
    "stability": m.stability,
    "relative_smoothness": m.relative_smoothness,
    "relative_stability": m.relative_stability,
    "paper_smoothness": m.paper_smoothness,
    "paper_stability": m.paper_stability,
    "direction_smoothness": m.direction_smoothness,
    "direction_stability": m.direction_stability,
    "depth_stability": m.depth_stability,
    "path_energy": m.path_energy,
    "effective_rank": m.effective_rank,
    "gram_share": lambda h, mask: m.gram_share(h, mask=mask)[0],
    "channel_share": lambda h, mask: m.channel_share(h, top=1, mask=mask)[0],
    "cka_matrix": m.cka_matrix,
    "cka_matrix, biased": lambda h, mask: m.cka_matrix(h, mask=mask, unbiased=False),
}


def real_values(function, hidden, mask):
    """The metric without its NaN entries (padding), which have no derivative."""
    value = function(hidden, mask=mask)
    return torch.where(value.isnan(), 0, value)


@pytest.mark.parametrize("name", SMOOTH)
def test_gradcheck_with_padding(name):
    hidden, mask = pad(sample_states(3, (6, 4), n_states=4, width=3, sinks=False), garbage=0.7, extra=1)
    assert torch.autograd.gradcheck(
        lambda h: real_values(SMOOTH[name], h, mask), hidden.requires_grad_(), atol=1e-6, rtol=1e-4
    )


@pytest.mark.parametrize("garbage", [0.0, 1.0, float("nan")])
@pytest.mark.parametrize("name", SMOOTH)
def test_padding_gets_no_gradient_and_gives_none(name, garbage):
    """Zero padding is the common case: its norm and its spread over depth are 0, where derivatives do not exist."""
    hidden, mask = pad(sample_states(4, (6, 4), n_states=4, width=3), garbage=garbage, extra=1)
    hidden.requires_grad_()
    real_values(SMOOTH[name], hidden, mask).sum().backward()
    real = mask.bool()
    assert hidden.grad[:, real].isfinite().all()
    assert hidden.grad[:, real].any()
    assert (hidden.grad[:, ~real] == 0).all()


def test_linear_cka_and_rank_deficient_states():
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(m.linear_cka, (x, y))
    flat = torch.randn(2, 5, 4, dtype=torch.float64)
    flat[..., 2:] = 0  # singular values that are exactly 0
    flat.requires_grad_()
    m.effective_rank(flat).sum().backward()
    assert flat.grad.isfinite().all()
