"""A live model that was read before is not checked again, unless anything of it changed."""

import gc
import weakref

import pytest
import torch

import repflow
from repflow.models import load
from repflow.models import self_check as checks
from repflow.models.devices import probe_dtype
from tests.models.tiny_configs import tiny_model


@pytest.fixture
def counted(monkeypatch):
    """How often the self-check ran."""
    seen = []
    real = checks.record

    def record(*args, **kwargs):
        seen.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(checks, "record", record)
    return seen


@pytest.fixture(params=["gpt_neox", "mamba2"])
def network(request):
    return tiny_model(request.param)


def test_the_second_reading_needs_no_check(network, counted):
    first, second = load(network), load(network)
    assert len(counted) == 1
    assert second is not first
    assert second.findings is not first.findings
    assert second.digest() == first.digest()
    ids = torch.arange(3, 13)[None]
    one, two = (repflow.states(model, ids)[0] for model in (first, second))
    assert torch.equal(one, two)


def train_step(network):
    with torch.no_grad():
        next(network.parameters()).mul_(1.5)


def new_hook(network):
    list(network.modules())[3].register_forward_hook(lambda *_: None)


def other_config(network):
    network.config.bos_token_id = 5


def replaced_parameter(network):
    module = next(m for m in network.modules() if isinstance(m, torch.nn.Linear))
    module.weight = torch.nn.Parameter(module.weight.detach().clone())


def replaced_module(network):
    parent = next(m for m in network.modules() if any(isinstance(c, torch.nn.Linear) for c in m.children()))
    name = next(n for n, c in parent.named_children() if isinstance(c, torch.nn.Linear))
    setattr(parent, name, torch.nn.Sequential(getattr(parent, name)))


def own_forward(network):
    module = next(m for m in network.modules() if isinstance(m, torch.nn.Linear))
    real = module.forward
    module.forward = lambda x: real(x)


def plain_attribute(network):
    next(m for m in network.modules() if isinstance(m, torch.nn.LayerNorm)).eps = 0.5


CHANGES = [plain_attribute, train_step, new_hook, other_config, replaced_parameter, replaced_module, own_forward]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changed_is_checked_again(change, counted):
    network = tiny_model("gpt_neox")
    load(network)
    change(network)
    load(network)
    assert len(counted) == 2


def test_a_tokenizer_belongs_to_the_call(network):
    first = load(network, tokenizer=lambda text: [3] * len(text))
    assert load(network).tokenizer is None
    assert first.tokenizer is not None


def test_nothing_is_kept_of_a_model_that_went():
    model = tiny_model("gpt_neox")
    load(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(probe_dtype(torch.float16) is not None, reason="this CPU cannot run float16")
def test_half_precision_is_checked_once_for_the_same_weights_and_prompts(monkeypatch):
    from repflow.capture import precision

    network, ids = tiny_model("gpt_neox").half(), torch.arange(3, 43).reshape(2, 20)
    passes = []
    real = precision.start_batch
    monkeypatch.setattr(precision, "start_batch", lambda *a, **k: passes.append(1) or real(*a, **k))
    first = repflow.measure(network, ids, allow_float16=True)
    again = repflow.measure(network, ids, allow_float16=True)
    assert len(passes) == 2
    assert (first["float32_change/token_similarity"] == again["float32_change/token_similarity"]).all()
    repflow.measure(network, ids + 1, allow_float16=True)
    assert len(passes) == 4
    train_step(network)
    repflow.measure(network, ids + 1, allow_float16=True)
    assert len(passes) == 6
