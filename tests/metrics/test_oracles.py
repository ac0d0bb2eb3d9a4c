"""Every pure function against an independent double loop, on ragged batches with garbage in the padding."""

import numpy as np
import pytest
import torch

from repflow import metrics as m
from repflow.metrics.drop import token_median
from tests.metrics import oracles as oracle
from tests.metrics.inputs import pad, sample_states

pytestmark = pytest.mark.filterwarnings("ignore:biased CKA")

LENGTHS = (7, 4, 12, 2, 9)
DROPS = ("none", "first", "norm>3", "norm>10")
WITH_DROP = [
    (m.token_similarity, oracle.token_similarity),
    (m.token_similarity_by_token, oracle.token_similarity_by_token),
    (m.common_share, oracle.common_share),
    (m.sharpness, oracle.sharpness),
    (m.smoothness, oracle.smoothness),
    (m.stability, oracle.stability),
    (m.depth_stability, oracle.depth_stability),
    (m.path_energy, oracle.path_energy),
    (m.effective_rank, oracle.effective_rank),
]


def close(got, want, atol=1e-11):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-10, atol=atol)


def assert_batch_and_single(function, naive, samples, garbage, atol=1e-11):
    """The batched call agrees with the naive one on every sample, and so does the call without a batch axis."""
    hidden, mask = pad(samples, garbage, extra=2)
    batched = function(hidden, mask=mask)
    for row, sample in enumerate(samples):
        want = naive(sample.numpy())
        single = function(sample)
        if batched.ndim == 3:  # per token: (state, batch, token)
            close(batched[:, row, : sample.shape[1]], want, atol)
            assert batched[:, row, sample.shape[1] :].isnan().all()
        else:
            close(batched[..., row], want, atol)
        close(single, want, atol)


@pytest.mark.parametrize("garbage", [float("nan"), 1e30])
@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize(("function", "naive"), WITH_DROP, ids=lambda f: f.__name__)
def test_with_drop_rules(function, naive, drop, garbage):
    samples = sample_states(DROPS.index(drop), LENGTHS)
    assert_batch_and_single(
        lambda hidden, **kw: function(hidden, drop=drop, **kw), lambda hidden: naive(hidden, drop), samples, garbage
    )


@pytest.mark.parametrize("drop", DROPS)
def test_the_drop_rule_of_the_inputs_bites(drop):
    """Guards the tests above: the samples hold sinks, and a rule that drops something changes the value."""
    hidden = sample_states(3, LENGTHS)[2 - 1].numpy()
    assert (oracle.kept(hidden, drop)[2] != list(range(4))) == (drop != "none")


def test_drop_bos_leaves_out_the_marked_positions():
    samples = sample_states(5, LENGTHS)
    hidden, mask = pad(samples)
    bos = torch.zeros_like(mask)
    bos[:, 0] = 1
    for function, _ in WITH_DROP:
        marked = function(hidden, mask=mask, drop="bos", bos=bos)
        torch.testing.assert_close(marked, function(hidden, mask=mask, drop="first"), equal_nan=True)
        unmarked = function(hidden, mask=mask, drop="bos", bos=torch.zeros_like(mask))
        torch.testing.assert_close(unmarked, function(hidden, mask=mask), equal_nan=True)


@pytest.mark.parametrize("garbage", [float("nan"), -1e30])
@pytest.mark.parametrize(
    ("function", "naive"),
    [
        (m.layer_cosine, oracle.layer_cosine),
        (m.token_norm, lambda h: np.linalg.norm(h, axis=-1)),
        (lambda h, mask=None: m.gram_share(h, mask=mask)[0], lambda h: oracle.gram_share(h)[0]),
        (lambda h, mask=None: m.channel_share(h, mask=mask)[0], lambda h: oracle.channel_share(h)[0]),
        (
            lambda h, mask=None: m.smoothness(h, mask=mask, mode="paper"),
            lambda h: oracle.smoothness(h, mode="paper"),
        ),
        (
            lambda h, mask=None: m.stability(h, mask=mask, include_embedding=False),
            lambda h: oracle.stability(h, include_embedding=False),
        ),
        (m.paper_smoothness, lambda h: oracle.smoothness(h, mode="paper")),
        (m.paper_stability, lambda h: oracle.stability(h, include_embedding=False)),
        (lambda h, mask=None: m.paper_smoothness(h, mask=mask, embedding=False), oracle.smoothness),
        (lambda h, mask=None: m.paper_stability(h, mask=mask, embedding=False), oracle.stability),
        (m.relative_smoothness, lambda h: oracle.smoothness(h) / oracle.scale(h)),
        (m.relative_stability, lambda h: oracle.stability(h) / oracle.scale(h)),
        (
            m.direction_smoothness,
            lambda h: oracle.smoothness(oracle.directions(h)),
        ),
        (
            lambda h, mask=None: m.direction_stability(h, mask=mask, include_embedding=False),
            lambda h: oracle.stability(oracle.directions(h), include_embedding=False),
        ),
        (
            lambda h, mask=None: m.relative_stability(h, mask=mask, drop="norm>3"),
            lambda h: oracle.stability(h, "norm>3") / oracle.scale(h, "norm>3"),
        ),
    ],
)
def test_without_drop(function, naive, garbage):
    assert_batch_and_single(function, naive, sample_states(11, LENGTHS), garbage)


@pytest.mark.parametrize(
    ("function", "naive"), [(m.gram_share, oracle.gram_share), (m.channel_share, oracle.channel_share)]
)
@pytest.mark.parametrize("top", [1, 4])
def test_where_the_largest_sit(function, naive, top):
    samples = sample_states(13, (7, 12, 5), width=6)
    hidden, mask = pad(samples)
    share, place = function(hidden, mask=mask, top=top)
    for row, sample in enumerate(samples):
        want_share, want_place = naive(sample.numpy(), top)
        close(share[:, row], want_share)
        assert place[:, row].tolist() == want_place.tolist()


def test_a_prompt_shorter_than_the_top_names_no_padding():
    samples = sample_states(14, (2, 6))
    hidden, mask = pad(samples)
    _, place = m.gram_share(hidden, mask=mask)
    assert place[:, 0].sort().values.tolist() == [[-1, -1, 0, 1]] * 4


@pytest.mark.parametrize("drop", ["none", "first", "norm>3"])
def test_excess_is_beyond_the_cosine_between_prompts(drop):
    samples = sample_states(17, (7, 4, 12, 3))
    hidden, mask = pad(samples)
    got = m.token_similarity_excess(hidden, mask=mask, drop=drop)
    between = oracle.cross_prompt([s.numpy() for s in samples], drop)
    for row, sample in enumerate(samples):
        close(got[:, row], oracle.token_similarity(sample.numpy(), drop) - between)


def test_excess_does_not_see_a_common_direction():
    """A constant vector on every token raises token_similarity to almost 1 and the excess not at all."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 30, 20, 16, generator=generator, dtype=torch.float64)
    hidden += 20
    assert float(m.token_similarity(hidden).min()) > 0.98
    assert float(m.token_similarity_excess(hidden).abs().max()) < 1e-3


def test_center_comes_from_elsewhere():
    sample = sample_states(19, (8,))[0]
    center = torch.randn(4, 5, dtype=torch.float64)
    close(m.token_similarity(sample, center=center), oracle.token_similarity(sample.numpy(), center=center.numpy()))
    hidden, mask = pad([sample, sample])
    both = m.token_similarity(hidden, center=center, mask=mask)
    close(both[:, 1], oracle.token_similarity(sample.numpy(), center=center.numpy()))


@pytest.mark.parametrize("unbiased", [True, False])
def test_cka_matrix(unbiased):
    samples = sample_states(23, (7, 5, 12), n_states=4)
    hidden, mask = pad(samples)
    got = m.cka_matrix(hidden, mask=mask, unbiased=unbiased)
    assert got.shape == (4, 4, 3)
    for row, sample in enumerate(samples):
        want = oracle.cka_matrix(sample.numpy(), unbiased)
        close(got[..., row], want, 1e-9)
        close(m.cka_matrix(sample, unbiased=unbiased), want, 1e-9)


@pytest.mark.parametrize("values", [[3.0], [1.0, 5.0], [4.0, 1.0, 2.0], [2.0, 2.0, 8.0, 1.0]])
def test_token_median_is_numpys(values):
    padded = torch.tensor([[*values, 99.0, float("nan")]])
    mask = torch.tensor([[True] * len(values) + [False, False]])
    assert float(token_median(padded, mask)) == np.median(values)
    assert token_median(padded, ~mask & ~padded.isnan()).item() == 99
    assert token_median(padded, torch.zeros_like(mask)).isnan()
    assert token_median(padded, torch.ones_like(mask)).isnan()


def test_half_precision_is_widened_before_summing():
    hidden = sample_states(29, (40,), dtype=torch.bfloat16)[0]
    for function, _ in WITH_DROP:
        got = function(hidden)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, function(hidden.double()).float(), rtol=1e-4, atol=1e-5)
