"""A model's function as a fingerprint: stable under rounding, even of models that amplify it, and sharp otherwise."""

import copy
import json

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from repflow.models import load
from repflow.models.devices import probe_dtype
from repflow.models.identity.fingerprint import STEP, fingerprint
from repflow.store.identity import function_differences
from tests.models.tiny_configs import CONFIGS, tiny_config, tiny_model
from tests.sample import sampled


def rough(network, step):
    """Imitate another machine: every matrix product rounded at random by a relative step."""
    generator = torch.Generator().manual_seed(1)

    def hook(_, __, output):
        return output * (1 + step * torch.randn(output.shape, generator=generator))

    kinds = (nn.Linear, nn.Conv1d)
    return [
        module.register_forward_hook(hook)
        for module in network.modules()
        if isinstance(module, kinds) or type(module).__name__ == "Conv1D"
    ]


@pytest.mark.parametrize("model_type", sampled(CONFIGS))
def test_another_machines_rounding_is_let_pass(model_type):
    model = load(copy.deepcopy(tiny_model(model_type)))
    here = fingerprint(model)
    assert here == fingerprint(model) == json.loads(json.dumps(here))
    assert len(here["parts"]) == model.n_layers + 2
    hooks = rough(model.network, STEP[torch.float32])
    there = fingerprint(model)
    assert there != here
    assert function_differences(here, there) == []
    for hook in hooks:
        hook.remove()
    assert fingerprint(model) == here


def test_a_deep_random_mamba_passes_where_its_logits_would_not():
    config = tiny_config("mamba2")
    config.num_hidden_layers = 24
    torch.manual_seed(0)
    model = load(AutoModelForCausalLM.from_config(config))
    ids = torch.arange(16)[None]
    here, logits = fingerprint(model), model.network(ids).logits
    rough(model.network, 2.0**-8)
    off = (model.network(ids).logits - logits).norm() / logits.norm()
    assert off > 10 * 2.0**-8, "rounding grows through depth"
    assert function_differences(here | {"step": 2.0**-8}, fingerprint(model)) == []


@pytest.mark.parametrize("model_type", ["gpt_neox", "mamba2", "bamba"])
def test_half_precision_agrees_with_exact_arithmetic_on_the_same_weights(model_type):
    if probe_dtype(torch.bfloat16) is not None:
        pytest.skip("this CPU has no bfloat16 products")
    half = copy.deepcopy(tiny_model(model_type)).to(torch.bfloat16)
    exact = copy.deepcopy(half).float()
    assert function_differences(fingerprint(load(half)), fingerprint(load(exact))) == []


def another_activation(network):
    network.base_model.layers[1].mlp.act = nn.ReLU()


def another_order(network):
    network.base_model.layers[2].use_parallel_residual = False


def another_scale(network):
    network.base_model.layers[0].attention.dense.register_forward_hook(lambda _, __, output: output * 1.5)


def another_norm(network):
    network.base_model.final_layer_norm = nn.Identity()


def a_factor(network):
    network.base_model.embed_in.register_forward_hook(lambda _, __, output: output * 1.1)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (another_activation, "function.block 2"),
        (another_order, "function.block 3"),
        (another_scale, "function.block 1"),
        (another_norm, "function.logits"),
        (a_factor, "function.embedding"),
    ],
)
def test_changed_code_is_seen_and_named(change, part):
    network = copy.deepcopy(tiny_model("gpt_neox"))
    before = fingerprint(load(copy.deepcopy(network)))
    model = load(network)
    change(model.network)
    keys = {key for key, *_ in function_differences(before, fingerprint(model))}
    assert keys == {part}


def test_the_record_of_scans_is_left_alone():
    model = load(copy.deepcopy(tiny_model("mamba2")))
    fingerprint(model)
    assert model.scans.facts()["ssd"]["ran"] == []


def test_what_is_not_finite_is_null_and_equal_to_itself():
    network = copy.deepcopy(tiny_model("gpt2"))
    with torch.no_grad():
        network.base_model.h[1].mlp.c_fc.weight[0, 0] = float("nan")
    record = fingerprint(load(network))
    assert [row[2] is None for row in record["parts"]] == [False, False, True, False, False, False]
    assert function_differences(record, record) == []
    sound = fingerprint(load(copy.deepcopy(tiny_model("gpt2"))))
    assert {key for key, *_ in function_differences(record, sound)} == {"function.block 2"}
