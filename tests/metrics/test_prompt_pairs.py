"""The excess over other prompts from records, a sample at a time, against the pure function."""

import numpy as np
import torch

from repflow.metrics.flow import AcrossPrompts
from repflow.metrics.similarity import cross_prompt_cosine


def record_of(unit_sum, count, prefix=""):
    """A prompt's record: its similarity is that of tokens with this sum, as the meter keeps it."""
    squared = np.square(unit_sum.astype(np.float64)).sum(-1)
    similarity = (squared - count) / np.maximum(count * (count - 1), 1)
    return {f"{prefix}unit_sum": unit_sum, f"{prefix}count": count, f"{prefix}token_similarity": similarity}


def across(records, prefix):
    sums = AcrossPrompts.start(records[0], prefix)
    for record in records:
        sums.add(record, prefix)
    return sums.cosine()


def test_a_sample_at_a_time_is_all_at_once():
    rng = np.random.default_rng(0)
    states, samples, width = 4, 7, 33
    sums = rng.standard_normal((states, samples, width)) + 0.5
    count = rng.integers(2, 9, (states, samples))
    records = [record_of(sums[:, k], count[:, k], "drop/") for k in range(samples)]
    got = across(records, "drop/")
    want = cross_prompt_cosine(torch.from_numpy(sums), torch.from_numpy(count)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert not np.isnan(got).any()


def test_float32_sums_are_added_in_float64_and_no_pairs_give_nan():
    big = np.full((1, 3), 4096.0, np.float32)
    records = [record_of(big + np.float32(k), np.array([2])) for k in range(50)]
    sums = torch.from_numpy(np.stack([r["unit_sum"] for r in records], 1)).double()
    want = cross_prompt_cosine(sums, torch.full((1, 50), 2)).numpy()
    np.testing.assert_allclose(across(records, ""), want, rtol=1e-12)
    empty = [r | {"count": np.zeros(1)} for r in records]
    assert np.isnan(across(empty, "")).all()
