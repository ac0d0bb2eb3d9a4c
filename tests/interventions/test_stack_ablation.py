"""Ablations reach into a stack's own mixers as into transformers' layers."""

import pytest
import torch

from repflow.core.errors import UnsupportedModelError
from repflow.interventions import ablate
from repflow.models import load
from tests.models.stack.inputs import ids, stack
from tests.models.test_conformance import collect, worst

MIXERS = ["softmax_attention", "ssd", "retention", "softmax_attention"]


@pytest.fixture
def model():
    return load(stack(MIXERS, mlp="gelu", max_position_embeddings=32))


def changed(model, ablation, change):
    """States of the ablated model, of the network changed by hand, and of the model as it was."""
    before, _ = collect(model, ids())
    ablated = ablate(model, ablation)
    assert ablated.ablations == (ablation,)
    got, _ = collect(ablated, ids())
    assert worst(collect(model, ids())[0], before) == 0, "the model itself stays as it was"
    by_hand = stack(MIXERS, mlp="gelu", max_position_embeddings=32)
    with torch.no_grad():
        change(by_hand.model)
    expected, _ = collect(load(by_hand), ids())
    assert worst(got, expected) < 1e-5
    assert worst(got, before) > 1e-3


def test_uniform_attention(model):
    def change(network):
        for index in (0, 3):
            mixer = network.blocks[index].mixer
            mixer.q_proj.weight.zero_()
            weights = mixer.weights(torch.randn(1, 4, 16))
            assert torch.allclose(weights[0, 0, 3], torch.full((4,), 0.25))

    changed(model, "attention-uniform", change)


def test_attention_window(model):
    def change(network):
        for index in (0, 3):
            network.blocks[index].mixer.window = 5

    changed(model, "attention-window:5", change)


def test_positions(model):
    def change(network):
        network.position_embeddings.weight.zero_()
        for index in (0, 3):
            network.blocks[index].mixer.turned = 0
        network.blocks[2].mixer.rotary = False

    changed(model, "positions", change)


def test_norms(model):
    def change(network):
        for block in network.blocks:
            block.mixer_norm = block.mlp_norm = torch.nn.Identity()

    changed(model, "norm:block", change)


def test_scales_of_norms(model):
    with torch.no_grad():
        for parameter in model.network.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1)
    ablated = ablate(model, "norm-affine").network.model
    assert bool((ablated.blocks[1].mixer.norm.weight == 1).all())
    assert bool((ablated.blocks[2].mixer_norm.weight == 1).all())


def test_gated_norm_still_gates(model):
    """Bypassing Mamba-2's inner norm leaves y · silu(z)."""
    got = ablate(model, "norm").network.model.blocks[1].mixer
    y, gate = torch.randn(1, 3, 32), torch.randn(1, 3, 32)
    assert torch.allclose(got.norm(y, gate), y * torch.nn.functional.silu(gate), atol=1e-6)


def test_no_attention_no_ablation():
    with pytest.raises(UnsupportedModelError, match="repflow_stack, whose layers are ssm"):
        ablate(load(stack(["ssd", "s6"])), "attention-uniform")
