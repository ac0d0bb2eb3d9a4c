"""Kinds of layers: every hybrid that transformers builds from a tiny configuration, named as its authors name it."""

import pytest
import torch
from torch import nn

from repflow.core.errors import InputError, UnsupportedModelError
from repflow.interventions import ablate
from repflow.models import load
from repflow.models.anatomy import layer_kind, mixing_kind, token_mixers
from tests.models.tiny_configs import CONFIGS, HYBRIDS, tiny_model

SSM, REC, ATT, BOTH = "ssm", "recurrent", "attention", "attention+ssm"
KINDS = {
    "kimi_linear": [REC, ATT] * 2,
    "bailing_hybrid": [REC, ATT] * 2,
    "minimax": [REC, ATT] * 2,
    "olmo_hybrid": [REC, ATT] * 2,
    "qwen3_next": [REC, ATT] * 2,
    "qwen3_5_text": [REC, ATT] * 2,
    "qwen3_5_moe_text": [REC, ATT] * 2,
    "qwen4_exp_text": [REC, ATT] * 2,
    "recurrent_gemma": [REC, REC, ATT] * 2,
    "zamba": [SSM, BOTH] * 2,
    "zamba2": [SSM, BOTH] * 2,
    "falcon_h1": [BOTH] * 4,
    "jamba": [SSM, ATT] * 2,
    "bamba": [SSM, ATT] * 2,
    "granitemoehybrid": [SSM, ATT] * 2,
    "nemotron_h": [SSM, "mlp", ATT, "moe", SSM, "mlp"],
    "lfm2": ["conv", ATT] * 2,
    "lfm2_moe": ["conv", ATT] * 2,
    "zaya": [ATT] * 4,
    "inkling_text": [ATT] * 4,
}
# class that attends, class that mixes tokens in another way
CLASSES = {
    "kimi_linear": ("KimiLinearAttention", "KimiLinearDeltaAttention"),
    "bailing_hybrid": ("BailingHybridAttention", "BailingHybridDeltaAttention"),
    "olmo_hybrid": ("OlmoHybridAttention", "OlmoHybridGatedDeltaNet"),
    "qwen3_next": ("Qwen3NextAttention", "Qwen3NextGatedDeltaNet"),
    "qwen3_5_text": ("Qwen3_5Attention", "Qwen3_5GatedDeltaNet"),
    "qwen3_5_moe_text": ("Qwen3_5MoeAttention", "Qwen3_5MoeGatedDeltaNet"),
    "recurrent_gemma": ("RecurrentGemmaAttention", "RecurrentGemmaRecurrentBlock"),
    "falcon_h1": ("FalconH1Attention", "FalconH1Mixer"),
    "jamba": ("JambaAttention", "JambaMambaMixer"),
    "bamba": ("BambaAttention", "BambaMixer"),
    "granitemoehybrid": ("GraniteMoeHybridAttention", "GraniteMoeHybridMambaLayer"),
    "nemotron_h": ("NemotronHAttention", "NemotronHMamba2Mixer"),
    "lfm2": ("Lfm2Attention", "Lfm2ShortConv"),
    "lfm2_moe": ("Lfm2MoeAttention", "Lfm2MoeShortConv"),
}


def test_the_table_has_every_hybrid():
    pure = {"gpt2", "gpt_neo", "gpt_neox", "llama", "qwen2", "opt", "phi", "gemma2"}  # attention alone
    pure |= {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"}
    assert set(KINDS) == {*CONFIGS, *HYBRIDS} - pure


@pytest.mark.parametrize("model_type", KINDS)
def test_kinds_of_layers(model_type):
    network = tiny_model(model_type)
    mixers = token_mixers(network)
    assert [layer_kind(block, mixers) for block in network.base_model.layers] == KINDS[model_type]


@pytest.mark.parametrize("model_type", ["kimi_linear", "bailing_hybrid", "minimax"])
def test_the_classes_say_the_same_where_the_configuration_is_silent(model_type):
    network = tiny_model(model_type)
    network.config.layer_types = None
    mixers = token_mixers(network)
    assert [layer_kind(block, mixers) for block in network.base_model.layers] == KINDS[model_type]


def test_the_configuration_names_a_mixer_that_no_class_does():
    """A mixer under a name that says nothing: its block is what `layer_types` says."""
    network = tiny_model("qwen3_5_text")

    class Thing(nn.Module):
        pass

    for block in network.base_model.layers:
        name = "linear_attn" if hasattr(block, "linear_attn") else "self_attn"
        setattr(block, name, Thing())
        assert mixing_kind(getattr(block, name)) is None
    mixers = token_mixers(network)
    assert [layer_kind(block, mixers) for block in network.base_model.layers] == KINDS["qwen3_5_text"]


def outputs(model, name, ids):
    """What every module of a class handed on in one forward pass."""
    seen = []
    modules = [module for module in model.network.modules() if type(module).__name__ == name]
    hooks = [
        m.register_forward_hook(lambda _, __, o: seen.append(o if isinstance(o, torch.Tensor) else o[0]))
        for m in modules
    ]
    model.stream(ids, on_state=lambda *_: None)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(modules) > 0
    return seen


@pytest.mark.parametrize("model_type", CLASSES)
def test_ablating_attention_takes_out_attention_alone(model_type):
    attends, other = CLASSES[model_type]
    model, ids = load(tiny_model(model_type)), torch.arange(24).reshape(2, 12)
    ablated = ablate(model, "branch:attention")
    blocks = [i + 1 for i, kind in enumerate(KINDS[model_type]) if "attention" in kind]
    first = next(f for f in ablated.findings if f.code == "ablated")
    assert f"{len(blocks)} changed (block {blocks[0]} attention" in first.message
    assert all(value.any() for value in outputs(model, attends, ids))
    added = _added(ablated, ids)
    for block, kind in enumerate(KINDS[model_type]):
        for part in ablated.reading.parts[block]:
            assert bool(added[part.module].any()) == (part.kind != "attention"), (block, kind, part.kind)
    assert all(value.any() for value in outputs(ablated, other, ids))


def _added(model, ids):
    """What each sublayer adds to the stream."""
    added = {}
    hooks = [
        part.module.register_forward_hook(
            lambda module, _, o: added.__setitem__(module, o if isinstance(o, torch.Tensor) else o[0])
        )
        for parts in model.reading.parts
        for part in parts
    ]
    model.stream(ids, on_state=lambda *_: None)
    for hook in hooks:
        hook.remove()
    return added


@pytest.mark.parametrize("model_type", ["zamba", "zamba2", "minimax"])
def test_attention_that_is_no_branch_of_its_own_is_not_taken_out(model_type):
    model = load(tiny_model(model_type))
    with pytest.raises((InputError, UnsupportedModelError), match=r"there are ssm|sum to what it adds"):
        ablate(model, "branch:attention")
