"""Models whose forward pass is not deterministic are found by running a prompt twice; all others are not."""

import pytest
import torch
from torch import nn

from repflow.capture.measure import MeasureOptions, measure_prompts
from repflow.capture.repeat import RepeatCheck, differences
from repflow.models import load
from repflow.models.pretrained import Model
from tests.capture.inputs import prompts
from tests.models.tiny_configs import NAMED, tiny_model
from tests.sample import sampled

IDS = torch.arange(24).reshape(1, 24)


def found(network, **options):
    result = measure_prompts(load(network), prompts((20, 24, 33)), MeasureOptions(keep_samples=0, **options))
    return [finding for finding in result.findings if finding.code == "not_deterministic"]


@pytest.mark.parametrize("model_type", sampled(NAMED))
def test_deterministic_models_have_no_finding(model_type):
    model = load(tiny_model(model_type))
    check = RepeatCheck(model, prompts((20, 24)))
    check.start()
    assert not check.findings()
    assert [float(gap) for gap, _ in differences(model, IDS, "residual")] == [0.0] * model.n_states


def noisy(network, block, size):
    def add(_, __, output):
        hidden = output if isinstance(output, torch.Tensor) else output[0]
        changed = hidden + size * hidden.std() * torch.randn_like(hidden)
        return changed if isinstance(output, torch.Tensor) else (changed, *output[1:])

    network.base_model.layers[block].register_forward_hook(add)
    return network


@pytest.mark.parametrize("kind", ["residual", "branch", "hf-tuple"])
def test_noise_is_found_with_its_size_and_place(kind):
    (finding,) = found(noisy(tiny_model("llama"), 1, 0.01), kind=kind)
    assert finding.layer == (1 if kind == "branch" else 2)
    assert "two passes over the same 8 tokens differ by up to" in finding.message
    size = float(finding.message.partition("by up to ")[2].split()[0])
    assert 1e-3 < size < 1
    assert not found(tiny_model("llama"), kind=kind)


def test_small_noise_counts_rounding_does_not():
    assert found(noisy(tiny_model("llama"), 0, 1e-4))
    assert not found(noisy(tiny_model("llama"), 0, 1e-9))


def test_dropout_that_no_mode_turns_off():
    class Always(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.1, training=True)

    network = tiny_model("gpt2")
    for block in network.transformer.h:
        block.mlp.dropout = Always()
    (finding,) = found(network)
    assert finding.layer == 1


def test_a_router_that_samples():
    network = tiny_model("jamba")
    routers = [m.router for m in network.modules() if hasattr(m, "router") and hasattr(m, "experts")]
    assert routers
    for router in routers:
        router.register_forward_pre_hook(lambda _, args: (args[0] + torch.randn_like(args[0]), *args[1:]))
    assert found(network)


def test_the_cost_is_a_few_percent_of_forty_eight_prompts(monkeypatch):
    """Tokens that the model reads, counted: no clock."""
    seen = []
    whole = Model.stream

    def stream(self, ids, *args, **kwargs):
        seen.append(ids.numel())
        return whole(self, ids, *args, **kwargs)

    model, many = load(tiny_model("llama")), prompts((60,) * 48)
    monkeypatch.setattr(Model, "stream", stream)
    measure_prompts(model, many, MeasureOptions(keep_samples=0))
    assert seen[-2] == seen[-1]
    assert sum(seen) - 48 * 60 == 2 * seen[-1] <= 0.03 * 48 * 60


def test_an_unchanged_model_is_read_twice_once(monkeypatch):
    seen = []
    whole = Model.stream
    monkeypatch.setattr(Model, "stream", lambda self, ids, *a, **k: seen.append(1) or whole(self, ids, *a, **k))
    model, inputs = load(noisy(tiny_model("llama"), 1, 0.01)), prompts((20, 24))

    def asked():
        check = RepeatCheck(model, inputs)
        check.start()
        return [finding.code for finding in check.findings()]

    assert asked() == asked() == ["not_deterministic"]
    assert len(seen) == 2
    model.blocks[0].register_forward_hook(lambda *_: None)
    assert asked() == ["not_deterministic"]
    assert len(seen) == 4
