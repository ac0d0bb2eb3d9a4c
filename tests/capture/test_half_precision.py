"""Whole measurements in half precision: the embedding is narrow, and the stream may be float32 (`residual_in_fp32`)."""

import numpy as np
import pytest
import torch

import repflow
from repflow import metrics
from repflow.capture.measure import _state_itemsize
from repflow.models.devices import probe_dtype
from tests.models.tiny_configs import VOCAB, tiny_model

WIDE_STREAM = ("mamba", "mamba2", "falcon_mamba")
OTHERS = ("bamba", "jamba", "zamba2", "recurrent_gemma", "xlstm")
CASES = [*((kind, wide) for kind in WIDE_STREAM for wide in (True, False)), *((kind, None) for kind in OTHERS)]
METRICS = ("token_similarity", "token_norm", "layer_cosine", "smoothness", "stability")


def half(name):
    dtype = getattr(torch, name)
    problem = probe_dtype(dtype)
    if problem is not None:
        pytest.skip(f"{name} products do not run on this CPU: {problem}")
    return dtype


def own_pass(network, ids):
    """What is wrong with transformers' own forward pass; None if nothing is."""
    try:
        network(ids, use_cache=False)
    except RuntimeError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("wide", "size"), [(True, 4), (False, 2)])
def test_the_plan_counts_the_streams_bytes_not_the_weights(wide, size, monkeypatch):
    model = repflow.load(tiny_model("mamba", residual_in_fp32=wide))
    monkeypatch.setattr(type(model), "dtype", torch.bfloat16)
    assert _state_itemsize(model) == size


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize(("kind", "wide"), CASES)
def test_measure_in_half_precision(kind, wide, name):
    dtype = half(name)
    options = {} if wide is None else {"residual_in_fp32": wide}
    # random weights of full spread overflow float16
    network = tiny_model(kind, spread=1.0, **options).to(dtype)
    ids = torch.randint(3, VOCAB, (2, 24), generator=torch.Generator().manual_seed(1))
    if kind == "xlstm" and (problem := own_pass(network, ids)):
        pytest.skip(f"transformers' own pass fails in {name}: {problem}")
    model = repflow.load(network)

    kinds = []
    model.stream(ids, on_state=lambda _, hidden: kinds.append(hidden.dtype))
    if wide is not None:
        assert set(kinds[1:]) == {torch.float32 if wide else dtype}
        assert kinds[0] == dtype

    result = repflow.measure(model, ids, allow_float16=True)
    hidden, mask, _ = repflow.states(model, ids)
    for metric in METRICS:
        want = getattr(metrics, metric)(hidden.double(), **({} if metric == "token_norm" else {"mask": mask}))
        assert np.isfinite(result[metric]).all(), metric
        np.testing.assert_allclose(result[metric], want.numpy(), rtol=2e-3, atol=2e-4, err_msg=metric)
