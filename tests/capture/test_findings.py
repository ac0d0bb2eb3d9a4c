"""Findings: planted sinks, massive channels and non-finite states are named where they are, and nothing else is."""

import numpy as np
import pytest
import torch

from repflow.capture.findings import precision, table_findings
from repflow.capture.measure import MeasureOptions, measure_prompts
from repflow.core.results import Result
from repflow.models import load
from tests.capture.inputs import model, prompts
from tests.models.tiny_configs import tiny_model

LENGTHS = (20, 24, 33)


def codes(result):
    return [finding.code for finding in result.findings]


def planted(block, *, position=None, channel=None, factor=1000.0, kind="gpt_neox"):
    """A model whose block `block` puts a large value on one token or one channel of its output."""
    loaded = load(tiny_model(kind))

    def hook(_, __, output):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        if position is not None:
            hidden[:, position] *= factor
        if channel is not None:
            hidden[..., channel] += factor
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    loaded.blocks[block].register_forward_hook(hook)
    return loaded


def test_a_random_model_has_no_findings():
    assert measure_prompts(model(), prompts(LENGTHS), MeasureOptions()).findings == []


@pytest.mark.parametrize("length", [2, 4, 5, 8, 12])
def test_few_tokens_are_no_sink(length):
    """The four largest of four tokens carry everything, which says nothing."""
    assert measure_prompts(model(), prompts((length,) * 6), MeasureOptions()).findings == []


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba2"])
@pytest.mark.parametrize(("lengths", "position"), [(LENGTHS, 0), (LENGTHS, 7), ((8, 12), 5)])
def test_massive_token(kind, lengths, position):
    result = measure_prompts(planted(1, position=position, kind=kind), prompts(lengths), MeasureOptions())
    sinks = [f for f in result.findings if f.code == "sink_tokens"]
    assert len(sinks) == 1
    assert sinks[0].layer == 2, "the state behind block 1"
    assert "at states 2-4 over half of the centred Gram matrix involves the 4 largest tokens" in sinks[0].message
    assert f"at state 2 the largest is token {position};" in sinks[0].message
    assert (result["top_tokens"][2, :, 0] == position).all()
    assert (result["gram_share"][2] > 0.99).all()
    assert (result["norm>10/token_similarity"][2] != result["token_similarity"][2]).all()
    np.testing.assert_allclose(result["norm>10/token_similarity"][:2], result["token_similarity"][:2], rtol=1e-5)


def test_massive_channel():
    result = measure_prompts(planted(2, channel=5), prompts(LENGTHS), MeasureOptions())
    massive = [f for f in result.findings if f.code == "massive_channels"]
    assert [f.layer for f in massive] == [3]
    assert "at states 3-4 over half of the energy is in the 4 largest channels" in massive[0].message
    assert "at state 3 the largest is channel 5;" in massive[0].message
    assert (result["top_channels"][3, :, 0] == 5).all()


def test_findings_do_not_depend_on_the_metrics_asked_for():
    result = measure_prompts(planted(1, position=3), prompts(LENGTHS), MeasureOptions(metrics=("token_similarity",)))
    assert codes(result) == ["sink_tokens"]
    assert "gram_share" not in result


def idle(*blocks):
    """A llama some of whose blocks (from 1) add zero."""
    network = tiny_model("llama")
    with torch.no_grad():
        for block in blocks:
            network.model.layers[block - 1].self_attn.o_proj.weight.zero_()
            network.model.layers[block - 1].mlp.down_proj.weight.zero_()
    return load(network)


@pytest.mark.parametrize(
    ("blocks", "layer", "words"),
    [
        ((2,), 1, "block 2 changes nothing"),
        ((1, 3, 4), 0, "blocks 1, 3-4 change nothing"),
        ((1, 2, 3, 4), 0, "all 4 blocks change nothing"),
        ((), None, None),
    ],
)
@pytest.mark.parametrize("kind", ["residual", "hf-tuple", "branch"])
def test_blocks_that_change_nothing_are_named(blocks, layer, words, kind):
    result = measure_prompts(idle(*blocks), prompts(LENGTHS), MeasureOptions(kind=kind, keep_samples=0))
    findings = [f for f in result.findings if f.code == "idle_blocks"]
    if kind == "hf-tuple":  # its last entry is the norm's output, so that the last block cannot be seen
        assert len(findings) <= 1
        return
    if kind == "branch" or not blocks:
        assert not findings
        return
    assert [f.layer for f in findings] == [layer]
    assert words in findings[0].message


@pytest.mark.parametrize("kind", ["gpt_neox", "mamba2"])
def test_non_finite_weights_are_a_finding_and_later_states_null(kind):
    network = tiny_model(kind)
    with torch.no_grad():
        next(p for p in load(network).blocks[2].parameters() if p.ndim == 2)[0, 0] = float("nan")
    result = measure_prompts(load(network), prompts(LENGTHS), MeasureOptions())
    assert codes(result) == ["nonfinite_weight", "nonfinite_state"]
    good = measure_prompts(model(kind), prompts(LENGTHS), MeasureOptions())
    for name in ("token_similarity", "common_share", "gram_share"):
        np.testing.assert_allclose(result[name][:3], good[name][:3], rtol=1e-5)
        assert np.isnan(result[name][3:]).all()
        assert np.isnan(result[f"final_norm/{name}"]).all()
    assert np.isnan(result["stability"]).all()
    assert result.findings[1].layer == 3
    plain = result.to_json()["metrics"]["token_similarity"]["values"]
    assert plain[3] == [None, None, None]
    assert None not in plain[2]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("metrics", [MeasureOptions().metrics, ("token_similarity",)])
def test_non_finite_activations_are_named_by_state_and_sample(value, metrics):
    loaded = load(tiny_model("gpt_neox"))

    def hook(_, __, output):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        hidden[hidden.shape[0] - 1 :, 4] = value
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    loaded.blocks[0].register_forward_hook(hook)
    result = measure_prompts(loaded, prompts(LENGTHS), MeasureOptions(metrics=metrics))
    assert codes(result) == ["nonfinite_state"]
    assert result.findings[0].layer == 1
    assert result.findings[0].message.startswith("state 1 is not finite in samples 2; it and what depends on it")
    assert np.isnan(result["token_similarity"][1:, 2]).all()
    assert np.isfinite(result["token_similarity"][:, :2]).all()


def test_zero_vectors_are_told_apart_from_lost_numbers():
    loaded = load(tiny_model("gpt_neox"))

    def hook(_, __, output):
        hidden = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        hidden[0, 6] = 0
        return hidden if isinstance(output, torch.Tensor) else (hidden, *output[1:])

    loaded.blocks[1].register_forward_hook(hook)
    result = measure_prompts(loaded, prompts(LENGTHS), MeasureOptions(batch_size=3))
    assert codes(result) == ["zero_vector"]
    assert result.findings[0].layer == 2
    assert "at state 2 a token vector is zero in samples 0:" in result.findings[0].message
    assert np.isnan(result["token_similarity"]).sum() == 1


def table(norm, lengths):
    return table_findings({"token_norm": (("state", "sample", "token"), np.asarray(norm))}, lengths, 32)


def test_padding_is_not_a_lost_number_and_a_lost_one_is_not_padding():
    nan = np.nan
    assert table([[[1, 2, nan], [1, 2, 3]], [[1, 2, nan], [1, 2, 3]]], (2, 3)) == []
    findings = table([[[1, nan, nan], [1, 2, 3]], [[nan, nan, nan], [1, 2, 3]]], (2, 3))
    assert [(f.code, f.layer) for f in findings] == [("nonfinite_state", 0)], "one token of the embedding alone"
    assert table([[[1, 2, nan], [1, 2, np.inf]]], (2, 3))[0].message.startswith("state 0 is not finite in samples 1;")
    many = table(np.full((2, 9, 3), nan), (3,) * 9)
    assert "samples 0, 1, 2, 3, 4, 5, ..." in many[0].message


def test_an_uncertain_estimate_is_no_finding():
    def with_error(error):
        one = np.ones((2, 3))
        entries = {"gram_share": 0.6 * one, "gram_share_error": error * one, "top_tokens": np.zeros((2, 3, 4))}
        axes = ("state", "sample")
        return table_findings(
            {k: ((*axes, "rank") if v.ndim == 3 else axes, v) for k, v in entries.items()}, (99,) * 3, 32
        )

    assert [f.layer for f in with_error(0.04)] == [0]
    assert with_error(0.06) == []


def test_values_that_float32_changes_are_named():
    result = Result(
        {
            "float32_change/token_similarity": np.array([0.01, 0.2, 0.3, 0.0]),
            "float32_change/stability": np.array(0.07),
            "float32_change/turn": np.array([0.2, 0.3, 0.0]),
            "float32_change/pairs": np.array([[0.0, 0.0], [0.1, 0.0]]),
        },
        {
            "float32_change/token_similarity": ("state",),
            "float32_change/stability": (),
            "float32_change/turn": ("layer",),
            "float32_change/pairs": ("state", "state"),
        },
    )
    findings = precision(result)
    assert [(f.code, f.layer) for f in findings] == [("precision", place) for place in (1, None, 0, 1)]
    assert findings[0].message == (
        "token_similarity moves by up to 30.0% when the first batch is rerun in float32 (at states 1-2)"
    )
    assert findings[1].message == "stability moves by up to 7.0% when the first batch is rerun in float32"
    assert findings[2].message.endswith("rerun in float32 (at blocks 1-2)")
    assert findings[3].message.endswith("rerun in float32 (at state 1)")
