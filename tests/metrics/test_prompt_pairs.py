"""The excess over other prompts from records, a sample at a time, against the pure function."""

import numpy as np
import torch

from repflow.metrics.flow import _excess
from repflow.metrics.similarity import cross_prompt_cosine


def test_a_sample_at_a_time_is_all_at_once():
    rng = np.random.default_rng(0)
    states, samples, width = 4, 7, 33
    sums = rng.standard_normal((states, samples, width)) + 0.5
    count = rng.integers(2, 9, (states, samples))
    similarity = rng.standard_normal((states, samples))
    records = [
        {"drop/unit_sum": sums[:, k], "drop/count": count[:, k], "drop/token_similarity": similarity[:, k]}
        for k in range(samples)
    ]
    axes, got = _excess(records, "drop/")
    want = similarity - cross_prompt_cosine(torch.from_numpy(sums), torch.from_numpy(count))[:, None].numpy()
    assert axes == ("state", "sample")
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert not np.isnan(got).any()


def test_float32_sums_are_added_in_float64_and_no_pairs_give_nan():
    big = np.full((1, 3), 4096.0, np.float32)
    records = [
        {"unit_sum": big + np.float32(k), "count": np.array([2]), "token_similarity": np.zeros(1)} for k in range(50)
    ]
    sums = torch.from_numpy(np.stack([r["unit_sum"] for r in records], 1)).double()
    want = -cross_prompt_cosine(sums, torch.full((1, 50), 2))[:, None].numpy()
    np.testing.assert_allclose(_excess(records, "")[1], np.broadcast_to(want, (1, 50)), rtol=1e-12)
    empty = [r | {"count": np.zeros(1)} for r in records]
    assert np.isnan(_excess(empty, "")[1]).all()
