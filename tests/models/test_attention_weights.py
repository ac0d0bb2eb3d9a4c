"""Attention weights: against transformers' own output_attentions, against the layer's output, and refusals."""

import pytest
import torch

from repflow.core.errors import InputError
from repflow.interventions import ablate
from repflow.models import load
from repflow.models.attention_weights import attention_layers, attention_modules, attention_weights
from tests.models.stack.inputs import ids as stack_ids
from tests.models.stack.inputs import stack
from tests.models.tiny_configs import tiny_model

KINDS = ["gpt2", "gpt_neo", "gpt_neox", "llama", "recurrent_gemma", "bamba", "zamba2", "falcon_h1"]


def collect(model, ids):
    by_layer = {}
    with attention_weights(model, lambda layer, weights: by_layer.setdefault(layer, weights)):
        model.stream(ids, on_state=lambda *_: None)
    return by_layer


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_transformers_own(kind, ids):
    model = load(tiny_model(kind))
    before = model.network.config._attn_implementation
    states = collect(model, ids)
    assert model.network.config._attn_implementation == before
    assert list(states) == attention_layers(model)
    network = tiny_model(kind)
    network.set_attn_implementation("eager")
    theirs = network(ids, output_attentions=True, use_cache=False).attentions
    for ours, want in zip(states.values(), [part for part in theirs if part is not None], strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-5, atol=1e-6)
        assert not ours.triu(1).any()
        torch.testing.assert_close(ours.sum(-1), torch.ones_like(ours[..., 0]))


@pytest.mark.parametrize("kind", ["gpt_neo", "gpt_neox"])
def test_weights_make_the_layers_output(kind, ids):
    """W V through the output projection is what the attention module returns, whichever kernel ran."""
    model = load(tiny_model(kind))
    values, outputs = {}, {}
    modules = [attention_modules(model, block)[0] for block in model.blocks]
    for layer, module in enumerate(modules):
        inner = module.v_proj if kind == "gpt_neo" else module.query_key_value
        inner.register_forward_hook(lambda m, i, o, layer=layer: values.__setitem__(layer, o))
        module.register_forward_hook(lambda m, i, o, layer=layer: outputs.__setitem__(layer, o[0]))
    model.stream(ids, on_state=lambda *_: None)
    fused = dict(outputs)
    for layer, weights in collect(model, ids).items():
        split = values[layer].unflatten(-1, (4, -1))
        value = split if kind == "gpt_neo" else split[..., 2 * 8 :]
        mixed = torch.einsum("bhts,bshd->bthd", weights, value).flatten(2)
        out = modules[layer].out_proj if kind == "gpt_neo" else modules[layer].dense
        torch.testing.assert_close(out(mixed), fused[layer], rtol=1e-4, atol=1e-5)


def test_own_attention_of_a_stack():
    model = load(stack(["softmax_attention", "s6", "softmax_attention"]))
    states = collect(model, stack_ids())
    assert {layer: tuple(w.shape) for layer, w in states.items()} == {0: (3, 4, 20, 20), 2: (3, 4, 20, 20)}


def test_a_changed_attention_stays_changed(ids):
    network = tiny_model("gpt_neox")
    network.set_attn_implementation("eager")
    narrow = ablate(load(network), ["attention-window:3"])
    for weights in collect(narrow, ids).values():
        assert not weights.tril(-3).any()
        assert weights.tril(-2).any()


def test_a_fused_kernel_that_hides_them_is_refused(ids):
    """An ablation built on the fused kernel cannot be run in another way without undoing it."""
    model = ablate(load(tiny_model("gpt_neox")), ["attention-window:3"])
    with pytest.raises(InputError) as caught:
        collect(model, ids)
    text = str(caught.value)
    assert text.startswith(
        "expected attention weights from GPTNeoXAttention in block 1 of gpt_neox; got none: repflow_"
    )
    assert "hides them in a fused kernel" in text
    assert "attn_implementation='eager'" in text
