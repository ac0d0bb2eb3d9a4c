"""Delta-rule models: the same states as transformers' own, with caches, gradients, and packages that cannot run."""

import copy
import importlib.util

import pytest
import torch

from repflow.models import load
from repflow.models.fastpath import delta_call, layer_scan
from repflow.models.fastpath.scan_call import NotReadError, read_call
from tests.models.tiny_configs import tiny_model

pytestmark = pytest.mark.numeric
MODELS = ("qwen3_next", "qwen3_5_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid")
CHUNKED = [{"path": "chunked", "reason": "tensors on the cpu"}]


def states_of(model, ids):
    hidden = []
    model.stream(ids, on_state=lambda _, state: hidden.append(state.clone()))
    return torch.stack(hidden)


@pytest.mark.parametrize("model_type", MODELS)
def test_same_states_and_facts(model_type, ids):
    network = tiny_model(model_type)
    ours, theirs = load(network), load(copy.deepcopy(network), scan="reference")
    fast, slow = states_of(ours, ids), states_of(theirs, ids)
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=2e-5 * float(slow.abs().max()))
    assert ours.scans.facts()["delta"] == {"layers": 2, "ran": CHUNKED}
    assert theirs.scans.facts()["delta"]["ran"] == [{"path": "transformers", "reason": "asked for"}]
    assert not ours.scans.findings()


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear"])
def test_generation_with_a_cache(model_type, ids):
    """The prompt runs in chunks, later tokens one by one from the cached state."""
    network = tiny_model(model_type)
    plain = {"max_new_tokens": 5, "do_sample": False, "use_cache": True, "eos_token_id": None}
    theirs = load(copy.deepcopy(network), scan="reference").network.generate(ids, **plain)
    model = load(network, scan="fast")
    assert torch.equal(model.network.generate(ids, **plain), theirs)
    assert model.scans.facts()["delta"]["ran"] == CHUNKED


@pytest.mark.parametrize("model_type", ["qwen3_next", "kimi_linear"])
def test_gradients_through_the_model(model_type, ids):
    network = tiny_model(model_type)
    grads = []
    for model in (load(network), load(copy.deepcopy(network), scan="reference")):
        embeds = model.network.get_input_embeddings()(ids).detach().requires_grad_()
        last = model.network.base_model(inputs_embeds=embeds, use_cache=False).last_hidden_state[:, -1]
        weights = torch.randn(last.shape[-1], generator=torch.Generator().manual_seed(1))
        grads.append(torch.autograd.grad((last * weights).sum(), embeds)[0])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-3, atol=1e-5 * float(grads[1].abs().max()))


def test_wrong_rule_is_found_at_load(monkeypatch, ids):
    right = delta_call.DeltaCall.run
    monkeypatch.setattr(delta_call.DeltaCall, "run", lambda call: (right(call)[0] * 1.01, right(call)[1]))
    network = tiny_model("qwen3_next")
    want = states_of(load(copy.deepcopy(network), scan="reference"), ids)
    model = load(network)
    assert torch.equal(states_of(model, ids), want)
    assert "the fast scan differs from transformers' by 1.0e-02" in model.findings[-1].message


class Calls:
    """A function that transformers would call, another package's kernel in front of its torch form."""

    def __init__(self, kernel):
        self.kernel, self.__wrapped__ = kernel, lambda q, *_, **__: ("torch", q)

    def __call__(self, *args, **kwargs):
        return self.kernel(*args, **kwargs)


def broken(*_, **__):
    raise OSError("0 active drivers\nlong story")


@pytest.mark.parametrize(
    ("kernel", "output", "ran"),
    [
        (lambda *_, **__: "theirs", "theirs", ("flash-linear-attention", "asked for")),
        (broken, ("torch", 1), ("transformers", "asked for; flash-linear-attention failed: 0 active drivers")),
    ],
)
def test_reference_takes_the_package_where_it_runs(monkeypatch, kernel, output, ran):
    monkeypatch.setattr(layer_scan, "_on_gpu", lambda args: True)
    assert importlib.util.find_spec("fla") is not None
    layer = layer_scan.LayerScan("delta", 0, "reference")
    assert layer.answer("delta", Calls(kernel), (1,), {}) == output
    assert list(layer.ran) == [ran]


def test_the_package_never_comes_first():
    assert layer_scan.left_alone("auto", (), "delta") is None


def rule(
    query, key, value, g, beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False, **kwargs
):
    return value, None


def test_calls_left_to_transformers():
    x, scalar = torch.ones(1, 3, 2, 4), torch.ones(1, 3, 2)
    given = {"query": x, "key": x, "value": x, "g": -scalar, "beta": scalar}
    call = read_call("delta", rule, (), given)
    y, final = call.run()
    assert call.answer(y, final)[1] is None
    assert call.theirs() is x
    with pytest.raises(NotReadError, match="packed sequences"):
        read_call("delta", rule, (), {**given, "cu_seqlens": torch.tensor([0, 3])})
    with pytest.raises(NotReadError, match=r"beta of dtype torch\.int64"):
        read_call("delta", rule, (), {**given, "beta": scalar.long()})
    with pytest.raises(NotReadError, match="no tokens"):
        read_call("delta", rule, (), {name: part[:, :0] for name, part in given.items()})
