"""`theory apply`: the reading is the model's own arithmetic, and predictions hold where the hypotheses do."""

import numpy as np
import pytest
import torch

import repflow
from repflow import load_result
from repflow.core.errors import InputError, UnsupportedModelError
from repflow.studies.theory.apply import ApplyConfig, check_request, failing, run
from repflow.studies.theory.layer import channel_block
from repflow.studies.theory.reading import (
    MAMBAS,
    TRANSFORMERS,
    Seen,
    attention_of,
    check_readable,
    mamba_of,
    numpy_of,
    watching,
)
from repflow.theory.channel import channel_output

IDS = torch.arange(3, 19)[None]


def load(kind, spread=1.0):
    from tests.models.tiny_configs import tiny_model

    return repflow.load(tiny_model(kind, spread=spread), dtype="float64")


def silu(x):
    x = np.asarray(x)
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_single_head_reading_is_the_block_under_uniform_attention(kind):
    """With queries and keys zero, attention is uniform over the past: W_O W_V and the feed-forward part must add up."""
    model = load(kind, spread=4.0)
    readings = [attention_of(block, model) for block in model.blocks]
    with torch.no_grad():
        for block, reading in zip(model.blocks, readings, strict=True):
            if kind == "gpt2":
                block.attn.c_attn.weight[:, :64] = 0
            elif kind == "gpt_neox":
                block.attention.query_key_value.weight.view(4, 3, 8, 32)[:, :2] = 0
            else:
                inner = block.attn.attention if kind == "gpt_neo" else block.self_attn
                inner.q_proj.weight.zero_()
            assert reading.projections[0].shape == (4, 8, 32)
    seen: dict[int, Seen] = {}
    states = []
    with watching(model, "transformer", readings, seen):
        model.stream(IDS, on_state=lambda _, state: states.append(numpy_of(state)[0]))
    windows = {0: 99, 1: 4} if kind == "gpt_neo" else {}
    for index, reading in enumerate(readings):
        x = seen[index].arrays["x"]
        n = len(x)
        lags = np.arange(n)[:, None] - np.arange(n)
        allowed = (lags >= 0) & (lags < windows.get(index % 2, 99))
        weights = allowed / allowed.sum(1, keepdims=True)
        value = np.einsum("dhk,hke->de", reading.out, reading.projections[2])
        w2 = numpy_of(reading.down.weight)
        w2 = w2.T if type(reading.down).__name__ == "Conv1D" else w2
        bias = 0 if reading.down.bias is None else numpy_of(reading.down.bias)
        update = weights @ x @ value.T + seen[index].arrays["act"] @ w2.T + bias
        np.testing.assert_allclose(update, states[index + 1] - states[index], atol=2e-6)


@pytest.mark.parametrize("kind", MAMBAS)
def test_channel_block_is_the_mixer(kind):
    """o ∘ z by channel, with the skip, is what reaches the output projection (Mamba-2: its gated norm)."""
    model = load(kind, spread=2.0)
    caught: dict[int, np.ndarray] = {}
    hooks = []
    for index, block in enumerate(model.blocks):
        mixer = block.mixer
        place = mixer.norm if kind == "mamba2" else mixer.out_proj

        def keep(module, args, index=index):
            caught[index] = numpy_of(args[0])[0]

        hooks.append(place.register_forward_pre_hook(keep))
    seen: dict[int, Seen] = {}
    with watching(model, "mamba", [], seen):
        model.stream(IDS, on_state=lambda *_: None)
    for hook in hooks:
        hook.remove()
    assert sorted(seen) == [0, 1, 2, 3]
    for index, layer in seen.items():
        block, u, gate, skip = channel_block(mamba_of(model.blocks[index].mixer), layer)
        scanned = layer.arrays["scan_x"].reshape(len(u), -1)
        np.testing.assert_allclose(silu(u), scanned, atol=1e-6)
        out = channel_output(block, silu(u)) + skip * silu(u)
        expected = caught[index]
        out = out if kind == "mamba2" else out * silu(gate)
        np.testing.assert_allclose(out, expected, atol=1e-5 * max(1, np.abs(expected).max()))


def test_result_of_a_transformer(tmp_path):
    from tests.models.tiny_configs import save_tiny

    save_tiny("gpt_neox", tmp_path / "model")
    config = ApplyConfig(model=str(tmp_path / "model"), length=12, samples=3)
    result = run(config, out=tmp_path / "runs")
    assert result["sigma"].shape == (4,)
    assert result.axes["constants/beta_T"] == ("layer",)
    assert result.axes["depth_stability"] == ()
    assert float(result["depth_lower"]) <= float(result["depth_stability"]) <= float(result["depth_upper"])
    assert [f.code for f in result.findings] == ["linearisation", "hypotheses", "random_ids"]
    message = result.findings[1].message
    assert message.startswith("hypotheses not met: no norm before the mixer (4 of 4 blocks, such as block 1: ")
    assert message.endswith("no ordering of architectures follows for this model")
    assert "one head" in failing(result.provenance["hypotheses"])
    stored = load_result(next((tmp_path / "runs").iterdir()))
    np.testing.assert_array_equal(stored["predicted"], result["predicted"])
    np.testing.assert_array_equal(run(config, out=tmp_path / "runs")["measured"], result["measured"])


def test_measured_is_the_stream_and_prediction_is_near_where_weights_are_small():
    """At a small random init activations are nearly linear and attention nearly uniform: theory must be close."""
    from repflow.metrics import path_energy

    model = load("gpt2", spread=0.5)
    result = run(ApplyConfig(length=16, samples=4), model=model)
    hidden = []
    from repflow.studies.engine.prompts import make_prompts

    for prompt in make_prompts(ApplyConfig(length=16, samples=4), model):
        states = []
        model.stream(torch.tensor([prompt.ids]), on_state=lambda _, s, kept=states: kept.append(s[0].double()))
        hidden.append(torch.stack(states))
    for layer in range(4):
        steps = [path_energy(h[layer : layer + 2]).item() / (4 * 16 * 32) for h in hidden]
        assert result["measured"][layer] == pytest.approx(np.mean(steps), rel=1e-9)
    assert result["linearisation"][0] < 0.2
    assert result["predicted"][0] == pytest.approx(result["measured"][0], rel=0.2)
    assert abs(np.log(result["printed"][0] / result["measured"][0])) > abs(np.log(1.2))


def test_result_of_a_mamba():
    result = run(ApplyConfig(length=12, samples=2), model=load("mamba2"))
    assert {"rho", "c", "b", "h", "z"} == {n.removeprefix("constants/") for n in result if n.startswith("constants/")}
    assert (result["bound"] >= result["predicted"]).all()
    assert (result["tightness"] >= 1).all()
    broken = failing(result.provenance["hypotheses"])
    assert "Assumption 3: A, B, C the same for every input" in broken
    assert "no skip D" in broken
    one = run(ApplyConfig(length=12, samples=1), model=load("mamba2"))
    assert "not checked: one prompt" in next(f.message for f in one.findings if f.code == "hypotheses")


@pytest.mark.parametrize("kind", ["llama", "bamba", "rwkv"])
def test_architectures_without_a_reading_are_taught(kind):
    with pytest.raises(UnsupportedModelError, match=f"can be read in .*got {kind} .*gated feed-forward parts, hybrids"):
        check_readable(load(kind))


def test_bad_requests():
    with pytest.raises(InputError, match="at least 1 prompt of 2 tokens"):
        check_request(ApplyConfig(model="x", length=1))


def test_products_of_weights_are_taken_once_a_layer_however_many_prompts(monkeypatch):
    """For 2.7 billion weights each is a second or more on a CPU; prompt by prompt the command took minutes."""
    from repflow.studies.theory import layer

    taken = []

    def counting(name):
        original = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda *args: (taken.append(name), original(*args))[1])

    counting("update_sums")
    counting("filter_norm")
    run(ApplyConfig(length=8, samples=3), model=load("gpt_neox"))
    run(ApplyConfig(length=8, samples=3), model=load("mamba2"))
    assert taken == ["update_sums"] * 4 + ["filter_norm"] * 4
