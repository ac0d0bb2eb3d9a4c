"""Random weights drawn once: by the same rules as an ordinary construction, every buffer the same."""

import math

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from repflow.models import load
from repflow.models.weights import construct
from repflow.models.weights.construct import build_once, cast
from repflow.models.weights.initialise import drawing_device, random_model
from tests.models.tiny_configs import CONFIGS, tiny_config
from tests.sample import sampled


def counted(build, monkeypatch):
    """Build, and count the numbers drawn: by torch's own functions, below all that patches nn.init."""
    drawn = []
    for name in ("normal_", "uniform_"):
        original = getattr(torch.Tensor, name)

        def counting(self, *args, _original=original, **kwargs):
            drawn.append(self.numel())
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counting)
    torch.manual_seed(0)
    network = build()
    monkeypatch.undo()
    return network, sum(drawn)


@pytest.mark.parametrize("model_type", sampled(CONFIGS))
def test_the_same_rules_with_fewer_draws(model_type, monkeypatch):
    def build():
        return AutoModelForCausalLM.from_config(tiny_config(model_type), dtype=torch.float32)

    plain, many = counted(build, monkeypatch)
    once, few = counted(lambda: build_once(build), monkeypatch)
    assert once is not None
    assert few <= 0.8 * many
    for (name, p), (other, q) in zip(plain.named_parameters(), once.named_parameters(), strict=True):
        a, b = p.detach(), q.detach()
        assert name == other
        assert a.shape == b.shape
        assert b.isfinite().all(), name
        assert bool(a.std() > 0) == bool(b.std() > 0), name
        if a.std() == 0 or a.numel() == 1:
            assert torch.equal(a, b), name
        elif a.numel() > 500:
            assert float(b.std()) == pytest.approx(float(a.std()), rel=0.2), name
            assert float(b.mean()) == pytest.approx(float(a.mean()), abs=6 * float(a.std()) / math.sqrt(a.numel())), (
                name
            )
    for (name, a), (other, b) in zip(plain.named_buffers(), once.named_buffers(), strict=True):
        assert name == other
        assert torch.equal(a, b), name
    assert torch.nn.init.normal_ is construct.nn.init.normal_
    assert float(nn.Linear(50, 50).weight.detach().std()) > 0, "torch's own functions are back"


@pytest.mark.parametrize("model_type", ["mamba", "mamba2", "falcon_mamba", "bamba"])
def test_mambas_own_parameters(model_type):
    """A = 1..N, D = 1, softplus(dt bias) log-uniform in the configured range where the architecture has one."""

    def build():
        return AutoModelForCausalLM.from_config(tiny_config(model_type), dtype=torch.float32)

    torch.manual_seed(3)
    plain = dict(build().named_parameters())
    once = dict(build_once(build).named_parameters())
    for name, parameter in once.items():
        if name.rpartition(".")[2] in ("A_log", "D"):
            assert torch.equal(parameter, plain[name]), name
        if name.endswith(("dt_proj.bias", "dt_bias")):
            steps, usual = (torch.nn.functional.softplus(p.detach()) for p in (parameter, plain[name]))
            assert steps.min() >= 0.9 * min(1e-3, float(usual.min()))
            assert steps.max() <= 1.1 * max(0.1, float(usual.max()))


class Odd(nn.Module):
    """Rules that the shortcut must recognise."""

    def __init__(self, how):
        super().__init__()
        self.kept = nn.Linear(30, 30)
        self.odd = nn.Linear(30, 30)
        with torch.no_grad():
            if how == "scaled":
                self.odd.weight.mul_(0.5)
            if how == "in part":
                self.odd.weight[:5] = 1.0
            if how == "a view":
                nn.init.normal_(self.odd.weight[:5])


@pytest.mark.parametrize("how", ["scaled", "in part", "a view"])
def test_what_is_read_after_its_draw_is_built_in_the_ordinary_way(how):
    assert build_once(lambda: Odd(how)) is None
    network = build_once(lambda: Odd("plainly"))
    assert all(0 < float(p.detach().std()) < 0.2 and p.isfinite().all() for p in network.parameters())


def test_the_cpus_weights_are_those_of_an_ordinary_construction():
    """Every documented number of a random twin rests on it."""
    torch.manual_seed(7)
    usual = AutoModelForCausalLM.from_config(tiny_config("gpt_neox"), dtype=torch.float32)
    network = random_model(tiny_config("gpt_neox"), "default", seed=7)
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), network.parameters(), strict=True))
    model = load(usual, init="default", seed=7)
    assert model.drawn_on == "cpu"
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), model.network.parameters(), strict=True))
    assert load(usual).drawn_on is None


def test_who_draws(monkeypatch):
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    memory = 4 * sum(p.numel() for p in random_model(tiny_config("llama"), "default", seed=0).parameters())
    card = {"bytes": 2 * memory}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: type("Card", (), {"total_memory": card["bytes"]})
    )
    assert drawing_device(tiny_config("llama"), cpu) == cpu
    assert drawing_device(tiny_config("llama"), gpu) == gpu
    assert drawing_device(tiny_config("llama"), gpu, trust_remote_code=True) == cpu
    assert drawing_device(AutoConfig.for_model("repflow_stack", mixers="s6", hidden_size=8), gpu) == cpu
    card["bytes"] -= 1
    assert drawing_device(tiny_config("llama"), gpu) == cpu, "float32 would take more than half of it"


def test_rotary_frequencies_stay_in_float32():
    network = random_model(tiny_config("llama"), "default", seed=0)
    exact = network.base_model.rotary_emb.inv_freq.clone()
    half = cast(network, torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert torch.equal(half.base_model.rotary_emb.inv_freq, exact)
    assert not any("inv_freq" in name for name in half.state_dict())
