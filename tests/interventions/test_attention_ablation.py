"""Attention narrowed and made uniform, compared with values averaged by hand and transformers' own windows."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from repflow.core.errors import UnsupportedModelError
from repflow.interventions import ablate
from repflow.interventions.attention import check_served
from repflow.models import load, twin
from repflow.models.identity.live import shared_copy
from repflow.models.transformers_own import config_class
from tests.interventions.ablation_inputs import calls, mean_over, states
from tests.models.tiny_configs import COMMON, CONFIGS, VOCAB
from tests.sample import chosen

WITH_ATTENTION = [
    *("gpt2", "gpt_neo", "gpt_neox", "llama", "bamba", "jamba", "falcon_h1", "recurrent_gemma"),
    *("zamba2", "nemotron_h", "granitemoehybrid", "lfm2", "qwen2", "opt", "phi", "gemma2"),
]
IN_CI = ("gpt2", "gpt_neo", "gpt_neox", "bamba", "zamba2", "nemotron_h")
"""Learned and rotary positions, windows of their own, hybrids of each kind."""
OWN_WINDOW = {"recurrent_gemma": [8, 8], "gpt_neo": [None, 4, None, 4], "gemma2": [8, None, 8, None]}


def attention_modules(model):
    """The modules that hold the projections, with the blocks' own windows."""
    modules = [m for m in model.network.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "config")]
    modules = [m for m in modules if any(hasattr(m, name) for name in ("v_proj", "c_attn", "query_key_value"))]
    return list(zip(modules, OWN_WINDOW.get(model.model_type, [None] * len(modules)), strict=True))


def values_of(module, hidden):
    """Value vectors (batch, token, head, channel), straight from the weights."""
    batch, tokens, _ = hidden.shape
    if hasattr(module, "c_attn"):
        return module.c_attn(hidden).chunk(3, -1)[2].reshape(batch, tokens, 4, -1)
    if hasattr(module, "query_key_value"):
        return module.query_key_value(hidden).reshape(batch, tokens, 4, 3, -1)[:, :, :, 2]
    values = module.v_proj(hidden)
    channels = getattr(module, "head_dim", 8)
    values = values.reshape(batch, tokens, -1, channels)
    return values.repeat_interleave(getattr(module, "num_key_value_groups", 1), 2)


def project(module, values):
    """Output projection of joined heads."""
    names = ("c_proj", "o_proj", "out_proj", "dense")
    projection = next(getattr(module, name) for name in names if hasattr(module, name))
    return projection(values.flatten(2))


@pytest.mark.parametrize("model", chosen(WITH_ATTENTION, IN_CI), indirect=True)
@pytest.mark.parametrize(
    ("ablations", "window"), [("attention-uniform", None), ("attention-uniform+attention-window:3", 3)]
)
def test_uniform_attention_averages_the_values(model, ids, ablations, window):
    ablated = ablate(model, ablations)
    modules = attention_modules(ablated)
    seen = calls(ablated, [module for module, _ in modules], ids)
    for (module, own), (args, kwargs, output) in zip(modules, seen, strict=True):
        hidden = args[0] if args else kwargs["hidden_states"]
        width = min((w for w in (own, window) if w is not None), default=None)
        with torch.no_grad():
            expected = project(module, mean_over(values_of(module, hidden), width))
        got = output[0] if isinstance(output, tuple) else output
        assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5), type(module).__name__


@pytest.mark.parametrize("model", chosen(WITH_ATTENTION, IN_CI), indirect=True)
def test_window_of_one_is_attention_to_self(model, ids):
    ablated = ablate(model, "attention-window:1")
    modules = [module for module, _ in attention_modules(ablated)]
    for module, (args, kwargs, output) in zip(modules, calls(ablated, modules, ids), strict=True):
        hidden = args[0] if args else kwargs["hidden_states"]
        with torch.no_grad():
            expected = project(module, values_of(module, hidden))
        got = output[0] if isinstance(output, tuple) else output
        assert torch.allclose(got, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("model", chosen([*WITH_ATTENTION, "qwen3_next"], (*IN_CI, "qwen3_next")), indirect=True)
def test_window_as_long_as_the_prompt_changes_nothing(model, ids):
    whole = states(model, ids)
    for window in (ids.shape[1], 1000):
        assert torch.allclose(states(ablate(model, f"attention-window:{window}"), ids), whole, atol=1e-5)
    short = states(ablate(model, f"attention-window:{ids.shape[1] - 9}"), ids)
    assert not torch.allclose(short, whole, atol=1e-5)
    assert torch.allclose(short[:, :, :3], whole[:, :, :3], atol=1e-5)  # the first tokens see as much as before


def test_window_equals_transformers_own(ids):
    """Mistral's sliding window and GPT-Neo's local layers are the same thing, made by other code."""
    config = {**COMMON, **CONFIGS["llama"], "sliding_window": None}
    whole = AutoModelForCausalLM.from_config(config_class("mistral")(**config)).eval()
    sliding = AutoModelForCausalLM.from_config(config_class("mistral")(**{**config, "sliding_window": 3})).eval()
    sliding.load_state_dict(whole.state_dict())
    assert torch.allclose(states(ablate(load(whole), "attention-window:3"), ids), states(load(sliding), ids), atol=1e-6)
    kinds = {"global": [[["global"], 4]], "local": [[["local"], 4]]}
    neo = {kind: config_class("gpt_neo")(**{**COMMON, **CONFIGS["gpt_neo"], "attention_types": types})
           for kind, types in kinds.items()}  # fmt: skip
    free, local = (AutoModelForCausalLM.from_config(neo[kind]).eval() for kind in ("global", "local"))
    local.load_state_dict(free.state_dict())
    assert torch.allclose(states(ablate(load(free), "attention-window:4"), ids), states(load(local), ids), atol=1e-6)


@pytest.mark.parametrize("model", ["gpt2", "gpt_neo", "bamba"], indirect=True)
def test_one_after_the_other_is_both_at_once(model, ids):
    both = ablate(model, ("attention-window:3", "attention-uniform"))
    for first, second in (("attention-window:3", "attention-uniform"), ("attention-uniform", "attention-window:3")):
        stepwise = ablate(ablate(model, first), second)
        assert stepwise.ablations == both.ablations == ("attention-window:3", "attention-uniform")
        assert torch.equal(states(stepwise, ids), states(both, ids))
        assert stepwise.digest() == both.digest()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (kind, name)
        for name in ("attention-window:3", "attention-uniform", "norm-affine", "positions")
        for kind in WITH_ATTENTION[:8]
        if (kind, name) != ("jamba", "positions")  # it has none
    ],
    indirect=["model"],
)
def test_the_model_itself_stays_as_it_is(model, ids, name):
    before, digest, implementation = states(model, ids), model.digest(), model.network.config._attn_implementation
    ablated = ablate(model, name)
    assert ablated.ablations == (name,)
    assert ablated.digest() != digest
    assert not torch.equal(states(ablated, ids), before)
    assert torch.equal(states(model, ids), before)
    assert model.digest() == digest
    assert model.ablations == ()
    assert model.network.config._attn_implementation == implementation
    assert (ablated.tokenizer, ablated.init, ablated.spec) == (model.tokenizer, model.init, model.spec)
    assert any(finding.code == "ablated" and finding.message.startswith(name) for finding in ablated.findings)


@pytest.mark.parametrize("model", ["gpt2"], indirect=True)
def test_copies_share_what_they_do_not_change(model):
    copied = shared_copy(model.network)
    assert all(a is b for a, b in zip(copied.parameters(), model.network.parameters(), strict=True))
    assert not {id(m) for m in copied.modules()} & {id(m) for m in model.network.modules()}
    assert copied.config is not model.network.config


@pytest.mark.parametrize("model", ["llama", "gpt_neo"], indirect=True)
def test_a_twin_of_an_ablated_model_is_whole(model, ids):
    plain = twin(model, "xavier", seed=3)
    again = twin(ablate(model, "attention-window:2"), "xavier", seed=3)
    assert again.ablations == ()
    assert torch.equal(states(again, ids), states(plain, ids))


@pytest.mark.parametrize("model", ["llama", "gpt_neo", "bamba"], indirect=True)
def test_the_window_holds_with_a_cache(model, ids):
    """Greedy answers token by token equal those of whole passes."""
    network = ablate(model, "attention-window:3").network
    generated_ids = network.generate(ids[:1], max_new_tokens=6, do_sample=False, eos_token_id=VOCAB + 1)
    whole = ids[:1]
    for _ in range(6):
        with torch.no_grad():
            logits = network(input_ids=whole, use_cache=False).logits[:, -1]
        whole = torch.cat([whole, logits.argmax(-1, keepdim=True)], 1)
    assert torch.equal(generated_ids, whole)


@pytest.mark.parametrize("model", ["mamba", "mamba2", "rwkv", "xlstm"], indirect=True)
@pytest.mark.parametrize("name", ["attention-uniform", "attention-window:4"])
def test_models_without_attention_are_refused(model, name):
    with pytest.raises(UnsupportedModelError, match=r"expected a model with attention; got .*, whose layers are"):
        ablate(model, name)


@pytest.mark.parametrize("model", ["bamba"], indirect=True)
def test_a_block_that_attends_in_another_way_is_named(model):
    place = model.layer_kinds.index("attention")
    assert place > 0
    with pytest.raises(
        UnsupportedModelError, match=rf"got block {place + 1} \(\w+\), which computes it in another way"
    ):
        check_served(model, model.network)


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_the_same_ablation_twice_is_refused(model):
    with pytest.raises(ValueError, match="norm-affine twice"):
        ablate(ablate(model, "norm-affine"), "norm-affine")
    assert ablate(model, ()) is model
