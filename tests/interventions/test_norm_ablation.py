"""Norms reset and bypassed, compared with fresh networks and with blocks computed by hand."""

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from repflow.interventions import ablate
from repflow.models import load
from tests.interventions.ablation_inputs import calls, states
from tests.models.tiny_configs import CONFIGS, tiny_model
from tests.sample import sampled

REQUIRED = ["gpt2", "gpt_neo", "gpt_neox", "llama", "mamba", "mamba2", "bamba", "jamba", "falcon_h1", "recurrent_gemma"]
GATED = ["mamba2", "bamba", "zamba2", "nemotron_h", "granitemoehybrid", "qwen3_next"]


@pytest.mark.parametrize("model_type", sampled(CONFIGS))
def test_affine_that_is_identity_changes_nothing(model_type, ids):
    fresh = load(tiny_model(model_type, spread=1.0 if model_type == "recurrent_gemma" else 2.0))
    assert torch.equal(states(ablate(fresh, "norm-affine"), ids), states(fresh, ids))


@pytest.mark.parametrize("model", sampled(CONFIGS), indirect=True)
def test_affine_is_reset_to_what_a_fresh_network_has(model, ids):
    """A fresh network's norms are identities, in whichever form its architecture writes one."""
    ablated = ablate(model, "norm-affine")
    fresh = dict(AutoModelForCausalLM.from_config(model.network.config).named_parameters())
    before, changed = dict(model.network.named_parameters()), 0
    for name, parameter in ablated.network.named_parameters():
        if "norm" in name or ".ln" in name or "pre_ln" in name:
            assert torch.equal(parameter, fresh[name]), name
            changed += not torch.equal(parameter, before[name])
        else:
            assert parameter is before[name]
    assert changed
    assert not torch.allclose(states(ablated, ids)[1:], states(model, ids)[1:], atol=1e-3)


@pytest.mark.parametrize("model", REQUIRED, indirect=True)
@pytest.mark.parametrize("name", ["norm", "norm:block", "norm:final"])
def test_bypassed_norms_hand_their_input_on(model, ids, name):
    ablated = ablate(model, name)
    parts = dict(ablated.network.named_modules())
    changed = set(_bypassed(ablated))
    norms = [m for key, m in parts.items() if key in changed]
    for args, kwargs, output in calls(ablated, norms, ids):
        if len(args) + len(kwargs) == 1:
            (hidden,) = (*args, *kwargs.values())
            assert torch.equal(output, hidden)
    final = next(key for key, m in parts.items() if m is ablated.final_norm)
    assert (final in changed) == (name != "norm:block")
    assert len(changed) == {"norm:final": 1}.get(name, len(changed))


def _bypassed(model):
    return [name for name, module in model.network.named_modules() if "forward" in module.__dict__]


@pytest.mark.parametrize("model", GATED, indirect=True)
def test_a_bypassed_gated_norm_still_gates(model, ids):
    ablated = ablate(model, "norm:inner")
    gated = [m for m in ablated.network.modules() if type(m).__name__.endswith("NormGated")]
    for args, kwargs, output in calls(ablated, gated, ids):
        hidden, gate = (*args, *kwargs.values())
        assert torch.allclose(output, hidden * gate / (1 + torch.exp(-gate)), atol=1e-6)


@pytest.mark.parametrize("model", ["gpt2", "gpt_neo"], indirect=True)
def test_blocks_without_norms_by_hand(model, ids):
    hidden = states(ablate(model, "norm"), ids)
    for index, block in enumerate(model.blocks):
        with torch.no_grad():
            middle = hidden[index] + block.attn(hidden[index], attention_mask=_causal(block, ids))[0]
            expected = middle + block.mlp(middle)
        assert torch.allclose(hidden[index + 1], expected, atol=1e-4)
    assert torch.equal(hidden[-1], hidden[-2])


def _causal(block: nn.Module, ids):
    if hasattr(block.attn, "attention"):
        return None  # GPT-Neo masks by itself
    mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    return mask[None, None]


@pytest.mark.parametrize("model", ["mamba", "mamba2"], indirect=True)
def test_ssm_blocks_without_stream_norms_by_hand(model, ids):
    hidden = states(ablate(model, "norm:block"), ids)
    for index, block in enumerate(model.blocks):
        with torch.no_grad():
            expected = hidden[index] + block.mixer(hidden[index])
        assert torch.allclose(hidden[index + 1], expected, atol=1e-4)


def test_overflow_is_explained():
    loud = load(tiny_model("recurrent_gemma", spread=4.0))
    with pytest.raises(ValueError, match=r"the self-check does not apply: .* the states overflow"):
        ablate(loud, "norm")
