"""Streaming CKA: per sample, pooled as a mean of HSIC, and over the rows of all samples."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow import metrics as m
from repflow.core.errors import InputError
from repflow.metrics import streaming_cka as cka_meter
from repflow.metrics.cka import hsic_matrix, normalise_hsic, permutation_null
from repflow.metrics.flow import FlowMeter
from repflow.metrics.streaming_cka import CkaMeter, RowPooledCka, row_pool_bytes
from tests.metrics import oracles as oracle
from tests.metrics.inputs import feed, sample_states, splits, values

pytestmark = pytest.mark.filterwarnings("ignore:biased CKA")


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), unbiased=st.booleans(), lengths=st.lists(st.integers(4, 12), min_size=1, max_size=5)
)
def test_per_sample_values_are_the_pure_functions(seed, unbiased, lengths):
    samples = sample_states(seed, lengths)
    table = feed(CkaMeter(unbiased), samples, splits(np.random.default_rng(seed), len(lengths))).compute()
    for row, sample in enumerate(samples):
        np.testing.assert_allclose(table["cka_matrix"][1][..., row], m.cka_matrix(sample, unbiased=unbiased), atol=1e-9)
        null = permutation_null(list(sample), unbiased=unbiased)
        np.testing.assert_allclose(table["cka_null_mean"][1][..., row], null.mean, atol=1e-9)
        np.testing.assert_allclose(table["cka_null_sd"][1][..., row], null.sd, atol=1e-9)
    np.testing.assert_allclose(table["cka_rows_per_width"][1], np.array(lengths) / 5)
    assert {name: axes for name, (axes, _) in table.items()} == {
        "cka_matrix": ("state", "state", "sample"),
        "cka_null_mean": ("state", "state", "sample"),
        "cka_null_sd": ("state", "state", "sample"),
        "cka_pooled": ("state", "state"),
        "cka_pooled_null_mean": ("state", "state"),
        "cka_pooled_null_sd": ("state", "state"),
        "cka_rows_per_width": ("sample",),
    }


@pytest.mark.parametrize("unbiased", [True, False])
def test_pooled_is_the_ratio_of_mean_hsic(unbiased):
    samples = sample_states(5, (5, 9, 14, 4))
    got = values(feed(CkaMeter(unbiased), samples, [[3, 1], [0, 2]]))["cka_pooled"]
    naive = oracle.hsic_unbiased if unbiased else oracle.hsic_biased
    hsic = np.mean([[[naive(x, y) for y in s.numpy()] for x in s.numpy()] for s in samples], axis=0)
    np.testing.assert_allclose(got, hsic / np.sqrt(np.outer(np.diag(hsic), np.diag(hsic))), atol=1e-10)


@pytest.mark.parametrize("unbiased", [True, False])
def test_pooled_null_matches_shuffling_every_sample(unbiased):
    samples = sample_states(6, (6, 9, 5), n_states=2, sinks=False)
    got = values(feed(CkaMeter(unbiased), samples, [[0, 1, 2]]))
    rng = np.random.default_rng(0)
    naive = oracle.hsic_unbiased if unbiased else oracle.hsic_biased
    pairs = [s.numpy() for s in samples]
    own = [np.mean([naive(s[i], s[i]) for s in pairs]) for i in (0, 1)]
    draws = [
        np.mean([naive(s[0], s[1][rng.permutation(len(s[1]))]) for s in pairs]) / np.sqrt(own[0] * own[1])
        for _ in range(3000)
    ]
    spread = np.std(draws)
    assert got["cka_pooled_null_mean"][0, 1] == pytest.approx(np.mean(draws), abs=5 * spread / 3000**0.5)
    assert got["cka_pooled_null_sd"][0, 1] == pytest.approx(spread, rel=0.08)


@pytest.mark.parametrize(("unbiased", "short"), [(True, 3), (True, 1), (False, 1)])
def test_too_few_tokens_are_nan_for_that_sample_alone(unbiased, short):
    samples = sample_states(7, (6, short, 9))
    got = values(feed(CkaMeter(unbiased), samples, [[0, 1, 2]]))
    assert np.isnan(got["cka_matrix"][..., 1]).all()
    assert np.isnan(got["cka_null_sd"][..., 1]).all()
    assert np.isfinite(got["cka_matrix"][..., [0, 2]]).all()
    alone = values(feed(CkaMeter(unbiased), [samples[0], samples[2]], [[0, 1]]))
    np.testing.assert_allclose(got["cka_pooled"], alone["cka_pooled"], rtol=1e-12)
    assert got["cka_rows_per_width"][1] == short / 5


def test_biased_with_three_tokens_has_no_null():
    got = values(feed(CkaMeter(unbiased=False), sample_states(8, (3,)), [[0]]))
    assert np.isfinite(got["cka_matrix"]).all()
    assert np.isnan(got["cka_null_sd"]).all()


def test_a_bad_state_is_nan_in_its_pairs():
    samples = sample_states(9, (6, 8))
    samples[0][2, 1, 0] = float("nan")
    got = values(feed(CkaMeter(), samples, [[0, 1]]))
    bad = np.zeros((4, 4), bool)
    bad[2] = bad[:, 2] = True
    for name in ("cka_matrix", "cka_null_mean", "cka_null_sd"):
        assert (np.isnan(got[name][..., 0]) == bad).all()
        assert np.isfinite(got[name][..., 1]).all()
    for name in ("cka_pooled", "cka_pooled_null_sd"):
        assert (np.isnan(got[name]) == bad).all()


@pytest.mark.filterwarnings("default:biased CKA")
def test_the_biased_form_warns_once():
    samples = sample_states(10, (6, 8, 7))
    with pytest.warns(UserWarning, match="biased CKA with n = 6 tokens and width d = 5") as seen:
        feed(CkaMeter(unbiased=False), samples, [[0, 1], [2]])
    assert len(seen) == 1


def test_bfloat16_and_merge():
    samples = [s.bfloat16() for s in sample_states(11, (6, 8, 7))]
    half = feed(CkaMeter(), samples, [[0]])
    half.merge(feed(CkaMeter(), samples, [[2, 1]]))
    full = values(feed(CkaMeter(), [s.float() for s in samples], [[0, 1, 2]]))
    for name, value in values(half).items():
        np.testing.assert_allclose(value, full[name], rtol=1e-6, atol=1e-7)
    with pytest.raises(InputError, match="sharing samples"):
        half.merge(feed(CkaMeter(), samples, [[1]]))
    with pytest.raises(InputError, match="a meter of the same kind"):
        half.merge(FlowMeter(4, 8))
    with pytest.raises(InputError, match="at least one sample"):
        CkaMeter().compute()


def all_rows(samples, unbiased):
    """CKA and null over the concatenated rows."""
    states = [torch.cat([s[i].double() for s in samples]) for i in range(samples[0].shape[0])]
    return normalise_hsic(hsic_matrix(states, unbiased=unbiased)), permutation_null(states, unbiased=unbiased)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    unbiased=st.booleans(),
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=6).filter(lambda n: sum(n) >= 4),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_row_pooled_is_cka_of_all_rows(seed, unbiased, lengths, offset):
    samples = [s + offset for s in sample_states(seed, lengths, sinks=False)]
    meter = RowPooledCka(4, unbiased)
    feed(meter, samples, splits(np.random.default_rng(seed), len(lengths)))
    table = meter.compute()
    cka, null = all_rows(samples, unbiased)
    tolerance = {"rtol": 0, "atol": 1e-9 if offset == 0 else 1e-7}
    np.testing.assert_allclose(table["cka_row_pooled"][1], cka, **tolerance)
    np.testing.assert_allclose(table["cka_row_pooled_null_mean"][1], null.mean, **tolerance)
    np.testing.assert_allclose(table["cka_row_pooled_null_sd"][1], null.sd, **tolerance)
    assert table["cka_row_pooled"][0] == ("state", "state")
    assert table["cka_row_pooled_rows_per_width"][1] == sum(lengths) / 5


@pytest.mark.parametrize("unbiased", [True, False])
def test_row_pooled_merge_from_far_apart_shifts(unbiased):
    """Each part is summed about its own first sample; moving between them must lose nothing."""
    samples = sample_states(12, (6, 9, 30, 5, 8), sinks=False)
    samples = [s + 50 * i for i, s in enumerate(samples)]
    parts = [feed(RowPooledCka(4, unbiased), samples, b) for b in ([[0]], [[4, 2]], [[1, 3]])]
    empty = RowPooledCka(4, unbiased)
    for part in parts:
        empty.merge(part)
    cka, _ = all_rows(samples, unbiased)
    np.testing.assert_allclose(values(empty)["cka_row_pooled"], cka, atol=1e-9)
    np.testing.assert_allclose(values(empty)["cka_row_pooled"], cka, atol=1e-9, err_msg="compute changes nothing")
    np.testing.assert_allclose(values(parts[0])["cka_row_pooled"], all_rows(samples[:1], unbiased)[0], atol=1e-9)
    feed(parts[1], samples, [[0]])
    np.testing.assert_allclose(
        values(parts[1])["cka_row_pooled"], all_rows([samples[i] for i in (4, 2, 0)], unbiased)[0], atol=1e-9
    )


def test_row_pooled_float32_keeps_a_large_offset_exact(monkeypatch):
    monkeypatch.setattr(cka_meter, "CHUNK_ROWS", 7)
    samples = [(s * 0.1 + 4000).float() for s in sample_states(13, (40, 60, 50), sinks=False)]
    got = values(feed(RowPooledCka(4), samples, [[0, 1], [2]]))["cka_row_pooled"]
    np.testing.assert_allclose(got, all_rows(samples, True)[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.diag(got), 1, rtol=0, atol=1e-6)


def test_row_pooled_bad_state_and_few_rows():
    samples = sample_states(14, (6, 8))
    samples[1][2, 1, 0] = float("nan")
    got = values(feed(RowPooledCka(4), samples, [[0, 1]]))["cka_row_pooled"]
    assert np.isnan(got).sum() == 7
    few = values(feed(RowPooledCka(4), sample_states(15, (2, 1)), [[0, 1]]))
    assert np.isnan(few["cka_row_pooled"]).all()
    assert few["cka_row_pooled_rows_per_width"] == 3 / 5


def test_row_pooled_refuses_more_than_its_budget_and_other_widths():
    assert row_pool_bytes(4, 5) == 10 * 25 * 8
    samples = sample_states(16, (6, 8))
    with pytest.raises(
        InputError, match=r"within 0.00 GB; got 4 states of width 5, which need 0.00 GB; use pool='mean'"
    ):
        feed(RowPooledCka(4, budget_bytes=1999), samples, [[0]])
    feed(RowPooledCka(4, budget_bytes=2000), samples, [[0]])
    other = feed(RowPooledCka(4), sample_states(17, (6, 8), width=6), [[1]])
    mine = feed(RowPooledCka(4), samples, [[0]])
    with pytest.raises(InputError, match=r"\(state, width\) = \(4, 5\); got \(4, 6\)"):
        mine.merge(other)
    with pytest.raises(InputError, match="sharing samples"):
        mine.merge(feed(RowPooledCka(4), samples, [[0]]))
    assert sorted(mine.records) == [0]
