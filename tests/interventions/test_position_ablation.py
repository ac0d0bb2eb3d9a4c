"""Without positions a one-layer Transformer's last token does not see the order of the earlier ones."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from repflow.core.errors import UnsupportedModelError
from repflow.interventions import ablate
from repflow.models import load
from repflow.models.transformers_own import config_class
from tests.interventions.ablation_inputs import states
from tests.models.tiny_configs import COMMON, CONFIGS

GPTJ = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, "rotary_dim": 4}
ONE_LAYER = {
    "gpt2": {**CONFIGS["gpt2"], "n_layer": 1},
    "gpt_neo": {**CONFIGS["gpt_neo"], "num_layers": 1, "attention_types": [[["global"], 1]]},
    "gpt_neox": {**CONFIGS["gpt_neox"], "num_hidden_layers": 1},
    "llama": {**CONFIGS["llama"], "num_hidden_layers": 1},
    "opt": {**CONFIGS["opt"], "num_hidden_layers": 1},
    "gptj": GPTJ,
    "bamba": {**CONFIGS["bamba"], "num_hidden_layers": 1, "attn_layer_indices": [0]},
    "gemma2": {**CONFIGS["gemma2"], "num_hidden_layers": 1, "layer_types": ["full_attention"]},
}


def one_layer(model_type):
    torch.manual_seed(1)
    network = AutoModelForCausalLM.from_config(config_class(model_type)(**{**COMMON, **ONE_LAYER[model_type]}))
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, 0.5)
    return load(network)


@pytest.mark.parametrize("model_type", ONE_LAYER)
def test_last_token_ignores_the_order_of_earlier_ones(model_type, ids):
    model = one_layer(model_type)
    order = torch.randperm(ids.shape[1] - 1, generator=torch.Generator().manual_seed(2))
    permuted = torch.cat([ids[:, order], ids[:, -1:]], 1)
    ablated = ablate(model, "positions")
    assert torch.allclose(states(ablated, ids)[1:, :, -1], states(ablated, permuted)[1:, :, -1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(states(model, ids)[1:, :, -1], states(model, permuted)[1:, :, -1], rtol=1e-2, atol=1e-2)


def test_the_attention_factor_of_rotary_positions_is_kept(ids):
    config = config_class("llama")(**{**COMMON, **CONFIGS["llama"]})
    config.rope_parameters = {
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "attention_factor": 1.5,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    model = load(AutoModelForCausalLM.from_config(config))
    cos, sin = ablate(model, "positions").network.model.rotary_emb(torch.zeros(1, 3, 32), torch.arange(3)[None])
    assert torch.equal(cos, torch.full_like(cos, 1.5))
    assert not sin.any()


@pytest.mark.parametrize("model", ["mamba", "mamba2", "rwkv", "jamba", "xlstm"], indirect=True)
def test_families_without_positions_are_refused(model):
    with pytest.raises(UnsupportedModelError, match=r"expected a model with learned or rotary positions; got .*none"):
        ablate(model, "positions")


def test_biases_are_refused():
    config = config_class("bloom")(vocab_size=128, hidden_size=32, n_layer=2, n_head=4)
    model = load(AutoModelForCausalLM.from_config(config))
    with pytest.raises(UnsupportedModelError, match="bloom with ALiBi"):
        ablate(model, "positions")
    with pytest.raises(UnsupportedModelError, match="code of its own"):
        ablate(model, "attention-uniform")
