"""FlowMeter against the pure functions: any split, any order, any group size, garbage in the padding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from repflow import metrics as m
from repflow.core.errors import InputError
from repflow.metrics.drop import DEFAULT_DROP
from repflow.metrics.flow import TOKEN_BYTES, FlowMeter, meter_bytes
from repflow.metrics.meter import BatchInfo, position_bins
from repflow.metrics.tokens import PROBES
from tests.metrics.inputs import feed, pad, sample_states, splits, values

PER_STATE = ("token_similarity", "common_share", "sharpness")
PER_SAMPLE = (
    "smoothness",
    "stability",
    "relative_smoothness",
    "relative_stability",
    "direction_smoothness",
    "direction_stability",
    "depth_stability",
    "path_energy",
)


def expected(samples, drop=DEFAULT_DROP):
    """What the pure functions say about all samples together, by name in the result."""
    hidden, mask = pad(samples, garbage=0.5)
    out = {"layer_cosine": m.layer_cosine(hidden, mask=mask), "token_norm": m.token_norm(hidden, mask=mask)}
    for prefix, rule in (("", "none"), (f"{drop}/", drop)):
        for name in PER_STATE + PER_SAMPLE:
            out[f"{prefix}{name}"] = getattr(m, name)(hidden, mask=mask, drop=rule)
        if len(samples) > 1:
            out[f"{prefix}token_similarity_excess"] = m.token_similarity_excess(hidden, mask=mask, drop=rule)
    out["gram_share"], top = m.gram_share(hidden, mask=mask)
    out["top_tokens"] = torch.nn.functional.pad(top, (0, 4 - top.shape[-1]), value=-1)
    out["channel_share"], out["top_channels"] = m.channel_share(hidden, mask=mask)
    return {name: value.numpy() for name, value in out.items()}


def compare(got, want, *, rtol, atol):
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=rtol, atol=atol, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    n_states=st.integers(3, 6),
    group=st.integers(1, 4),
    extra=st.integers(0, 2),
    drop=st.sampled_from(["norm>10", "norm>2", "first"]),
)
def test_equals_the_pure_functions_for_any_split(seed, lengths, n_states, group, extra, drop):
    samples = sample_states(seed, lengths, n_states=n_states)
    meter = FlowMeter(n_states, max(lengths), drop=drop, group=group, direction=True)
    feed(meter, samples, splits(np.random.default_rng(seed), len(samples)), extra=extra)
    got = values(meter)
    compare(got, expected(samples, drop), rtol=1e-9, atol=1e-10)
    assert not got["gram_share_error"].any(), "exact up to 32 tokens"


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    n_states=st.integers(2, 6),
    group=st.integers(1, 7),
    embedding=st.booleans(),
    drop=st.sampled_from(["norm>10", "norm>2"]),
)
def test_printed_forms_equal_the_pure_functions_for_any_split(seed, lengths, n_states, group, embedding, drop):
    samples = sample_states(seed, lengths, n_states=n_states)
    meter = FlowMeter(n_states, max(lengths), drop=drop, group=group, printed=True, embedding=embedding)
    got = values(feed(meter, samples, splits(np.random.default_rng(seed), len(samples))))
    hidden, mask = pad(samples, garbage=0.5)
    blocks = n_states - embedding
    assert ("paper_smoothness" in got, "paper_stability" in got) == (blocks >= 3, blocks >= 2)
    for name in [name for name in ("paper_smoothness", "paper_stability") if name in got]:
        for prefix, rule in (("", "none"), (f"{drop}/", drop)):
            want = getattr(m, name)(hidden, mask=mask, drop=rule, embedding=embedding)
            np.testing.assert_allclose(got[f"{prefix}{name}"], want, rtol=1e-9, atol=1e-10, err_msg=name)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), group=st.integers(1, 4), shift=st.sampled_from([0.0, 30.0]))
def test_float32_does_not_depend_on_batches(seed, group, shift):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 60, 7).tolist()
    samples = [s + shift for s in sample_states(seed, lengths, width=24, dtype=torch.float32)]
    one = values(feed(FlowMeter(4, max(lengths), direction=True), samples, [[i] for i in range(7)]))
    meter = FlowMeter(4, max(lengths), group=group, direction=True)
    other = values(feed(meter, samples, splits(rng, 7), extra=int(rng.integers(0, 5))))
    assert one.keys() == other.keys()
    for name in one:
        # values near zero are differences of numbers near one, hence the absolute term
        np.testing.assert_allclose(other[name], one[name], rtol=1e-5, atol=2e-6, err_msg=name)
    exact = expected([s.double() for s in samples])
    short = {name: value for name, value in exact.items() if not name.startswith(("top_", "gram_share"))}
    compare(other, short, rtol=2e-4, atol=2e-5)


def test_same_value_whatever_the_padding_beyond_the_exact_gram():
    """The probes of long prompts belong to positions, so batch mates and padding must not move the estimate."""
    samples = sample_states(8, (PROBES + 9, PROBES + 40, PROBES + 1), width=8)
    alone = values(feed(FlowMeter(4, 80), samples, [[0], [1], [2]]))
    together = values(feed(FlowMeter(4, 80), samples, [[2, 1, 0]], extra=3))
    for name in ("gram_share", "gram_share_error", "top_tokens"):
        np.testing.assert_allclose(together[name], alone[name], rtol=1e-9, err_msg=name)


def test_gram_share_of_long_prompts_is_within_its_reported_error():
    misses, count = 0, 0
    for seed in range(6):
        samples = sample_states(seed, (50, 90, 70, 33), width=12)
        got = values(feed(FlowMeter(4, 90), samples, [[0, 1], [2, 3]]))
        off = np.abs(got["gram_share"] - expected(samples)["gram_share"])
        assert (got["gram_share_error"] > 0).all()
        assert (off <= 4 * got["gram_share_error"] + 1e-12).all()
        misses += int((off > 1.5 * got["gram_share_error"]).sum())
        count += off.size
    assert misses < count / 3, "the error must not be too small"
    assert np.median(got["gram_share_error"] / got["gram_share"]) < 0.3, "nor uselessly large"


def test_short_prompts_name_no_padding_among_the_top_tokens():
    samples = sample_states(4, (2, 9))
    for batches in ([[0], [1]], [[0, 1]]):
        top = values(feed(FlowMeter(4, 9), samples, batches))["top_tokens"]
        assert top.shape == (4, 2, 4)
        assert np.sort(top[:, 0], axis=-1).tolist() == [[-1, -1, 0, 1]] * 4


@pytest.mark.parametrize("group", [1, 3])
def test_bfloat16_states_are_measured_as_the_float32_they_hold(group):
    samples = [s.bfloat16() for s in sample_states(21, (7, 12, 40), width=16)]
    wide = [s.float() for s in samples]
    options = {"group": group, "grid": 2, "keep": frozenset({0}), "direction": True}
    half = feed(FlowMeter(4, 40, **options), samples, [[0, 1], [2]], final=samples)
    full = feed(FlowMeter(4, 40, **options), wide, [[0, 1], [2]], final=wide)
    want = values(full)
    for name, value in values(half).items():
        assert value.dtype == want[name].dtype, name
        np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize(("n_states", "grid"), [(5, 4), (5, 3), (6, 2), (7, 4), (4, 1)])
def test_matched_grid(n_states, grid, group):
    samples = sample_states(n_states, (6, 9, 3), n_states=n_states)
    got = values(feed(FlowMeter(n_states, 9, grid=grid, group=group), samples, [[2, 0], [1]]))
    hidden, mask = pad(samples, garbage=0.5)
    coarse = m.resample_depth(hidden, grid)
    np.testing.assert_allclose(got["matched/stability"], m.stability(coarse, mask=mask), rtol=1e-10)
    if grid > 1:
        np.testing.assert_allclose(got["matched/smoothness"], m.smoothness(coarse, mask=mask), rtol=1e-10)
    assert f"{DEFAULT_DROP}/matched/stability" in got


def test_final_norm_is_measured_apart():
    samples = sample_states(31, (6, 9, 3))
    final = sample_states(32, (6, 9, 3), n_states=1)
    got = values(feed(FlowMeter(4, 9), samples, [[1, 2], [0]], final=final))
    without = values(feed(FlowMeter(4, 9), samples, [[1, 2], [0]]))
    hidden, mask = pad(final, garbage=0.5)
    for prefix, drop in (("", "none"), (f"{DEFAULT_DROP}/", DEFAULT_DROP)):
        for name in (*PER_STATE, "token_similarity_excess"):
            want = getattr(m, name)(hidden, mask=mask, drop=drop)
            np.testing.assert_allclose(got[f"final_norm/{prefix}{name}"], want, rtol=1e-9, atol=1e-11)
    assert got["final_norm/token_norm"].shape == (1, 3, 9)
    for name, value in without.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} is changed by the final norm")


def test_kept_samples_keep_every_token():
    lengths = (300, 5, 280)
    samples = sample_states(41, lengths, width=6)
    meter = feed(FlowMeter(4, 300, keep=frozenset({0, 2})), samples, [[1, 2], [0]])
    table = meter.compute()
    for name in ("layer_cosine", "token_norm", "token_similarity_by_token"):
        axes, got = table[f"kept/{name}"]
        assert axes[1:] == ("sample", "token")
        assert got.shape[1:] == (2, 300)
        for row, sample in enumerate((0, 2)):
            want = getattr(m, name)(samples[sample]).numpy()
            np.testing.assert_allclose(got[:, row, : lengths[sample]], want, rtol=1e-9, atol=1e-11)
            assert np.isnan(got[:, row, lengths[sample] :]).all()


def test_long_prompts_are_pooled_but_not_their_first_four_positions():
    lengths = (700, 20, 330)
    samples = sample_states(43, lengths, width=4)
    got = values(feed(FlowMeter(4, 700), samples, [[0], [2, 1]], extra=1))
    bins = [*position_bins(700).tolist(), 700]
    assert len(bins) == 257
    assert bins[:5] == [0, 1, 2, 3, 4]
    for name in ("token_norm", "layer_cosine"):
        assert got[name].shape[1:] == (3, 256)
        for row, sample in enumerate(samples):
            each = getattr(m, name)(sample).numpy()
            for at in (0, 1, 2, 3, 4, 5, 100, 255):
                inside = each[:, bins[at] : bins[at + 1]]
                want = inside.mean(1) if inside.size else np.full(len(each), np.nan)
                np.testing.assert_allclose(got[name][:, row, at], want, rtol=1e-10, err_msg=f"{name} bin {at}")


@pytest.mark.parametrize("tokens", [1, 4, 255, 256, 257, 259, 300, 511, 512, 5000])
def test_position_bins_cover_every_position_once(tokens):
    bins = position_bins(tokens)
    assert len(bins) == min(tokens, 256)
    assert bins[0] == 0
    assert (np.diff(bins) >= 1).all()
    assert bins[-1] < tokens
    spans = np.diff([*bins, tokens])[4:]
    assert not len(spans) or spans.max() - spans.min() <= 1


@pytest.mark.parametrize("length", [1, 2])
def test_prompts_of_one_and_two_tokens(length):
    samples = sample_states(51, (length, 6))
    got = values(feed(FlowMeter(4, 6, direction=True), samples, [[0, 1]]))
    undefined = np.isnan(got["token_similarity"][:, 0])
    assert undefined.all() == (length == 1)
    assert np.isfinite(got["stability"]).all()
    assert np.isfinite(got["token_norm"][:, 0, :length]).all()
    compare(got, expected(samples), rtol=1e-9, atol=1e-10)


def test_one_prompt_has_no_excess():
    got = values(feed(FlowMeter(4, 6), sample_states(53, (6,)), [[0]]))
    assert not any("excess" in name for name in got)


def test_drop_bos_only_where_the_prompt_starts_with_one():
    samples = sample_states(55, (6, 8))
    got = values(feed(FlowMeter(4, 8, drop="bos"), samples, [[0, 1]], bos=(True, False)))
    first = expected(samples, "first")["first/token_similarity"][:, 0]
    every = expected(samples)["token_similarity"][:, 1]
    np.testing.assert_allclose(got["bos/token_similarity"], np.stack([first, every], 1), rtol=1e-10)


def test_merge_of_disjoint_samples_is_one_run():
    samples = sample_states(61, (6, 8, 3, 11, 5))
    whole = values(feed(FlowMeter(4, 11, keep=frozenset({3})), samples, [[0, 1], [2, 3, 4]]))
    parts = [feed(FlowMeter(4, 11, keep=frozenset({3})), samples, batches) for batches in ([[4, 3]], [[1]], [[0], [2]])]
    for part in parts[1:]:
        parts[0].merge(part)
    merged = values(parts[0])
    assert merged.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-9, atol=1e-11, err_msg=name)


def test_merge_refuses_the_same_sample_twice():
    samples = sample_states(63, (6, 8))
    a = feed(FlowMeter(4, 8), samples, [[0, 1]])
    with pytest.raises(InputError, match=r"sharing samples \[1\]; merge meters of disjoint samples"):
        a.merge(feed(FlowMeter(4, 8), samples, [[1]]))
    assert sorted(a.records) == [0, 1]


def test_a_bad_state_leaves_the_states_before_it_alone():
    samples = sample_states(71, (6, 9))
    broken = [s.clone() for s in samples]
    broken[0][2:, 3] = float("nan")
    good = values(feed(FlowMeter(4, 9), samples, [[0, 1]]))
    bad = values(feed(FlowMeter(4, 9), broken, [[0, 1]]))
    for name in PER_STATE:
        np.testing.assert_allclose(bad[name][:2], good[name][:2], rtol=1e-12)
        assert np.isnan(bad[name][2:, 0]).all()
        np.testing.assert_allclose(bad[name][:, 1], good[name][:, 1], rtol=1e-12)
    assert np.isnan(bad["stability"][0])
    assert np.isfinite(bad["stability"][1])
    assert np.isnan(bad["layer_cosine"][:, 0]).sum() == 2 + 3 * 3, "the bad token, and padding"


def test_zero_token_has_no_direction():
    samples = sample_states(73, (6,))
    samples[0][1, 2] = 0
    got = values(feed(FlowMeter(4, 6), samples, [[0]]))
    assert np.isnan(got["token_similarity"][:, 0]).tolist() == [False, True, False, False]
    assert np.isnan(got["layer_cosine"][:, 0]).sum() == 2


def test_two_states_give_what_two_states_can():
    samples = sample_states(75, (6, 4), n_states=2)
    got = values(feed(FlowMeter(2, 6), samples, [[0, 1]]))
    assert "smoothness" not in got
    np.testing.assert_allclose(got["stability"], m.stability(*pad(samples, 0.0)[:1], mask=pad(samples)[1]), rtol=1e-12)


def test_nothing_seen_is_a_clear_error():
    with pytest.raises(InputError, match="at least one sample"):
        FlowMeter(4, 6).compute()


def test_batch_info_mask_and_meter_bytes():
    mask = BatchInfo((0, 1), (3, 1)).mask(4, torch.device("cpu"))
    assert mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert meter_bytes(2, 3, 5, 2, 4) == 30 * (8 + 5 * 2) + 6 * 4 * TOKEN_BYTES
    assert meter_bytes(2, 3, 5, 2, 4, direction=True) == 30 * (16 + 5 * 2) + 6 * 4 * TOKEN_BYTES


def test_sums_over_prompts_may_be_taken_before_all_prompts_are_there():
    """In the same order they have the same bits; in any order the pure function's value."""
    samples = sample_states(5, (7, 4, 9, 6))
    tables = []
    for absorbed in (False, True):
        meter = FlowMeter(len(samples[0]), 9)
        for group in ([0, 1], [2], [3]):
            part = feed(FlowMeter(len(samples[0]), 9), samples, [group])
            meter.records |= part.records
            if absorbed:
                meter.absorb()
        tables.append(meter.compute()["token_similarity_excess"][1])
    np.testing.assert_array_equal(*tables)
    compare(
        {"token_similarity_excess": tables[0]},
        {"token_similarity_excess": expected(samples)["token_similarity_excess"]},
        rtol=1e-9,
        atol=1e-12,
    )
