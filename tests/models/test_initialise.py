"""Random schemes touch the parameters they say and no others, with the spread they say."""

import math

import pytest
import torch
from tiny_configs import NAMED, tiny_config

from repflow.errors import InputError
from repflow.models.initialise import KEPT, parse_scheme, random_model


def parameters(model_type, init, seed=0):
    network = random_model(tiny_config(model_type), init, seed=seed)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


@pytest.mark.parametrize("model_type", NAMED)
def test_which_parameters_are_redrawn(model_type):
    before, after = parameters(model_type, "default"), parameters(model_type, "gaussian:0.3")
    for name, parameter in after.items():
        redrawn = parameter.ndim >= 2 and not KEPT.search(name)
        assert redrawn != torch.equal(parameter, before[name]), name
        if redrawn and parameter.numel() > 500:
            assert float(parameter.std()) == pytest.approx(0.3, rel=0.15), name
    left = {name.rpartition(".")[2] for name in after if not (after[name].ndim >= 2 and not KEPT.search(name))}
    matrices = {"A_log", "D", "dt_bias", "weight", "bias", "time_decay", "time_first", "recurrent_param"}
    extra = {name for name in left - matrices if not name.startswith("time_mix") and not name.endswith("_bias")}
    assert not extra, f"left alone without being named in the module's docstring: {extra}"


def test_fans():
    gpt2 = parameters("gpt2", "he")["transformer.h.0.mlp.c_fc.weight"]  # stored (in, out)
    assert gpt2.shape == (32, 128)
    assert float(gpt2.std()) == pytest.approx(math.sqrt(2 / 32), rel=0.1)
    llama = parameters("llama", "he")["model.layers.0.mlp.down_proj.weight"]
    assert float(llama.std()) == pytest.approx(math.sqrt(2 / 64), rel=0.1)
    xavier = parameters("llama", "xavier")["model.layers.0.mlp.down_proj.weight"]
    assert float(xavier.std()) == pytest.approx(math.sqrt(2 / 96), rel=0.1)
    conv = parameters("mamba", "he")["backbone.layers.0.mixer.conv1d.weight"]  # one input channel, kernel of 4
    assert float(conv.std()) == pytest.approx(math.sqrt(2 / 4), rel=0.2)
    experts = parameters("jamba", "he")["model.layers.1.feed_forward.experts.down_proj"]
    assert float(experts.std()) == pytest.approx(math.sqrt(2 / 64), rel=0.1)


@pytest.mark.parametrize("init", ["default", "gaussian", "xavier", "he"])
def test_seeds(init):
    first, again, other = (parameters("mamba2", init, seed) for seed in (4, 4, 5))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("init", ["gausian", "gaussian:x", "gaussian:-1", "gaussian:0", "gaussian:nan", "he:2", ""])
def test_unknown_schemes(init):
    with pytest.raises(InputError, match="expected"):
        parse_scheme(init)
    if init == "gausian":
        with pytest.raises(InputError, match="did you mean gaussian"):
            parse_scheme(init)
