"""Original mamba_ssm folders give the logits of the transformers model they were made from."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from repflow.core.errors import InputError, UnsupportedModelError
from repflow.models import load
from repflow.models.transformers_own import config_class
from tests.models.tiny_configs import COMMON

SHAPES = {
    "mamba": {"hidden_size": 32, "num_hidden_layers": 4, "state_size": 4, "time_step_rank": 3, "conv_kernel": 3},
    "mamba2": {
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_heads": 6,
        "head_dim": 16,
        "expand": 3,
        "state_size": 8,
        "n_groups": 1,
        "conv_kernel": 3,
        "chunk_size": 16,
    },
}


def reference(model_type, tied=True):
    torch.manual_seed(0)
    config = config_class(model_type)(**{**COMMON, **SHAPES[model_type]}, tie_word_embeddings=tied)
    network = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2 and "A_log" not in name:
                parameter.mul_(4)
            elif name.endswith(("norm.weight", "norm_f.weight", ".D")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return network


def write_original(network, folder, *, tied=True, **changes):
    """Write a transformers Mamba the way mamba_ssm's save_pretrained does."""
    folder.mkdir(exist_ok=True)
    mamba2 = network.config.model_type == "mamba2"
    config = {
        "d_model": network.config.hidden_size,
        "n_layer": network.config.num_hidden_layers,
        "vocab_size": 125,
        "ssm_cfg": {"layer": "Mamba2", "chunk_size": 16} if mamba2 else {},
        **{"rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8},
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    names = network.state_dict()
    weights = {k.replace("backbone.embeddings", "backbone.embedding"): v.clone() for k, v in names.items()}
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("model_type", SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip(model_type, tied, tmp_path):
    network = reference(model_type, tied)
    # transformers' own scan in both: the fast one agrees to rounding only
    model = load(write_original(network, tmp_path / "original", tied=tied), scan="reference")
    ids = torch.randint(0, 125, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(model.network(ids).logits, network(ids).logits)
    assert (model.model_type, model.n_layers, model.vocab_size) == (model_type, 4, 128)
    tie = model.network.get_input_embeddings().weight is model.network.get_output_embeddings().weight
    assert tie == tied


def test_weights_in_half_precision_are_widened(tmp_path):
    network = reference("mamba2").half().float()
    folder = write_original(network.half(), tmp_path / "half")
    assert load(folder).dtype == torch.float32
    assert load(folder, dtype="float64").dtype == torch.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_layer_idx": [1]}, "attention layers"),
        ({"d_intermediate": 64}, "MLP layers"),
        ({"rms_norm": False}, "LayerNorm"),
        ({"ssm_cfg": {"layer": "Mamba2", "ngroups": 2}}, "several groups"),
    ],
)
def test_what_transformers_computes_differently_is_refused(changes, message, tmp_path):
    with pytest.raises(UnsupportedModelError, match=message):
        load(write_original(reference("mamba2"), tmp_path / "m", **changes))


def test_missing_weights_are_refused(tmp_path):
    folder = write_original(reference("mamba"), tmp_path / "m")
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    del weights["backbone.layers.2.mixer.D"]
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"missing \['backbone.layers.2.mixer.D'\]"):
        load(folder)


@pytest.mark.parametrize("layer", ["Mamba1", "Mamba2"])
def test_random_twin_from_the_configuration_alone(layer, tmp_path):
    config = {
        "d_model": 64,
        "n_layer": 4,
        "vocab_size": 125,
        "ssm_cfg": {"layer": layer},
        "pad_vocab_size_multiple": 16,
    }
    (tmp_path / "c.json").write_text(json.dumps(config))
    model = load(f"config:{tmp_path}/c.json")
    assert (model.init, model.vocab_size, model.layer_kinds) == ("default", 128, ["ssm"] * 4)
    (tmp_path / "c.json").write_text(json.dumps({**config, "ssm_cfg": {"layer": "Mamba3"}}))
    with pytest.raises(InputError, match="Mamba1 or Mamba2; got 'Mamba3'"):
        load(f"config:{tmp_path}/c.json")
